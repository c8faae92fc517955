"""The questions of a list to a store or a lake, and the answers."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from jobs.console.amounts import round_duration
from jobs.query.message import Message
from jobs.query.source import MAX_TIME, MIN_TIME, Source, whole_number
from jobs.query.story.evidence import Evidence
from rmq_formats.errors import UnsupportedFormat

CHAIN_SHOWN = 24  # entries of a slot's chain

Cell = str | int | float | bool | None


class Deadline:
    """A moment up to which a list may look."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() > self._end


class Wanted(NamedTuple):
    """The messages that a list shows; None: any."""

    topic: str | None = None
    key: str | None = None
    tag: str | None = None
    words: str | None = None  # that the body holds, byte by byte
    begin: int = MIN_TIME  # ms, both included
    end: int = MAX_TIME
    queue_id: int | None = None  # of the topic

    @property
    def is_search(self) -> bool:
        """Whether a condition beside topic and time limits the list."""
        return (self.key, self.tag, self.words) != (None, None, None)

    def takes(self, message: Message) -> bool:
        """Return whether a message is wanted, whatever its topic."""
        if not self.begin <= message.record.store_timestamp <= self.end:
            return False
        if self.queue_id not in {None, message.record.queue_id}:
            return False
        if self.tag is not None and message.tags != self.tag:
            return False
        if self.key is not None and self.key not in {*message.keys, message.unique_key}:
            return False
        return self.words is None or self.words.encode() in (message.body_within() or message.record.body)


class Found(NamedTuple):
    """A message, and its position: a text that names it in its store or lake."""

    position: str
    message: Message


class Page(NamedTuple):
    """Messages, newest first."""

    messages: Sequence[Found]
    next: str | None  # the position before which the next page begins; None after the last one
    was_cut_short: bool = False  # the time was over before the page was full


class Histogram(NamedTuple):
    """How many messages were stored when: one count a slot, from *start* on, *step* milliseconds each."""

    start: int
    step: int
    counts: list[int]
    note: str = ""

    @classmethod
    def empty(cls, begin: int, end: int, slots: int) -> "Histogram":
        """Return a histogram of no message between two times, of about so many slots of a round length."""
        step = round_duration(max(1, (end - begin) / max(slots - 1, 1)))
        start = begin // step * step
        return cls(start, step, [0] * ((end - start) // step + 1))


class Rows(NamedTuple):
    """A table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    sql: str | None = None  # that gives it; None of a store
    note: str = ""


class Link(NamedTuple):
    """One entry of a slot's chain in an index file."""

    entry: int
    physical_offset: int
    leads_here: bool
    has_hash: bool


class Chain(NamedTuple):
    """The slot of one key in one index file, its newest entry first."""

    key: str
    file: str
    slot: int
    links: Sequence[Link]
    is_longer: bool


class Listing(Protocol):
    """Lists of one store's messages, topics and groups."""

    @property
    def source(self) -> Source:
        """The store."""

    @property
    def evidence(self) -> Evidence:
        """Its facts about a message's copies."""

    def at(self, position: str) -> Message | None:
        """Return the message at a position."""

    def position(self, message: Message) -> str:
        """Return the position of a message that another query found."""

    def page(self, wanted: Wanted, before: str | None, limit: int, deadline: Deadline) -> Page:
        """Return at most *limit* messages that come after a position, the newest first."""

    def number_of_messages(self, wanted: Wanted) -> int | None:
        """Return the number of messages of a topic, or of all, in the times that are asked for; None: not known."""

    def histogram(self, wanted: Wanted, slots: int, deadline: Deadline) -> Histogram | None:
        """Return how many messages were stored when."""

    def topics(self) -> Rows:
        """Return each topic."""

    def groups(self) -> Rows:
        """Return how far each consumer group is."""

    def unfinished(self) -> Sequence[tuple[str, Rows]]:
        """Return dead letters, open transactions and the like."""

    def chains(self, message: Message) -> Iterator[Chain]:
        """Yield for each key of a message the chain of index entries that leads to it."""

    def tables(self) -> Sequence[str]:
        """Name the tables of a lake; none of a store."""

    def table(self, name: str, filters: Mapping[str, str], skip: int, limit: int) -> Rows:
        """Return rows of a table."""


def number_of(position: str) -> int:
    """Return a number that a position is made of; `UnsupportedFormat` where it is none of 64 bits."""
    number = whole_number(position)
    if number is None:
        raise UnsupportedFormat(f"{position[:40]!r} is no position of a message")
    return number


def rate(count: int, first: int | None, last: int | None) -> float | None:
    """Return messages a second between two times; None where they give none."""
    if first is None or last is None or last <= first:
        return None
    return float(f"{count * 1000 / (last - first):.3g}")
