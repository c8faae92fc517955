"""
The units of a range of the log, compared with the queues' files, in the range's own task.

In a healthy queue the unit of a record is where its queue offset says. So the units that a range's records should
have are read by address, one read a queue, and compared; neither side is sorted or moved. What is elsewhere, or
missing, is left over and goes to `unmatched`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.products.queues.differences import Difference, DifferenceKind
from jobs.products.queues.rows import RowBlock, Status, expected_rows
from jobs.store.queue_ends import EVERYTHING
from jobs.store.queue_files import StoredQueue
from jobs.store.topics import Fate, TopicTable
from jobs.store.units import Units, stored_tags_codes, units_of
from rmq_formats.arrays import slices
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.consumequeue.collect import PACKED_UNIT, PackedUnits, UnitCollector
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE
from rmq_formats.consumequeue.unit import LMQ_PREFIX, QueueKind, QueueName, QueueRules

_SPREAD = 4  # addresses a record, on either side of the middle one: beyond, a queue offset is of no row
_FREE = 4096
_RUNS = 100


@dataclass(frozen=True, slots=True)
class Matching:
    """The queues and rules that a task compares its records with."""

    rules: QueueRules
    queues: tuple[StoredQueue, ...]
    from_offset: int = 0
    to_offset: int = EVERYTHING
    light_to_offset: int = EVERYTHING  # the same for light queues, where they are in RocksDB alone
    with_rows: bool = False
    takes: Callable[[str], bool] | None = None  # chooses topics
    topics: TopicTable = TopicTable()  # noqa: RUF009 - a tuple; says which topics were deleted


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

    def followed_by(self, other: "LostRun") -> "LostRun | None":
        """Return both as one, if *other* goes on where this one ends."""
        if other.position != self.end or other.log_offset <= self.last_offset:
            return None
        return LostRun(self.first, other.last, self.length + other.length, max(self.newest_ms, other.newest_ms))


class LeftOver(NamedTuple):
    """Units of a queue that were not found at their address."""

    name: QueueName
    units: Units
    tags: tuple[str | None, ...]  # with rows only
    lost: tuple[LostRun, ...] = ()  # without rows only


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
class RangeMatches:
    """The matches of one range."""

    expected: int = 0
    matched: NDArray[np.int64] = field(default_factory=lambda: _table([]))  # runs: queue number, position, length
    left_over: list[LeftOver] = field(default_factory=list)
    without_queue: dict[QueueName, LackingQueue] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    taken_to: int | None = None  # where the last record ends that was taken
    waiting: int = 0  # units of light queues that RocksDB does not have yet
    damaged: list[tuple[int, int]] = field(default_factory=list)  # from and to of what is no record
    newer: list[NewerRun] = field(default_factory=list)


class MatchedRange(NamedTuple):
    """The matches of a range and, where rows are wanted, their blocks and the texts of their tags."""

    matches: RangeMatches
    blocks: list[RowBlock]
    tags: list[str]


class Matcher:
    """Takes the records of a range and matches their units."""

    def __init__(self, matching: Matching) -> None:
        self._matching = matching
        self._matches = RangeMatches()
        self._collector = UnitCollector(matching.rules, with_tags=matching.with_rows)

    def add(self, item: Records | Piece) -> None:
        """Take the records of the run from a group of a range's, and note what is none."""
        matching = self._matching
        if isinstance(item, Piece):
            if item.kind is PieceKind.DAMAGE:
                self._matches.damaged.append((item.offset, item.end))
            return
        self._collector.add(item, matching.from_offset, matching.to_offset)
        offsets = item.positions + item.base_offset
        taken = np.flatnonzero((offsets >= matching.from_offset) & (offsets < matching.to_offset))
        if taken.size:
            self._matches.taken_to = int(offsets[taken[-1]]) + int(item.sizes[taken[-1]])

    def finish(self) -> MatchedRange:
        """Match the units of all records."""
        packed, matches = self._collector.finish(), self._matches
        matches.expected = int(packed.units.size)
        numbers = {queue.name: number for number, queue in enumerate(self._matching.queues)}
        matched: list[tuple[int, int, int]] = []
        blocks: list[RowBlock] = []
        for name, expected in packed.queues():
            if self._matching.takes is not None and not self._matching.takes(name.topic):
                continue
            place = self._dispatched(name, packed.units, expected)
            units = packed.units[place]
            if not units.size:
                continue
            tags = packed.tag_numbers[place] if self._matching.with_rows else None
            number = numbers.get(name)
            if number is None:
                first, last = units["physical_offset"][[0, -1]].tolist()
                newest_ms = int(units["store_timestamp"].max())
                matches.without_queue[name] = LackingQueue(int(units.size), first, last, newest_ms)
                if self._matching.with_rows:
                    is_deleted = self._matching.topics.fate(name.topic, newest_ms) is Fate.DELETED
                    blocks.append(expected_rows(name, units, Status.DELETED if is_deleted else Status.MISSING, tags))
                continue
            queue = self._matching.queues[number]
            found, differences = match(queue, units) if name.kind is QueueKind.PLAIN else (None, [])
            at_place = np.zeros(units.size, np.bool_) if found is None else found.at_place
            matches.differences += differences
            matched += ((number, start, count) for start, count in runs(units["queue_offset"][at_place]))
            if not at_place.all():
                matches.left_over.append(self._left_over(queue, units[~at_place], tags, ~at_place, packed.tags))
            if self._matching.with_rows and found is not None:
                blocks += _blocks(name, units, tags, found)
        matches.matched = _table(matched)
        return MatchedRange(matches, blocks, packed.tags)

    def _left_over(
        self,
        queue: StoredQueue,
        units: Units,
        tags: NDArray[np.int32] | None,
        chosen: NDArray[np.bool_],
        all_tags: list[str],
    ) -> LeftOver:
        """Return the units that are at no address; without rows those of lost files as runs."""
        if tags is not None:
            texts = tuple(all_tags[number] if number >= 0 else None for number in tags[chosen])
            return LeftOver(queue.name, units.copy(), texts)
        lost: list[LostRun] = []
        if queue.name.kind is QueueKind.PLAIN:
            is_lost = ~have_file(queue, units["queue_offset"])
            lost += lost_runs(units[is_lost])
            units = units[~is_lost]
        return LeftOver(queue.name, units.copy(), (), tuple(lost))

    def _dispatched(self, name: QueueName, units: Units, place: slice) -> slice:
        """Return the place of a queue's units that its storage should have by now."""
        limit = self._matching.light_to_offset
        if limit == EVERYTHING or not name.topic.startswith(LMQ_PREFIX):
            return place
        # Units of a queue come in the order of the log, so what RocksDB has is the beginning of them.
        stop = place.start + int(np.searchsorted(units["physical_offset"][place], limit))
        self._matches.waiting += place.stop - stop
        self._matches.expected -= place.stop - stop
        return slice(place.start, stop)


