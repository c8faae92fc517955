"""
Builds an index file in a task, either into a directory or only to compare it with an existing one; and names it.

A recipe lists the sources of the entries: keys of the log, and, for messages that the log does not have any more (or
yet), entries of the real file.

A file's name is the broker's local time when it created the file, which is stored nowhere. A rebuilt file is named
after the store time of its first message, adjusted so that it sorts to its place: brokers only use the order of the
names.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import StrEnum, unique
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jobs.console.process import raise_if_stopped
from jobs.products.index.key_sequence import ENTRIES_OF_FILE_ITSELF, KEYS_PER_BLOCK, KeyPart, read_key_blocks
from jobs.storage import AnyStorage, storage_for
from jobs.storage.local import close_file, flush_directory, sha256_of, start_flush, write_all
from jobs.storage.locations import is_local, join_location, local_path
from jobs.storage.model import Reader, Storage
from jobs.storage.scratch import Scratch
from jobs.store.running_broker import FileState
from rmq_formats.indexfile.build import (
    PACKED_KEY,
    BlockComparison,
    FieldDifference,
    FileBuilder,
    IndexFilePart,
    RuleTable,
)
from rmq_formats.indexfile.layout import ENTRY, HEADER, Geometry, IndexHeader
from rmq_formats.layout import Buffer
from rmq_formats.release import Rules
from rmq_formats.store import OFFSET_DIGITS, TIME_DIGITS

Write = Callable[[int, Buffer], object]
# The number of the first entry, the entries, and the store times and texts of their keys if the log has these.
OnEntries = Callable[[int, NDArray[np.void], NDArray[np.int64] | None, pa.RecordBatch | None], object]
_STEP = timedelta(minutes=15)  # the UTC offset of every zone in use is a multiple of this
_SLACK = timedelta(minutes=5)  # the longest time between the creation of a file and its first message
_FURTHEST = timedelta(hours=14)
WESTERNMOST_ZONE = timezone(timedelta(hours=-12))  # the zone with the earliest local time
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
HASH_BLOCK = 8 << 20
CACHE_SIZED_BLOCK = 1 << 18  # bytes of a file in memory; larger blocks do not fit into the processor's cache


@unique
class BuiltFileKind(StrEnum):
    """The kinds of built files."""

    FULL = "full"
    OPEN = "open"  # the newest file, in which a broker continues
    SUPPLEMENT = "supplement"  # keys for which an uninterrupted broker would create no separate file


class BrokerIndexFile(NamedTuple):
    """An existing index file."""

    name: str
    location: str
    size: int
    header: IndexHeader


@dataclass(frozen=True, slots=True)
class IndexRecipe:
    """The parts of a file: entries of the real file, keys of the log, entries of the real file again."""

    geometry: Geometry
    rules: Rules
    scratch: Scratch
    parts: tuple[KeyPart, ...]
    previous_header: IndexHeader | None = None
    empty_index_count: int = 1
    broker_file: BrokerIndexFile | None = None
    head_count: int = 0
    tail_count: int = 0
    storage: Storage = field(default_factory=AnyStorage, repr=False)  # of `broker_file`

    @property
    def entry_count(self) -> int:
        """The number of entries."""
        return self.head_count + sum(part.key_count for part in self.parts) + self.tail_count


def build_blocks(recipe: IndexRecipe, write: Write) -> IndexHeader:
    """Build the file, and pass its blocks to *write*, with the header last."""
    builder = FileBuilder(recipe.geometry, RuleTable.from_rules(recipe.rules), write, recipe.previous_header)
    add_entries(builder, recipe)
    return builder.finish(recipe.empty_index_count)


def add_entries(builder: FileBuilder, recipe: IndexRecipe, on_entries: OnEntries | None = None) -> None:
    """Add the file's entries to *builder*, and pass them to *on_entries*."""
    last_entries = KeyPart(ENTRIES_OF_FILE_ITSELF, recipe.entry_count - recipe.tail_count + 1, recipe.tail_count)
    parts = [KeyPart(ENTRIES_OF_FILE_ITSELF, 1, recipe.head_count), *recipe.parts, last_entries]
    for part in parts:
        if part.file == ENTRIES_OF_FILE_ITSELF:
            _adopt_part(builder, recipe, part, on_entries)
            continue
        for keys, texts in read_key_blocks(recipe.scratch, part, with_texts=on_entries is not None):
            raise_if_stopped()
            number = builder.header.index_count
            times = None if on_entries is None else keys["store_timestamp"].astype(np.int64)
            builder.add(keys)  # which become entries, without these times
            if on_entries is not None:
                on_entries(number, keys, times, texts)


