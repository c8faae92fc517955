"""
Builds a store's queue files: units are collected range by range, then each queue is appended in log order.

Each group of queues is one task. It reads its section of every range's units in turn, and keeps only the current end of
each queue, so memory does not grow with a queue. The content of a queue's files depends only on the log and the rules.
"""

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from jobs.console.amounts import names_text
from jobs.console.lines import printable_text
from jobs.products.queues.unit_files import RangeUnits, has_units, read_units
from jobs.storage import AnyStorage
from jobs.storage.local import close_file, flush_directory, make_directory, write_all
from jobs.storage.locations import join_location, local_path
from jobs.storage.model import Reader
from jobs.storage.paths import is_directory
from jobs.storage.scratch import Scratch
from jobs.store.units import Units
from jobs.store.workers import Workers
from rmq_formats.consumequeue.build import QueueBuilder, QueueBytes, append_ext_units
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName, UnitRules
from rmq_formats.errors import is_disk_error
from rmq_formats.properties import MAX_LONG
from rmq_formats.store import file_name_of_offset

EXTENSION_DIRECTORY = "consumequeue_ext"
_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True)
class QueueRecipe:
    """The parameters for building queues."""

    rules: UnitRules
    file_sizes: dict[QueueKind, int]
    ext_file_size: int | None  # None: no ConsumeQueueExt
    group_count: int
    directory: str
    scratch: Scratch
    lost_log_ranges: tuple[tuple[int, int], ...]  # whose records are lost
    segment_base_offsets: tuple[int, ...]  # base offsets of the log's segments
    # The root and the storage of the store, if only files that differ from its own are to be written.
    compared_store: tuple[str, AnyStorage] | None = None

    def list_stored_files(self, directory: str, size: int) -> "_StoredFiles | None":
        """Return the files of this size in a directory of the compared store; None if no store is compared."""
        if self.compared_store is None:
            return None
        root, storage = self.compared_store
        return _StoredFiles(storage, join_location(root, directory), size)


class BuiltFile(NamedTuple):
    """A file that was written, or that is to be installed: everything after `written` is zeros."""

    path: str  # the path below the output directory; for a file to be installed, its full path
    size: int
    written: int
    sha256: str | None  # SHA-256 of the written bytes; None if no other process can change the file


@dataclass(slots=True)
class BuiltQueue:
    """The files of a rebuilt queue."""

    name: QueueName
    files: list[BuiltFile]
    stored_paths: set[str] = field(default_factory=set)  # of files that were not written: the store's are identical
    first_queue_offset: int = 0  # the queue offset of the first unit; earlier messages are not in the log
    units: int = 0
    misplaced: int = 0
    skipped: int = 0
    blanks: int = 0  # the number of blank units in place of units of lost records
    hidden: int = 0  # units after such a blank, of the log's file 0: a broker skips them as well
    last_physical_offset: int = 0
    newest_ms: int = 0  # store time of the queue's newest record

    def to_dict(self) -> dict[str, object]:
        """Return the queue's entry in the manifest."""
        return {
            "kind": self.name.kind,
            "topic": self.name.topic,
            "queue_id": self.name.queue_id,
            "first_queue_offset": self.first_queue_offset,
            "units": self.units,
            "misplaced": self.misplaced,
            "skipped": self.skipped,
            "blanks": self.blanks,
            "files": [file._asdict() for file in self.files],
        }


def build_queues(workers: Workers, recipe: QueueRecipe, ranges: Sequence[RangeUnits]) -> list[BuiltQueue]:
    """Write the queues of all groups, with one task per group; return them by name."""
    task = partial(build_queue_group, recipe=recipe, ranges=ranges)
    groups = [group for group in range(recipe.group_count) if has_units(ranges, group)]
    built = workers.map(groups, task, "writing queues")
    return sorted((queue for group in built for queue in group), key=lambda queue: queue.name)


def build_queue_group(group: int, *, recipe: QueueRecipe, ranges: Sequence[RangeUnits]) -> list[BuiltQueue]:
    """
    Write the queues of a group, each atomically; a second attempt writes the same files.

    Incomplete files of a failed attempt are among the scratch files, and are deleted with them.
    """
    attempt = Path(local_path(recipe.scratch.location)) / f"queues-{uuid4()}"
    queues: dict[QueueName, _Queue] = {}
    try:
        for name, units, *_ in chain.from_iterable(read_units(recipe.scratch, ranges, group)):
            queue = queues.get(name)
            if queue is None:
                # Each queue has one flat directory, which is renamed once at the end. Only then is `topic/id` created.
                queue = queues[name] = _Queue(recipe, name, attempt / str(len(queues)))
            queue.append(units)
        return [queues[name].finish() for name in sorted(queues)]
    finally:
        rmtree(attempt, ignore_errors=True)


