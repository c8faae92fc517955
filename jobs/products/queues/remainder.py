"""
The remainder of a queue after its healthy units are matched: units at no address, and addresses without a unit.

Units that point to records of other queues can only be explained by the log: `resolve_records` returns these records.
Looking at the bytes alone is not enough: bodies may contain whole records, and leftovers may follow the end of the log.
So the segments in question are walked from their beginning.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jobs.lake.table_file import TableFile
from jobs.products.queues.join_result import QueueDifference
from jobs.products.queues.rows import RowBlock
from jobs.products.queues.unit_files import GroupUnits, RangeUnits
from jobs.storage.scratch import Scratch
from jobs.store.chain import confirm_deleted_by_retention
from jobs.store.intervals import Interval, find_interval, find_overlapping, uncovered_parts
from jobs.store.queue_ends import NO_LIMIT
from jobs.store.queue_files import StoredQueue, split_into_chunks
from jobs.store.ranges import WHOLE_SEGMENTS, Range, plan_ranges
from jobs.store.store import Store
from jobs.store.topics import TopicEvidence
from jobs.store.units import Units, is_of_deleted_file, is_written, read_stored_units, read_tags_codes
from jobs.store.workers import Workers
from rmq_formats.arrays import are_inside, slices_between_cuts
from rmq_formats.commitlog.record import decode_record
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.commitlog.segment import PieceKind
from rmq_formats.consumequeue.collect import PACKED_UNIT, StoreTimes
from rmq_formats.consumequeue.dispatch import ExpectedUnit, QueueKind, UnitRules, expected_units
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE
from rmq_formats.properties import TAGS, parse_properties

UNITS_PER_PORTION = 1 << 16  # units
_start, _end = itemgetter(0), itemgetter(1)


class UnitRun(NamedTuple):
    """Units of a queue with consecutive positions, in the order of the log, without the bytes of all of them."""

    position: int  # the position of the first unit
    unit_count: int
    first_unit: Units  # the first unit, alone
    last_unit: Units
    first_log_offset: int  # the log offset of the first unit
    last_log_offset: int  # the log offset of the last unit
    newest_ms: int  # store time of their newest record

    @property
    def end(self) -> int:
        """The position after the last unit."""
        return self.position + self.unit_count

    @property
    def log_bounds(self) -> tuple[int, int]:
        """The range of the log in which the records of the units begin."""
        return self.first_log_offset, self.last_log_offset + 1


@dataclass(frozen=True, slots=True)
class CollectedLog:
    """The expected units of a log, the part that was read, and facts that a comparison needs."""

    ranges: Sequence[RangeUnits]
    scratch: Scratch | None
    group_count: int
    start: int  # the start of the log, after the part that retention deleted before it was read
    end: int
    deleted_meanwhile: Sequence[tuple[int, int]] = ()  # ranges that were deleted before they were read
    lake_only: Sequence[RangeUnits] = ()  # units of records that only the lake has: existing ones are matched
    dispatched_offset: int = NO_LIMIT  # records at or after it may have no units yet
    light_dispatched_offset: int = NO_LIMIT  # the same for light queues, if they are only in RocksDB
    is_closed: bool = True  # no broker wrote the store
    gaps: tuple[tuple[int, int], ...] = ()  # ranges between segments that are in no file
    record_count: int = 0
    damaged_ranges: tuple[tuple[int, int], ...] = ()  # ranges without records, except for bridges over lost ones
    topic_evidence: TopicEvidence = TopicEvidence()  # noqa: RUF009 - a tuple; which topics were deleted
    new_row_file: Callable[[str], TableFile] | None = None  # returns a file for rows with this name; None: no rows
    select_rows: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None  # returns the rows to write; None: all

    def find_clock_setback(self) -> int:
        """Return by how many milliseconds the broker's clock was set back, as far as store times show it."""
        times = StoreTimes()
        for one in (*self.lake_only, *self.ranges):
            times = times.followed_by(one.times)
        return times.setback_ms

    def find_lost_ranges(self, start: int, end: int) -> Sequence[tuple[int, int]]:
        """Return the ranges that overlap [start, end) and no longer have any record."""
        return [one for ranges in (self.gaps, self.damaged_ranges) for one in find_overlapping(ranges, start, end)]


