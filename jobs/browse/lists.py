"""The lists of pages about a store or a lake, other than lists of messages."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from jobs.console.amounts import round_duration
from jobs.query.lookups import Deadline
from jobs.query.message import Message, Wanted
from jobs.query.source import Source

CHAIN_SHOWN = 24  # entries of a slot's chain

Cell = str | int | float | bool | None


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


class Lists(Protocol):
    """Lists of one store's topics and groups, and of the tables of a lake."""

    @property
    def source(self) -> Source:
        """The store."""

    def histogram(self, wanted: Wanted, slots: int, deadline: Deadline) -> Histogram | None:
        """Return how many messages were stored when."""

    def topics(self) -> Rows:
        """Return each topic."""

    def groups(self) -> Rows:
        """Return the lag of each consumer group."""

    def unfinished(self) -> Sequence[tuple[str, Rows]]:
        """Return dead letters, open transactions and the like."""

    def chains(self, message: Message) -> Iterator[Chain]:
        """Yield for each key of a message the chain of index entries that leads to it."""

    def tables(self) -> Sequence[str]:
        """Name the tables of a lake; none of a store."""

    def table(self, name: str, filters: Mapping[str, str], skip: int, limit: int) -> Rows:
        """Return rows of a table."""


def rate(count: int, first: int | None, last: int | None) -> float | None:
    """Return messages a second between two times; None where they give none."""
    if first is None or last is None or last <= first:
        return None
    return float(f"{count * 1000 / (last - first):.3g}")
