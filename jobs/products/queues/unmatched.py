"""
The rest of a queue once its healthy units are matched: units at no address, addresses without unit.

Each unit that is left is looked for among the records that lack theirs, then among all records of the log. A unit is
*expired* when its record was deleted, a *blank* comes before a queue's first message; everything else is a difference.
Records that still lack a unit at the end are missing one, unless the place where it should be is named already. What
each of them is, `classification` says.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.products.queues import classification
from jobs.products.queues.classification import Answer, OddUnit
from jobs.products.queues.differences import BAD_PLACES, OF_EARLIER_QUEUE, Difference, DifferenceKind, merged
from jobs.products.queues.records_at import RecordAt, Resolved
from jobs.products.queues.rows import RowBlock, Status, expected_rows, stored_rows
from jobs.store.queue_files import StoredQueue, chunks
from jobs.store.topics import TopicTable
from jobs.store.units import Units, is_gone, is_written, stored_tags_codes, units_of
from rmq_formats.arrays import slices
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE
from rmq_formats.consumequeue.unit import ExpectedUnit, QueueKind

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

    def followed_by(self, other: "LostRun") -> "LostRun | None":
        """Return both as one, if *other* goes on where this one ends."""
        if other.position != self.end or other.log_offset <= self.last_offset:
            return None
        return LostRun(self.first, other.last, self.length + other.length, max(self.newest_ms, other.newest_ms))


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

    def are_gone(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which offsets lie in a range that was deleted."""
        bounds = np.array(self.deleted_meanwhile, np.int64).reshape(-1, 2)
        return np.searchsorted(bounds[:, 0], offsets, "right") > np.searchsorted(bounds[:, 1], offsets, "right")

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

    def lost_run_at(self, position: int) -> LostRun | None:
        """Return the run of units of lost files that has one for *position*."""
        return next((run for run in self.lost if run.position <= position < run.end), None)


@dataclass(slots=True)
class UnmatchedClasses:
    """The classes of one queue's unmatched units and places."""

    queue: StoredQueue
    differences: list[Difference] = field(default_factory=list)
    matched: int = 0
    expired: int = 0
    blanks: int = 0
    ahead: int = 0  # units newer than the log's end, of a store that was copied while it was written
    misplaced: int = 0
    blocks: list[RowBlock] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)  # the texts that the numbers in the blocks mean
    beginning: int = 0  # physical offset of the newest message that was the first of the queue


class _Odd(NamedTuple):
    unit: OddUnit
    stored: Units  # the one unit


def unresolved(remainder: Remainder, bounds: Bounds) -> Iterator[int]:
    """Yield the physical offsets that only the log can explain."""
    own = set(remainder.units["physical_offset"].tolist())
    for part in _parts(remainder, bounds):
        for odd in part.odd:
            if _is_record_offset(odd.unit, bounds) and odd.unit.physical_offset not in own:
                yield odd.unit.physical_offset


def _is_record_offset(unit: OddUnit, bounds: Bounds) -> bool:
    return bounds.log_start <= unit.physical_offset < bounds.log_end and 0 < unit.size < PRE_BLANK_SIZE


class _Part(NamedTuple):
    """Some units in a gap, sorted out."""

    start: int
    units: Units
    expired: NDArray[np.bool_]
    blanks: NDArray[np.bool_]
    odd: list[_Odd]
    places_without_file: int = 0  # from its start on; it has no units then