@dataclass(frozen=True, slots=True)
class QueueRemainder:
    """The units and positions of one queue that are not matched after all ranges were compared."""

    queue: StoredQueue
    end: int  # the end of the processed part of the queue
    units: Units  # expected units that are not at their position
    tags: Sequence[str | None]  # the tags of `units`, if rows are wanted
    missing_units: Sequence[UnitRun]  # expected units whose positions are in no file
    # Expected units of records before the first unit in the queue's files. Where that unit is right, its topic was
    # created again, and these belong to the deleted one; they may be as many as the log has records.
    earlier_units: Sequence[UnitRun]
    unclaimed_ranges: Sequence[Interval]  # positions that no record of this run claims
    first_live_position: int | None  # the first position claimed by a record that is still in the log
    open_from_position: int | None  # after this position a broker may be writing

    @property
    def is_empty(self) -> bool:
        """Whether every unit is matched."""
        return not (self.unclaimed_ranges or self.units.size or self.missing_units or self.earlier_units)

    def are_expected_at(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each offset of the log whether a record without a unit begins there, or may begin there."""
        is_of_earlier = are_inside(offsets, [run.log_bounds for run in self.earlier_units])
        return is_of_earlier | np.isin(offsets, self.units["physical_offset"])

    def is_unclaimed_at(self, position: int) -> bool:
        """Return whether no record of this run claims *position*."""
        return find_interval(self.unclaimed_ranges, position) is not None

    def is_missing_at(self, position: int) -> bool:
        """Return whether *position* is in no file although a record has its unit there."""
        return any(run.position <= position < run.end for run in self.missing_units)


class UnitMatch(NamedTuple):
    """Expected units of one queue, compared with the stored units at their positions."""

    part: GroupUnits
    is_kept: bool  # units of records that only the lake has
    at_place: NDArray[np.bool_]  # which units are at their position, perhaps with a wrong field
    expired: NDArray[np.bool_]  # which units retention has deleted together with their records
    wrong_fields: Sequence[QueueDifference] = ()
    blocks: Sequence[RowBlock] = ()  # their rows, if rows are wanted


@dataclass(slots=True)
class QueueMatches:
    """The comparisons of one queue with the ranges of a log, collected in log order."""

    queue: StoredQueue
    matched: int = 0
    expired: int = 0
    expected: int = 0
    wrong_fields: list[QueueDifference] = field(default_factory=list)
    _tags: list[str | None] = field(default_factory=list)
    _missing_units: list[UnitRun] = field(default_factory=list)
    _earlier_units: list[UnitRun] = field(default_factory=list)
    _unmatched_units: list[Units] = field(default_factory=list)
    _runs: list[Interval] = field(default_factory=list)  # positions and lengths of the runs of matched units
    # The same for units of records that only the lake has.
    _kept_runs: list[Interval] = field(default_factory=list)
    _first_stored_offset: int | None = None  # None: not read yet

    def add(self, match: UnitMatch) -> None:
        """
        Add the comparison of the next units.

        A kept record without a unit at its position may have been deleted, like its log: nothing is missing.
        """
        count = int(match.at_place.sum())
        self.matched += count
        self.expired += int(match.expired.sum())
        self.expected += count if match.is_kept else match.part.units.size
        self.wrong_fields += match.wrong_fields
        settled = match.at_place | match.expired
        self._add_matched(match.part.units["queue_offset"][settled], is_kept=match.is_kept)
        if not match.is_kept and not settled.all():
            self._add_unmatched(match.part, ~settled)

    def _add_matched(self, positions: NDArray[np.int64], *, is_kept: bool) -> None:
        """Record the positions of matched units."""
        known = self._kept_runs if is_kept else self._runs
        for start, length in run_starts_and_lengths(positions):
            if known and sum(known[-1]) == start:
                known[-1] = known[-1][0], known[-1][1] + length
            else:
                known.append((start, length))

    def _add_unmatched(self, part: GroupUnits, chosen: NDArray[np.bool_]) -> None:
        """
        Record *chosen* units that the queue lacks.

        Those before the first unit in its files, and without rows those of lost files, are recorded as runs.
        """
        if part.name.kind is QueueKind.PLAIN:
            if part.tag_numbers is None:
                is_lost = chosen & ~are_in_files(self.queue, part.units["queue_offset"])
                self._add_missing_units(part.units[is_lost])
                chosen &= ~is_lost
            is_earlier = chosen & (part.units["physical_offset"] < self.first_stored_offset)
            self._earlier_units += make_unit_runs(part.units, is_earlier)
            chosen &= ~is_earlier
        if part.tag_numbers is not None:
            self._tags += list_tags(part, chosen)
        self._unmatched_units.append(part.units[chosen])

    @property
    def first_stored_offset(self) -> int:
        """The offset to which the unit at position 0 points; 0 if the queue's files have none."""
        if self._first_stored_offset is None:
            first = read_stored_units(self.queue, 0, 1)[0]
            is_unit = 0 < first["size"] < PRE_BLANK_SIZE
            self._first_stored_offset = max(int(first["physical_offset"]), 0) if is_unit else 0
        return self._first_stored_offset

    def _add_missing_units(self, units: Units) -> None:
        """Record units that are in no file, as runs of consecutive queue offsets."""
        for run in make_unit_runs(units, np.ones(units.size, np.bool_)):
            known = self._missing_units[-1] if self._missing_units else None
            if known and run.position == known.end and run.first_log_offset > known.last_log_offset:
                newest_ms = max(known.newest_ms, run.newest_ms)
                unit_count = known.unit_count + run.unit_count
                self._missing_units[-1] = known._replace(
                    unit_count=unit_count,
                    last_unit=run.last_unit,
                    last_log_offset=run.last_log_offset,
                    newest_ms=newest_ms,
                )
            else:
                self._missing_units.append(run)

    def find_remainder(self, log: CollectedLog, start: int, seen_end: int) -> QueueRemainder:
        """Return the unmatched units and positions at or after *start*, once all ranges were added."""
        # A range is unclaimed if no record of this run matched its units; only units from *start* to *seen_end* count.
        # With a limit (a store that is written to, or a run in steps) the last range may be of records that come later:
        # it counts up to the first unit that is newer than the limit, and the rest, starting at `open_from_position`,
        # stays open for the next run.
        matched = np.array(sorted([*self._kept_runs, *self._runs]), np.int64).reshape(-1, 2)
        end = max(seen_end, int(matched.sum(axis=1).max(initial=0)))
        if not log.is_closed and any(units.size for units in self._unmatched_units):
            end = max(end, self.queue.find_written_end(seen_end))  # they may be elsewhere, and newer than the probe
        unclaimed = list(_unmatched_parts(start, end, matched))
        open_from: int | None = None
        if unclaimed and unclaimed[-1][1] == end and log.dispatched_offset != NO_LIMIT:
            open_from, last = unclaimed.pop()
            end, newer_end = _find_newer(self.queue, open_from, last, log.dispatched_offset)
            unclaimed += [(open_from, end)] * (end > open_from)
            starts = (file.base_offset // self.queue.unit_size for file in self.queue.files)
            later = min((start for start in starts if start >= newer_end), default=last)
            if log.new_row_file is None and later < last:
                unclaimed.append((later, last))  # a recovery that truncates a queue deletes its later files
        return QueueRemainder(
            self.queue,
            end,
            units=np.concatenate([np.empty(0, PACKED_UNIT), *self._unmatched_units]),
            tags=self._tags,
            missing_units=self._missing_units,
            earlier_units=self._earlier_units,
            unclaimed_ranges=unclaimed,
            first_live_position=min(self._runs)[0] if self._runs else None,
            open_from_position=open_from,
        )


def make_unit_runs(units: Units, chosen: NDArray[np.bool_]) -> Iterator[UnitRun]:
    """Yield the runs of *chosen* units that follow one another directly."""
    numbers = np.flatnonzero(chosen)
    is_cut = (np.diff(numbers) != 1) | (np.diff(units["queue_offset"][numbers]) != 1)
    for some in slices_between_cuts(numbers.size, is_cut):
        own = units[numbers[some.start] : numbers[some.stop - 1] + 1]
        (first_log_offset, position), (last_log_offset, _) = own[["physical_offset", "queue_offset"]][[0, -1]].tolist()
        newest_ms = int(own["store_timestamp"].max())
        first, last = own[:1].copy(), own[-1:].copy()
        yield UnitRun(position, own.size, first, last, first_log_offset, last_log_offset, newest_ms)


def list_tags(part: GroupUnits, chosen: NDArray[np.bool_]) -> Iterator[str | None]:
    """Yield the tags of *chosen* units, if rows are wanted."""
    numbers = [] if part.tag_numbers is None else part.tag_numbers[chosen].tolist()
    return (part.tags[tag] if tag >= 0 else None for tag in numbers)


def _unmatched_parts(start: int, end: int, matched_runs: NDArray[np.int64]) -> Iterator[Interval]:
    """Yield the parts of [*start*, *end*) that no matched run (its start and length) covers."""
    return uncovered_parts(np.column_stack((matched_runs[:, 0], matched_runs.sum(axis=1))), start, end)


def run_starts_and_lengths(positions: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield start and length of each run of consecutive positions."""
    some = slices_between_cuts(positions.size, np.diff(positions) != 1)
    return ((int(positions[one.start]), one.stop - one.start) for one in some)


def _find_newer(queue: StoredQueue, start: int, end: int, dispatched: int) -> tuple[int, int]:
    """
    Return the first position in [start, end) whose unit was written after the first look, and the end of the last one.

    Older units may follow in the same file if recovery truncated the queue: they wait to be overwritten.
    """
    first_newer = newer_end = end
    for first, last in _split_by_file(queue, start, end):  # there may be very many unwritten positions
        newer = np.flatnonzero(read_stored_units(queue, first, last)["physical_offset"] >= dispatched)
        if newer.size:
            first_newer, newer_end = min(first_newer, first + int(newer[0])), first + int(newer[-1]) + 1
    return first_newer, newer_end


def _split_by_file(queue: StoredQueue, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [start, end) that are in files, in limited portions."""
    for file in queue.files:
        first, stop = file.base_offset // queue.unit_size, -(-file.end // queue.unit_size)
        yield from split_into_chunks(max(start, first), min(end, stop), UNITS_PER_PORTION)


def are_in_files(queue: StoredQueue, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which positions of a queue are in one of its files."""
    there = np.zeros(positions.size, np.bool_)
    for file in queue.files:
        first, last = file.base_offset // queue.unit_size, file.end // queue.unit_size
        there |= (positions >= first) & (positions < last)
    return there


class UnmatchedUnit(NamedTuple):
    """A unit that is at no record's address."""

    position: int
    physical_offset: int
    size: int
    tags_code: int
    stored_unit: Units

    @property
    def is_zero(self) -> bool:
        """Whether it consists of zeros."""
        return not (self.physical_offset or self.size or self.tags_code)

    @property
    def is_blank(self) -> bool:
        """Whether it is a blank in front of a queue's first unit; in a rebuilt RocksDB row, a blank has an offset."""
        return (self.size, self.tags_code) == (PRE_BLANK_SIZE, 0)

    @property
    def text(self) -> str:
        """Its fields as text."""
        return f"offset {self.physical_offset}, size {self.size}, tags code {self.tags_code}"


# The classes of unclaimed units; others are claimed, or newer than the log's end.
EXPIRED, BLANK, UNEXPLAINED = 1, 2, 3
UnitClasses = NDArray[np.int8]


def classify_unclaimed_units(remainder: QueueRemainder, log: CollectedLog) -> Iterator[tuple[int, Units, UnitClasses]]:
    """Yield the unclaimed units in portions: the position of the first unit, the units, and their classes."""
    queue = remainder.queue
    is_plain = queue.name.kind is QueueKind.PLAIN
    wanted = np.unique(remainder.units["queue_offset"]) if is_plain else np.empty(0, np.int64)
    parts = (
        (*part, group)
        for group in _group_ranges(remainder.unclaimed_ranges)
        for part in _split_by_file(queue, group[0][0], group[-1][1])
    )
    for start, stop, group in parts:
        units, places = read_stored_units(queue, start, stop), np.arange(start, stop)
        inside = are_inside(places, group)
        before = places < (stop if remainder.first_live_position is None else remainder.first_live_position)
        blanks = inside & (units["size"] == PRE_BLANK_SIZE) & (units["tags_code"] == 0) & before
        blanks &= ~np.isin(places, wanted)
        offsets = units["physical_offset"]
        # Units of a range that was not read follow those of records that were: `before` does not apply.
        deleted = (offsets < log.start) & (offsets + units["size"] <= log.start) & before
        deleted |= are_inside(offsets, log.deleted_meanwhile) & ~remainder.are_expected_at(offsets)
        expired = is_written(units) & deleted & ~blanks
        expired = inside & (expired | is_of_deleted_file(units))
        newer = np.zeros(units.size, np.bool_)
        if remainder.open_from_position is not None:
            # Units written after this run fixed its end offset: the next run reads them.
            newer = (places >= remainder.open_from_position) & (offsets >= log.dispatched_offset)
        yield start, units, np.select([expired, blanks, inside & ~newer], [EXPIRED, BLANK, UNEXPLAINED]).astype(np.int8)


def list_unexplained_units(
    queue: StoredQueue, start: int, units: Units, classes: UnitClasses
) -> Iterator[UnmatchedUnit]:
    """Yield the unexplained units of a queue at or after position *start*."""
    chosen = classes == UNEXPLAINED
    codes = read_tags_codes(queue, units, chosen) if queue.name.kind is QueueKind.PLAIN else units["tags_code"]
    for at in np.flatnonzero(chosen).tolist():
        stored = units[at : at + 1].copy()  # a copy: a slice would keep all units in memory
        offset, size = int(stored["physical_offset"][0]), int(stored["size"][0])
        yield UnmatchedUnit(start + at, offset, size, int(codes[at]), stored)


def _group_ranges(ranges: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield ranges that are read together: many small ones near each other, or a large one."""
    group: list[tuple[int, int]] = []
    for one in ranges:
        if group and one[1] - group[0][0] > UNITS_PER_PORTION:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def find_unclaimed_without_file(remainder: QueueRemainder) -> Iterator[tuple[int, int]]:
    """
    Yield the parts of the unclaimed ranges that are in no file, and that no record of a lost file claims.

    A flipped bit in a file's name, or in a record's queue offset, may leave such a part of any size.
    """
    size = remainder.queue.unit_size
    ends = ((file.base_offset // size, -(-file.end // size)) for file in remainder.queue.files)
    held = [
        *((first, stop - first) for first, stop in ends),
        *((run.position, run.unit_count) for run in remainder.missing_units),
    ]
    held_runs = np.array(sorted(held), np.int64).reshape(-1, 2)
    for start, end in remainder.unclaimed_ranges:
        yield from _unmatched_parts(start, end, held_runs)


def find_offsets_to_resolve(remainder: QueueRemainder, log: CollectedLog) -> NDArray[np.int64]:
    """Return the physical offsets that only the log can explain."""
    found = [np.empty(0, np.int64)]
    for _, units, classes in classify_unclaimed_units(remainder, log):
        odd = units[classes == UNEXPLAINED]
        offsets, sizes = odd["physical_offset"], odd["size"]
        is_in_log = (offsets >= log.start) & (offsets < log.end) & (sizes > 0) & (sizes < PRE_BLANK_SIZE)
        found.append(offsets[is_in_log & ~np.isin(offsets, remainder.units["physical_offset"])])
    return np.concatenate(found)


class RecordFields(NamedTuple):
    """A record that stored units refer to: its expected units, store time and tags."""

    units: tuple[ExpectedUnit, ...]
    store_timestamp: int
    tags: str | None


RECORD_DAMAGED = "damaged"  # the record is in damaged bytes
RECORD_DELETED = "deleted"  # meanwhile
ResolvedRecords = Mapping[int, RecordFields | str]  # absent: no record begins there


def resolve_records(
    workers: Workers,
    store: Store,
    rules: UnitRules,
    offsets: NDArray[np.int64],
    damaged_ranges: Sequence[tuple[int, int]],
) -> ResolvedRecords:
    """Return the record that begins at each of *offsets*; *damaged_ranges* are known to have none."""
    wanted = np.unique(offsets)
    is_damaged = are_inside(wanted, damaged_ranges)
    found: dict[int, RecordFields | str] = dict.fromkeys(wanted[is_damaged].tolist(), RECORD_DAMAGED)
    wanted = wanted[~is_damaged]
    ranges = [
        range_
        for range_ in plan_ranges(store, range_size=WHOLE_SEGMENTS)
        if ((wanted >= range_.start_offset) & (wanted < range_.end_offset)).any()
    ]
    for part in workers.map(ranges, partial(_read_records_in, wanted=wanted, rules=rules), "reading records again"):
        found.update(part)
    gone = np.array([offset for offset, record in found.items() if record == RECORD_DELETED], np.int64)
    confirm_deleted_by_retention(
        store, (one for one in ranges if ((gone >= one.start_offset) & (gone < one.end_offset)).any())
    )
    return found


def _read_records_in(range_: Range, *, wanted: NDArray[np.int64], rules: UnitRules) -> dict[int, RecordFields | str]:
    from jobs.store.range_reader import RangeReader

    inside = wanted[(wanted >= range_.start_offset) & (wanted < range_.end_offset)]
    found: dict[int, RecordFields | str] = {}
    reader = RangeReader(range_)
    for item in reader.pieces():
        if isinstance(item, RawRecords):
            for number in np.flatnonzero(np.isin(item.positions + item.base_offset, inside)).tolist():
                start = int(item.positions[number])
                raw = item.buffer[start : start + int(item.sizes[number])].data
                record = decode_record(raw, 0, item.base_offset + start)
                parser = rules.release_at(record.physical_offset).property_parser
                tags = parse_properties(record.properties_raw, parser).get(TAGS)
                units = tuple(expected_units(record, rules))
                found[record.physical_offset] = RecordFields(units, record.store_timestamp, tags)
        elif item.kind is PieceKind.DAMAGE:
            found |= dict.fromkeys(inside[(inside >= item.offset) & (inside < item.end)].tolist(), RECORD_DAMAGED)
    return {**dict.fromkeys(inside.tolist(), RECORD_DELETED), **found} if reader.facts.was_deleted else found
