"""
Intervals of offsets, positions or numbers: pairs of a start and an end, which is not included.

Sequences of intervals are ascending and do not overlap, unless a function says otherwise.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

Interval = tuple[int, int]
Integers = NDArray[np.int64]
_START, _END = itemgetter(0), itemgetter(1)
_NONE = np.empty(0, np.int64)


def find_interval(intervals: Sequence[Interval], number: int) -> Interval | None:
    """Return the interval that contains *number*; None if there is none."""
    at = bisect_right(intervals, number, key=_START) - 1
    return intervals[at] if at >= 0 and number < intervals[at][1] else None


def find_overlapping(intervals: Sequence[Interval], start: int, end: int) -> Sequence[Interval]:
    """Return the intervals that overlap [*start*, *end*)."""
    return intervals[bisect_right(intervals, start, key=_END) : bisect_left(intervals, end, key=_START)]


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Return intervals, which may be in any order and overlap, in order; merged if they overlap or touch."""
    bounds = _as_array(list(intervals))
    return merge_and_find_overlaps([(bounds[:, 0], bounds[:, 1])])[0]


def merge_and_find_overlaps(bounds: Sequence[tuple[Integers, Integers]]) -> tuple[list[Interval], list[Interval]]:
    """
    Return intervals in order, merged if they overlap or touch, and the parts that are covered twice.

    *bounds* are pairs of starts and ends, in any order.
    """
    starts, ends = (np.concatenate(column) for column in zip((_NONE, _NONE), *bounds, strict=True))
    if not starts.size:
        return [], []
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    # The highest end so far. An interval that starts before it overlaps, one that starts at it is merged.
    reach = np.maximum.accumulate(ends)
    overlaps = np.flatnonzero(starts[1:] < reach[:-1]) + 1
    twice = [(int(starts[at]), int(min(ends[at], reach[at - 1]))) for at in overlaps.tolist()]
    first = np.concatenate(([0], np.flatnonzero(starts[1:] > reach[:-1]) + 1))
    last = np.concatenate((first[1:] - 1, [starts.size - 1]))
    return list(zip(starts[first].tolist(), reach[last].tolist(), strict=True)), twice


def uncovered_parts(covered: Iterable[Interval] | Integers, start: int, end: int) -> Iterator[Interval]:
    """Yield the parts of [*start*, *end*) that the intervals, which ascend and may overlap, do not cover."""
    bounds = covered if isinstance(covered, np.ndarray) else _as_array(list(covered))
    starts = np.minimum(np.append(bounds[:, 0], end), end)
    ends = np.maximum.accumulate(np.append(start, bounds[:, 1]))
    are_gaps = starts > ends
    yield from zip(ends[are_gaps].tolist(), starts[are_gaps].tolist(), strict=True)


def subtract_intervals(intervals: Iterable[Interval], removed: Iterable[Interval]) -> list[Interval]:
    """Return the parts of intervals that no *removed* one covers; both may be in any order and overlap."""
    covered = merge_intervals(removed)
    return [part for interval in merge_intervals(intervals) for part in uncovered_parts(covered, *interval)]


def is_covered(covered: Iterable[Interval], start: int, end: int) -> bool:
    """Return whether intervals, which may be in any order and overlap, cover [*start*, *end*)."""
    return not any(uncovered_parts(sorted(covered), start, end))


def _as_array(intervals: Sequence[Interval]) -> Integers:
    return np.array(intervals, np.int64).reshape(-1, 2)
