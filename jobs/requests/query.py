"""The store or lake that `query`, `browse` and `export` read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from jobs.console.process import tool_command
from jobs.options.declaration import flag, option
from jobs.options.places import QUERIED_LAKE, STORE
from jobs.options.values import broker_conf_option, commitlog_option
from jobs.store.request import one_release_option
from jobs.store.store import format_place_options
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.release import Release


@dataclass(frozen=True, slots=True)
class QueryTarget:
    """A store or a lake, and facts given by the user that its files do not show."""

    store: str | None = option("STORE", "Path or URI (s3a, abfss) of the store.", STORE)
    lake: str | None = option("LAKE", "The lake, instead of a store.", QUERIED_LAKE)
    commitlog: Sequence[str] | None = commitlog_option()
    broker_conf: Path | None = broker_conf_option()
    broker: str | None = option("NAME", "The broker's name; with --lake, the store's label or id.")
    release: Release | None = one_release_option()
    geometry: Geometry | None = None  # the geometry of index files
    scan_log: bool = flag("Search the log instead of index and queue files.")

    @property
    def location(self) -> str:
        """The store or the lake."""
        return self.lake or self.store or ""

    @property
    def is_lake(self) -> bool:
        """Whether this is a lake."""
        return self.lake is not None

    def command_line(self, *words: str) -> str:
        """Return the command line of *words*, which contain the location, with the options of this place."""
        given = format_place_options(self.commitlog, self.broker_conf)
        return " ".join([tool_command(), *map(quote, (*words, *given))])

    def query_command_line(self, *words: str) -> str:
        """Return a `query` command line for this place."""
        given = [
            *(("--broker", self.broker) if self.broker else ()),
            *(("--release", str(self.release)) if self.release else ()),
        ]
        return self.command_line("query", *words, "--lake" if self.is_lake else "--store", self.location, *given)
