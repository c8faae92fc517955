"""Plots as SVG text: bars and timelines, with a title for who cannot see them. No script, no library, no network."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from jobs.console.terminal import printable
from jobs.report.model import Bars, Timeline

_WIDTH = 720
_BAR = 22
_LABEL = 236
_NUMBER = 90
_HEIGHT = 220
_LEFT, _BOTTOM, _TOP = 56, 28, 10
COLOURS = 8  # of series, in the page's style sheet; further ones are summed up


def number(value: float) -> str:
    """Return a number as people write it."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.3g}"


def html_text(text: str) -> str:
    """Return *text*, which may come from a store, as a page shows it: no mark-up, and nothing that is not printable."""
    return escape(printable(text))


def bars(part: Bars) -> str:
    """Return horizontal bars, with a mark where the ideal is."""
    names = list(part.values)
    highest = max([*part.values.values(), *part.ideal.values(), 1e-9])
    room = _WIDTH - _LABEL - _NUMBER
    height = _BAR * len(names) + 6
    lines = [_opening(height, f"{part.title}, {part.unit}")]
    for row, name in enumerate(names):
        value = part.values[name]
        top = row * _BAR + 4
        length = max(room * value / highest, 1 if value else 0)
        lines.append(
            f'<text class="label" x="{_LABEL - 8}" y="{top + 13}" text-anchor="end">{html_text(_short(name))}</text>'
        )
        lines.append(f'<rect class="s0" x="{_LABEL}" y="{top}" width="{length:.1f}" height="{_BAR - 6}"/>')
        end = _LABEL + length
        if name in part.ideal:
            at = _LABEL + room * part.ideal[name] / highest
            end = max(end, at)
            lines.append(f'<line class="ideal" x1="{at:.1f}" x2="{at:.1f}" y1="{top - 2}" y2="{top + _BAR - 4}"/>')
        lines.append(f'<text class="number" x="{end + 6:.1f}" y="{top + 13}">{number(value)}</text>')
    return "".join([*lines, "</svg>"])


def timeline(part: Timeline) -> str:
    """Return stacked columns over time."""
    series = list(part.series.items())[:COLOURS]
    count = max((len(values) for _, values in series), default=0)
    totals = [sum(values[slot] for _, values in series) for slot in range(count)]
    highest = max([*totals, 1])
    room, depth = _WIDTH - _LEFT - 10, _HEIGHT - _BOTTOM - _TOP
    width = room / max(count, 1)
    lines = [_opening(_HEIGHT, f"{part.title}, {part.unit}")]
    for share in (0.5, 1.0):
        y = _TOP + depth * (1 - share)
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>')
        label = number(round(highest * share))
        lines.append(f'<text class="number" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for slot in range(count):
        base = float(_TOP + depth)
        for colour, (_, values) in enumerate(series):
            length = depth * values[slot] / highest
            if length:
                base -= length
                place = f'x="{_LEFT + slot * width:.1f}" y="{base:.1f}"'
                size = f'width="{max(width - 0.6, 0.6):.1f}" height="{length:.1f}"'
                lines.append(f'<rect class="s{colour}" {place} {size}/>')
    for slot, anchor in ((0, "start"), (count, "end")):
        x = _LEFT + slot * width
        lines.append(
            f'<text class="label" x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{_when(part, slot)}</text>'
        )
    return "".join([*lines, "</svg>"]) + _legend([name for name, _ in series])


def _legend(names: Sequence[str]) -> str:
    items = "".join(
        f'<li><span class="key k{colour}"></span>{html_text(name)}</li>' for colour, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'


def _when(part: Timeline, slot: int) -> str:
    try:
        moment = datetime.fromtimestamp((part.start + slot * part.step) / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(part.start + slot * part.step)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _opening(height: float, title: str) -> str:
    name = html_text(title)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{name}"><title>{name}</title>'


def _short(name: str) -> str:
    return name if len(name) <= 30 else f"{name[:14]}…{name[-14:]}"  # noqa: PLR2004 - what fits beside the bars
