"""
Explains the units and positions of a queue that remain after its healthy units are matched.

Each unit is searched among the records without a unit, then among all records of the log. A unit is *expired* if its
record was deleted, and a *blank* precedes a queue's first message; everything else is a difference. Records that have
no unit at the end are missing one, unless the position of the unit was already reported.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.products.queues.join_result import (
    KINDS_OF_EARLIER_QUEUES,
    WRONG_POSITION_KINDS,
    DifferenceKind,
    QueueDifference,
    QueueFigures,
    merge_differences,
)
from jobs.products.queues.remainder import (
    BLANK,
    EXPIRED,
    RECORD_DAMAGED,
    RECORD_DELETED,
    UNITS_PER_PORTION,
    CollectedLog,
    QueueRemainder,
    RecordFields,
    ResolvedRecords,
    UnitClasses,
    UnmatchedUnit,
    classify_unclaimed_units,
    find_unclaimed_without_file,
    list_unexplained_units,
    run_starts_and_lengths,
)
from jobs.products.queues.rows import RowBlock, UnitStatus, make_row_block
from jobs.store.units import Units, is_of_deleted_file, read_stored_units
from rmq_formats.commitlog.layout import MIN_RECORD_SIZE
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE

_SHOWN = 4


class ExplainedRemainder(NamedTuple):
    """What the remainder of one queue consists of: its figures and, if wanted, its rows."""

    figures: QueueFigures
    blocks: Sequence[RowBlock]
    tags: Sequence[str]  # the texts that the tag numbers in the blocks mean


def explain_remainder(remainder: QueueRemainder, log: CollectedLog, resolved: ResolvedRecords) -> ExplainedRemainder:
    """Explain every remaining unit and record."""
    return _Explanation(remainder, log, resolved).explain()


def find_beginning(remainder: QueueRemainder) -> int:
    """Return the offset of the newest first message of a queue; older ones are of a deleted topic."""
    firsts = remainder.units["physical_offset"][remainder.units["queue_offset"] == 0].tolist()
    firsts += [run.first_log_offset for run in remainder.missing_units if run.position == 0]
    if remainder.first_live_position == 0:
        firsts.append(int(read_stored_units(remainder.queue, 0, 1)["physical_offset"][0]))
    return max(firsts, default=0)


def classify_earlier_messages(remainder: QueueRemainder, beginning: int, log: CollectedLog) -> DifferenceKind:
    """Return the kind of the messages before the *beginning* of a queue, judging by the newest one of them."""
    times = [int(remainder.units["store_timestamp"][remainder.units["physical_offset"] < beginning].max(initial=0))]
    runs = (*remainder.missing_units, *remainder.earlier_units)
    times += [run.newest_ms for run in runs if run.last_log_offset < beginning]
    return KINDS_OF_EARLIER_QUEUES[log.topic_evidence.fate_of_earlier(remainder.queue.name.topic, max(times))]


def status_of_missing(kind: DifferenceKind) -> UnitStatus:
    """Return the status of the row of a record without a unit."""
    return UnitStatus.DELETED if kind is DifferenceKind.DELETED_TOPIC else UnitStatus.MISSING


class _Explanation:
    """Explains the stored units in the order of their positions, then derives what is missing."""

    def __init__(self, remainder: QueueRemainder, log: CollectedLog, resolved: ResolvedRecords) -> None:
        self._remainder, self._log, self._resolved = remainder, log, resolved
        self._queue, self._name = remainder.queue, remainder.queue.name
        self._with_rows = log.new_row_file is not None
        self._units, self._offsets = remainder.units, remainder.units["physical_offset"]
        self._beginning = find_beginning(remainder)
        # Filled by `_explain_units`:
        self._figures = QueueFigures(first_record_offsets={self._name: self._beginning})
        self._claimed = np.zeros(remainder.units.size, np.bool_)
        self._found_again: set[int] = set()  # queue offsets of units of lost files that are elsewhere
        self._displaced: dict[tuple[int, int], int] = {}  # (position, queue offset): where the record is
        self._unit_differences: list[QueueDifference] = []
        self._blocks: list[RowBlock] = []
        self._tags: list[str] = []

    def explain(self) -> ExplainedRemainder:
        for start, units, classes in classify_unclaimed_units(self._remainder, self._log):
            self._explain_units(start, units, classes)
        found = self._mark_blanks_of_lost([*self._unit_differences, *self._list_unclaimed_without_file()])
        found += self._list_displaced()
        bad: dict[int, int] = {}  # the number of the first difference at each wrong position
        for number, difference in enumerate(found):
            if difference.kind in WRONG_POSITION_KINDS:
                bad.setdefault(difference.position, number)
        unclaimed = [(number, self._kind_of_missing(number)) for number in np.flatnonzero(~self._claimed).tolist()]
        found, missing = self._name_missing(found, bad, unclaimed)
        remainder = self._remainder

        def is_bad(position: int) -> bool:
            return position in bad or (remainder.is_missing_at(position) and remainder.is_unclaimed_at(position))

        missing_positions = {one.position for one in missing if one.kind is DifferenceKind.MISSING}
        differences = [
            difference
            for difference in merge_differences([*found, *missing, *self._list_lost(), *self._list_earlier()])
            if difference.kind is not DifferenceKind.MISPLACED
            or not follows_from_losses(difference, missing_positions.__contains__, is_bad)
        ]
        figures = replace(self._figures, misplaced=len(self._displaced), differences=differences)
        return ExplainedRemainder(figures, [*self._blocks, *self._make_missing_rows(unclaimed)], self._tags)

    def _explain_units(self, start: int, units: Units, classes: UnitClasses) -> None:
        """Explain a queue's units at or after position *start*."""
        expired, blank = classes == EXPIRED, classes == BLANK
        self._figures.expired += int(expired.sum())
        self._figures.blanks += int(blank.sum())
        if self._with_rows:
            self._add_expired_rows(start, units, expired, is_blank=False)
            self._add_expired_rows(start, units, blank, is_blank=True)
        for unit in list_unexplained_units(self._queue, start, units, classes):
            self._explain_unit(unit)

    def _list_unclaimed_without_file(self) -> Iterator[QueueDifference]:
        """Yield the unclaimed positions that are in no file."""
        for start, stop in find_unclaimed_without_file(self._remainder):
            step = 1 if stop - start <= UNITS_PER_PORTION else stop - start  # if few, one per record
            for at in range(start, stop, step):
                yield self._make_difference(self._kind_without_file, at, self._text_without_file, times=step)

    def _list_displaced(self) -> Iterator[QueueDifference]:
        """Yield the units that are not at the queue offset of their record."""
        for run in group_displaced_units(self._displaced):
            log_offset = self._displaced[run[0]]
            yield from (replace(one, log_offset=log_offset) for one in classify_displaced(self._name, run))

    def _add_expired_rows(self, start: int, units: Units, chosen: NDArray[np.bool_], *, is_blank: bool) -> None:
        """Add rows for the *chosen* units, whose messages have expired; none for units of a deleted file."""
        some = units[chosen]
        if some.size and not is_of_deleted_file(some).all():
            positions = start + np.flatnonzero(chosen)
            block = make_row_block(self._name, some, UnitStatus.EXPIRED, stored_positions=positions)
            self._blocks.append(block._replace(is_pre_blank=is_blank))

    def _explain_unit(self, unit: UnmatchedUnit) -> None:
        """Add the difference and the row of a unit that does not match the record expected at its position."""
        position, offset = unit.position, unit.physical_offset
        if unit.is_zero:
            self._unit_differences.append(self._make_difference(DifferenceKind.HOLE, position, "zeros"))
            return
        if unit.is_blank or offset < 0 or unit.size <= 0:
            kind = DifferenceKind.BLANK_INSIDE if unit.is_blank else DifferenceKind.CORRUPT
            self._unit_differences.append(
                self._make_difference(kind, position, "a blank" if unit.is_blank else unit.text)
            )
            self._add_row(unit, UnitStatus.DANGLING)
            return
        number, record = int(np.searchsorted(self._offsets, offset)), self._resolved.get(offset)
        if number < self._offsets.size and self._offsets[number] == offset:
            tags = self._remainder.tags[number] if self._with_rows else None
            expected = self._units[number]
            is_first, self._claimed[number] = not self._claimed[number], True
            self._claim(unit, expected, RecordFields((), int(expected["store_timestamp"]), tags), is_first=is_first)
        elif isinstance(record, RecordFields):
            self._explain_by(unit, record)
        elif record == RECORD_DELETED:
            self._figures.expired += 1
            self._add_row(unit, UnitStatus.EXPIRED)
        else:
            self._explain_without_record(unit, is_damaged=record == RECORD_DAMAGED)
            self._add_row(unit, UnitStatus.DANGLING)

    def _explain_without_record(self, unit: UnmatchedUnit, *, is_damaged: bool) -> None:
        log, offset = self._log, unit.physical_offset
        if offset >= log.end and not log.is_closed:  # newer than a log that was copied before it
            self._figures.ahead += 1
            return
        kind = DifferenceKind.UNIT_OF_DAMAGED_RECORD if is_damaged else DifferenceKind.DANGLING
        if any(start <= offset < end for start, end in log.gaps):
            kind = DifferenceKind.UNIT_OF_LOST_RECORD
        if offset >= log.end:
            kind = DifferenceKind.PAST_LOG_END
        self._unit_differences.append(self._make_difference(kind, unit.position, unit.text, log_offset=offset))

    def _explain_by(self, unit: UnmatchedUnit, record: RecordFields) -> None:
        """Explain a unit by a record that has its own unit elsewhere, or its position in a lost file."""
        own = next((one for one in record.units if one.queue == self._name), None)
        if own is not None and self._remainder.is_missing_at(own.queue_offset):
            expected = np.zeros(1, self._units.dtype)
            for name in ("queue_offset", "physical_offset", "size", "tags_code", "store_timestamp"):
                expected[name] = getattr(own, name)
            self._claim(unit, expected[0], record, is_first=own.queue_offset not in self._found_again)
            self._found_again.add(own.queue_offset)
            return
        kind, text, wrong = classify_by_record(unit, self._name, record)
        if kind is not None:
            self._unit_differences.append(
                self._make_difference(kind, unit.position, text, log_offset=unit.physical_offset)
            )
        self._add_row(unit, UnitStatus.MISMATCHED if wrong else UnitStatus.MATCHED, wrong, record)

    def _claim(self, unit: UnmatchedUnit, expected: np.void, record: RecordFields, *, is_first: bool) -> None:
        """Explain a unit by a record of its queue that has no unit."""
        if not is_first:
            self._unit_differences.append(
                self._make_difference(
                    DifferenceKind.DUPLICATE, unit.position, unit.text, log_offset=unit.physical_offset
                )
            )
            self._add_row(unit, UnitStatus.MISMATCHED, ("queue_offset",), record)
            return
        wrong = list(self._wrong_fields(unit, expected))
        self._figures.matched += not wrong
        self._add_row(unit, UnitStatus.MISMATCHED if wrong else UnitStatus.MATCHED, wrong, record)

    def _wrong_fields(self, unit: UnmatchedUnit, expected: np.void) -> Iterator[str]:
        values = [
            (DifferenceKind.WRONG_SIZE, "size", unit.size, int(expected["size"])),
            (DifferenceKind.WRONG_TAGS_CODE, "tags_code", unit.tags_code, int(expected["tags_code"])),
        ]
        if self._name.kind is QueueKind.BATCH:
            names = (("base_offset", "queue_offset"), ("batch_count",) * 2, ("store_timestamp",) * 2)
            values[:0] = [
                (DifferenceKind.WRONG_BATCH_FIELD, name, int(unit.stored_unit[name][0]), int(expected[wanted]))
                for name, wanted in names
            ]
        elif int(expected["queue_offset"]) != unit.position:
            self._displaced[unit.position, int(expected["queue_offset"])] = unit.physical_offset
            yield "queue_offset"
        for kind, name, value, wanted_value in values:
            if value != wanted_value:
                found = str(value), str(wanted_value), name
                self._unit_differences.append(
                    self._make_difference(kind, unit.position, *found, log_offset=unit.physical_offset)
                )
                yield name

    def _mark_blanks_of_lost(self, differences: Sequence[QueueDifference]) -> list[QueueDifference]:
        """Return the differences; blanks in place of lost records get a separate kind."""
        if all(one.kind is not DifferenceKind.BLANK_INSIDE for one in differences):
            return list(differences)
        ends = [unit for run in self._remainder.missing_units for unit in (run.first_unit, run.last_unit)]
        known = np.concatenate([self._units, *ends])
        wanted = dict(zip(known["queue_offset"].tolist(), known, strict=True))
        blanks = {
            one.position: number
            for number, one in enumerate(differences)
            if one.kind is DifferenceKind.BLANK_INSIDE
            and one.position not in wanted
            and self._name.kind is QueueKind.PLAIN
        }
        marked = list(differences)
        for start, count in run_starts_and_lengths(np.array(sorted(blanks), np.int64)):
            before, after = (self._record_of(position, wanted) for position in (start - 1, start + count))
            if before is None or after is None:
                continue
            lost = lost_offset_of_blanks(before[1], after[0], count, self._log.find_lost_ranges(before[1], after[0]))
            for number in (blanks[position] for position in range(start, start + count) if lost is not None):
                marked[number] = replace(marked[number], kind=DifferenceKind.BLANK_OF_LOST, log_offset=lost)
        return marked

    def _record_of(self, position: int, wanted: Mapping[int, np.void]) -> tuple[int, int] | None:
        """Return the range of the log that has, or had, the record of a position; None if unknown."""
        if position in wanted:
            unit = wanted[position]
        elif position < self._queue.first_unit_number:
            return None
        else:
            unit = read_stored_units(self._queue, position, position + 1)[0]
            at = int(unit["physical_offset"])
            is_known = not self._remainder.is_unclaimed_at(position) or self._log.find_lost_ranges(at, at + 1)
            if not (0 < unit["size"] < PRE_BLANK_SIZE and is_known):
                return None
        start = int(unit["physical_offset"])
        return start, start + int(unit["size"])

    def _name_missing(
        self,
        differences: Sequence[QueueDifference],
        bad: Mapping[int, int],
        unclaimed: Sequence[tuple[int, DifferenceKind]],
    ) -> tuple[list[QueueDifference], list[QueueDifference]]:
        """Return differences that state also the records without a unit, and new ones for the other such records."""
        stated, missing = list(differences), list[QueueDifference]()
        for number, kind in unclaimed:
            unit = self._units[number]
            position = int(unit["queue_offset"])
            named = bad.get(position) if self._name.kind is QueueKind.PLAIN else None
            if named is None or kind in KINDS_OF_EARLIER_QUEUES.values():
                log_offset = int(unit["physical_offset"])
                missing.append(self._make_difference(kind, position, "missing", _text_of(unit), log_offset=log_offset))
                continue
            there = stated[named]
            # At the position of a record, it does not show a loss of the log.
            if there.kind is DifferenceKind.PAST_LOG_END:
                there = replace(there, kind=DifferenceKind.DANGLING, log_offset=None)
            stated[named] = replace(there, expected=_text_of(unit))
        return stated, missing

    def _make_missing_rows(self, unclaimed: Sequence[tuple[int, DifferenceKind]]) -> Iterator[RowBlock]:
        """Yield the rows of records without a unit, if rows are wanted."""
        for number, kind in unclaimed if self._with_rows else ():
            status = status_of_missing(kind)
            tags = self._tag_number(self._remainder.tags[number])
            yield make_row_block(self._name, self._units[number : number + 1], status, tags)

    @property
    def _kind_without_file(self) -> DifferenceKind:
        """The kind of units outside the queue's files; a queue in RocksDB has rows and no files."""
        return DifferenceKind.MISSING if self._queue.in_rocksdb else DifferenceKind.MISSING_FILE

    @property
    def _text_without_file(self) -> str:
        return "missing" if self._queue.in_rocksdb else "no file"

    def _kind_of_missing(self, number: int) -> DifferenceKind:
        """Return why a record has no unit; messages before the queue's beginning belong to a deleted topic."""
        unit = self._units[number]
        position, physical_offset = int(unit["queue_offset"]), int(unit["physical_offset"])
        if self._name.kind is QueueKind.BATCH:
            return DifferenceKind.MISSING
        if physical_offset < self._beginning:
            return self._kind_of_earlier
        if self._queue.file_at(position) is None:
            return self._kind_without_file
        # The unit's position is free if no record claims it or if the file has zeros there.
        if (
            self._remainder.is_unclaimed_at(position)
            or not read_stored_units(self._queue, position, position + 1)["size"][0]
        ):
            return DifferenceKind.MISSING
        return DifferenceKind.DROPPED_RECORD

    @cached_property
    def _kind_of_earlier(self) -> DifferenceKind:
        """Classify the messages before the queue's beginning."""
        return classify_earlier_messages(self._remainder, self._beginning, self._log)

    def _list_earlier(self) -> Iterator[QueueDifference]:
        """Yield the units of the deleted topic that are nowhere, run by run."""
        for run in self._remainder.earlier_units:
            yield self._make_difference(
                self._kind_of_earlier,
                run.position,
                "missing",
                _text_of(run.first_unit[0]),
                times=run.unit_count,
                log_offset=run.first_log_offset,
            )

    def _list_lost(self) -> Iterator[QueueDifference]:
        """Yield the units of lost files that are nowhere else."""
        for run in self._remainder.missing_units:
            is_earlier = run.last_log_offset < self._beginning
            at = run.position
            for position in [*sorted(one for one in self._found_again if at <= one < run.end), run.end]:
                if position > at:
                    kind = self._kind_of_earlier if is_earlier else self._kind_without_file
                    is_first, is_unclaimed = at == run.position, self._remainder.is_unclaimed_at(at)
                    found = self._text_without_file if is_unclaimed else "missing"
                    text = _text_of(run.first_unit[0]) if is_first else f"the unit of queue offset {at}"
                    log_offset = run.first_log_offset if is_first and not is_unclaimed else None
                    yield self._make_difference(kind, at, found, text, times=position - at, log_offset=log_offset)
                if position < run.end and self._remainder.is_unclaimed_at(position):
                    yield self._make_difference(self._kind_without_file, position, self._text_without_file)
                at = position + 1

    def _make_difference(  # noqa: PLR0913 - a difference
        self,
        kind: DifferenceKind,
        position: int,
        found: str,
        expected: str = "",
        field: str = "unit",
        *,
        times: int = 1,
        log_offset: int | None = None,
    ) -> QueueDifference:
        return QueueDifference(kind, self._name, position, found, expected, field, times, log_offset=log_offset)

    def _add_row(
        self,
        unit: UnmatchedUnit,
        status: UnitStatus,
        mismatch: Sequence[str] = (),
        record: RecordFields | None = None,
    ) -> None:
        """Add the row of a unit, if rows are wanted; *mismatch* names its wrong fields, *record* is its target."""
        if self._with_rows:
            block = make_row_block(self._name, unit.stored_unit, status, stored_positions=np.array([unit.position]))
            if record is not None:
                time = np.array([record.store_timestamp], np.int64)
                block = block._replace(store_timestamp=time, tag_numbers=self._tag_number(record.tags))
            self._blocks.append(block._replace(mismatch=tuple(mismatch), is_pre_blank=unit.is_blank))

    def _tag_number(self, text: str | None) -> NDArray[np.int32]:
        if text is None:
            return np.array([-1], np.int32)
        self._tags.append(text)
        return np.array([len(self._tags) - 1], np.int32)