def _stretches(queue: StoredQueue, start: int, end: int) -> Iterator[tuple[int, int]]:
    """
    Yield the parts of a gap: larger than others are those alone that no file holds.

    A file's name, or a record's queue offset, in which a bit has changed leaves room for any number of places.
    """
    for file in queue.files:
        first, last = (max(start, min(at // queue.unit_size, end)) for at in (file.base_offset, file.end))
        if first - start > _AT_ONCE:
            yield start, first
            start = first
        yield from chunks(start, last, _AT_ONCE)
        start = last
    if start < end:
        yield start, end


def _parts(remainder: Remainder, bounds: Bounds) -> Iterator[_Part]:
    queue = remainder.queue
    wanted = set(remainder.units["queue_offset"].tolist()) if queue.name.kind is QueueKind.PLAIN else set()
    for gap in remainder.gaps:
        for start, stop in _stretches(queue, *gap):
            if stop - start > _AT_ONCE:
                none = np.zeros(0, np.bool_)
                yield _Part(start, units_of(queue, start, start), none, none, [], stop - start)
                continue
            units = units_of(queue, start, stop)
            before = np.arange(start, stop) < (stop if remainder.first_live is None else remainder.first_live)
            blanks = (units["size"] == PRE_BLANK_SIZE) & (units["tags_code"] == 0)
            blanks &= before
            if wanted:
                blanks &= ~np.isin(np.arange(start, stop), list(wanted))
            offsets = units["physical_offset"]
            # Of a range that was not read, units are after those of records that were: there is no `before`.
            deleted = (offsets < bounds.log_start) & (offsets + units["size"] <= bounds.log_start) & before
            deleted |= bounds.are_gone(offsets) & ~np.isin(offsets, remainder.units["physical_offset"])
            expired = is_written(units) & deleted & ~blanks
            expired |= is_gone(units)
            newer = np.zeros(units.size, np.bool_)
            if remainder.open_from is not None:  # written since this run has settled its end: these are the next run's
                newer = (np.arange(start, stop) >= remainder.open_from) & (offsets >= bounds.dispatched)
            codes = stored_tags_codes(queue, units, ~(expired | blanks)) if queue.name.kind is QueueKind.PLAIN else None
            odd = [
                _Odd(
                    OddUnit(
                        start + number,
                        int(units["physical_offset"][number]),
                        int(units["size"][number]),
                        int(units["tags_code"][number] if codes is None else codes[number]),
                    ),
                    units[number : number + 1].copy(),  # or a few units would keep all of them
                )
                for number in np.flatnonzero(~(expired | blanks | newer)).tolist()
            ]
            yield _Part(start, units, expired, blanks, odd)


def settle(remainder: Remainder, bounds: Bounds, resolved: Resolved, *, with_rows: bool) -> UnmatchedClasses:
    """Explain every unit and every record that is left."""
    return _Settling(remainder, bounds, resolved, with_rows=with_rows).settle()


class _BadPlaces:
    """The places that hold no unit of their record, those of lost files among them."""

    def __init__(self, named: Container[int], remainder: Remainder) -> None:
        self._named, self._remainder = named, remainder

    def __contains__(self, position: object) -> bool:
        if position in self._named:
            return True
        if not isinstance(position, int) or self._remainder.lost_run_at(position) is None:
            return False
        return self._remainder.has_gap_at(position)


def _text_of(unit: np.void) -> str:
    return f"offset {int(unit['physical_offset'])}, size {int(unit['size'])}, tags code {int(unit['tags_code'])}"


def _overwritten(difference: Difference, expected: str) -> Difference:
    """Return the difference at the place of a record: there a unit after the log's end is not a loss of the log."""
    if difference.kind is DifferenceKind.BEHIND_LOG:
        difference = replace(difference, kind=DifferenceKind.DANGLING, log_offset=None)
    return replace(difference, expected=expected)


class _Settling:
    def __init__(self, remainder: Remainder, bounds: Bounds, resolved: Resolved, *, with_rows: bool) -> None:
        self._remainder = remainder
        self._queue = remainder.queue
        self._name = remainder.queue.name
        self._bounds = bounds
        self._resolved = resolved
        self._with_rows = with_rows
        self._units = remainder.units
        self._offsets = remainder.units["physical_offset"]
        self._claimed = np.zeros(remainder.units.size, np.bool_)
        self._found_again: set[int] = set()  # queue offsets of units of lost files that are elsewhere
        self._displaced: dict[tuple[int, int], int] = {}  # (position, queue offset): where the record is
        self._odd_blocks: list[RowBlock] = []
        self._result = UnmatchedClasses(remainder.queue, beginning=self._find_beginning())

    def settle(self) -> UnmatchedClasses:
        for part in _parts(self._remainder, self._bounds):
            self._expire(part)
            for start, stop in self._unclaimed(part.start, part.start + part.places_without_file):
                lost = Difference(DifferenceKind.MISSING_FILE, self._name, start, "no file", "")
                self._result.differences.append(replace(lost, times=stop - start))
            for odd in part.odd:
                self._explain(odd)
        self._explain_blanks()
        for run in classification.displaced_runs(self._displaced):
            log_offset = self._displaced[run[0]]
            differences = classification.of_displaced(self._name, run)
            self._result.differences += (replace(one, log_offset=log_offset) for one in differences)
        self._result.misplaced = len(self._displaced)
        self._missing()
        self._result.differences = list(merged(self._result.differences))
        self._result.blocks += self._odd_blocks
        return self._result

    def _unclaimed(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of [*start*, *stop*), places in no file, that no record of a lost file claims."""
        for run in sorted(self._remainder.lost, key=lambda run: run.position):
            if start < min(run.position, stop):
                yield start, min(run.position, stop)
            start = max(start, run.end)
        if start < stop:
            yield start, stop

    def _expire(self, part: _Part) -> None:
        self._result.expired += int(part.expired.sum())
        self._result.blanks += int(part.blanks.sum())
        if self._with_rows:
            positions = np.arange(part.start, part.start + part.units.size)
            for chosen, is_blank in ((part.expired, False), (part.blanks, True)):
                some = part.units[chosen]
                if some.size and not is_gone(some).all():
                    rows = stored_rows(self._name, positions[chosen], some, Status.EXPIRED, is_pre_blank=is_blank)
                    self._result.blocks.append(rows)

    def _explain(self, odd: _Odd) -> None:
        unit = odd.unit
        answer = classification.without_meaning(unit, has_file=self._queue.file_at(unit.position) is not None)
        if answer is not None:
            if answer.kind is DifferenceKind.MISSING_FILE and self._remainder.lost_run_at(unit.position) is not None:
                return  # named with the record that has its unit there
            self._differ(answer, unit)
            if not unit.is_zero:
                self._row(odd, Status.DANGLING, is_pre_blank=unit.is_blank)
            return
        number = int(np.searchsorted(self._offsets, unit.physical_offset))
        if number < self._offsets.size and self._offsets[number] == unit.physical_offset:
            self._claim(odd, number)
            return
        record = self._resolved.get(unit.physical_offset)
        if isinstance(record, RecordAt):
            own = next((one for one in record.units if one.queue == self._name), None)
            if own is not None and self._remainder.lost_run_at(own.queue_offset) is not None:
                self._claim_lost(odd, own, record)
                return
            answer = classification.by_record(unit, self._name, record)
            self._differ(answer, unit, unit.physical_offset)
            self._row(odd, Status.MISMATCHED if answer.wrong else Status.MATCHED, answer.wrong, record)
            return
        bounds = self._bounds
        answer = classification.without_record(unit, record, bounds.log_end, bounds.gaps, is_closed=bounds.is_closed)
        self._result.expired += answer is None
        self._result.ahead += answer is not None and answer.kind is None
        if answer is not None:
            self._differ(answer, unit, unit.physical_offset)
        self._row(odd, Status.EXPIRED if answer is None else Status.DANGLING)

    def _explain_blanks(self) -> None:
        """Tell blanks that stand for lost records from those that stand before records of the log."""
        differences = self._result.differences
        ends = [unit for run in self._remainder.lost for unit in (run.first, run.last)]
        known = np.concatenate([self._units, *ends])
        wanted = dict(zip(known["queue_offset"].tolist(), known, strict=True))
        blanks = {
            one.position: number
            for number, one in enumerate(differences)
            if one.kind is DifferenceKind.BLANK_INSIDE
            and one.position not in wanted
            and self._name.kind is QueueKind.PLAIN
        }
        for start, count in runs(np.array(sorted(blanks), np.int64)):
            before, after = (self._record_of(position, wanted) for position in (start - 1, start + count))
            if before is None or after is None:
                continue
            lost = classification.lost_between(
                before[1], after[0], count, self._bounds.lost_within(before[1], after[0])
            )
            for number in (blanks[position] for position in range(start, start + count) if lost is not None):
                differences[number] = replace(differences[number], kind=DifferenceKind.BLANK_OF_LOST, log_offset=lost)

    def _record_of(self, position: int, wanted: Mapping[int, np.void]) -> tuple[int, int] | None:
        """Return the range of the log that holds, or held, the record of a position; None where it is not known."""
        if position in wanted:
            unit = wanted[position]
        elif position < self._queue.start:
            return None
        else:
            unit = units_of(self._queue, position, position + 1)[0]
            is_matched = not self._remainder.has_gap_at(position)
            at = int(unit["physical_offset"])
            is_lost = bool(self._bounds.lost_within(at, at + 1))
            if not (0 < unit["size"] < PRE_BLANK_SIZE and (is_matched or is_lost)):
                return None
        start = int(unit["physical_offset"])
        return start, start + int(unit["size"])

    def _differ(self, answer: Answer, unit: OddUnit, log_offset: int | None = None) -> None:
        if answer.kind is not None:
            difference = Difference(answer.kind, self._name, unit.position, answer.text, "", log_offset=log_offset)
            self._result.differences.append(difference)

    def _claim(self, odd: _Odd, number: int) -> None:
        """Explain a unit by a record of its queue that lacks one."""
        expected, unit = self._units[number], odd.unit
        tags = self._remainder.tags[number] if self._with_rows else None
        record = RecordAt((), int(expected["store_timestamp"]), tags)
        if self._claimed[number]:
            self._differ(Answer(DifferenceKind.DUPLICATE, unit.text), unit, unit.physical_offset)
            self._row(odd, Status.MISMATCHED, ("queue_offset",), record)
            return
        self._claimed[number] = True
        wrong = list(self._wrong_fields(odd, expected))
        self._result.matched += not wrong
        self._row(odd, Status.MISMATCHED if wrong else Status.MATCHED, wrong, record)

    def _claim_lost(self, odd: _Odd, own: ExpectedUnit, record: RecordAt) -> None:
        """Explain a unit by a record whose place is in a file that is lost."""
        if own.queue_offset in self._found_again:
            self._differ(Answer(DifferenceKind.DUPLICATE, odd.unit.text), odd.unit, odd.unit.physical_offset)
            self._row(odd, Status.MISMATCHED, ("queue_offset",), record)
            return
        self._found_again.add(own.queue_offset)
        expected = np.zeros(1, self._units.dtype)
        for name in ("queue_offset", "physical_offset", "size", "tags_code", "store_timestamp"):
            expected[name] = getattr(own, name)
        wrong = list(self._wrong_fields(odd, expected[0]))
        self._row(odd, Status.MISMATCHED, wrong, record)

    def _wrong_fields(self, odd: _Odd, expected: np.void) -> Iterator[str]:
        unit = odd.unit
        values = [
            (DifferenceKind.WRONG_SIZE, "size", unit.size, int(expected["size"])),
            (DifferenceKind.WRONG_TAGS_CODE, "tags_code", unit.tags_code, int(expected["tags_code"])),
        ]
        if self._name.kind is QueueKind.BATCH:
            names = (("base_offset", "queue_offset"), ("batch_count",) * 2, ("store_timestamp",) * 2)
            values[:0] = [
                (DifferenceKind.WRONG_BATCH_FIELD, name, int(odd.stored[name][0]), int(expected[wanted]))
                for name, wanted in names
            ]
        elif int(expected["queue_offset"]) != unit.position:
            self._displaced[unit.position, int(expected["queue_offset"])] = unit.physical_offset
            yield "queue_offset"
        for kind, name, value, wanted_value in values:
            if value != wanted_value:
                self._result.differences.append(
                    Difference(
                        *(kind, self._name, unit.position, str(value), str(wanted_value), name),
                        log_offset=unit.physical_offset,
                    )
                )
                yield name

    def _find_beginning(self) -> int:
        """Return the offset of the newest first message of the queue; older ones are of a deleted topic."""
        firsts = self._offsets[self._units["queue_offset"] == 0].tolist()
        firsts += [run.log_offset for run in self._remainder.lost if run.position == 0]
        if self._remainder.first_live == 0:
            firsts.append(int(units_of(self._queue, 0, 1)["physical_offset"][0]))
        return max(firsts, default=0)

    def _missing(self) -> None:
        """Name records without unit, unless their place is named already."""
        bad: dict[int, int] = {}
        for number, difference in enumerate(self._result.differences):
            if difference.kind in BAD_PLACES:
                bad.setdefault(difference.position, number)
        missing: set[int] = set()
        for number in np.flatnonzero(~self._claimed).tolist():
            unit = self._units[number]
            position, physical_offset = int(unit["queue_offset"]), int(unit["physical_offset"])
            text = _text_of(unit)
            named = bad.get(position) if self._name.kind is QueueKind.PLAIN else None
            kind = self._kind_of_missing(position, physical_offset)
            if kind is DifferenceKind.DELETED_TOPIC:
                kind = self._kind_of_earlier
            self._missing_row(number, Status.DELETED if kind is DifferenceKind.DELETED_TOPIC else Status.MISSING)
            if named is not None and kind not in OF_EARLIER_QUEUE.values():
                self._result.differences[named] = _overwritten(self._result.differences[named], text)
                continue
            if kind is DifferenceKind.MISSING:
                missing.add(position)
            self._result.differences.append(
                Difference(kind, self._name, position, "no unit", text, log_offset=physical_offset)
            )
        self._result.differences += self._lost()
        bad_places = _BadPlaces(bad, self._remainder)
        self._result.differences = [
            difference
            for difference in merged(self._result.differences)
            if difference.kind is not DifferenceKind.MISPLACED
            or not classification.follows(difference, missing, bad_places)
        ]

    def _lost(self) -> Iterator[Difference]:
        """Yield the units of lost files that are nowhere else."""
        for run in self._remainder.lost:
            at = run.position
            for position in [*sorted(one for one in self._found_again if at <= one < run.end), run.end]:
                if position > at:
                    is_earlier = run.last_offset < self._result.beginning
                    kind = self._kind_of_earlier if is_earlier else DifferenceKind.MISSING_FILE
                    is_first, has_gap = at == run.position, self._remainder.has_gap_at(at)
                    found = "no file" if has_gap else "no unit"
                    text = _text_of(run.first[0]) if is_first else f"the unit of queue offset {at}"
                    log_offset = run.log_offset if is_first and not has_gap else None
                    yield Difference(kind, self._name, at, found, text, times=position - at, log_offset=log_offset)
                if position < run.end and self._remainder.has_gap_at(position):
                    yield Difference(DifferenceKind.MISSING_FILE, self._name, position, "no file", "")
                at = position + 1

    @cached_property
    def _kind_of_earlier(self) -> DifferenceKind:
        """What messages from before the queue's beginning are of."""
        beginning = self._result.beginning
        times = [int(self._units["store_timestamp"][self._offsets < beginning].max(initial=0))]
        times += [run.newest_ms for run in self._remainder.lost if run.last_offset < beginning]
        return OF_EARLIER_QUEUE[self._bounds.topics.fate_of_earlier(self._name.topic, max(times))]

    def _kind_of_missing(self, position: int, physical_offset: int) -> DifferenceKind:
        has_file = self._queue.file_at(position) is not None
        is_empty = has_file and not int(units_of(self._queue, position, position + 1)[0]["size"])
        is_free = is_empty or any(start <= position < stop for start, stop in self._remainder.gaps)
        beginning = self._result.beginning
        return classification.of_missing(
            self._name.kind, physical_offset, beginning, has_file=has_file, is_free=is_free
        )

    def _row(
        self,
        odd: _Odd,
        status: Status,
        mismatch: Sequence[str] = (),
        record: RecordAt | None = None,
        *,
        is_pre_blank: bool = False,
    ) -> None:
        if self._with_rows:
            position = np.array([odd.unit.position])
            block = stored_rows(self._name, position, odd.stored, status, is_pre_blank=is_pre_blank)
            if record is not None:
                time = np.array([record.store_timestamp], np.int64)
                block = block._replace(store_timestamp=time, tag_numbers=self._tag_number(record.tags))
            self._odd_blocks.append(block._replace(mismatch=tuple(mismatch)))

    def _missing_row(self, number: int, status: Status) -> None:
        if self._with_rows:
            tag = self._tag_number(self._remainder.tags[number])
            self._odd_blocks.append(expected_rows(self._name, self._units[number : number + 1], status, tag))

    def _tag_number(self, text: str | None) -> NDArray[np.int32]:
        if text is None:
            return np.array([-1], np.int32)
        self._result.tags.append(text)
        return np.array([len(self._result.tags) - 1], np.int32)


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
