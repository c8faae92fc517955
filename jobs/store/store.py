"""
The files of a store, by name: segments in the order of the log, queue files, index files, the rest.

Spark's listing is not used: it drops legal topics such as `_a` and `.x`, and reads `[` in a path as a pattern.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from jobs.console.amounts import names_text
from jobs.console.result import RequestError
from jobs.storage import AnyStorage
from jobs.storage.local import LocalStorage, ReadLimits, read_small_file
from jobs.storage.locations import is_local, join_location, local_path, normalize_location
from jobs.storage.model import FileInfo, Reader, Storage
from jobs.storage.paths import is_directory
from rmq_formats.broker_conf import BrokerConf, parse_broker_conf
from rmq_formats.commitlog.framing import find_framing
from rmq_formats.commitlog.segment import SegmentBytes
from rmq_formats.errors import CorruptData, FormatError, NotAStore, skip_lost_file
from rmq_formats.indexfile.layout import HEADER, IndexHeader, decode_header
from rmq_formats.indexfile.lookup import StatedGeometry, find_stated_geometry
from rmq_formats.layout import Content, Read
from rmq_formats.properties import MAX_LONG
from rmq_formats.store import (
    CHECKPOINT_SIZE,
    LOG_KINDS,
    QUEUE_DIRECTORIES,
    QUEUE_KINDS,
    Checkpoint,
    FileKind,
    StoreFile,
    classify,
    decode_checkpoint,
    parse_offset_name,
)

DEFAULT_RANGE_SIZE = 256 << 20  # bytes of the log that a task reads
SET_ASIDE_MARK = ".replaced-"  # part of the name of a directory or file that an installation has set aside
_LARGEST_CONF = 1 << 20
_PLACES_NAMED = 3
TIER_NOT_READ = "which rmq-lake does not read"


class WrongLocationError(NotAStore, RequestError):
    """The location of the store or of its log is wrong, or its disk is not mounted: the user must change this."""


class Segment(NamedTuple):
    """One file of the log; by its name, the next file begins at *limit_offset*."""

    location: str
    base_offset: int
    size: int
    limit_offset: int

    @property
    def readable_bytes(self) -> int:
        """The number of the file's bytes that belong to this part of the log."""
        return min(self.size, self.limit_offset - self.base_offset)

    @property
    def has_valid_offsets(self) -> bool:
        """Whether the offset of each byte fits into 64 bits."""
        return self.base_offset + self.size <= MAX_LONG


class StoredFile(NamedTuple):
    """A file of the store other than a segment: its place, the facts that its path states, its size."""

    location: str
    path_facts: StoreFile
    size: int
    modified_ms: int

    @property
    def base_offset(self) -> int:
        """The offset of its first byte according to its name: physical in a log, logical in a queue."""
        return self.path_facts.base_offset or 0

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.base_offset + self.size


