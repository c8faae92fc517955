"""
What is left of a queue once its healthy units are matched: units at no address, and addresses without unit.

Units that lead to records of other queues can be explained by the log alone: `resolve` returns these records. A look at
the bytes would not do: bodies may hold whole records, and leftovers lie after the end of the chain. So the segments in
question are walked from their beginning.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.store.queue_files import StoredQueue, chunks
from jobs.store.ranges import WHOLE_SEGMENTS, Range, plan_ranges
from jobs.store.store import Store
from jobs.store.topics import TopicTable
from jobs.store.units import Units, is_gone, is_written, stored_tags_codes, units_of
from jobs.store.workers import Workers
from rmq_formats.arrays import slices
from rmq_formats.commitlog.record import decode_record
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import PieceKind
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE
from rmq_formats.consumequeue.unit import ExpectedUnit, QueueKind, QueueRules, expected_units
from rmq_formats.properties import TAGS, parse_properties

_AT_ONCE = 1 << 16
_start, _end = itemgetter(0), itemgetter(1)


class LostRun(NamedTuple):
    """Units of a queue, one after the other, whose places are in no file: a whole file of them takes no more memory."""

    first: Units  # the first of them, alone
    last: Units
    length: int
    newest_ms: int  # when the newest of their records was stored

    @property
    def position(self) -> int:
        """The place of the first."""
        return int(self.first["queue_offset"][0])

    @property
    def end(self) -> int:
        """The place after the last."""
        return self.position + self.length

    @property
    def log_offset(self) -> int:
        """The physical offset of the first."""
        return int(self.first["physical_offset"][0])

    @property
    def last_offset(self) -> int:
        """The physical offset of the last."""
        return int(self.last["physical_offset"][0])


class Bounds(NamedTuple):
    """Which part of the log the join knows."""

    log_start: int
    log_end: int
    dispatched: int
    is_closed: bool
    deleted_meanwhile: tuple[tuple[int, int], ...] = ()  # ranges of the log that were deleted before they were read
    gaps: tuple[tuple[int, int], ...] = ()  # ranges between segments that no file holds
    damaged: tuple[tuple[int, int], ...] = ()  # ranges that hold no record, but for bridges over lost ones
    topics: TopicTable = TopicTable()  # says which topics were deleted

    def lost_within(self, start: int, end: int) -> Sequence[tuple[int, int]]:
        """Return the ranges that have a part in [start, end) and hold no record any more."""
        return [
            one
            for ranges in (self.gaps, self.damaged)
            for one in ranges[bisect_right(ranges, start, key=_end) : bisect_left(ranges, end, key=_start)]
        ]


@dataclass(frozen=True, slots=True)
class Remainder:
    """The unmatched units and places of one queue."""

    queue: StoredQueue
    gaps: tuple[tuple[int, int], ...]  # positions that no record of this run claims
    first_live: int | None  # the first position that one claims
    units: Units  # expected, in the order of the log, that were not at their address
    tags: tuple[str | None, ...] = ()
    open_from: int | None = None  # after this position a broker may write while we look
    lost: tuple[LostRun, ...] = ()  # expected, whose places are in no file

    def has_gap_at(self, position: int) -> bool:
        """Return whether *position* is in a gap."""
        gap = bisect_right(self.gaps, position, key=_start) - 1
        return gap >= 0 and position < self.gaps[gap][1]

    def is_lost_at(self, position: int) -> bool:
        """Return whether *position* is in no file, and a record has its unit there."""
        return any(run.position <= position < run.end for run in self.lost)


class OddUnit(NamedTuple):
    """A unit that is at no record's address."""

    position: int
    physical_offset: int
    size: int
    tags_code: int
    stored: Units  # the one unit

    @property
    def is_zero(self) -> bool:
        """Whether nothing is stored there."""
        return not (self.physical_offset or self.size or self.tags_code)

    @property
    def is_blank(self) -> bool:
        """Whether it is what a broker writes before a queue's first unit; a rebuilt row of RocksDB has an offset."""
        return (self.size, self.tags_code) == (PRE_BLANK_SIZE, 0)

    @property
    def text(self) -> str:
        """Its fields in words."""
        return f"offset {self.physical_offset}, size {self.size}, tags code {self.tags_code}"


Sorted = tuple[int, Units, NDArray[np.bool_], NDArray[np.bool_], list[OddUnit]]


def sorted_out(remainder: Remainder, bounds: Bounds) -> Iterator[Sorted]:
    """Yield the units in the gaps, some at a time: first place, units, which have expired or are blanks, odd ones."""
    queue = remainder.queue
    is_plain = queue.name.kind is QueueKind.PLAIN
    wanted = np.unique(remainder.units["queue_offset"]) if is_plain else np.empty(0, np.int64)
    deleted_ranges = np.array(bounds.deleted_meanwhile, np.int64).reshape(-1, 2)
    for start, stop in _stretches(remainder):
        if stop - start > _AT_ONCE:
            continue
        units, places = units_of(queue, start, stop), np.arange(start, stop)
        before = places < (stop if remainder.first_live is None else remainder.first_live)
        blanks = (units["size"] == PRE_BLANK_SIZE) & (units["tags_code"] == 0) & before & ~np.isin(places, wanted)
        offsets = units["physical_offset"]
        # Of a range that was not read, units are after those of records that were: there is no `before`.
        deleted = (offsets < bounds.log_start) & (offsets + units["size"] <= bounds.log_start) & before
        starts, ends = (np.searchsorted(deleted_ranges[:, side], offsets, "right") for side in (0, 1))
        deleted |= (starts > ends) & ~np.isin(offsets, remainder.units["physical_offset"])
        expired = is_written(units) & deleted & ~blanks
        expired |= is_gone(units)
        newer = np.zeros(units.size, np.bool_)
        if remainder.open_from is not None:  # written since this run has settled its end: these are the next run's
            newer = (places >= remainder.open_from) & (offsets >= bounds.dispatched)
        codes = stored_tags_codes(queue, units, ~(expired | blanks)) if is_plain else units["tags_code"]
        odd = [
            OddUnit(
                *(start + number, int(offsets[number]), int(units["size"][number]), int(codes[number])),
                units[number : number + 1].copy(),  # or a few units would keep all of them
            )
            for number in np.flatnonzero(~(expired | blanks | newer)).tolist()
        ]
        yield start, units, expired, blanks, odd


