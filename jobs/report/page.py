"""
A report as one HTML page: no network, no script, light and dark, fit for paper and for a phone.

First the result in one line, then what to do, each step with the findings that it is for, then the rest. Everything
that comes from a store is escaped: a topic may have any name.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from jobs.console.severity import Severity
from jobs.report.charts import bars, html_text, number, timeline
from jobs.report.model import Facts, Grid, Part, Remedy, Report, Value

_STYLE = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
_CARDS = 8  # rows that are shown as cards, not as a table
_NUMBER = re.compile(r"(\d) (?=[a-zA-Z])")
_NOTE = re.compile(r"^note \d+$")
_LONG = 40  # characters of a cell
_LONG_WORD = re.compile(r"[^\s&;<>]{25,}")
_PIECE = re.compile(r"[^/]{0,31}/|[^/]{1,32}")
_PERCENT = re.compile(r"[\d.]+%")
_SHOWN = 200  # rows of a table; report.json has all
_WORDS = frozenset(severity.value for severity in Severity)  # shown in their colours


def page(report: Report) -> str:
    """Return the page."""
    title = html_text(f"{report.verb} · {report.subject}")
    sections = "".join(_section(part) for part in report.parts)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><header>"
        f"<h1>{_verdict(report)}{_unbroken(report.headline)}</h1>"
        f"<p>rmq-lake {title}</p><p>{html_text(report.made)}</p></header>"
        f"<main>{_to_do(report)}{sections}</main></body></html>\n"
    )


def _verdict(report: Report) -> str:
    if not report.verdict:
        return ""
    return f'<span class="severity {_class_of(report.severity)}">{html_text(report.verdict)}</span> '


def _unbroken(text: str) -> str:
    """Return a line that never breaks between a number and its unit."""
    return _NUMBER.sub("\\1&nbsp;", html_text(text))


def _class_of(severity: str) -> str:
    return html_text(severity.replace(" ", "-"))


def _to_do(report: Report) -> str:
    if not report.remedies and not report.verdict:
        return ""
    steps = [_remedy(remedy) for remedy in report.remedies] or ['<p class="single">Nothing.</p>']
    is_list = len(steps) > 1
    shown = f'<ol class="steps">{"".join(f"<li>{step}</li>" for step in steps)}</ol>' if is_list else steps[0]
    return f"<section><h2>What to do</h2>{shown}</section>"


def _remedy(remedy: Remedy) -> str:
    commands = "".join(f"<pre>{_words(command)}</pre>" for command in remedy.commands)
    findings = ""
    if remedy.findings is not None:
        is_short = len(remedy.findings.rows) <= _CARDS
        findings = "".join(_cards(remedy.findings)) if is_short else _grid(remedy.findings)
    return f"<p>{html_text(remedy.words)}</p>{commands}{findings}"


def _words(command: str) -> str:
    """Return a command whose lines are broken between its words: browsers break `--lost-only` after any hyphen."""
    return " ".join(f"<span>{html_text(word)}</span>" for word in command.split(" "))


def _cards(part: Grid) -> Iterator[str]:
    """Yield a card for each row: the first two columns are its head."""
    for row in part.rows:
        head = " ".join(_text(value) for value in row[:2])
        named = zip(part.columns[2:], row[2:], strict=True)
        facts = "".join(f"<dt>{html_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in named if value != "")
        yield f'<div class="finding"><p>{head}</p><dl>{facts}</dl></div>'


def _section(part: Part) -> str:
    body = _RENDERERS[part.kind](part)
    note = getattr(part, "note", "")
    shown_note = f'<p class="note">{html_text(note)}</p>' if note else ""
    return f"<section><h2>{html_text(part.title)}</h2>{body}{shown_note}</section>"


def _facts(part: Facts) -> str:
    rows = "".join(f"<dt>{_label(name)}</dt><dd>{_text(value)}</dd>" for name, value in part.values.items())
    return f"<dl>{rows}</dl>"


def _label(name: str) -> str:
    """Return the name of a value as people write it: `from_offset` is 'from offset', `note 2` one of several notes."""
    return html_text(_NOTE.sub("note", name.replace("_", " ")))


def _grid(part: Grid) -> str:
    part = _without_empty_columns(part)
    aligned = [_align([row[at] for row in part.rows]) for at in range(len(part.columns))]
    head = "".join(
        f'<th{align} scope="col">{html_text(name)}</th>' for name, align in zip(part.columns, aligned, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row, aligned, part.columns))}</tr>" for row in part.rows[:_SHOWN])
    more = len(part.rows) - _SHOWN
    left_out = f'<p class="note">{more:,} more rows: report.json has all.</p>' if more > 0 else ""
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{left_out}'


def _without_empty_columns(part: Grid) -> Grid:
    kept = [
        at for at in range(len(part.columns)) if not part.rows or any(row[at] not in {None, ""} for row in part.rows)
    ]
    rows = [[row[at] for at in kept] for row in part.rows]
    return replace(part, columns=[part.columns[at] for at in kept], rows=rows)


def _align(column: Sequence[Value]) -> str:
    return ' class="n"' if column and all(map(_is_number, column)) else ""


def _cell(value: Value, align: str, column: str) -> str:
    """Return a cell with its column's name, which a phone shows before it: there each row is a card."""
    kind, text = align, _text(value)
    if isinstance(value, str) and value not in _WORDS:
        kind = ' class="long"' if len(value) > _LONG and " " in value else align
        text = _LONG_WORD.sub(_breakable, html_text(value))
    return f'<td{kind} data-name="{html_text(column)}">{text}</td>'


def _breakable(word: re.Match[str]) -> str:
    """Return a long word with the places where a line may break: after slashes, else after 32 characters."""
    return "<wbr>".join(_PIECE.findall(word[0]))


def _is_number(value: Value) -> bool:
    if isinstance(value, str):
        return _PERCENT.fullmatch(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    return f'<span class="severity {_class_of(value)}">{value}</span>' if value in _WORDS else html_text(value)


_RENDERERS: Mapping[str, Callable[[Any], str]] = {
    "facts": _facts,
    "grid": _grid,
    "bars": bars,
    "timeline": timeline,
}