def _adopt_part(builder: FileBuilder, recipe: IndexRecipe, part: KeyPart, note: OnEntries | None) -> None:
    if recipe.broker_file is None or not part.key_count:
        return
    with recipe.storage.open(recipe.broker_file.location) as file:
        for number in range(part.first_key, part.first_key + part.key_count, KEYS_PER_BLOCK):
            data = bytearray(min(part.first_key + part.key_count - number, KEYS_PER_BLOCK) * ENTRY.size)
            found = file.read(recipe.geometry.entry_position(number), len(data))
            data[: len(found)] = found
            entries = np.frombuffer(data, np.uint8)
            first = builder.header.index_count
            builder.add_entries(entries, recipe.broker_file.header)
            if note is not None:
                note(first, entries.view(PACKED_KEY), None, None)


class BuiltIndexFile(NamedTuple):
    """A file that a task has written, as seen by the task, and whether its bytes are proven to be the broker's."""

    name: str
    kind: BuiltFileKind
    size: int
    sha256: str
    header: IndexHeader
    first_key: int
    keys: int
    ranges: int
    host: str
    state: FileState | None = None  # identifies the file that the task has read back
    proven: bool = False
    proof: str = ""
    equal_name: str = ""  # the store's file with the same bytes

    def to_dict(self) -> dict[str, object]:
        """Return the form that the manifest lists."""
        omitted = {"host", "state", "equal_name"}
        values = {name: value for name, value in self._asdict().items() if name not in omitted}
        return {**values, "header": self.header._asdict()}


class BuildTask(NamedTuple):
    """A file to build: its name, kind and recipe."""

    name: str
    kind: BuiltFileKind
    recipe: IndexRecipe
    first_key: int
    doubt: str
    replaced_names: tuple[str, ...] = ()  # of files in the store


def build_file(work: BuildTask, *, directory: str, scratch: Scratch) -> BuiltIndexFile:
    """
    Write a file into *directory* atomically; a second attempt replaces it by the same file.

    The incomplete file of a failed attempt is in *scratch*, and is deleted with it.
    """
    if is_local(directory):
        return _build_local(work, Path(local_path(directory)), Path(local_path(scratch.location)))
    with TemporaryDirectory(prefix="rocketmq-lake-") as temporary:
        built = _build_local(work, Path(temporary), Path(temporary))
        with (
            (Path(temporary) / work.name).open("rb") as file,
            mmap(file.fileno(), 0, access=ACCESS_READ) as mapped,
            memoryview(mapped) as whole,
        ):
            storage_for(directory, scratch.options).create(join_location(directory, work.name), whole)
    return built._replace(state=None)


