"""A lake: its location and settings, the files below it, and the views over its tables."""

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote

from jobs.console.lines import printable_text
from jobs.storage import open_arrow_file, storage_for
from jobs.storage.json_file import Shape, parse_json_file
from jobs.storage.local import flush_directory
from jobs.storage.locations import is_local, join_location, local_path, normalize_location
from jobs.storage.model import FileInfo, Reader

if TYPE_CHECKING:
    from pyarrow import NativeFile

T = TypeVar("T")
DEFAULT_BROKER = "default"  # the label of a store whose broker has no name
FILLED_KEY = "filled"  # key in the column `detail` of `runs`
BACKFILLED_KEY = "backfilled"  # key in the column `detail` of `runs`
FULL_STATE_KEY = "full_state"  # key there: the newest run that wrote all consumer offsets, not only changed ones
UNDONE_KEY = "undone"  # key in the column `detail` of `runs`
GAPS_SHAPE = [{"broker": str, "from": int, "to": int, "why": str}]
# The column `detail` of `runs`, and of its rows that register a store.
_DETAIL_SHAPE: Shape = {
    "gaps?": GAPS_SHAPE,
    f"{FILLED_KEY}?": [{"from": int, "to": int, "source": str}],
    f"{BACKFILLED_KEY}?": [{"topic": str, "from": int, "to": int, "source": str}],
    f"{UNDONE_KEY}?": {"first_run": int, "from": int},
    "release?": str,
    f"{FULL_STATE_KEY}?": int,
    "registration?": int,
    "versions?": {str: int},
}
REGISTRATION_DETAIL_SHAPE: Shape = {"fingerprints": [[int, int, str]], "registration?": int, "tier?": list}
EXPIRY_DETAIL_SHAPE: Shape = {
    "expired": {"cutoffs": {str: int}, **dict.fromkeys(("number", "to_offset", "until", "messages"), int)}
}
_LARGEST = 1 << 30  # ten times the manifest of a run with 100,000 ranges
_VIEWS = {  # and the tables that each one reads
    "consumer_lag": ("messages", "consumer_offsets"),
    "dead_letters": ("messages",),
    "disk_usage": ("messages",),
    "not_consumed": ("messages", "consumer_offsets"),
    "timers_pending": ("messages",),
    "transactions": ("messages",),
}


def why_without_messages(*, has_runs: bool) -> str:
    """Return why a location has no table of messages, as text; *has_runs* if it has a table of runs."""
    if has_runs:
        return "the lake has no messages: its runs selected none, or another program has deleted its table `messages`"
    return "not a lake: it has no table `messages`"


@dataclass(frozen=True, slots=True)
class Lake:
    """The location of the tables, and the settings to access them; paths are relative to the lake."""

    location: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """
        Normalize the location; refuse one that `deltalake` would mistake for another path.

        It decodes a path twice, takes a backslash for a slash, and drops or rejects control characters.
        """
        object.__setattr__(self, "location", normalize_location(self.location))
        if unquote(self.location) != self.location:
            raise OSError(
                f"{self.location}: the path of a lake must not contain '%' followed by two hexadecimal digits"
            )
        if is_local(self.location) and any(one == "\\" or one < " " for one in self.location):
            # Only the first line of an error of a library is shown.
            place = printable_text(self.location)
            raise OSError(f"{place}: the path of a lake must not contain a backslash or a control character")

    def locate(self, *names: str) -> str:
        """Return the full location of a path below the lake."""
        return join_location(self.location, *names)

    def open(self, path: str) -> AbstractContextManager[Reader]:
        """Open a file for reading."""
        return storage_for(self.location, self.options).open(self.locate(path))

    def read(self, path: str) -> bytes:
        """Return the content of a file that a run has written; refuse a file larger than runs write."""
        with self.open(path) as file:
            if file.size > _LARGEST:
                raise OSError(
                    errno.EFBIG, f"larger than the limit of {_LARGEST:,} bytes for this file", self.locate(path)
                )
            return bytes(file.read(0, file.size))

    @contextmanager
    def open_arrow_file(self, path: str) -> "Iterator[NativeFile]":
        """Open a file for pyarrow's own readers."""
        file = open_arrow_file(self.locate(path), self.options)
        try:
            yield file
        finally:
            with suppress(OSError):  # any: nothing was written, and the bytes that were read are right
                file.close()

    def create(self, path: str, data: bytes) -> None:
        """Write a new file durably and atomically; raise `FileExistsError` if it exists."""
        storage_for(self.location, self.options).create(self.locate(path), data)

    def flush_directory(self, directory: str) -> None:
        """Make the names of the files in a directory durable; object stores do so by themselves."""
        if is_local(self.location):
            flush_directory(Path(local_path(self.locate(directory))))

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        storage_for(self.location, self.options).delete(self.locate(path))

    def list_files(self, directory: str) -> list[FileInfo]:
        """Return every file below *directory*; an empty list if the directory does not exist."""
        try:
            return storage_for(self.location, self.options).list_files(self.locate(directory))
        except FileNotFoundError:
            return []


def parse_run_detail(lake_location: str, detail: str | None, shape: Shape = _DETAIL_SHAPE) -> dict[str, Any]:
    """Return the values of the column `detail` of a row of `runs`; raise `CorruptData` if they do not match *shape*."""
    location = join_location(lake_location, "runs")
    found: dict[str, Any] = parse_json_file((detail or "{}").encode(), shape, f"{location}, column `detail`")
    return found


def drop_undone_runs(details: Iterable[tuple[int, T, Mapping[str, Any]]]) -> list[tuple[T, Mapping[str, Any]]]:
    """Return runs, by number, and their details, without those that a later run has undone."""
    runs = list(details)
    undone = [(detail[UNDONE_KEY]["first_run"], run) for run, _, detail in runs if detail.get(UNDONE_KEY)]
    return [(one, detail) for run, one, detail in runs if not any(first <= run < last for first, last in undone)]


class View(NamedTuple):
    """A named query, and the tables that it reads."""

    name: str
    tables: tuple[str, ...]
    row_meaning: str  # one row of it, in words
    sql: str


@cache
def list_views() -> Sequence[View]:
    """Return every view by name; the first line of each describes its rows."""
    directory = files(__package__) / "views"
    found = []
    for name, tables in _VIEWS.items():
        first, _, sql = (directory / f"{name}.sql").read_text(encoding="utf-8").partition("\n")
        found.append(View(name, tables, first.removeprefix("-- "), sql))
    return tuple(found)