def classify_by_record(
    unit: UnmatchedUnit, queue: QueueName, record: RecordFields
) -> tuple[DifferenceKind | None, str, tuple[str, ...]]:
    """Classify a unit whose record has its own unit elsewhere, or none; also name the contradicting fields."""
    if not record.units:
        return DifferenceKind.UNIT_OF_HIDDEN_RECORD, unit.text, ("transaction_type",)
    own = next((expected for expected in record.units if expected.queue == queue), None)
    if own is None:
        other = record.units[0].queue
        wrong = tuple(name for name in ("topic", "queue_id") if getattr(other, name) != getattr(queue, name))
        return DifferenceKind.FOREIGN, f"{unit.text}: a record of {other.topic}/{other.queue_id}", wrong
    if own.queue_offset != unit.position and queue.kind is QueueKind.PLAIN:
        text = f"{unit.text}: the record of queue offset {own.queue_offset}"
        return DifferenceKind.DUPLICATE, text, ("queue_offset",)
    return None, "", ()


def lost_offset_of_blanks(end: int, start: int, count: int, lost_ranges: Sequence[tuple[int, int]]) -> int | None:
    """
    Return where the log has lost the records of *count* blanks; None if the losses are too small.

    The record before the blanks has its *end* in the log, the one after them its *start*; *lost_ranges* are of the log.
    """
    inside = [(max(first, end), min(last, start)) for first, last in lost_ranges if max(first, end) < min(last, start)]
    most = sum(last - first for first, last in inside) // MIN_RECORD_SIZE
    return min(inside)[0] if 0 < count <= most else None


