"""
The expected units of a group's queues, compared with the stored ones, in one task.

In a healthy queue the unit of a record is where its queue offset says. So the units of a range are read by address, one
read a queue, and compared; neither side is sorted or moved. Units that are elsewhere or missing are left over until all
ranges are compared; then `settling` explains them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jobs.lake.table_file import Action
from jobs.products.queues.differences import Difference, DifferenceKind, JoinResult, LackingQueue, NewerRun
from jobs.products.queues.rows import RowBlock, Status, batches_of, expected_rows
from jobs.products.queues.settling import settle
from jobs.products.queues.unit_files import GroupUnits, RangeUnits, read_units
from jobs.products.queues.unmatched import Bounds, LostRun, Remainder, joined_runs, lost_runs, runs, unresolved
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
ProbedQueue = tuple[StoredQueue, int, int]  # up to where earlier runs have taken it, and its end


@dataclass(frozen=True, slots=True)
class Comparison:
    """The log, as the tasks that compare groups of queues with it know it."""

    scratch: Scratch | None
    ranges: tuple[RangeUnits, ...]
    kept: tuple[RangeUnits, ...]  # units of records that only the lake has: those that are there are matched
    bounds: Bounds
    to_offset: int = EVERYTHING  # records from it on may have no units yet
    light_to_offset: int = EVERYTHING  # the same for light queues, where they are in RocksDB alone
    write: Write | None = None  # writes rows, if they are wanted


def compare_group(
    group: tuple[int, Sequence[ProbedQueue]], *, comparison: Comparison
) -> tuple[JoinResult, list[Remainder]]:
    """
    Compare the queues of a group with the log, and write their rows if they are wanted.

    Also return the rest of queues with units that lead to records which are not of these queues, or have their unit
    elsewhere: only the log can explain these.
    """
    number, queues = group
    task = _GroupTask(number, queues, comparison)
    task.result.written = written_rows(comparison.write, f"queues-{number:02d}", task.rows())
    return task.result, task.unsettled


def written_rows(write: Write | None, name: str, rows: Rows) -> list[Action]:
    """Make all rows, and write them if they are wanted; return the file, if there is one."""
    if write is None:
        for _ in rows:
            pass
        return []
    written = write(name, rows)
    return [] if written is None else [written]


class _GroupTask:
    def __init__(self, number: int, queues: Sequence[ProbedQueue], comparison: Comparison) -> None:
        self._number, self._comparison = number, comparison
        self._queues = {queue.name: _QueueMatches(queue) for queue, *_ in queues}
        self._places = queues
        self.result = JoinResult()
        self.unsettled: list[Remainder] = []

    def rows(self) -> Rows:
        """Compare range by range, then explain the rest of each queue; yield rows if they are wanted."""
        comparison, bounds, result = self._comparison, self._comparison.bounds, self.result
        for kept in comparison.kept:
            for part in read_units(comparison.scratch, kept, self._number):
                own = self._queues.get(part.name)
                if own is not None:
                    yield from batches_of(list(self._match(own, part, -1)), part.tags)
        for number, units in enumerate(comparison.ranges):
            for part in read_units(comparison.scratch, units, self._number):
                yield from batches_of(list(self._compare(part, number)), part.tags)
        with_rows = comparison.write is not None
        for queue, taken_to, seen_end in self._places:
            end, remainder = self._queues[queue.name].remainder(bounds, taken_to, seen_end)
            result.watermarks[queue.name], result.ends[queue.name] = end, max(end, seen_end)
            if remainder is None:
                continue
            if any(True for _ in unresolved(remainder, bounds)):
                self.unsettled.append(remainder)
                continue
            yield from batches_of(*settle(remainder, bounds, {}, result, with_rows=with_rows))

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
        newest_ms = int(part.units["store_timestamp"].max())
        known = result.without_queue.get(part.name, LackingQueue(0, first, last))
        result.without_queue[part.name] = LackingQueue(
            known.units + stop, known.first, last, max(known.newest_ms, newest_ms)
        )
        if part.tag_numbers is not None:
            is_deleted = comparison.bounds.topics.fate(part.name.topic, newest_ms) is Fate.DELETED
            status = Status.DELETED if is_deleted else Status.MISSING
            yield expected_rows(part.name, part.units, status, part.tag_numbers)

    def _match(self, own: "_QueueMatches", part: GroupUnits, number: int) -> Iterator[RowBlock]:
        """
        Compare units with those at their addresses; *number* is that of the range, or -1 for kept records.

        A kept record that is not at its place may be deleted, as its log is: nothing is missing.
        """
        is_plain, is_kept = part.name.kind is QueueKind.PLAIN, number < 0
        stored = _units_at(own.queue, part.units["queue_offset"]) if is_plain else None
        at_place = np.zeros(part.units.size, np.bool_)
        wrong: dict[str, NDArray[np.bool_]] = {}
        if stored is not None:
            at_place = (stored["physical_offset"] == part.units["physical_offset"]) & (stored["size"] != 0)
            at_place &= stored["size"] != PRE_BLANK_SIZE  # a record may also begin at 0
            right = {"size": stored["size"], "tags_code": stored_tags_codes(own.queue, stored, at_place)}
            wrong = {name: at_place & (values != part.units[name]) for name, values in right.items()}
            for name, kind in (("size", DifferenceKind.WRONG_SIZE), ("tags_code", DifferenceKind.WRONG_TAGS_CODE)):
                for at in np.flatnonzero(wrong[name]).tolist():
                    self.result.wrong_fields.append((number, _wrong_field(kind, part, at, name, int(right[name][at]))))
        self.result.matched += int(at_place.sum())
        self.result.expected += int(at_place.sum()) if is_kept else 0
        own.add_matched(part.units["queue_offset"][at_place], is_kept=is_kept)
        if not is_kept and not at_place.all():
            own.add_left(part, ~at_place)
        if part.tag_numbers is not None and stored is not None:
            yield from _blocks(part, stored, at_place, wrong)


class _QueueMatches:
    """The units of a stored queue that are compared, and those that are left over."""

    def __init__(self, queue: StoredQueue) -> None:
        self.queue = queue
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

    def remainder(self, bounds: Bounds, start: int, seen_end: int) -> tuple[int, Remainder | None]:
        """Return up to where the queue is taken now, and the unmatched units and places, if there are any."""
        # A gap is a run of units that no record of this run matched, from the watermark to the end that was seen. With
        # a limit (a store that is written to, or a run in steps) the last gap may be of records that come later: it
        # counts up to the first unit that is newer than the limit, and the rest stays open, from `open_from` on, for
        # the next run.
        matched = np.array(sorted([*self._matched, *self._live]), np.int64).reshape(-1, 2)
        end = max(seen_end, int(matched.sum(axis=1).max(initial=0)))
        gaps = tuple(gaps_between(start, end, matched))
        open_from = None
        if gaps and gaps[-1][1] == end and bounds.dispatched != EVERYTHING:
            open_from = gaps[-1][0]
            end = _first_newer(self.queue, open_from, end, bounds.dispatched)
            gaps = (*gaps[:-1], *([(open_from, end)] if end > open_from else []))
        if not gaps and not self._units:
            return end, None
        units = np.concatenate([np.empty(0, PACKED_UNIT), *self._units])
        first_live = min(self._live)[0] if self._live else None
        lost = joined_runs(self._lost)
        return end, Remainder(self.queue, gaps, first_live, units, tuple(self._tags), open_from, lost)


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


def _units_at(queue: StoredQueue, positions: NDArray[np.int64]) -> Units | None:
    """Return the units of a plain queue at *positions*, zeros for those far from the others; None if it has none."""
    # One read of the queue serves all units: a wild offset must not widen it to terabytes of hole. The units of one
    # range lie near each other, and most are healthy, so the median is; `settling` explains those far from it.
    middle, reach = int(np.sort(positions)[positions.size // 2]), positions.size * _SPREAD + _FREE
    near = positions[(positions >= max(middle - reach, 0)) & (positions <= min(middle + reach, EVERYTHING))]
    low, high = max(int(near.min(initial=EVERYTHING)), queue.start), min(int(near.max(initial=-1)) + 1, queue.capacity)
    if low >= high:
        return None
    inside = (positions >= low) & (positions < high)
    stored = units_of(queue, low, high)[np.where(inside, positions - low, 0)]
    stored[~inside] = np.zeros(1, stored.dtype)
    return stored


def _wrong_field(kind: DifferenceKind, part: GroupUnits, at: int, name: str, found: int) -> Difference:
    unit = part.units[at]
    position, log_offset = int(unit["queue_offset"]), int(unit["physical_offset"])
    return Difference(kind, part.name, position, str(found), str(int(unit[name])), name, log_offset=log_offset)


def _blocks(
    part: GroupUnits, stored: Units, at_place: NDArray[np.bool_], wrong: dict[str, NDArray[np.bool_]]
) -> Iterator[RowBlock]:
    for has_size in (True, False):
        for has_code in (True, False):
            chosen = at_place & (wrong["size"] != has_size) & (wrong["tags_code"] != has_code)
            if not chosen.any():
                continue
            units = part.units[chosen].copy()
            for name in ("size", "tags_code"):  # what the unit says: of an extension the address
                units[name] = stored[name][chosen]
            tags = part.tag_numbers[chosen] if part.tag_numbers is not None else None
            fields = tuple(name for name, is_right in (("size", has_size), ("tags_code", has_code)) if not is_right)
            status = Status.MISMATCHED if fields else Status.MATCHED
            yield expected_rows(part.name, units, status, tags)._replace(mismatch=fields)
