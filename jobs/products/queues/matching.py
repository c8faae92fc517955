"""
The expected units of a group's queues, compared with the stored ones, in one task.

In a healthy queue the unit of a record is where its queue offset says. So the units of a range are read by address, one
read a queue, and compared; neither side is sorted or moved. Units that are elsewhere or missing are left over until all
ranges are compared; then `unmatched` explains them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jobs.lake.table_file import Action
from jobs.products.queues.differences import Difference, DifferenceKind
from jobs.products.queues.rows import RowBlock, Status, batches_of, expected_rows
from jobs.products.queues.unit_files import GroupUnits, UnitFile, read_units
from jobs.products.queues.unmatched import (
    Bounds,
    LostRun,
    Remainder,
    UnmatchedClasses,
    joined_runs,
    lost_runs,
    runs,
    settle,
    unresolved,
)
from jobs.storage.scratch import Scratch
from jobs.store.queue_ends import EVERYTHING
from jobs.store.queue_files import StoredQueue, chunks
from jobs.store.topics import Fate
from jobs.store.units import Units, stored_tags_codes, units_of
from rmq_formats.arrays import slices
from rmq_formats.consumequeue.collect import PACKED_UNIT
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE
from rmq_formats.consumequeue.unit import LMQ_PREFIX, QueueKind, QueueName

_SPREAD = 4  # addresses a record, on either side of the middle one: beyond, a queue offset is of no row
_FREE = 4096
_RUNS = 100
_AT_ONCE = 1 << 16  # units

Rows = Iterator[pa.RecordBatch]
Write = Callable[[str, Rows], Action | None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The log, as the tasks that compare groups of queues with it know it."""

    scratch: Scratch | None
    ranges: tuple[UnitFile, ...]
    kept: tuple[UnitFile, ...]  # units of records that only the lake has: those that are there are matched
    bounds: Bounds
    to_offset: int = EVERYTHING  # records from it on may have no units yet
    light_to_offset: int = EVERYTHING  # the same for light queues, where they are in RocksDB alone
    write: Write | None = None  # writes rows, if they are wanted


class ProbedQueue(NamedTuple):
    """A queue, up to where earlier runs have taken it, and its end."""

    queue: StoredQueue
    taken_to: int
    end: int


class Group(NamedTuple):
    """The queues of one task."""

    number: int
    queues: tuple[ProbedQueue, ...]


class NewerRun(NamedTuple):
    """Records of one queue that have no units yet, with queue offsets that follow each other."""

    queue: QueueName
    log_offset: int  # of the first
    first: int  # its queue offset
    length: int


class LackingQueue(NamedTuple):
    """The units of a queue that has no files."""

    units: int
    first: int  # physical offset of the first of them
    last: int
    newest_ms: int = 0  # when the newest of their records was stored

    def followed_by(self, more: "LackingQueue") -> "LackingQueue":
        """Return both as one."""
        return LackingQueue(self.units + more.units, self.first, more.last, max(self.newest_ms, more.newest_ms))


@dataclass(slots=True)
class GroupMatches:
    """The comparison of one group."""

    expected: int = 0
    matched: int = 0
    waiting: int = 0  # units of light queues that RocksDB does not have yet
    differences: list[tuple[int, Difference]] = field(default_factory=list)  # of units at their place; with the range
    without_queue: dict[QueueName, LackingQueue] = field(default_factory=dict)
    newer: list[NewerRun] = field(default_factory=list)
    ends: dict[QueueName, tuple[int, int]] = field(default_factory=dict)  # up to where it was taken, and its end
    settled: list[UnmatchedClasses] = field(default_factory=list)
    # Queues with units that lead to records which are not of these queues, or have their unit elsewhere.
    unsettled: list[Remainder] = field(default_factory=list)
    written: Action | None = None


def compare_group(group: Group, *, comparison: Comparison) -> GroupMatches:
    """Compare the queues of a group with the log, and write their rows if they are wanted."""
    task = _GroupTask(group, comparison)
    if comparison.write is None:
        for _ in task.rows():
            pass
    else:
        task.result.written = comparison.write(f"queues-{group.number:02d}", task.rows())
    return task.result


