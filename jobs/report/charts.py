"""
Plots as HTML and SVG: bars and timelines, with a title for screen readers. No script, no library, no network.

Text is HTML beside the drawing, never in it: so it keeps its size on a phone.
"""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import cycle

from jobs.console.terminal import printable
from jobs.report.axes import Tick, duration_name, round_step, time_text, time_ticks, whole_step
from jobs.report.model import Bars, Timeline

COLOURS = 8  # of series, in the page's style sheet; further ones are summed up
_HEIGHT = 100  # of a drawing, in units of its own
_WITH_DECIMALS = 1000  # numbers below it
_BESIDE_BARS = 40  # characters of a name
_HALF = (_BESIDE_BARS - 1) // 2  # of a longer one, from each end


def number(value: float) -> str:
    """Return a number as people write it."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.3g}" if abs(value) < _WITH_DECIMALS else f"{value:,.0f}"


def html_text(text: str) -> str:
    """Return *text*, which may come from a store, as a page shows it: no mark-up, and nothing that is not printable."""
    return escape(printable(text))


def bars(part: Bars) -> str:
    """Return horizontal bars on an axis with ticks, and a mark where the ideal is; equal numbers are a sentence."""
    if not part.ideal and len(set(part.values.values())) == 1:
        names, value = ", ".join(map(html_text, part.values)), next(iter(part.values.values()))
        unit = html_text(part.unit.removesuffix("s") if value == 1 else part.unit)
        each = " each" if len(part.values) > 1 else ""
        return f'<p class="single">{names}: <b>{number(value)}</b> {unit}{each}</p>'
    highest = max([*part.values.values(), *part.ideal.values(), 0])
    is_counted = all(float(value).is_integer() for value in part.values.values())
    step = whole_step(highest) if is_counted else round_step(highest)
    ticks = [tick * step for tick in range(int(highest / step) + 1)]
    whole = max(highest, 1e-9) * 1.02  # a little room for the last tick
    rows = "".join(_bar(name, value, part.ideal.get(name), whole) for name, value in part.values.items())
    axis = _x_axis([Tick(tick / whole, number(round(tick, 9))) for tick in ticks])
    grid = f"--tick:{100 * step / whole:.4f}%"
    return (
        f'<div class="bars" role="img" aria-label="{html_text(f"{part.title}, {part.unit}")}" style="{grid}">{rows}'
        f'<span></span>{axis}<span class="unit">{html_text(part.unit)}</span></div>'
    )


def _bar(name: str, value: float, ideal: float | None, whole: float) -> str:
    mark = "" if ideal is None else f'<i class="ideal" style="left:{100 * ideal / whole:.3f}%"></i>'
    return (
        f'<span class="label">{html_text(_short(name)).replace("_", "_<wbr>")}</span>'
        f'<span class="track"><i class="bar k0" style="width:{100 * value / whole:.3f}%"></i>{mark}</span>'
        f'<span class="number">{number(value)}</span>'
    )


def _x_axis(ticks: Iterable[Tick]) -> str:
    classes = cycle(("tick", "tick other"))  # a phone shows every second one
    marks = "".join(
        f'<span class="{kind}" style="left:{100 * tick.share:.3f}%">{html_text(tick.label)}</span>'
        for kind, tick in zip(classes, ticks, strict=False)
    )
    return f'<span class="axis">{marks}</span>'


def timeline(part: Timeline) -> str:
    """Return stacked columns over time, with round numbers and round times at the axes, unit, zone and bucket width."""
    series = list(part.series.items())[:COLOURS]
    count = max((len(values) for _, values in series), default=0)
    totals = [sum(values[slot] for _, values in series) for slot in range(count)]
    step = whole_step(max([*totals, 1]))
    top = -(-max([*totals, 1]) // step) * step
    name = html_text(f"{part.title}, {part.unit}")
    end = part.start + count * part.step
    levels = [Tick(level / top, number(level)) for level in range(0, top + 1, step)]
    bucket = f"store time in UTC from {time_text(part.start)}, one column = {duration_name(part.step)}"
    return (
        f'<p class="unit">{html_text(part.unit)}</p><div class="timeline"><span class="levels">{_levels(levels)}</span>'
        f'<svg viewBox="0 0 {max(count, 1)} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{name}">'
        f"<title>{name}</title>{_grid_lines(levels, count)}{_columns(series, count, top)}</svg>"
        f"{_x_axis(time_ticks(part.start, end))}</div>"
        f'<p class="unit below">{html_text(bucket)}</p>{_legend([label for label, _ in series])}'
    )


def _levels(ticks: Iterable[Tick]) -> str:
    return "".join(
        f'<span class="level" style="bottom:{100 * tick.share:.3f}%">{html_text(tick.label)}</span>' for tick in ticks
    )


def _grid_lines(ticks: Iterable[Tick], count: int) -> str:
    heights = [_HEIGHT * (1 - tick.share) for tick in ticks]
    return "".join(
        f'<line class="grid" vector-effect="non-scaling-stroke" x1="0" x2="{count}" y1="{y:.2f}" y2="{y:.2f}"/>'
        for y in heights
    )


def _columns(series: Sequence[tuple[str, Sequence[int]]], count: int, top: int) -> str:
    drawn = []
    for slot in range(count):
        base = float(_HEIGHT)
        for colour, (_, values) in enumerate(series):
            length = _HEIGHT * values[slot] / top
            if length:
                base -= length
                drawn.append(
                    f'<rect class="s{colour}" x="{slot + 0.05:.2f}" y="{base:.2f}" width="0.9" height="{length:.2f}"/>'
                )
    return "".join(drawn)


def _legend(names: Sequence[str]) -> str:
    items = "".join(
        f'<li><span class="key k{colour}"></span>{html_text(_short(name))}</li>' for colour, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'


def _short(name: str) -> str:
    return name if len(name) <= _BESIDE_BARS else f"{name[:_HALF]}…{name[-_HALF:]}"