class _Queue:
    def __init__(self, recipe: QueueRecipe, name: QueueName, attempt: Path) -> None:
        self._built = BuiltQueue(name, [])
        self._directory = Path(recipe.directory)
        begins_at_0 = recipe.segment_base_offsets[:1] == (0,)
        # The end of the log's first segment.
        self._file_0_end = [*recipe.segment_base_offsets, MAX_LONG][1] if begins_at_0 else 0
        size = recipe.file_sizes[name.kind]
        self._builder = QueueBuilder(name.kind, size, recipe.rules.releases, recipe.lost_log_ranges)
        inner = f"{name.topic}/{name.queue_id}"  # plain queues are in the output without the directory of their kind
        directory = inner if name.kind is QueueKind.PLAIN else f"{name.kind}/{inner}"
        self._files = _Files(attempt, directory, size, recipe.list_stored_files(name.path, size))
        self._extension_units = 0
        self._extension_files: _Files | None = None
        if recipe.ext_file_size is not None and name.kind is QueueKind.PLAIN:
            extension = attempt.with_name(f"{attempt.name}-{EXTENSION_DIRECTORY}")
            directory = f"{EXTENSION_DIRECTORY}/{inner}"
            stored = recipe.list_stored_files(directory, recipe.ext_file_size)
            self._extension_files = _Files(extension, directory, recipe.ext_file_size, stored)

    def append(self, units: Units) -> None:
        built = self._built
        if not built.units:
            built.first_queue_offset = int(units["queue_offset"][0])
        built.units += units.size
        built.last_physical_offset = int(units["physical_offset"][-1])
        built.newest_ms = max(built.newest_ms, int(units["store_timestamp"].max()))
        if not built.name.is_safe_path:
            return
        if (extension := self._extension_files) is not None:
            units, self._extension_units, written = append_ext_units(units, self._extension_units, extension.size)
            for part in written:
                extension.write(part)
        for part in self._builder.append(units):
            self._files.write(part)
        if (first := self._builder.first_after_blank) is not None:
            offsets = units["physical_offset"]
            built.hidden += int(np.count_nonzero((first <= offsets) & (offsets < self._file_0_end)))

    def finish(self) -> BuiltQueue:
        built, builder = self._built, self._builder
        bases = range(builder.start or 0, builder.logical_end_of_files, builder.file_size)
        built.files += self._files.finish(self._directory, bases)
        built.stored_paths |= self._files.stored_paths
        if self._extension_files is not None:
            built.files += self._extension_files.finish(self._directory)
            built.stored_paths |= self._extension_files.stored_paths
        built.misplaced, built.skipped, built.blanks = builder.misplaced_count, builder.skipped_count, builder.blanks
        return built


def queue_names_text(names: Sequence[QueueName]) -> str:
    """Return a few of *names* as examples."""
    return names_text([f"{printable_text(name.topic)}/{name.queue_id}" for name in names], most=3)


def count_note(fact: str, counts: Mapping[QueueName, int], meaning: str = "") -> Iterator[str]:
    """Yield a fact about queues with its count, the queues, and its meaning; nothing if the count is 0."""
    names = [name for name, count in counts.items() if count]
    if names:
        yield f"{fact}: {sum(counts.values())} ({queue_names_text(names)})" + (f". {meaning}" if meaning else "")