def group_displaced_units(displaced: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield runs of (position, queue offset) with consecutive positions."""
    # Positions ascend, so those that follow each other are as far from their own numbers.
    for _, run in groupby(enumerate(sorted(displaced)), lambda place: place[1][0] - place[0]):
        yield [place for _, place in run]


def classify_displaced(queue: QueueName, displaced: Sequence[tuple[int, int]]) -> Iterator[QueueDifference]:
    """Classify consecutive displaced units (position, queue offset) as exchanged with each other, or shifted."""
    if sorted(queue_offset for _, queue_offset in displaced) == [position for position, _ in displaced]:
        text = ", ".join(str(queue_offset) for _, queue_offset in displaced[:_SHOWN])
        yield QueueDifference(
            DifferenceKind.OUT_OF_ORDER,
            queue,
            displaced[0][0],
            f"queue offsets {text}",
            "ascending",
            unit_count=len(displaced),
        )
        return
    for position, queue_offset in displaced:
        kind = DifferenceKind.RESTARTED if queue_offset == 0 else DifferenceKind.MISPLACED
        found, expected = f"the unit of queue offset {queue_offset}", f"that of queue offset {position}"
        yield QueueDifference(kind, queue, position, found, expected, shift=position - queue_offset)


def follows_from_losses(
    difference: QueueDifference, is_missing: Callable[[int], bool], is_bad: Callable[[int], bool]
) -> bool:
    """Return whether units are displaced only because earlier ones are missing or surplus."""
    shift = difference.shift
    if shift < 0:
        return all(is_missing(difference.position + number) for number in range(-shift))
    return all(is_bad(difference.position - 1 - number) for number in range(shift))


def _text_of(unit: np.void) -> str:
    return f"offset {int(unit['physical_offset'])}, size {int(unit['size'])}, tags code {int(unit['tags_code'])}"
