"""
Store times that leave those of the records around them and return.

No checksum covers a store time; only an index entry repeats it, and a record without keys has none. A clock that is set
wrong stays so for the records after it. A time that only one record has is of a changed bit, if one bit explains it.
Otherwise it is undecided: a clock may have been corrected before the next record.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rmq_formats.commitlog.scan import Records
from rmq_formats.kernels.integers import Integers

FAR = 86_400_000  # ms: a day
_NEAR = 60_000  # ms by which the right time may be outside of its neighbours' times
_LOWEST_BIT = FAR.bit_length() - 1


class StoredAt(NamedTuple):
    """A record, and its store time."""

    offset: int
    size: int
    time: int


class StrayTime(NamedTuple):
    """A record whose store time leaves those of the records before and after it."""

    record: StoredAt
    before: int
    after: int

    @property
    def right(self) -> int | None:
        """The time that one changed bit explains; None where no bit does."""
        low, high = min(self.before, self.after) - _NEAR, max(self.before, self.after) + _NEAR
        times = (_signed(self.record.time ^ 1 << bit) for bit in range(_LOWEST_BIT, 64))
        return next((time for time in times if low <= time <= high), None)


def _signed(value: int) -> int:
    return int(np.uint64(value & (1 << 64) - 1).astype(np.int64))


@dataclass(slots=True)
class StoreTimes:
    """The store times of a range of the log, as they pass: its stray ones, and those at its ends."""

    first: list[StoredAt] = field(default_factory=list)  # two at most
    last: list[StoredAt] = field(default_factory=list)  # two at most
    stray: list[StrayTime] = field(default_factory=list)

    def add(self, group: Records, times: Integers) -> None:
        """Compare the times of the next records."""
        known = self.last
        series = np.concatenate([np.array([one.time for one in known], np.int64), times])

        def record(number: int) -> StoredAt:
            if number < len(known):
                return known[number]
            at = number - len(known)
            offset = group.base_offset + int(group.positions[at])
            return StoredAt(offset, int(group.sizes[at]), int(times[at]))

        for number in _stray(series):
            self.stray.append(StrayTime(record(number), int(series[number - 1]), int(series[number + 1])))
        self.first += [record(len(known) + at) for at in range(min(2 - len(self.first), times.size))]
        self.last = [record(number) for number in range(max(series.size - 2, 0), series.size)]


def _stray(times: Integers) -> list[int]:
    """Return the numbers of times that differ from both neighbours by more than these differ from each other."""
    exact = times.astype(np.float64)  # a difference of two 64-bit integers may not fit into one
    steps = np.abs(np.diff(exact)) > FAR
    apart = np.abs(exact[2:] - exact[:-2]) > FAR
    return (np.flatnonzero(steps[:-1] & steps[1:] & ~apart) + 1).tolist()


def stray_times(ranges: Sequence[StoreTimes]) -> Iterator[list[StrayTime]]:
    """Yield the stray times of each range of a log, with those at its ends, whose neighbours are in other ranges."""
    filled = [one for one in ranges if one.first]
    before = dict(zip(map(id, filled[1:]), (one.last[-1:] for one in filled), strict=False))
    after = dict(zip(map(id, filled), (one.first[:1] for one in filled[1:]), strict=False))
    for one in ranges:
        ends: list[StrayTime] = []
        for row in ([*before.get(id(one), ()), *one.first], [*one.last, *after.get(id(one), ())]):
            # Of a range with one record both rows lack a neighbour.
            whole = [*before.get(id(one), ()), *row] if len(one.first) == 1 and row[:1] == one.first else row
            times = np.array([record.time for record in whole], np.int64)
            ends += (StrayTime(whole[at], whole[at - 1].time, whole[at + 1].time) for at in _stray(times))
        yield list(dict.fromkeys([*one.stray, *ends]))