def _build_local(work: BuildTask, directory: Path, begun_in: Path) -> BuiltIndexFile:
    size, attempt = work.recipe.geometry.file_size, begun_in / f".attempt-{uuid4()}"
    descriptor = os.open(attempt, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:

        def write(position: int, block: Buffer) -> None:
            write_all(descriptor, position, block)
            start_flush(descriptor, position, memoryview(block).nbytes)  # the disk begins to write meanwhile

        header = build_blocks(work.recipe, write)
        os.ftruncate(descriptor, size)
        digest = sha256_of(attempt)
        os.fsync(descriptor)
        # After the last write: a file with the same size and change time need not be read again.
        state = FileState.from_status(os.fstat(descriptor))
        attempt.rename(directory / work.name)
    finally:
        close_file(descriptor, str(directory / work.name))
        attempt.unlink(missing_ok=True)
    flush_directory(directory)
    recipe = work.recipe
    return BuiltIndexFile(
        work.name, work.kind, size, digest, header, work.first_key, recipe.entry_count, len(recipe.parts),
        gethostname(), state,
    )  # fmt: skip


def check_built_file(built: BuiltIndexFile, directory: str, options: Mapping[str, str]) -> None:
    """Read a task's file on the driver; raise `OSError` if it differs from the task's result."""
    location = join_location(directory, built.name)
    is_here = built.state is not None and built.host == gethostname()
    if is_here and FileState.read(Path(local_path(location))) == built.state:
        return  # the same file that the task has read back
    try:
        with storage_for(location, options).open(location) as file:
            seen = hash_file(file.read)
    except FileNotFoundError as error:
        raise OSError(
            f"{location}: written on {built.host}, but not accessible here: use a directory that all workers share"
        ) from error
    if seen != built.sha256:
        raise OSError(
            f"{location}: has SHA-256 {seen} here, but had {built.sha256} on {built.host}, which wrote it: use a "
            "directory that all workers share, and to which no other process writes"
        )


def hash_file(read: Callable[[int, int], Buffer], block_size: int = HASH_BLOCK) -> str:
    """Return the SHA-256 of a file, which is read in blocks; *read* takes a position and a size."""
    digest = sha256()
    position = 0
    while data := read(position, block_size):
        digest.update(data)
        position += len(data)
    return digest.hexdigest()


class FileComparison(NamedTuple):
    """The differences between a real file and its recipe."""

    differences: tuple[FieldDifference, ...]
    counts: dict[IndexFilePart, int]
    differing_bits: int
    zeroed_rows: int
    slots_in_use: int  # the number of slots in use in the real file
    nonzero_after_end: int  # bytes that are not zero after the last entry of the real file
    has_only_next_entry: bool  # those bytes are in the row of the next entry
    is_changing: bool = False  # the real file's header has changed meanwhile: a broker writes to it

    @property
    def is_equal(self) -> bool:
        """Whether they are equal byte for byte."""
        return not self.differences and not self.nonzero_after_end


def compare_file(recipe: IndexRecipe) -> FileComparison:
    """Build the file in memory, block by block, and compare it with the real file."""
    broker_file = recipe.broker_file
    if broker_file is None:
        raise ValueError("the store has no file to compare with")
    end = recipe.geometry.entry_position(recipe.entry_count + 1)
    with recipe.storage.open(broker_file.location) as file:
        comparison = BlockComparison(recipe.geometry, file.read)
        build_blocks(recipe, comparison.compare_block)
        return FileComparison(
            tuple(comparison.differences),
            comparison.counts,
            comparison.differing_bits,
            comparison.zeroed_rows,
            count_slots_in_use(file, recipe.geometry),
            count_nonzero_bytes(file, end, recipe.geometry.file_size),
            not count_nonzero_bytes(file, end + ENTRY.size, recipe.geometry.file_size),
            bytes(file.read(0, HEADER.size)) != HEADER.pack(*broker_file.header),
        )


def count_nonzero_bytes(file: Reader, start: int, end: int) -> int:
    """Count the bytes of a part of a file that are not zero."""
    return sum(int(np.count_nonzero(data)) for data in _blocks(file, start, end))


def count_slots_in_use(file: Reader, geometry: Geometry) -> int:
    """Count the slots of an index file that have entries."""
    blocks = _blocks(file, geometry.slot_position(0), geometry.entries_position)
    return sum(int(np.count_nonzero(data[: data.size // 4 * 4].view(">i4"))) for data in blocks)


def is_all_zeros(file: Reader, size: int) -> bool:
    """Return whether a file of *size* bytes contains only zeros; reading stops at the first other byte."""
    return not any(data.any() for data in _blocks(file, file.next_written(0), size))


def _blocks(file: Reader, position: int, end: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes from *position* to *end*, or to the end of the file, in blocks."""
    while position < end:
        data = np.frombuffer(file.read(position, min(HASH_BLOCK, end - position)), np.uint8)
        if not data.size:
            return
        yield data
        position += data.size


def file_name_for_time(timestamp: int, zone: tzinfo) -> str:
    """Return the name of a file created at *timestamp* (ms), clamped to the calendar's range."""
    try:
        local = (_EPOCH + timedelta(milliseconds=timestamp)).astimezone(zone)
    except OverflowError:
        local = datetime.min.replace(tzinfo=zone) if timestamp < 0 else datetime.max.replace(tzinfo=zone)
    return f"{local.year:04d}{local:%m%d%H%M%S}{local.microsecond // 1000:03d}"


class RecordedNames(NamedTuple):
    """The names of the broker's index files that runs have recorded in a lake."""

    # Names in file order, by offset and store time of the first message: a message may have keys for several files.
    by_first_message: Mapping[tuple[int, int], Sequence[str]] = MappingProxyType({})
    by_hash: Mapping[str, str] = MappingProxyType({})  # names, by the SHA-256 of a full file

    def contradict(self, built: BuiltIndexFile) -> bool:
        """Return whether runs recorded other bytes of the full file with this name."""
        return built.name in self.by_hash.values() and built.sha256 not in self.by_hash


NO_RECORDED_NAMES = RecordedNames()


def file_names_between(
    timestamps: Sequence[int], zone: tzinfo, name_before: str = "", name_after: str = ""
) -> list[str]:
    """
    Return names for files with these first store times that sort between *name_before* and *name_after*, in order.

    If milliseconds are not enough, digits are appended: the broker sorts names as text and parses any number.
    """
    names: list[str] = []
    low = name_before
    for number, timestamp in enumerate(timestamps):
        name = file_name_for_time(timestamp, zone)
        left = len(timestamps) - number
        if name <= low:
            name = _next_file_name(low)
        if name_after and not _leaves_room(name, name_after, left):
            name = _next_file_name(low)
            if not _leaves_room(name, name_after, left):
                # Names that extend *low* by digits sort after it and before any other number.
                stem, digits = low or "0" * TIME_DIGITS, len(str(left))
                last = f"{stem}{left}"
                if last >= name_after or len(last) >= OFFSET_DIGITS:
                    raise OSError(
                        f"cannot choose {left} file names that sort between {low} and {name_after}. Rebuild all files"
                    )
                return names + [f"{stem}{extension:0{digits}d}" for extension in range(1, left + 1)]
        names.append(name)
        low = name
    return names


def _next_file_name(name: str) -> str:
    """Return the name of the next millisecond, as a valid time."""
    try:
        time = datetime.strptime(name[:TIME_DIGITS] + "000", "%Y%m%d%H%M%S%f").replace(tzinfo=UTC) + _MILLISECOND
    except (ValueError, OverflowError):
        return f"{int(name or 0) + 1:0{TIME_DIGITS}d}"
    return file_name_for_time((time - _EPOCH) // _MILLISECOND, UTC)


def _leaves_room(name: str, following: str, files: int) -> bool:
    """Return whether *files* names, starting with *name*, fit before *following*."""
    for _ in range(files):
        if name >= following:
            return False
        name = _next_file_name(name)
    return True


def detect_zone(files: Iterable[tuple[str, int]]) -> tzinfo | None:
    """Return the time zone in which most of the files (name, store time of the first message) were named."""
    votes: Counter[timedelta] = Counter()
    for name, timestamp in files:
        try:
            local = datetime.strptime(name + "000", "%Y%m%d%H%M%S%f").replace(tzinfo=UTC)
            difference = local - (_EPOCH + timedelta(milliseconds=timestamp))
        except (ValueError, OverflowError):
            continue
        offset = _STEP * round(difference / _STEP)
        if abs(difference - offset) <= _SLACK and abs(offset) <= _FURTHEST:
            votes[offset] += 1
    if not votes:
        return None
    (offset, _), *_ = votes.most_common(1)
    return UTC if not offset else timezone(offset)
