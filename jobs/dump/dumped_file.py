"""
A file of a store that is dumped, its directory and its items. `units` detects the kind, and yields the items.

The file is read through a sliding window, past unreadable sectors: their bytes are noted, and read as zeros. Zeros
never form a record, so a walk finds the damage and continues.
"""

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from jobs.console.amounts import count_text, utc_time_text
from jobs.launch.arguments import file_system_options
from jobs.options.declaration import flag, option
from jobs.options.values import NOT_NEGATIVE_INTEGER, json_option
from jobs.storage import storage_for
from jobs.storage.locations import is_local, local_path, normalize_location
from jobs.storage.model import Reader
from jobs.store.request import hash_slots_option, index_num_option
from rmq_formats.errors import is_disk_error
from rmq_formats.layout import Layout, make_block_reader
from rmq_formats.store import FileKind, parse_offset_name

MORE_FOLLOWS = "stopped here (more data follows)"
short_time_text = partial(utc_time_text, suffix="Z")
_WINDOW = 1 << 20
_SECTOR = 4096
_AT_ONCE = 1 << 16

# The kinds of files that a user can select, by name.
KINDS_BY_NAME = {
    "commitlog": FileKind.COMMITLOG,
    "consumequeue": FileKind.CONSUME_QUEUE,
    "batchconsumequeue": FileKind.BATCH_CONSUME_QUEUE,
    "consumequeue_ext": FileKind.CONSUME_QUEUE_EXT,
    "index": FileKind.INDEX,
    "checkpoint": FileKind.CHECKPOINT,
    "timerwheel": FileKind.TIMER_WHEEL,
    "timerlog": FileKind.TIMER_LOG,
    "timercheck": FileKind.TIMER_PROGRESS,
}


class Field(NamedTuple):
    """One field of an item; its offset is counted like that of the item."""

    offset: int
    name: str
    text: str


class DumpItem(NamedTuple):
    """
    One item of a file, for example a record or a unit.

    *offset* is the physical offset in a log, otherwise the position in the file. *fields* cover every byte; *values*
    are the JSON form.
    """

    offset: int
    size: int
    kind: str
    text: str
    values: Mapping[str, object]
    fields: Sequence[Field] = ()
    is_damage: bool = False


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """The part of a file to dump; of an index file, *chain* selects one slot, by its number or by one of its keys."""

    start: int = option("N", "Begin at this offset.", NOT_NEGATIVE_INTEGER, names="--from", default=0)
    limit: int | None = option("N", "Print at most N items of each file.", NOT_NEGATIVE_INTEGER)
    as_json: bool = json_option()
    with_fields: bool = flag("Print every field, one per line.", names="--fields")
    chain: str | None = option(
        "KEY|SLOT", "For an index file: print the entries of one slot, newest first. KEY is topic#key."
    )
    hash_slots: int | None = hash_slots_option()
    index_num: int | None = index_num_option()

    def make_item(
        self, layout: Layout, field_values: Sequence[int], heading: tuple[int, str, str], /, **values: object
    ) -> DumpItem:
        """Return the item for the bytes of a layout; the *heading* is its offset, its kind, and a text."""
        offset, kind, text = heading
        fields = layout_fields(layout, field_values, offset) if self.with_fields else ()
        return DumpItem(offset, layout.size, kind, text, values, fields)


def damage_item(offset: int, size: int, reason: str) -> DumpItem:
    """Return the item for bytes that a broker would not write."""
    return DumpItem(offset, size, "damage", reason, {"reason": reason}, is_damage=True)


def counts_text(items: str, damaged: int, start: int | None) -> str:
    """Format the number of items and of damaged ranges that were read starting at *start*; None: all of the file."""
    before = "" if start is None else f"; the bytes before offset {start:,} were not read"
    return f"{items}, {count_text(damaged, 'damaged range')}{before}"


def layout_fields(layout: Layout, values: Sequence[int | bytes], offset: int) -> list[Field]:
    """Return the fields of a layout at *offset*."""
    return [
        Field(offset + row.offset, row.name, value.hex() if isinstance(value, bytes) else str(value))
        for row, value in zip(layout.describe_fields(), values, strict=True)
    ]