@dataclass(frozen=True, slots=True)
class Store:
    """Every file of a store, sorted, and how to open it."""

    root: str
    segments: tuple[Segment, ...] = ()
    queue_files: tuple[StoredFile, ...] = ()
    index_files: tuple[StoredFile, ...] = ()
    other_files: tuple[StoredFile, ...] = ()
    storage: AnyStorage = field(default_factory=AnyStorage, repr=False, compare=False)  # opens all of them
    commitlog: tuple[str, ...] = ()  # the log's directories, if not below the root
    overlapping_segments: tuple[Segment, ...] = ()  # files of the log's directory that are not part of the log

    @property
    def command_words(self) -> str:
        """The words that name the store, and its log if that is elsewhere, in a printed command."""
        return " ".join(map(quote, (self.root, *format_place_options(self.commitlog, None))))

    def open(self, file: Segment | StoredFile) -> AbstractContextManager[Reader]:
        """Open a file of the store for reading."""
        return self.storage.open(file.location)

    def read(self, file: Segment | StoredFile, position: int, length: int) -> bytes:
        """Return the bytes at *position* of a file of the store; fewer only at its end."""
        return self.storage.read(file.location, position, length)

    def other_file(self, path: str) -> StoredFile | None:
        """Return the file at a path below the root, if it exists and is not of log, queues or index."""
        return next((file for file in self.other_files if file.path_facts.path == path), None)

    def other_files_of_kind(self, kind: FileKind) -> tuple[StoredFile, ...]:
        """Return the other files of one kind."""
        return tuple(file for file in self.other_files if file.path_facts.kind is kind)

    def segment_before(self, offset: int) -> Segment | None:
        """Return the last segment that begins at or before an offset of the log; None before all segments."""
        number = bisect_right(self.segments, offset, key=attrgetter("base_offset")) - 1
        return self.segments[number] if number >= 0 else None

    def segment_at(self, offset: int) -> Segment | None:
        """Return the segment that holds an offset of the log; None before, after and between them."""
        found = self.segment_before(offset)
        return found if found and offset < found.base_offset + found.readable_bytes else None

    def with_queues_of(self, topics: Collection[str]) -> "Store":
        """Return the store without the queue files of other topics."""
        return replace(self, queue_files=tuple(file for file in self.queue_files if file.path_facts.topic in topics))

    def path_below_root(self, location: str | None) -> str:
        """Return the path of a file, or directory, below the store's root."""
        return (location or "").removeprefix(f"{self.root}/")

    def describe_places(self, offsets: Iterable[int]) -> str:
        """Return the segments of the first offsets and the positions in them, for example `commitlog/…0 @1234`."""
        segments = ((self.segment_at(offset), offset) for offset in offsets)
        return names_text(
            [f"{self._name_segment(one)} @{offset - one.base_offset}" for one, offset in segments if one is not None],
            most=_PLACES_NAMED,
        )

    def _name_segment(self, segment: Segment) -> str:
        """Return a segment's path below the root; its name if a repair has built it in another directory."""
        path = self.path_below_root(segment.location)
        return segment.location.rpartition("/")[2] if path == segment.location else path

    def refuse_lost_log(self) -> None:
        """Raise `WrongLocationError` if other files show that the store had a log of which nothing exists."""
        evidence = "" if self.segments else find_evidence_of_log(self)
        if evidence:
            place = f" in {', '.join(self.commitlog)}" if self.commitlog else ""
            reason = (
                f"the store has {evidence}, but no log{place}. Is the log's disk mounted? If the log is in another "
                "directory, pass --commitlog"
            )
            raise WrongLocationError(reason, None, self.root)

    @property
    def start_offset(self) -> int:
        """The first physical offset on disk."""
        return self.segments[0].base_offset if self.segments else 0

    @property
    def has_clean_shutdown(self) -> bool:
        """Whether a broker shut the store down properly, so that everything in the log was dispatched."""
        return not self.other_files_of_kind(FileKind.ABORT)

    @property
    def is_closed(self) -> bool:
        """Whether no broker writes the store: a running broker has a log, and so has a copy of its store."""
        return self.has_clean_shutdown or not self.segments

    @property
    def log_size(self) -> int:
        """The number of bytes of the segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def end_offset(self) -> int:
        """The offset after the last byte on disk, written or not."""
        return self.segments[-1].base_offset + self.segments[-1].size if self.segments else 0


def list_store(
    root: str,
    *,
    commitlog: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    read_limits: ReadLimits | None = None,
) -> Store:
    """
    List the store at *root*; `WrongLocationError` if it contains no files of a broker.

    *commitlog* names the directories of a log elsewhere; several are one log, sorted by file name. *options* are the
    settings of file systems; *read_limits* limits the reading of local files next to a running broker.
    """
    return _list(normalize_location(root), commitlog, AnyStorage(dict(options or {}), read_limits))


def _list(
    root: str, commitlog: Sequence[str], storage: AnyStorage, skips: Callable[[str], bool] | None = None
) -> Store:
    infos = storage.list_files(root) if skips is None else LocalStorage().list_files(root, skips)
    files = list(_describe_files(root, infos))
    logs = [file for file in files if file.path_facts.kind in LOG_KINDS]
    if commitlog:
        elsewhere = list(_list_directories_elsewhere(commitlog, storage))
        own = next((file for file in logs if file.path_facts.kind is FileKind.COMMITLOG), None)
        if own is not None and not elsewhere:
            raise _no_segment_error(commitlog, own)
        logs = elsewhere or logs  # the configured directory of a DLedger broker is empty: its log is in another one
    overlapping = tuple(_find_overlapping(order_segments(logs), storage))
    not_in_log = {segment.location for segment in overlapping}
    store = Store(
        root,
        order_segments([file for file in logs if file.location not in not_in_log]),
        tuple(file for file in files if file.path_facts.kind in QUEUE_KINDS),
        tuple(
            sorted(
                (file for file in files if file.path_facts.kind is FileKind.INDEX),
                key=lambda file: file.path_facts.path,
            )
        ),
        tuple(file for file in files if file.path_facts.kind not in LOG_KINDS | QUEUE_KINDS | {FileKind.INDEX}),
        storage,
        tuple(commitlog),
        overlapping,
    )
    if not (store.segments or store.queue_files or store.index_files or store.other_files_of_kind(FileKind.CHECKPOINT)):
        reason = "not a store root: no commitlog, consumequeue, index or checkpoint in it"
        if any(file.path_facts.kind is FileKind.TIERED for file in files):
            reason = f"this is a broker's tiered storage, {TIER_NOT_READ}. Pass the broker's own store directory"
        raise WrongLocationError(reason, None, root)
    return store


def _no_segment_error(directories: Sequence[str], own: StoredFile) -> WrongLocationError:
    """Return the error for directories of a log without segments, while the store has the segment *own*."""
    directory, _, _ = own.location.rpartition("/")
    reason = (
        "this directory, set by --commitlog or the broker's configuration file, has no segments of the log, but "
        f"{directory} does. Is the log's disk mounted? To read the segments in the store, pass "
        f"--commitlog {quote(directory)}"
    )
    return WrongLocationError(reason, None, ", ".join(directories))


def relist_store(store: Store, topics: Collection[str] | None = None) -> Store:
    """
    List the store again.

    With *topics*, only queue files of these topics are listed; those of other topics are taken from *store*, unless the
    topic's directory was deleted.
    """
    if topics is None or not is_local(store.root):
        return _list(store.root, store.commitlog, store.storage)

    def skips(path: str) -> bool:
        directory, _, name = path.partition("/")
        return directory in QUEUE_DIRECTORIES and bool(name) and "/" not in name and name not in topics

    listed = _list(store.root, store.commitlog, store.storage, skips)
    names = {directory: _list_names(f"{local_path(store.root)}/{directory}") for directory in QUEUE_DIRECTORIES}
    others = (
        file
        for file in store.queue_files
        if file.path_facts.topic not in topics
        and file.path_facts.topic in names.get(file.path_facts.path.partition("/")[0], ())
    )
    queue_files = sorted((*listed.queue_files, *others), key=lambda file: file.path_facts.path)
    return replace(listed, queue_files=tuple(queue_files))


def _list_names(directory: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(directory))  # noqa: PTH208 - the names alone
    except FileNotFoundError:
        return frozenset()


def is_set_aside(path: str) -> bool:
    """Return whether a path below a store's root is in a directory that was set aside."""
    directory = path.partition("/")[0]
    return SET_ASIDE_MARK in directory or directory.endswith(SET_ASIDE_MARK.removesuffix("-"))


