"""
Classes of unmatched units and of records without a unit: pure functions of stored and expected fields.

Nothing is read here. `unmatched` reads the arguments of these functions, and makes differences and rows of the answers.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from jobs.products.queues.differences import Difference, DifferenceKind
from jobs.products.queues.records_at import DAMAGED, DELETED, RecordAt
from rmq_formats.commitlog.layout import MIN_RECORD_SIZE
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE
from rmq_formats.consumequeue.unit import QueueKind, QueueName

_SHOWN = 4


class OddUnit(NamedTuple):
    """A unit that is at no record's address."""

    position: int
    physical_offset: int
    size: int
    tags_code: int

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


class Answer(NamedTuple):
    """The class of a unit: a difference, or none; and the fields of its record that it contradicts."""

    kind: DifferenceKind | None
    text: str = ""
    wrong: tuple[str, ...] = ()


def without_meaning(unit: OddUnit, *, has_file: bool) -> Answer | None:
    """Classify a unit that has no valid address; None if the address lies in the log."""
    if unit.is_zero and has_file:
        return Answer(DifferenceKind.HOLE, "zeros")
    if unit.is_zero:
        return Answer(DifferenceKind.MISSING_FILE, "no file")
    if unit.is_blank:
        return Answer(DifferenceKind.BLANK_INSIDE, "a blank")
    if unit.physical_offset < 0 or unit.size <= 0:
        return Answer(DifferenceKind.CORRUPT, unit.text)
    return None


def without_record(
    unit: OddUnit, found: str | None, log_end: int, gaps: Sequence[tuple[int, int]], *, is_closed: bool
) -> Answer | None:
    """Classify a unit whose record was not found; None if the record was deleted with its segment."""
    if found == DELETED:
        return None
    if unit.physical_offset >= log_end:
        return Answer(DifferenceKind.BEHIND_LOG if is_closed else None, unit.text)
    if any(start <= unit.physical_offset < end for start, end in gaps):
        return Answer(DifferenceKind.LOST_RECORD, unit.text)
    return Answer(DifferenceKind.DAMAGED_RECORD if found == DAMAGED else DifferenceKind.DANGLING, unit.text)


def by_record(unit: OddUnit, queue: QueueName, record: RecordAt) -> Answer:
    """Classify a unit whose record has its own unit elsewhere, or none."""
    if not record.units:
        return Answer(DifferenceKind.HIDDEN_RECORD, unit.text, ("transaction_type",))
    own = next((expected for expected in record.units if expected.queue == queue), None)
    if own is None:
        other = record.units[0].queue
        wrong = tuple(name for name in ("topic", "queue_id") if getattr(other, name) != getattr(queue, name))
        return Answer(DifferenceKind.FOREIGN, f"{unit.text}: a record of {other.topic} {other.queue_id}", wrong)
    if own.queue_offset != unit.position and queue.kind is QueueKind.PLAIN:
        text = f"{unit.text}: the record of queue offset {own.queue_offset}"
        return Answer(DifferenceKind.DUPLICATE, text, ("queue_offset",))
    return Answer(None)


def lost_between(end: int, start: int, count: int, lost: Sequence[tuple[int, int]]) -> int | None:
    """
    Return where the log has lost the records of *count* blanks; None where the losses are too small for that number.

    The record before the blanks has its *end* in the log, the one after them its *start*; *lost* are ranges.
    """
    inside = [(max(first, end), min(last, start)) for first, last in lost if max(first, end) < min(last, start)]
    most = sum(last - first for first, last in inside) // MIN_RECORD_SIZE
    return min(inside)[0] if 0 < count <= most else None


def of_missing(
    kind: QueueKind, physical_offset: int, beginning: int, *, has_file: bool, is_free: bool
) -> DifferenceKind:
    """
    Return why a record has no unit; messages before the *beginning* of the queue are of a deleted topic.

    The unit's place is free where zeros are stored, or no record claims it.
    """
    if kind is QueueKind.BATCH:
        return DifferenceKind.MISSING
    if physical_offset < beginning:
        return DifferenceKind.DELETED_TOPIC
    if not has_file:
        return DifferenceKind.MISSING_FILE
    return DifferenceKind.MISSING if is_free else DifferenceKind.DROPPED


def displaced_runs(displaced: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield runs of (position, queue offset) whose positions follow each other."""
    # Positions ascend, so those that follow each other are as far from their own numbers.
    for _, run in groupby(enumerate(sorted(displaced)), lambda place: place[1][0] - place[0]):
        yield [place for _, place in run]


def of_displaced(queue: QueueName, run: Sequence[tuple[int, int]]) -> Iterator[Difference]:
    """Classify a run of displaced units: exchanged with each other, or shifted."""
    if sorted(queue_offset for _, queue_offset in run) == [position for position, _ in run]:
        text = ", ".join(str(queue_offset) for _, queue_offset in run[:_SHOWN])
        yield Difference(
            DifferenceKind.OUT_OF_ORDER, queue, run[0][0], f"queue offsets {text}", "ascending", times=len(run)
        )
        return
    for position, queue_offset in run:
        kind = DifferenceKind.RESTARTED if queue_offset == 0 else DifferenceKind.MISPLACED
        found, expected = f"the unit of queue offset {queue_offset}", f"of {position}"
        yield Difference(kind, queue, position, found, expected, shift=position - queue_offset)


def follows(shifted: Difference, missing: Container[int], bad: Container[int]) -> bool:
    """Return whether units are out of place only because some before them are lost, or too many."""
    shift = shifted.shift
    if shift < 0:
        return all(shifted.position + number in missing for number in range(-shift))
    return all(shifted.position - 1 - number in bad for number in range(shift))