class _GroupTask:
    def __init__(self, group: Group, comparison: Comparison) -> None:
        self._number, self._comparison = group.number, comparison
        self._queues = {one.queue.name: _QueueMatches(*one) for one in group.queues}
        self.result = GroupMatches()

    def rows(self) -> Rows:
        """Compare range by range, then explain the rest of each queue; yield rows if they are wanted."""
        comparison = self._comparison
        for unit_file in comparison.kept:
            for part in read_units(comparison.scratch, unit_file, self._number):
                own = self._queues.get(part.name)
                if own is not None:
                    yield from batches_of(list(self._match(own, part, -1)), part.tags)
        for number, unit_file in enumerate(comparison.ranges):
            for part in read_units(comparison.scratch, unit_file, self._number):
                yield from batches_of(list(self._compare(part, number)), part.tags)
        with_rows = comparison.write is not None
        for own in self._queues.values():
            remainder = own.remainder(comparison.bounds, has_end=comparison.bounds.dispatched == EVERYTHING)
            self.result.ends[own.queue.name] = own.taken_to, own.end
            if remainder is None:
                continue
            if any(True for _ in unresolved(remainder, comparison.bounds)):
                self.result.unsettled.append(remainder)
                continue
            settled = settle(remainder, comparison.bounds, {}, with_rows=with_rows)
            yield from batches_of(settled.blocks, settled.tags)
            settled.blocks, settled.tags = [], []
            self.result.settled.append(settled)

    def _compare(self, part: GroupUnits, number: int) -> Iterator[RowBlock]:
        """Compare the units of a queue in one range that it should have by now; note those that come later."""
        comparison, result = self._comparison, self.result
        stop = int(np.searchsorted(part.units["physical_offset"], comparison.to_offset))
        result.newer += newer_runs(part.name, part.units[stop:])
        if comparison.light_to_offset != EVERYTHING and part.name.topic.startswith(LMQ_PREFIX):
            # Units of a queue come in the order of the log, so those that RocksDB has are the first of them.
            there = int(np.searchsorted(part.units["physical_offset"][:stop], comparison.light_to_offset))
            result.waiting += stop - there
            stop = there
        if not stop:
            return
        tag_numbers = None if part.tag_numbers is None else part.tag_numbers[:stop]
        part = part._replace(units=part.units[:stop], tag_numbers=tag_numbers)
        result.expected += stop
        own = self._queues.get(part.name)
        if own is not None:
            yield from self._match(own, part, number)
            return
        first, last = part.units["physical_offset"][[0, -1]].tolist()
        lacking = LackingQueue(stop, first, last, int(part.units["store_timestamp"].max()))
        known = result.without_queue.get(part.name)
        result.without_queue[part.name] = known.followed_by(lacking) if known else lacking
        if part.tag_numbers is not None:
            is_deleted = comparison.bounds.topics.fate(part.name.topic, lacking.newest_ms) is Fate.DELETED
            status = Status.DELETED if is_deleted else Status.MISSING
            yield expected_rows(part.name, part.units, status, part.tag_numbers)

    def _match(self, own: "_QueueMatches", part: GroupUnits, number: int) -> Iterator[RowBlock]:
        """Compare units with those at their addresses; *number* is that of the range, or -1 for kept records."""
        found, differences = match(own.queue, part.units) if part.name.kind is QueueKind.PLAIN else (None, [])
        at_place = np.zeros(part.units.size, np.bool_) if found is None else found.at_place
        is_kept = number < 0  # a record that is not at its place may be deleted, as its log is: nothing is missing
        self.result.matched += int(at_place.sum())
        self.result.expected += int(at_place.sum()) if is_kept else 0
        self.result.differences += ((number, one) for one in differences)
        own.add_matched(part.units["queue_offset"][at_place], is_kept=is_kept)
        if not is_kept and not at_place.all():
            own.add_left(part, ~at_place)
        if part.tag_numbers is not None and found is not None:
            yield from _blocks(part.name, part.units, part.tag_numbers, found)