def find_checkpoint_file(store: Store) -> StoredFile | None:
    """Return the broker's checkpoint, if it is there."""
    return next(iter(store.other_files_of_kind(FileKind.CHECKPOINT)), None)


def read_checkpoint(store: Store) -> Checkpoint | None:
    """Return the times of the broker's checkpoint; None if the file is missing or too short."""
    stored = find_checkpoint_file(store)
    try:
        return decode_checkpoint(store.read(stored, 0, CHECKPOINT_SIZE)) if stored else None
    except FormatError:
        return None


def find_evidence_of_log(store: Store) -> str:
    """Return which other files show that a store had messages, as text; empty if it may never have had any."""
    if store.queue_files or store.index_files:
        return "queue or index files"
    checkpoint = read_checkpoint(store)
    # A broker sets this time when it has flushed a record, and retention never deletes the last segment.
    return "" if checkpoint is None or checkpoint.physical_timestamp <= 0 else "a checkpoint that states messages"


def read_broker_conf(path: str | os.PathLike[str] | None) -> BrokerConf:
    """Return the settings in a broker's configuration file; the defaults without one."""
    if path is None:
        return BrokerConf()
    try:
        conf = parse_broker_conf(read_small_file(Path(path), _LARGEST_CONF))
    except CorruptData as error:
        raise error.in_file(str(path)) from error
    return replace(conf, is_given=True)


def list_store_without_queues(location: str, commitlog: Sequence[str]) -> Store:
    """List a local store, except its queue directories."""
    return _list(normalize_location(location), commitlog, AnyStorage(), skips=QUEUE_DIRECTORIES.__contains__)


