"""The store or lake that the pages show, and how it is opened."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from jobs.console.program import program
from jobs.launch.arguments import file_system_options
from jobs.query.lake_tables import LakeTables
from jobs.query.listing.model import Listing
from jobs.query.listing.open_listing import listing_of
from jobs.query.open_source import SourcePlace, open_place
from rmq_formats.errors import NotAStore
from rmq_formats.release import Release


@dataclass(frozen=True, slots=True)
class Place:
    """The store or lake that the command line names."""

    location: str
    commitlog: tuple[str, ...] | None = None
    broker_conf: Path | None = None
    broker: str | None = None
    release: str | None = None
    is_lake: bool = False

    def recognised(self) -> "Place":
        """Return the place as a store or as a lake, which has a table of messages."""
        try:
            LakeTables(self.location, file_system_options())
        except NotAStore:
            return self
        return replace(self, is_lake=True)

    @property
    def program(self) -> str:
        """The words that start this tool."""
        return program()

    def command(self, *words: str) -> str:
        """Return a command line about this place, to paste; a word `{}` is the place itself."""
        given = [
            *(("--commitlog", ",".join(self.commitlog)) if self.commitlog else ()),
            *(("--broker-conf", str(self.broker_conf)) if self.broker_conf else ()),
        ]
        named = [part for word in words for part in ((self.location,) if word == "{}" else (word,))]
        return " ".join([program(), *map(quote, (*named, *given))])

    def query(self, *words: str) -> str:
        """Return a line of `query` that asks this place."""
        given = [
            *(("--broker", self.broker) if self.broker else ()),
            *(("--release", self.release) if self.release else ()),
        ]
        return self.command("query", *words, "--lake" if self.is_lake else "--store", self.location, *given)


@contextmanager
def opened(place: Place) -> Iterator[Listing]:
    """Open a store or a lake."""
    release = Release.of(place.release) if place.release else None
    store, lake = (None, place.location) if place.is_lake else (place.location, None)
    asked = SourcePlace(store, lake, place.commitlog, place.broker_conf, place.broker, release)
    with open_place(asked) as source:
        yield listing_of(source)