class DumpFile:
    """A file's content and name."""

    def __init__(self, location: str, reader: Reader) -> None:
        self.location = location
        self.directory, _, self.name = location.rstrip("/").rpartition("/")
        self.size = reader.size
        self.unreadable: list[tuple[int, int, str]] = []  # bytes: position, size, and why they cannot be read
        self.next_written = reader.next_written
        self._reader = reader
        self.read = make_block_reader(self._read_bytes, _WINDOW)

    def end_of_equal_units(self, position: int, unit: bytes, end: int) -> int:
        """Return the end of a series of equal units at *position*: at most *end*, even inside a unit."""
        while position < end:
            size = min(_AT_ONCE // len(unit) * len(unit), end - position)
            data = self.read(position, size).ljust(size, b"\0")  # zeros after the end of a truncated file
            if data != (unit * (size // len(unit) + 1))[:size]:
                units = range(0, size, len(unit))
                return position + next(at for at in units if data[at : at + len(unit)] != unit)
            position += size
            if position < end and not any(unit):  # a hole in the file is skipped unread
                position += (min(self.next_written(position), end) - position) // len(unit) * len(unit)
        return position

    def _read_bytes(self, position: int, length: int) -> bytes:
        """Return bytes of the file; sectors that cannot be read become zeros and are noted as unreadable."""
        try:
            return bytes(self._reader.read(position, length))
        except OSError as error:
            if not is_disk_error(error):
                raise
            return b"".join(self._read_sectors(position, min(length, self.size - position)))

    def _read_sectors(self, position: int, length: int) -> Iterator[bytes]:
        end = position + length
        while position < end:
            size = min(_SECTOR - position % _SECTOR, end - position)
            try:
                yield bytes(self._reader.read(position, size))
            except OSError as error:  # EIO of one sector: reported as unreadable, exit code 3
                found = position, size, str(error.strerror)
                start, length_before, reason = self.unreadable[-1] if self.unreadable else (0, 0, "")
                if start <= position <= start + length_before and reason == found[2]:
                    self.unreadable[-1] = start, max(length_before, position + size - start), reason
                elif found not in self.unreadable:
                    self.unreadable.append(found)
                yield bytes(size)
            position += size


@contextmanager
def open_file(location: str) -> Iterator[DumpFile]:
    """Open a local or remote file."""
    place = normalize_location(location)
    if is_local(place) and not stat.S_ISREG(os.stat(place).st_mode):  # noqa: PTH116 - opening a pipe would wait
        raise OSError(
            errno.EINVAL, "not a regular file: `dump` prints single files; to show a store, use `inspect`", place
        )
    with storage_for(place, file_system_options()).open(place) as reader:
        yield DumpFile(place, reader)


def compare_with_sibling_files(file: DumpFile) -> tuple[int | None, str | None]:
    """Return the offset of the next file, and how *file* was truncated, as other files show; None if they do not."""
    base_offset = parse_offset_name(file.name)
    if base_offset is None:
        return None, None
    others = {int(name): size for name, size in list_numbered_files(file) if parse_offset_name(name) is not None}
    largest = max((file.size, *others.values()))
    following = min((offset for offset in others if offset > base_offset), default=None)
    if not file.size or file.size == largest or base_offset + file.size == following:
        return following, None
    rest = "" if following is None else f", and the next file begins at offset {following:,}"
    return (
        following,
        f"the file is truncated: it is {file.size:,} bytes long, but other files here are {largest:,} bytes long{rest}",
    )


def list_numbered_files(file: DumpFile) -> list[tuple[str, int]]:
    """Return name and size of every file in the directory of *file* whose name is a number."""
    try:
        if not is_local(file.directory):
            found = storage_for(file.directory, file_system_options()).list_files(file.directory)
            return [(info.name, info.size) for info in found if info.name.isdecimal()]
        with os.scandir(local_path(file.directory) or "/") as entries:
            return [
                (entry.name, entry.stat().st_size) for entry in entries if entry.name.isdecimal() and entry.is_file()
            ]
    except OSError:  # a directory without access: this one file is dumped without its neighbors
        return []