def _table(matched: Sequence[tuple[int, int, int]]) -> NDArray[np.int64]:
    return np.array(matched, np.int64).reshape(-1, 3)


def have_file(queue: StoredQueue, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which places of a queue are in one of its files."""
    there = np.zeros(positions.size, np.bool_)
    for file in queue.files:
        first, last = file.base_offset // queue.unit_size, file.end // queue.unit_size
        there |= (positions >= first) & (positions < last)
    return there


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
        both = joined[-1].followed_by(run) if joined else None
        joined[-1:] = [both] if both else [*joined[-1:], run]
    return tuple(joined)


def runs(positions: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield start and length of each run of positions that follow each other."""
    some = slices(positions.size, np.diff(positions) != 1)
    return ((int(positions[one.start]), one.stop - one.start) for one in some)


def newer_runs(packed: PackedUnits) -> Iterator[NewerRun]:
    """Yield the runs of records with their own units in plain queues; of one queue no more than somebody reads."""
    for name, place in packed.queues():
        units = packed.units[place]
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
    """Compare the expected *units* of a plain queue with what is at their addresses."""
    positions = units["queue_offset"]
    # One read of the queue serves all units: a wild offset must not widen it to terabytes of hole. The units of one
    # range lie near each other, and most are healthy, so the median is; what is farther from it is left to `unmatched`.
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
    at_place &= (stored["size"] != 0) & (stored["size"] != PRE_BLANK_SIZE)  # a record may begin at 0, too
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


EMPTY = np.empty(0, PACKED_UNIT)
