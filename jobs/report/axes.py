"""Round numbers and round times: the ticks of an axis, and the width of a bucket."""

from datetime import UTC, datetime
from itertools import pairwise
from math import ceil, log10
from typing import NamedTuple

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_YEAR = 365 * _DAY
_DURATIONS = (
    *(factor * power for power in (1, 10, 100) for factor in (1, 2, 5)),
    *(seconds * _SECOND for seconds in (1, 2, 5, 10, 15, 30)),
    *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY for days in (1, 2, 5, 10, 30, 90)),
    *(years * _YEAR for years in (1, 2, 5, 10, 100, 1000, 10_000, 1_000_000)),
)
_DATE = "%Y-%m-%d"
_TIMES = 6  # ticks at most
_NAMES = ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (_SECOND, "s"), (1, "ms"))


class Tick(NamedTuple):
    """One mark of an axis."""

    share: float  # of the axis's length
    label: str


def round_step(highest: float, count: int = 4) -> float:
    """Return the distance of ticks that lie at round numbers, at most *count* of them up to *highest*."""
    least = max(highest, 1e-9) / count
    power = 10.0 ** (ceil(log10(least)) - 1)
    return next((factor * power for factor in (1, 2, 5) if factor * power >= least * (1 - 1e-9)), 10 * power)


def whole_step(highest: float) -> int:
    """Return the same for things that are counted."""
    return max(round(round_step(highest)), 1)


def round_duration(least: float) -> int:
    """Return the shortest round number of milliseconds, seconds, minutes, … that is no shorter than *least*."""
    return next((duration for duration in _DURATIONS if duration >= least), _DURATIONS[-1])


def duration_name(milliseconds: int) -> str:
    """Return a round duration with its unit."""
    size, unit = next((size, unit) for size, unit in _NAMES if milliseconds % size == 0 or size == 1)
    return f"{milliseconds // size:,} {unit}"


def time_ticks(start: int, end: int) -> list[Tick]:
    """Return ticks at round times from *start* to *end* (milliseconds, UTC); where a day begins, with its date."""
    step = next((step for step in _DURATIONS if (end - start) / step <= _TIMES), _DURATIONS[-1])
    times = range(-(-start // step) * step, end + 1, step)
    dates = [time_text(time) for time in times]
    is_new = [False, *(before != after for before, after in pairwise(dates))]
    return [
        Tick((time - start) / max(end - start, 1), _label(time, step, with_date=first))
        for time, first in zip(times, is_new, strict=False)
    ]


def _label(time: int, step: int, *, with_date: bool) -> str:
    if step >= _DAY:
        return time_text(time)
    clock = time_text(time, "%H:%M" if step >= _MINUTE else "%H:%M:%S")
    if step < _SECOND:
        clock += f".{time % _SECOND:03d}"
    return f"{time_text(time, '%m-%d')} {clock}" if with_date else clock


def time_text(time: int, form: str = _DATE) -> str:
    """Return a time (milliseconds) in UTC, by default its day."""
    try:
        return datetime.fromtimestamp(time // _SECOND, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):  # no time that a calendar has; no I/O
        return f"{time} ms"
