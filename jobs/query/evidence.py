"""Facts that a store or a lake has about a message's copies, each with its origin."""

from collections.abc import Mapping, Sequence
from enum import StrEnum, unique
from typing import NamedTuple, Self

from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.release import Release


class Sentence(str):
    """
    A sentence for people that keeps its template and its values.

    The English template is the key of its translations, which have the same values. A value may be a sentence itself.
    """

    __slots__ = ("template", "values")
    template: str
    values: Mapping[str, object]

    def __new__(cls, template: str, **values: object) -> Self:
        """Return the sentence in English."""
        sentence = super().__new__(cls, template.format(**values))
        sentence.template, sentence.values = template, values
        return sentence


class Origin(NamedTuple):
    """The origin of a fact: a file of the store and an offset in it, or a table of the lake and its version."""

    name: str
    position: int | None = None  # in the file; None of a table
    version: int | None = None  # of the table; None of a file

    def __str__(self) -> str:
        if self.version is not None:
            return f"table {self.name}, version {self.version}"
        return self.name if self.position is None else f"{self.name} at {self.position:,}"


@unique
class Check(StrEnum):
    """Whether a queue or the index leads to a copy."""

    LEADS_THERE = "leads there"
    ELSEWHERE = "leads elsewhere"
    MISSING = "missing"
    NOT_KNOWN = "not known"


class QueueFact(NamedTuple):
    """The unit of one queue at the number of a copy."""

    topic: str
    queue_id: int
    queue_offset: int
    check: Check
    place: Origin
    tags_code: int | None = None  # as the unit has it; of a delayed message its time of delivery


class KeyFact(NamedTuple):
    """Whether the index leads from a key to a copy."""

    kind: str
    key: str
    check: Check
    place: Origin | None


def missing_key(kind: KeyKind, releases: Sequence[Release]) -> Check:
    """Return the verdict on a key that no entry has: only some of the releases that may have written it index tags."""
    return Check.NOT_KNOWN if kind is KeyKind.TAG and not all(one.indexes_tags for one in releases) else Check.MISSING