class _QueueMatches:
    """The units of a stored queue that are compared, and those that are left over."""

    def __init__(self, queue: StoredQueue, taken_to: int, end: int) -> None:
        self.queue, self.taken_to, self.end = queue, taken_to, end
        self._matched: list[tuple[int, int]] = []  # runs: position and length
        self._live: list[tuple[int, int]] = []  # those of records that the log still has
        self._units: list[Units] = []
        self._tags: list[str | None] = []
        self._lost: list[LostRun] = []

    def add_matched(self, positions: NDArray[np.int64], *, is_kept: bool) -> None:
        known = self._matched if is_kept else self._live
        for start, length in runs(positions):
            if known and sum(known[-1]) == start:
                known[-1] = known[-1][0], known[-1][1] + length
            else:
                known.append((start, length))

    def add_left(self, part: GroupUnits, chosen: NDArray[np.bool_]) -> None:
        """Keep the units that are at no address; without rows those of lost files as runs."""
        units = part.units[chosen]
        if part.tag_numbers is not None:
            self._tags += (part.tags[tag] if tag >= 0 else None for tag in part.tag_numbers[chosen].tolist())
        elif part.name.kind is QueueKind.PLAIN:
            is_lost = ~have_file(self.queue, units["queue_offset"])
            self._lost += lost_runs(units[is_lost])
            units = units[~is_lost]
        self._units.append(units.copy())

    def remainder(self, bounds: Bounds, *, has_end: bool) -> Remainder | None:
        """Return the unmatched units and places, if there are any; settle where the queue is taken to, and its end."""
        # A gap is a run of units that no record of this run matched, from the watermark to the end that was seen. With
        # a limit (a store that is written to, or a run in steps) the last gap may be of records that come later: it
        # counts up to the first unit that is newer than the limit, and the rest stays open, from `open_from` on, for
        # the next run.
        matched = np.array(sorted([*self._matched, *self._live]), np.int64).reshape(-1, 2)
        start, seen_end = self.taken_to, self.end
        end = max(seen_end, int(matched.sum(axis=1).max(initial=0)))
        gaps = tuple(gaps_between(start, end, matched))
        last_gap = gaps[-1] if gaps and gaps[-1][1] == end else None
        open_from = None
        if last_gap and not has_end:
            open_from = last_gap[0]
            end = _first_newer(self.queue, *last_gap, bounds.dispatched)
            gaps = (*gaps[:-1], (last_gap[0], end)) if end > last_gap[0] else gaps[:-1]
        self.taken_to, self.end = end, max(end, seen_end)
        if not gaps and not self._units:
            return None
        units = np.concatenate([np.empty(0, PACKED_UNIT), *self._units])
        first_live = min(self._live)[0] if self._live else None
        return Remainder(self.queue, gaps, first_live, units, tuple(self._tags), open_from, joined_runs(self._lost))


