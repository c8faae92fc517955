"""
A report as one HTML page: no network, no script, light and dark, fit for paper and for a phone.

Everything that comes from a store is escaped: a topic may have any name.
"""

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from jobs.report.charts import bars, html_text, number, timeline
from jobs.report.model import Facts, Grid, Part, Report, Value

_HEALTH = {"good": "all is well", "attention": "look at this", "bad": "something is wrong"}

_STYLE = files(__package__).joinpath("page.css").read_text(encoding="utf-8")


def page(report: Report) -> str:
    """Return the whole page."""
    title = html_text(f"{report.verb} · {report.subject}")
    sections = "".join(_section(part) for part in report.parts)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><header>"
        f'<p class="light {html_text(report.health)}">{html_text(_HEALTH.get(report.health, report.health))}</p>'
        f"<h1>{html_text(report.headline)}</h1><p>rmq-lake {title}</p><p>{html_text(report.made)}</p></header>"
        f"<main>{sections}</main></body></html>\n"
    )


def _section(part: Part) -> str:
    body = _RENDERERS[part.kind](part)
    note = getattr(part, "note", "")
    shown_note = f'<p class="note">{html_text(note)}</p>' if note else ""
    return f"<section><h2>{html_text(part.title)}</h2>{body}{shown_note}</section>"


def _facts(part: Facts) -> str:
    rows = "".join(f"<dt>{html_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in part.values.items())
    return f"<dl>{rows}</dl>"


def _grid(part: Grid) -> str:
    numeric = [all(_is_number(row[at]) for row in part.rows) and bool(part.rows) for at in range(len(part.columns))]
    head = "".join(
        f'<th{_align(n)} scope="col">{html_text(name)}</th>' for name, n in zip(part.columns, numeric, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{_align(n)}>{_text(value)}</td>" for value, n in zip(row, numeric, strict=True)) + "</tr>"
        for row in part.rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _align(is_number: bool) -> str:  # noqa: FBT001 - one fact
    return ' class="n"' if is_number else ""


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Value) -> str:
    if value is None:
        return "-"
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else html_text(str(value))


_RENDERERS: Mapping[str, Callable[[Any], str]] = {
    "facts": _facts,
    "grid": _grid,
    "bars": bars,
    "timeline": timeline,
}