class _StoredFiles(NamedTuple):
    """The store's own files of a queue, each of which is compared with a rebuilt one."""

    storage: AnyStorage
    directory: str
    size: int

    def has(self, base: int, position: int, data: memoryview) -> bool:
        """Return whether the store has a file of the right size with these bytes at *position*."""
        with self._open(base) as reader:
            return reader is not None and reader.size == self.size and reader.read(position, len(data)) == data

    def has_only_zeros(self, base: int, position: int) -> bool:
        """Return whether the store has a file of the right size with only zeros after *position*."""
        with self._open(base) as reader:
            if reader is None or reader.size != self.size:
                return False
            while (position := reader.next_written(position)) < self.size:
                block = bytes(reader.read(position, min(_BLOCK, self.size - position)))
                if not block or block != bytes(len(block)):  # much faster than `any`
                    return False
                position += len(block)
            return True

    def read_beginning(self, base: int, size: int, digest: str) -> Iterator[bytes]:
        """Yield the first *size* bytes of a file, in blocks; raise `OSError` if they do not have the *digest*."""
        if not size:
            return
        location, seen = self._location(base), sha256()
        with self.storage.open(location) as reader:
            for position in range(0, size, _BLOCK):
                block = bytes(reader.read(position, min(_BLOCK, size - position)))
                seen.update(block)
                yield block
        if seen.hexdigest() != digest:
            raise OSError(errno.ESTALE, "the file was changed while it was compared; run the command again", location)

    def _location(self, base: int) -> str:
        return join_location(self.directory, file_name_of_offset(base))

    @contextmanager
    def _open(self, base: int) -> Iterator[Reader | None]:
        with ExitStack() as files:
            try:
                reader = files.enter_context(self.storage.open(self._location(base)))
            except (FileNotFoundError, NotADirectoryError):
                reader = None
            except OSError as error:
                if error.errno != errno.EINVAL:  # not a regular file: the installation reports it
                    raise
                reader = None
            yield reader


@dataclass(slots=True)
class _Files:
    """
    The files of one directory, written sequentially and hashed at the same time.

    With *stored* files, a file is written only if it differs from the store's. The bytes before the first difference
    are copied from the store's file.
    """

    attempt: Path  # the directory of the files until all are complete
    directory: str
    size: int
    stored: _StoredFiles | None = None
    stored_paths: set[str] = field(default_factory=set)  # of finished files that are identical to the store's
    _written: dict[int, int] = field(default_factory=dict)
    _hashes: defaultdict[int, Any] = field(default_factory=lambda: defaultdict(sha256))
    _created: set[int] = field(default_factory=set)  # files that were created, because they differ from the store's

    def write(self, part: QueueBytes) -> None:
        """Append bytes, starting new files as needed."""
        offset, data = part[0], part[1].data
        while data:
            base = offset // self.size * self.size
            fitting = data[: base + self.size - offset]
            if not self._is_stored(base, lambda stored: stored.has(base, offset - base, fitting)):  # noqa: B023 - called here
                with self._open_file(base) as descriptor:
                    write_all(descriptor, offset - base, fitting)
            self._hashes[base].update(fitting)
            self._written[base] = offset - base + len(fitting)
            offset, data = offset + len(fitting), data[len(fitting) :]

    def _is_stored(self, base: int, compare: Callable[[_StoredFiles], bool]) -> bool:
        """Return whether the store's file is identical so far; if it is not, create the file with its beginning."""
        if self.stored is None or base in self._created:
            return False
        try:
            is_equal = compare(self.stored)
        except OSError as error:
            if not is_disk_error(error):
                raise
            is_equal = False
        if is_equal:
            return True
        with self._open_file(base) as descriptor:
            position = 0
            for block in self.stored.read_beginning(base, self._written.get(base, 0), self._hashes[base].hexdigest()):
                write_all(descriptor, position, memoryview(block))
                position += len(block)
        return False

    @contextmanager
    def _open_file(self, base: int) -> Iterator[int]:
        if not self._created:
            make_directory(self.attempt)
        self._created.add(base)
        path = f"{self.attempt}/{file_name_of_offset(base)}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            yield descriptor
        finally:
            close_file(descriptor, path)

    def finish(self, directory: Path, bases: Sequence[int] = ()) -> list[BuiltFile]:
        """Extend every file to its size, flush it, and move the directory into place."""
        built = []
        for base in sorted({*bases, *self._written}):
            path, written = f"{self.directory}/{file_name_of_offset(base)}", self._written.get(base, 0)
            if self._is_stored(base, lambda stored: stored.has_only_zeros(base, written)):  # noqa: B023 - called here
                self.stored_paths.add(path)
            else:
                with self._open_file(base) as descriptor:
                    os.ftruncate(descriptor, self.size)
                    os.fsync(descriptor)
            built.append(BuiltFile(path, self.size, written, self._hashes[base].hexdigest()))
        if self._created:
            flush_directory(self.attempt)
            self._move(directory / self.directory)
        return built

    def _move(self, target: Path) -> None:
        make_directory(target.parent)
        try:
            self.attempt.rename(target)
        except OSError:
            if not is_directory(target):  # else an earlier attempt of this task has moved the same bytes
                raise
        flush_directory(target.parent)
