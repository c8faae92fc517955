"""Differences between queues and log, queue by queue: found by the join, reported by `verify`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, unique

from rmq_formats.consumequeue.unit import QueueName


@unique
class DifferenceKind(StrEnum):
    """The classes; scripts branch on these."""

    DANGLING = "dangling_unit"
    LOST_RECORD = "unit_of_lost_record"
    DAMAGED_RECORD = "unit_of_damaged_record"
    BEHIND_LOG = "unit_behind_log"
    WRONG_SIZE = "wrong_size"
    WRONG_TAGS_CODE = "wrong_tags_code"
    WRONG_BATCH_FIELD = "wrong_batch_field"
    FOREIGN = "unit_of_other_queue"
    HIDDEN_RECORD = "unit_of_hidden_record"
    DUPLICATE = "duplicate_unit"
    OUT_OF_ORDER = "out_of_order"
    MISPLACED = "misplaced_unit"
    MISSING = "missing_unit"
    MISSING_FILE = "missing_file"
    MISSING_QUEUE = "missing_queue"
    HOLE = "hole"
    BLANK_INSIDE = "blank_inside"
    BLANK_OF_LOST = "blank_of_lost_record"  # a repair leaves out what the log has lost
    CORRUPT = "corrupt_unit"
    RESTARTED = "queue_restarted"
    DROPPED = "dropped_record"
    DELETED_TOPIC = "deleted_topic"  # no fault: messages of a topic that was deleted and created again


# No fault of a queue or its file: the record is lost in the log, or its topic was deleted.
NOT_OF_QUEUES = frozenset(
    {
        DifferenceKind.LOST_RECORD,
        DifferenceKind.DAMAGED_RECORD,
        DifferenceKind.BLANK_OF_LOST,
        DifferenceKind.DELETED_TOPIC,
    }
)
# A unit leads to a record that says otherwise; where few units say so, one changed bit of the record explains it, too.
_AGAINST_A_RECORD = frozenset(
    {
        DifferenceKind.FOREIGN,
        DifferenceKind.HIDDEN_RECORD,
        DifferenceKind.DUPLICATE,
        DifferenceKind.MISPLACED,
        DifferenceKind.RESTARTED,
        DifferenceKind.WRONG_TAGS_CODE,
    }
)
_FEW = 2


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference, or several of one kind at places that follow each other."""

    kind: DifferenceKind
    queue: QueueName
    position: int  # of the unit; where it should be, if there is none
    found: str
    expected: str
    field: str = "unit"
    times: int = 1
    shift: int = 0  # by how much the unit's place differs from its queue offset
    log_offset: int | None = None  # the place in the log that the first of them is about

    @property
    def may_be_of_a_record(self) -> bool:
        """Whether one record, not the unit, may have changed where no checksum covers it."""
        return self.kind in _AGAINST_A_RECORD and self.times <= _FEW and self.log_offset is not None

    def joined(self, other: "Difference") -> "Difference | None":
        """Return both as one, if *other* goes on where this ends."""
        goes_on = other.position == self.position + self.times
        same = (self.kind, self.queue, self.field, self.shift) == (other.kind, other.queue, other.field, other.shift)
        return replace(self, times=self.times + other.times) if goes_on and same else None


def merged(differences: Sequence[Difference]) -> Iterator[Difference]:
    """
    Yield differences by queue and place, neighbours of one kind as one.

    Those of few records stay apart: each names the record that it is about.
    """
    run: list[Difference] = []
    current: Difference | None = None
    for difference in sorted(differences, key=lambda item: (item.queue, item.kind, item.field, item.position)):
        both = current.joined(difference) if current else None
        if current and both is None:
            yield from run if current.may_be_of_a_record else [current]
            run = []
        current = both or difference
        run = [*run, difference][: _FEW + 1]
    if current:
        yield from run if current.may_be_of_a_record else [current]
