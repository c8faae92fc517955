"""Differences between queues and log, queue by queue: found by the join, reported by `verify`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Flag, StrEnum, auto, unique
from typing import Self

from jobs.store.topics import Fate
from rmq_formats.consumequeue.unit import QueueName


class Trait(Flag):
    """Properties that classes of differences share."""

    BAD_PLACE = auto()  # the place holds no unit of the record that should have it
    NO_FAULT = auto()  # of a queue or its file: the record is lost in the log, or its topic was deleted
    NO_UNIT = auto()  # a record has none
    OVERWRITTEN = auto()  # a unit leads to a record, and is not what that record demands
    # A unit leads to a record that says otherwise; where few units say so, one changed bit of the record explains it.
    AGAINST_RECORD = auto()
    NONE = 0


_LOST = Trait.BAD_PLACE | Trait.NO_FAULT
_OTHER = Trait.BAD_PLACE | Trait.OVERWRITTEN | Trait.AGAINST_RECORD


@unique
class DifferenceKind(StrEnum):
    """The classes, each with its traits; scripts branch on these."""

    traits: Trait

    def __new__(cls, value: str, traits: Trait = Trait.NONE) -> Self:
        """Return the class that scripts know by *value*."""
        kind = str.__new__(cls, value)
        kind._value_, kind.traits = value, traits
        return kind

    DANGLING = "dangling_unit", Trait.BAD_PLACE
    LOST_RECORD = "unit_of_lost_record", _LOST
    DAMAGED_RECORD = "unit_of_damaged_record", _LOST
    BEHIND_LOG = "unit_past_log_end", Trait.BAD_PLACE
    WRONG_SIZE = "wrong_size", Trait.OVERWRITTEN
    WRONG_TAGS_CODE = "wrong_tags_code", Trait.OVERWRITTEN | Trait.AGAINST_RECORD
    WRONG_BATCH_FIELD = "wrong_batch_field", Trait.OVERWRITTEN
    FOREIGN = "unit_of_other_queue", _OTHER
    HIDDEN_RECORD = "unit_of_hidden_record", _OTHER
    DUPLICATE = "duplicate_unit", _OTHER
    OUT_OF_ORDER = "out_of_order", Trait.OVERWRITTEN
    MISPLACED = "misplaced_unit", Trait.AGAINST_RECORD
    MISSING = "missing_unit", Trait.NO_UNIT
    MISSING_FILE = "missing_file", Trait.BAD_PLACE | Trait.NO_UNIT
    MISSING_QUEUE = "missing_queue", Trait.NO_UNIT
    HOLE = "hole", Trait.BAD_PLACE
    BLANK_INSIDE = "blank_inside", Trait.BAD_PLACE
    BLANK_OF_LOST = "blank_of_lost_record", _LOST  # a repair leaves out what the log has lost
    CORRUPT = "corrupt_unit", Trait.BAD_PLACE
    RESTARTED = "queue_restarted", Trait.AGAINST_RECORD
    DROPPED = "dropped_record", Trait.NO_UNIT
    # Messages from before a queue began at 0 once more.
    DELETED_TOPIC = "deleted_topic", Trait.NO_FAULT  # the topic was deleted and created again
    QUEUE_LOST = "queue_lost_and_restarted", Trait.NO_UNIT  # it was not: the queue's folder was lost
    UNDECIDED_TOPIC = "deleted_or_lost_queue", Trait.NO_FAULT  # nothing tells which of the two


def _with(trait: Trait) -> frozenset[DifferenceKind]:
    return frozenset(kind for kind in DifferenceKind if trait in kind.traits)


BAD_PLACES, NOT_OF_QUEUES = _with(Trait.BAD_PLACE), _with(Trait.NO_FAULT)
OF_EARLIER_QUEUE = {
    Fate.DELETED: DifferenceKind.DELETED_TOPIC,
    Fate.ALIVE: DifferenceKind.QUEUE_LOST,
    Fate.UNDECIDED: DifferenceKind.UNDECIDED_TOPIC,
}
WITHOUT_UNIT, OVERWRITTEN = _with(Trait.NO_UNIT), _with(Trait.OVERWRITTEN)
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
        return Trait.AGAINST_RECORD in self.kind.traits and self.times <= _FEW and self.log_offset is not None

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
