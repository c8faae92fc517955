"""
The records of a log as one pass sees them: which are damaged, and which a checksum or their own bytes contradict.

`LogCheck` is a collector: it looks at the records on their way to the task that reads the log anyway.

No checksum covers a store time; only an index entry repeats it, and a record without keys has none. A clock that is set
wrong stays so for the records after it. A time that only one record has is of a changed bit, if one bit explains it.
Otherwise it is undecided: a clock may have been corrected before the next record.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from jobs.diagnosis.broker_start import BadPlace, WalkedLog
from jobs.lake.findings import WRONG_BODY, WRONG_RECORD, WRONG_STORE_TIME, ZEROED_PROPERTIES
from jobs.store.ranges import Range
from rmq_formats.commitlog import kernels
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.kernels.integers import Integers
from rmq_formats.properties import CRC_NAME, CRC_SIZE, INNER_MULTI_DISPATCH

FAR = 86_400_000  # ms: a day
_NEAR = 60_000  # ms by which the right time may be outside of its neighbours' times
_LOWEST_BIT = FAR.bit_length() - 1
_KINDS = {kernels.BODY_CRC: WRONG_BODY, kernels.RECORD_CRC: WRONG_RECORD, kernels.ZEROS: ZEROED_PROPERTIES}


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


class ChangedRecord(NamedTuple):
    """A record that is framed soundly, and is not what a broker wrote."""

    offset: int
    size: int
    kind: str  # of the finding


@dataclass(slots=True)
class RangeCheck:
    """The damage in one range of the log, noted while its pieces pass."""

    records: int = 0
    damaged: list[Piece] = field(default_factory=list)
    wrong: list[ChangedRecord] = field(default_factory=list)  # of these the body has another CRC
    doubtful: list[ChangedRecord] = field(
        default_factory=list
    )  # complete for a broker, but changed since it was written
    newest_timestamp: int = 0  # the latest store time
    places: list[BadPlace] = field(default_factory=list)  # the damage, and ends of files, with whole messages before
    times: StoreTimes = field(default_factory=StoreTimes)
    undecided: list[StrayTime] = field(default_factory=list)  # of a changed record, or of a clock

    @property
    def messages(self) -> int:
        """How many records are whole."""
        return self.records - len(self.wrong)

    def watch(self, pieces: Iterator[Records | Piece]) -> Iterator[Records | Piece]:
        """Yield *pieces*, and look at each on its way."""
        for item in pieces:
            if isinstance(item, Piece):
                if item.kind is PieceKind.DAMAGE:
                    self.damaged.append(item)
                    self._note(item.offset, item.end)
                elif item.kind is PieceKind.BLANK:
                    self._note(item.offset, item.offset)
            else:
                times = np.empty(item.positions.size, np.int64)
                kernels.store_timestamps(item.buffer, item.positions, times)
                self.newest_timestamp = max(self.newest_timestamp, int(times.max(initial=0)))
                self.times.add(item, times)
                self._check_records(item)
                self.records += int(item.positions.size)
            yield item

    def _check_records(self, item: Records) -> None:
        numbers, kinds = np.empty((2, item.positions.size), np.int64)
        count = kernels.find_wrong_records(item.buffer, item.positions, numbers, kinds)
        for number, kind in zip(numbers[:count].tolist(), kinds[:count].tolist(), strict=True):
            at, size = int(item.positions[number]), int(item.sizes[number])
            record = ChangedRecord(item.base_offset + at, size, _KINDS[kind])
            if kind == kernels.BODY_CRC:
                self._note(record.offset, record.offset + size, records_before=number)
                self.wrong.append(record)
            elif kind == kernels.RECORD_CRC or not _has_unused_room(item, at, size):
                self.doubtful.append(record)

    def add_stray_times(self, found: Sequence[StrayTime]) -> None:
        """Note store times that leave those around them, of records that nothing else shows to be changed."""
        changed = {one.offset for one in (*self.wrong, *self.doubtful)}
        for stray in found:
            if stray.record.offset in changed:
                continue
            if stray.right is None:
                self.undecided.append(stray)
            else:
                self.doubtful.append(ChangedRecord(stray.record.offset, stray.record.size, WRONG_STORE_TIME))

    def _note(self, offset: int, end: int, records_before: int = 0) -> None:
        self.places.append(BadPlace(offset, end, self.messages + records_before))


def check_range(_range: Range, pieces: Iterator[Records | Piece]) -> None:
    """Consume the range; only collectors use it."""
    for _ in pieces:
        pass


class LogCheck:
    """Collects the damage of the log during the first pass over it."""

    of_range = RangeCheck

    def __init__(self) -> None:
        self.checks: list[RangeCheck] = []
        self.is_complete = False

    @property
    def doubtful(self) -> list[tuple[int, int]]:
        """Begin and end of records that a broker accepts although they are not as it wrote them."""
        return [(one.offset, one.offset + one.size) for check in self.checks for one in check.doubtful]

    def take(self, collected: Sequence[RangeCheck]) -> None:
        """Take the checks of all ranges, and compare store times across them."""
        self.checks, self.is_complete = list(collected), True
        for check, stray in zip(self.checks, stray_times([one.times for one in self.checks]), strict=True):
            check.add_stray_times(stray)


def walked_log(checks: Sequence[RangeCheck], log_end: int) -> WalkedLog:
    """Return the result of the pass over the log, in the form that the prediction of a start needs."""
    places: list[BadPlace] = []
    messages = 0
    for check in checks:
        places += (place._replace(sound_before=place.sound_before + messages) for place in check.places)
        messages += check.messages
    return WalkedLog(log_end, messages, places, max((check.newest_timestamp for check in checks), default=0))


def _has_unused_room(group: Records, at: int, size: int) -> bool:
    """Return whether zeros are the room of a CRC that 5.2.0 and 5.3.0 leave in records of several queues."""
    record = group.buffer[at : at + size].tobytes()
    is_room = INNER_MULTI_DISPATCH.encode() in record and any(record[-CRC_SIZE - 1 : -CRC_SIZE])
    return is_room and CRC_NAME.encode() not in group.buffer.tobytes()