def places_without_file(remainder: Remainder) -> Iterator[tuple[int, int]]:
    """Yield the large parts of the gaps that are in no file, and which no record of a lost file claims."""
    for first, stop in _stretches(remainder):
        if stop - first <= _AT_ONCE:
            continue
        at = first
        for run in sorted(remainder.lost, key=lambda run: run.position):
            if at < min(run.position, stop):
                yield at, min(run.position, stop)
            at = max(at, run.end)
        if at < stop:
            yield at, stop


def _stretches(remainder: Remainder) -> Iterator[tuple[int, int]]:
    """
    Yield the parts of the gaps: larger than others are those alone that no file holds.

    A file's name, or a record's queue offset, in which a bit has changed leaves room for any number of places.
    """
    queue = remainder.queue
    for start, end in remainder.gaps:
        at = start
        for file in queue.files:
            first, last = (max(at, min(place // queue.unit_size, end)) for place in (file.base_offset, file.end))
            if first - at > _AT_ONCE:
                yield at, first
                at = first
            yield from chunks(at, last, _AT_ONCE)
            at = last
        if at < end:
            yield at, end


def unresolved(remainder: Remainder, bounds: Bounds) -> Iterator[int]:
    """Yield the physical offsets that only the log can explain."""
    own = set(remainder.units["physical_offset"].tolist())
    for *_, odd in sorted_out(remainder, bounds):
        for unit in odd:
            is_in_log = bounds.log_start <= unit.physical_offset < bounds.log_end
            if is_in_log and 0 < unit.size < PRE_BLANK_SIZE and unit.physical_offset not in own:
                yield unit.physical_offset


def lost_runs(units: Units) -> Iterator[LostRun]:
    """Yield the runs of units whose places follow each other."""
    for some in slices(units.size, np.diff(units["queue_offset"]) != 1):
        own = units[some]
        newest_ms = int(own["store_timestamp"].max())
        yield LostRun(own[:1].copy(), own[-1:].copy(), own.size, newest_ms)


def joined_runs(parts: Iterable[LostRun]) -> tuple[LostRun, ...]:
    """Return runs as few as possible; *parts* come in the order of the log."""
    joined: list[LostRun] = []
    for run in parts:
        last = joined[-1] if joined else None
        if last and run.position == last.end and run.log_offset > last.last_offset:
            length, newest_ms = last.length + run.length, max(last.newest_ms, run.newest_ms)
            joined[-1] = LostRun(last.first, run.last, length, newest_ms)
        else:
            joined.append(run)
    return tuple(joined)


def runs(positions: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield start and length of each run of positions that follow each other."""
    some = slices(positions.size, np.diff(positions) != 1)
    return ((int(positions[one.start]), one.stop - one.start) for one in some)


class RecordAt(NamedTuple):
    """A record, as far as units tell of it."""

    units: tuple[ExpectedUnit, ...]
    store_timestamp: int
    tags: str | None


DAMAGED = "damaged"  # in bytes without a record
DELETED = "deleted"  # meanwhile
Resolved = Mapping[int, RecordAt | str]  # absent: no record begins there


def resolve(workers: Workers, store: Store, rules: QueueRules, offsets: Iterable[int]) -> Resolved:
    """Return the record that begins at each of *offsets*."""
    wanted = np.unique(np.fromiter(offsets, np.int64))
    ranges = [
        range_
        for range_ in plan_ranges(store, range_size=WHOLE_SEGMENTS)
        if ((wanted >= range_.start_offset) & (wanted < range_.end_offset)).any()
    ]
    found: dict[int, RecordAt | str] = {}
    for part in workers.map(ranges, partial(_resolve_in, wanted=wanted, rules=rules), "reading records again"):
        found.update(part)
    return found


def _resolve_in(range_: Range, *, wanted: NDArray[np.int64], rules: QueueRules) -> dict[int, RecordAt | str]:
    from jobs.store.range_reader import RangeReader

    inside = wanted[(wanted >= range_.start_offset) & (wanted < range_.end_offset)]
    found: dict[int, RecordAt | str] = {}
    reader = RangeReader(range_)
    for item in reader.pieces():
        if isinstance(item, Records):
            found.update(_records_in(item, inside, rules))
        elif item.kind is PieceKind.DAMAGE:
            found |= dict.fromkeys(inside[(inside >= item.offset) & (inside < item.end)].tolist(), DAMAGED)
    return {**dict.fromkeys(inside.tolist(), DELETED), **found} if reader.seen.was_deleted else found


def _records_in(records: Records, wanted: NDArray[np.int64], rules: QueueRules) -> Iterator[tuple[int, RecordAt]]:
    hits = np.flatnonzero(np.isin(records.positions + records.base_offset, wanted))
    for number in hits.tolist():
        start = int(records.positions[number])
        end = start + int(records.sizes[number])
        record = decode_record(records.buffer[start:end].tobytes(), 0, records.base_offset + start)
        parser = rules.release_at(record.physical_offset).property_parser
        tags = parse_properties(record.properties_raw, parser).get(TAGS)
        yield record.physical_offset, RecordAt(tuple(expected_units(record, rules)), record.store_timestamp, tags)