def log_directories(commitlog: Sequence[str] | None, conf: BrokerConf) -> Sequence[str]:
    """
    Return the log's directories if it is not below the store's root: those of the user, else of the broker's file.

    A store may have been copied together with its configuration: paths that do not exist here are ignored.
    """
    return commitlog or [path for path in (*conf.commitlog, *conf.read_only_commitlog) if is_directory(Path(path))]


def format_place_options(commitlog: Sequence[str] | None, broker_conf: Path | None) -> tuple[str, ...]:
    """Return the options that locate a store's log and configuration as words, to be repeated in another command."""
    return (
        *(("--commitlog", ",".join(commitlog)) if commitlog else ()),
        *(("--broker-conf", str(broker_conf)) if broker_conf else ()),
    )


def _describe_files(root: str, infos: Iterable[FileInfo]) -> Iterator[StoredFile]:
    for info in infos:
        yield StoredFile(join_location(root, info.name), classify(info.name), info.size, info.modified_ms)


def _list_directories_elsewhere(directories: Sequence[str], storage: Storage) -> Iterator[StoredFile]:
    for directory in dict.fromkeys(map(normalize_location, directories)):
        # Segments are never in subdirectories. These are skipped, because a wrong directory may contain very many.
        local = LocalStorage() if is_local(directory) else None
        for info in local.list_files(directory, skips=lambda _: True) if local else storage.list_files(directory):
            base_offset = parse_offset_name(info.name)
            if base_offset is not None:
                about = StoreFile(info.name, FileKind.COMMITLOG, base_offset)
                yield StoredFile(join_location(directory, info.name), about, info.size, info.modified_ms)


def order_segments(files: Sequence[StoredFile]) -> tuple[Segment, ...]:
    """Return files of a log in its order."""
    placed = sorted((file.base_offset, file.location, file.size) for file in files)
    ends = [base for base, _, _ in placed[1:]] + [1 << 63] * bool(placed)
    return tuple(Segment(location, base, size, end) for (base, location, size), end in zip(placed, ends, strict=True))


def _find_overlapping(segments: Sequence[Segment], storage: Storage) -> Iterator[Segment]:
    """
    Yield the files that are not part of the log: those inside the range of a segment, or past the largest offset.

    The name of such a file must not cut the segment short. Of two files that overlap, the records decide, because each
    one states its own offset: the later file is not part of the log if the earlier one has records at the offsets of
    the later one, which has none there. Otherwise the earlier file is too long, and ends where the later one begins.
    Of files with the same name in several directories, the first one that has records is the segment.
    """
    yield from (segment for segment in segments if not segment.has_valid_offsets)
    before, *later = [segment for segment in segments if segment.has_valid_offsets] or [Segment("", 0, 0, 0)]
    for segment in later:
        position = segment.base_offset - before.base_offset
        is_inside = 0 <= position < before.size and _has_records_from(before, position, storage)
        if is_inside and (not position or not _has_records_from(segment, 0, storage)):
            yield segment
        else:
            before = segment


def _has_records_from(segment: Segment, position: int, storage: Storage) -> bool:
    with skip_lost_file(), storage.open(segment.location) as file:
        framing = find_framing(file.read, segment.size, segment.base_offset)
        log = SegmentBytes(file.read, segment.size, segment.base_offset, framing, file.next_written)
        return log.find_record(position) is not None
    return False


def geometry_stated_by_index_files(
    store: Store, hash_slots: int | None = None, index_num: int | None = None
) -> StatedGeometry | None:
    """Return the geometry that a store's index files state, opening only as many files as needed."""
    with ExitStack() as stack:

        @cache
        def open_file(location: str) -> Reader:
            return stack.enter_context(store.storage.open(location))

        files = [Content(file.size, lazy_reader(open_file, file.location)) for file in store.index_files]
        return find_stated_geometry(files, hash_slots, index_num)


def read_index_header(file: StoredFile, store: Store) -> IndexHeader | None:
    """Return the header of an index file; None if it is too short."""
    try:
        return decode_header(store.read(file, 0, HEADER.size))
    except FormatError:
        return None


def lazy_reader(open_file: Callable[[str], Reader], location: str) -> Read:
    """Return a function that reads a file, and opens it at the first call."""
    return lambda position, length: open_file(location).read(position, length)