def gaps_between(start: int, end: int, matched: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the parts of [*start*, *end*) that no matched run covers."""
    starts = np.append(matched[:, 0], end)
    ends = np.maximum.accumulate(np.append(start, matched.sum(axis=1)))
    are_gaps = starts > ends
    yield from zip(ends[are_gaps].tolist(), starts[are_gaps].tolist(), strict=True)


def _first_newer(queue: StoredQueue, start: int, end: int, dispatched: int) -> int:
    """
    Return the position of the first unit in [start, end) that is newer than the first look.

    Older ones may be after it where recovery cut the queue: they wait until they are written over.
    """
    for file in queue.files:  # between files there may be very many places, and no unit
        begin, stop = file.base_offset // queue.unit_size, file.end // queue.unit_size
        for first, last in chunks(max(start, begin), min(end, stop), _AT_ONCE):
            newer = np.flatnonzero(units_of(queue, first, last)["physical_offset"] >= dispatched)
            if newer.size:
                return first + int(newer[0])
    return end


def have_file(queue: StoredQueue, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which places of a queue are in one of its files."""
    there = np.zeros(positions.size, np.bool_)
    for file in queue.files:
        first, last = file.base_offset // queue.unit_size, file.end // queue.unit_size
        there |= (positions >= first) & (positions < last)
    return there


def newer_runs(name: QueueName, units: Units) -> Iterator[NewerRun]:
    """Yield the runs of records with their own units in a plain queue, no more than a reader needs."""
    units = units[units["is_dispatched"] == 0]
    if name.kind is QueueKind.PLAIN:
        for some in islice(slices(units.size, np.diff(units["queue_offset"]) != 1), _RUNS):
            first = units[some.start]
            yield NewerRun(name, int(first["physical_offset"]), int(first["queue_offset"]), some.stop - some.start)


class Found(NamedTuple):
    """How units and their addresses agree."""

    at_place: NDArray[np.bool_]  # the record's unit is where it should
    has_size: NDArray[np.bool_]
    has_tags_code: NDArray[np.bool_]
    stored: Units  # the queue's own units at these addresses


def match(queue: StoredQueue, units: Units) -> tuple[Found | None, list[Difference]]:
    """Compare the expected *units* of a plain queue with the stored ones at their addresses."""
    positions = units["queue_offset"]
    # One read of the queue serves all units: a wild offset must not widen it to terabytes of hole. The units of one
    # range lie near each other, and most are healthy, so the median is; `unmatched` explains those far from it.
    middle, reach = int(np.sort(positions)[units.size // 2]), units.size * _SPREAD + _FREE
    near = positions[(positions >= max(middle - reach, 0)) & (positions <= min(middle + reach, EVERYTHING))]
    if not near.size:
        return None, []
    low, high = max(int(near.min()), queue.start), min(int(near.max()) + 1, queue.capacity)
    if low >= high:
        return None, []
    there = units_of(queue, low, high)
    inside = (positions >= low) & (positions < high)
    stored = there[np.where(inside, positions - low, 0)]
    at_place = inside & (stored["physical_offset"] == units["physical_offset"])
    at_place &= (stored["size"] != 0) & (stored["size"] != PRE_BLANK_SIZE)  # a record may also begin at 0
    codes = stored_tags_codes(queue, stored, at_place)
    found = Found(at_place, stored["size"] == units["size"], codes == units["tags_code"], stored)
    return found, list(_wrong_fields(queue, units, found, codes))


def _wrong_fields(queue: StoredQueue, units: Units, found: Found, codes: NDArray[np.int64]) -> Iterator[Difference]:
    for wrong, kind, name, values in (
        (found.at_place & ~found.has_size, DifferenceKind.WRONG_SIZE, "size", found.stored["size"]),
        (found.at_place & ~found.has_tags_code, DifferenceKind.WRONG_TAGS_CODE, "tags_code", codes),
    ):
        for number in np.flatnonzero(wrong).tolist():
            position, expected = int(units["queue_offset"][number]), int(units[name][number])
            log_offset = int(units["physical_offset"][number])
            yield Difference(
                kind, queue.name, position, str(int(values[number])), str(expected), name, log_offset=log_offset
            )


def _blocks(name: QueueName, units: Units, tags: NDArray[np.int32] | None, found: Found) -> Iterator[RowBlock]:
    for has_size in (True, False):
        for has_code in (True, False):
            chosen = found.at_place & (found.has_size == has_size) & (found.has_tags_code == has_code)
            if not chosen.any():
                continue
            stored = units[chosen].copy()
            for field_ in ("size", "tags_code"):  # what the unit says: of an extension the address
                stored[field_] = found.stored[field_][chosen]
            block = expected_rows(name, stored, Status.MATCHED, tags[chosen] if tags is not None else None)
            wrong = tuple(field_ for field_, is_right in (("size", has_size), ("tags_code", has_code)) if not is_right)
            yield block._replace(status=Status.MISMATCHED, mismatch=wrong) if wrong else block
