"""The known offsets of a log: merged intervals, and the gaps between them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from jobs.console.amounts import counted
from rmq_formats.kernels.integers import Integers

Interval = tuple[int, int]
_NONE = np.empty(0, np.int64)


@dataclass(slots=True)
class Coverage:
    """Intervals of offsets, in any order."""

    _starts: list[Integers] = field(default_factory=list)
    _ends: list[Integers] = field(default_factory=list)

    def add(self, starts: Integers, ends: Integers) -> None:
        """Add intervals."""
        self._starts.append(starts)
        self._ends.append(ends)

    def merged(self) -> tuple[list[Interval], list[Interval]]:
        """Return the covered intervals, ascending and joined where they touch, and the parts that are covered twice."""
        starts, ends = np.concatenate([_NONE, *self._starts]), np.concatenate([_NONE, *self._ends])
        if not starts.size:
            return [], []
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        # The farthest end so far. What starts before it overlaps, what starts at it touches and is joined: only where a
        # start lies beyond it does a new interval begin.
        reach = np.maximum.accumulate(ends)
        overlaps = np.flatnonzero(starts[1:] < reach[:-1]) + 1
        twice = [(int(starts[at]), int(min(ends[at], reach[at - 1]))) for at in overlaps.tolist()]
        first = np.concatenate(([0], np.flatnonzero(starts[1:] > reach[:-1]) + 1))
        last = np.concatenate((first[1:] - 1, [starts.size - 1]))
        return list(zip(starts[first].tolist(), reach[last].tolist(), strict=True)), twice


def missing(covered: Iterable[Interval], start: int, end: int) -> Iterator[Interval]:
    """Yield the parts of [start, end) that the ascending intervals do not cover."""
    edges = [(start, start), *((max(a, start), min(b, end)) for a, b in covered if b > start and a < end), (end, end)]
    yield from ((left[1], right[0]) for left, right in pairwise(edges) if right[0] > left[1])


def unchecked_note(places: Sequence[Interval]) -> list[str]:
    """Say which rows cannot be checked."""
    if not places:
        return []
    start, end = places[0]
    more = f" and in {counted(len(places) - 1, 'more part')} of the log" if len(places) > 1 else ""
    sentence = (
        f"rows from {start:,} to {end:,}{more} are unchecked: they have no record_crc, as earlier versions wrote them, "
        "so a change of one by another engine need not show"
    )
    return [sentence]
