"""Facts that a store or a lake has about a message's copies, each with the place that it is known from."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum, unique
from typing import NamedTuple, Protocol

from jobs.query.message import Message
from jobs.query.source import Source
from jobs.store.broker_config import Progress


class Place(NamedTuple):
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
    place: Place
    tags_code: int | None = None  # as the unit has it; of a delayed message its time of delivery


class KeyFact(NamedTuple):
    """Whether the index leads from a key to a copy."""

    kind: str
    key: str
    check: Check
    place: Place | None


class Evidence(Protocol):
    """A store or a lake, asked about copies of a message."""

    @property
    def source(self) -> Source:
        """The queries that both answer."""

    def copies(self, unique_key: str, topics: Iterable[str]) -> Iterator[Message]:
        """Yield the messages under a unique key; a store is asked under *topics*, a lake under all."""

    def beside(self, message: Message) -> "Evidence":
        """Return the evidence of the one store that has a copy; a lake can have several stores."""

    def place(self, message: Message) -> Place:
        """Return the place at which a copy is stored."""

    def queues(self, message: Message) -> list[QueueFact]:
        """Return the unit of each queue at the number that the dispatcher gave the copy."""

    def keys(self, message: Message) -> list[KeyFact]:
        """Return for each key of a copy whether the index leads to it."""

    def progress(self, topics: Sequence[str]) -> Iterator[tuple[Progress, Place]]:
        """Yield how far each reader of *topics* is."""

    def leaves(self, message: Message) -> str | None:
        """Say when retention deletes a copy, or why a copy does not count any more; None where that is not known."""

    def is_taken_back(self, message: Message) -> bool:
        """Return whether the broker took a copy back: its log has other records in that place."""

    def unknown(self) -> list[str]:
        """Return the questions that this kind of source can never answer."""


def progress_of(rows: Iterable[Mapping[str, object]]) -> Iterator[Mapping[str, object]]:
    """Yield the newest row of each reader of a queue; *rows* come oldest first."""
    newest: dict[tuple[object, ...], Mapping[str, object]] = {}
    for row in rows:
        newest[row["kind"], row["consumer_group"], row["topic"], row["queue_id"]] = row
    return (row for row in newest.values() if row["next_offset"] is not None)
