"""
The files of a store's queues, their units by position, and the end of each queue.

This is the only reader of queue files: `ingest`, `verify`, `query` and `inspect` use it. It needs neither numpy nor
compiled code; `jobs.store.units` returns the same units as arrays.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import groupby, zip_longest

from jobs.storage import AnyStorage
from jobs.storage.locations import is_local
from jobs.storage.model import FetchingReader, Reader
from jobs.store.queue_storage import QueueStorage, detect_queue_storage, rocksdb_queue_directory
from jobs.store.store import Store, StoredFile
from rmq_formats.commitlog.layout import DEFAULT_SEGMENT_SIZE
from rmq_formats.consumequeue.dispatch import (
    LMQ_PREFIX,
    BatchUnit,
    QueueKind,
    QueueName,
    Unit,
    decode_batch_unit,
    decode_unit,
)
from rmq_formats.consumequeue.layout import DEFAULT_FILE_SIZE
from rmq_formats.store import FileKind

QUEUE_KIND_OF_FILE = {FileKind.CONSUME_QUEUE: QueueKind.PLAIN, FileKind.BATCH_CONSUME_QUEUE: QueueKind.BATCH}
DELETED_BYTE = 0xFF  # every byte of a unit whose file was deleted after it was listed
FIRST_PROBE_UNITS = 25  # units; a queue that has none or few new ones costs half a kilobyte
_PAGE = 4096  # bytes of a file that are written to the disk at least
_LARGEST_LOOK = 1 << 16
_FIRST_TAIL_LOOK = 256  # units; they are usually followed by a hole in the file
_LARGEST_TAIL_LOOK = 1 << 15
_BLOCK = 8 << 20  # bytes; a queue file of the default size is smaller
OpenFile = Callable[[str], AbstractContextManager[Reader]]
LastUnits = Mapping[QueueName, Unit | BatchUnit | None]
"""The last unit of each queue; None for a queue without any."""


@dataclass(frozen=True, slots=True)
class StoredQueue:
    """A queue and its files, in order; unit numbers and positions count units from the queue's beginning."""

    name: QueueName
    files: tuple[StoredFile, ...]
    # The function that opens the files: that of a storage, of a database, or one that keeps files open.
    open: OpenFile = field(default=AnyStorage().open, repr=False, compare=False)
    extension: tuple[StoredFile, ...] = ()
    in_rocksdb: bool = False  # the rows of the queue are read as one file

    @property
    def is_batch(self) -> bool:
        """Whether its units point to records that contain several messages."""
        return self.name.kind is QueueKind.BATCH

    @property
    def unit_size(self) -> int:
        """Bytes of a unit."""
        return self.name.kind.layout.size

    @property
    def first_unit_number(self) -> int:
        """The number of the first unit in a file."""
        return self.files[0].base_offset // self.unit_size

    @property
    def capacity_end(self) -> int:
        """The position after the last unit for which the files have room."""
        return self.files[-1].end // self.unit_size

    def read(self, start: int, stop: int) -> bytearray:
        """Return the bytes of the units at [*start*, *stop*): zeros without a file, 0xFF if it was deleted since."""
        first, last = start * self.unit_size, max(stop, start) * self.unit_size
        data = bytearray(last - first)
        for file in self.files:
            begin, end = max(first, file.base_offset), min(last, file.end)
            if begin < end:
                part: bytes | memoryview
                try:
                    with self.open(file.location) as reader:
                        part = reader.read(begin - file.base_offset, end - begin)
                except FileNotFoundError:
                    part = bytes([DELETED_BYTE]) * (end - begin)
                data[begin - first : begin - first + len(part)] = part
        return data

    def read_unit(self, unit_number: int) -> Unit | BatchUnit | None:
        """Return the unit with this number in the queue; None if it is not written."""
        unit = self.decode_unit(self.read(unit_number, unit_number + 1))
        return unit if unit.is_written else None

    def read_last_unit(self, end: int) -> Unit | BatchUnit | None:
        """Return the last unit of a queue that ends at the position *end*; None if it has none."""
        return self.read_unit(end - 1) if end > self.first_unit_number else None

    def decode_unit(self, data: bytes | bytearray, number: int = 0) -> Unit | BatchUnit:
        """Return the unit with this number in bytes from `read`."""
        return (decode_batch_unit if self.is_batch else decode_unit)(data, number * self.unit_size)

    def next_written_unit_number(self, unit_number: int) -> int:
        """Return the number of the next unit that may not be zeros, without reading the holes of sparse files."""
        at = unit_number * self.unit_size
        for file in self.files:
            if file.end <= at:
                continue
            start = max(at - file.base_offset, 0)
            try:
                with self.open(file.location) as reader:
                    found = reader.next_written(start)
            except FileNotFoundError:
                continue
            if found < file.size:
                return max((file.base_offset + found) // self.unit_size, unit_number)
        return self.capacity_end

    def first_unit_pointing_from(self, physical_offset: int, end: int) -> int:
        """
        Return the number of the first unit before *end* that points to *physical_offset* or after it.

        This skips units of deleted segments, like ConsumeQueue#correctMinOffset: offsets ascend in a queue. A position
        without a unit counts as the next one with a unit.
        """

        def offset(number: int) -> int:
            unit = self._next_unit(number, end)
            return physical_offset if unit is None else unit.physical_offset

        if offset(self.first_unit_number) >= physical_offset:  # nothing is deleted: no other file needs to be read
            return self.first_unit_number
        return bisect_left(range(end), physical_offset, self.first_unit_number, key=offset)

    def first_unit_after_blanks(self, start: int, end: int) -> int:
        """Return the number of the first unit in [*start*, *end*) that is no blank of a first file."""

        def is_message(number: int) -> bool:
            unit = self.read_unit(number)
            return not (isinstance(unit, Unit) and unit.is_pre_blank)

        return start if start >= end or is_message(start) else bisect_left(range(end), 1, start, key=is_message)

    def _next_unit(self, position: int, end: int) -> Unit | BatchUnit | None:
        look = 1
        while position < end:
            data = self.read(position, min(position + look, end))
            units = (self.decode_unit(data, number) for number in range(len(data) // self.unit_size))
            unit = next((unit for unit in units if unit.is_written), None)
            if unit is not None:
                return unit
            position, look = self.next_written_unit_number(position + look), min(look * 4, _LARGEST_LOOK)
        return None

    def file_at(self, unit_number: int) -> StoredFile | None:
        """Return the file that holds the unit with this number."""
        at = unit_number * self.unit_size
        return next((file for file in self.files if file.base_offset <= at < file.end), None)

    def find_nonzero_byte(self, unit_number: int) -> int | None:
        """Return the byte position of the first nonzero byte at or after a unit; holes are not read."""
        look = _FIRST_TAIL_LOOK
        while (unit_number := self.next_written_unit_number(unit_number)) < self.capacity_end:
            data = self.read(unit_number, min(unit_number + look, self.capacity_end))
            if data != bytes(len(data)):  # much faster than `lstrip`
                return unit_number * self.unit_size + len(data) - len(data.lstrip(b"\0"))
            unit_number, look = unit_number + look, min(look * 2, _LARGEST_TAIL_LOOK)
        return None

    def find_written_end(self, known_end: int | None = None) -> int:
        """
        Return the position after the last unit of the contiguous units that end the queue.

        There a broker's recovery ends a queue, and the broker writes the next unit: units of a former queue after the
        first unwritten position do not belong to it. With *known_end*, units are followed from there, a few at a time;
        otherwise a binary search runs in the last file that has any, so that it passes over most ranges of lost units.
        """
        if known_end is not None:
            return self._find_written_end(max(known_end, self.first_unit_number))
        for file in reversed(self.files):
            low, high = file.base_offset // self.unit_size, file.end // self.unit_size
            page_end = min(low + _PAGE // self.unit_size + 1, high)
            page = self.read(low, page_end)
            written = find_first_unwritten_unit(self.name.kind, page)
            if not written:
                continue
            # Most queues of a store with very many have few units: one read finds their end, if only a hole follows.
            rest = page[written * self.unit_size :]
            if rest and rest.count(0) == len(rest) and self.next_written_unit_number(page_end) >= high:
                return low + written
            # The unit at `low` is written; the one at `high` is not, or is after the file: a boundary is between them.
            # A former queue may have left units after a hole: then any boundary is used, and units are followed there.
            while high - low > FIRST_PROBE_UNITS:
                middle = (low + high) // 2
                low, high = (middle, high) if self._count_written(middle, middle + 1) else (low, middle)
            return self._find_written_end(low + 1)
        return self.first_unit_number

    def _count_written(self, start: int, stop: int) -> int:
        """Return the number of written units from *start* to the first unwritten one, or to *stop*."""
        return find_first_unwritten_unit(self.name.kind, self.read(start, stop))

    def _find_written_end(self, position: int) -> int:
        look = FIRST_PROBE_UNITS
        while position < self.capacity_end:
            stop = min(position + look, self.capacity_end)
            written = self._count_written(position, stop)
            if written < stop - position:
                return position + written
            position = stop
            look = min(look * 4, _LARGEST_LOOK)
        return position


@contextmanager
def hold_file(queue: StoredQueue, *, in_blocks: bool = False) -> Iterator[StoredQueue]:
    """
    Yield the queue with the file that it read last kept open, so that several reads of one file open it once.

    On object storage, where a small read takes as long as a large one, the second read of a file reads all of it; with
    *in_blocks*, the first one does.
    """
    held: dict[str, Reader] = {}
    with ExitStack() as stack:

        def open_file(location: str) -> AbstractContextManager[Reader]:
            if location not in held:
                held.clear()
                stack.close()
                reader = stack.enter_context(queue.open(location))
                held[location] = (
                    reader
                    if is_local(location) or queue.in_rocksdb
                    else _read_whole_blocks(reader, is_first=not in_blocks)
                )
            return nullcontext(held[location])

        yield replace(queue, open=open_file)


def _read_whole_blocks(reader: Reader, *, is_first: bool) -> Reader:
    """Return a reader that reads blocks that are as large as most queue files; if *is_first*, after the first read."""
    block, number = memoryview(b""), -1

    def read(position: int, length: int) -> bytes | memoryview:
        nonlocal is_first, block, number
        if is_first or position // _BLOCK != (position + length - 1) // _BLOCK:
            is_first = False
            return reader.read(position, length)
        if position // _BLOCK != number:
            number = position // _BLOCK
            block = memoryview(reader.read(number * _BLOCK, _BLOCK))
        return block[position % _BLOCK :][:length]

    return FetchingReader(reader.size, read)


def find_first_unwritten_unit(kind: QueueKind, data: bytes | bytearray) -> int:
    """
    Return the number of the first unit in *data* that is not valid for a broker; their count if all are valid.

    Offsets must not be negative, sizes and counts must be positive. Whole columns of bytes are checked, not units: a
    queue may have very many.
    """
    unit_size = kind.layout.size
    count = len(data) // unit_size
    unwritten = count
    for offset, size, is_positive in _WRITTEN[kind]:
        # A slice with the unit's size as its step is one byte of the field in every unit. The first byte has the sign.
        # `find` returns -1 if nothing is found, and -1 % (count + 1) is count: all units are written.
        signs = data[offset::unit_size].translate(_SIGNS)
        unwritten = min(unwritten, signs.find(b"\1") % (count + 1))
        if is_positive:
            # All bytes of a field OR-ed: a zero stays only where the whole field is zero, which no written unit has.
            bits = 0
            for at in range(offset, offset + size):
                bits |= int.from_bytes(data[at::unit_size], "big")
            unwritten = min(unwritten, bits.to_bytes(count, "big").find(b"\0") % (count + 1))
    return unwritten


_SIGNS = bytes(byte >> 7 for byte in range(256))
# The fields that `Unit.is_written` and `BatchUnit.is_written` check: none is negative, nor zero where this says so.
_NOT_ZERO = {"physical_offset": False, "size": True, "base_offset": False, "batch_count": True}
_WRITTEN = {
    kind: [
        (row.offset, row.size, _NOT_ZERO[row.name]) for row in kind.layout.describe_fields() if row.name in _NOT_ZERO
    ]
    for kind in QueueKind
}


def list_queues(store: Store, open_file: OpenFile | None = None) -> list[StoredQueue]:
    """
    Return the queues that have units in files or in RocksDB, sorted by name.

    A queue that has files is read from them, as by a broker with double write. *open_file* opens files, by default the
    store's own storage. `FormatError` if a database cannot be read.
    """
    queues = queues_in_files(store, open_file)
    names = {(queue.name.topic, queue.name.queue_id) for queue in queues}
    alone = (queue for queue in queues_in_rocksdb(store) if (queue.name.topic, queue.name.queue_id) not in names)
    return sorted([*queues, *alone], key=lambda queue: queue.name)


def queues_in_rocksdb(store: Store) -> list[StoredQueue]:
    """Return the queues that a store has in RocksDB, sorted by name; `FormatError` if it cannot be read."""
    if rocksdb_queue_directory(store) is None:
        return []
    from jobs.store.rocksdb_queues import find_queue_database  # lazy import: numpy is slow to load

    database = find_queue_database(store)
    return [] if database is None else _queues_of(database.list_queue_files(), database.open, in_rocksdb=True)


def queues_in_files(store: Store, open_file: OpenFile | None = None) -> list[StoredQueue]:
    """Return the queues that a store has in files, sorted by name; *open_file* opens them, or the store's storage."""
    return _queues_of(store.queue_files, open_file or store.storage.open)


def _queues_of(
    queue_files: Iterable[StoredFile], open_file: OpenFile, *, in_rocksdb: bool = False
) -> list[StoredQueue]:
    files: dict[QueueName, list[StoredFile]] = {}
    extensions: dict[tuple[str, int], list[StoredFile]] = {}
    for stored in queue_files:
        about = stored.path_facts
        if about.kind in QUEUE_KIND_OF_FILE:
            name = QueueName(QUEUE_KIND_OF_FILE[about.kind], about.topic or "", about.queue_id or 0)
            files.setdefault(name, []).append(stored)
        else:
            extensions.setdefault((about.topic or "", about.queue_id or 0), []).append(stored)
    return [
        StoredQueue(
            name,
            tuple(sorted(files[name], key=lambda file: file.base_offset)),
            open_file,
            tuple(sorted(extensions.get((name.topic, name.queue_id), ()), key=lambda file: file.base_offset)),
            in_rocksdb,
        )
        for name in sorted(files)
    ]


def has_light_queues_only_in_rocksdb(store: Store, queues: Iterable[StoredQueue]) -> bool:
    """
    Return whether a store has its light queues only in RocksDB, and the other queues as files.

    This is double write since 5.5.0 (`combineCQUseRocksdbForLmq`); before, light queues are files as well.
    """
    if detect_queue_storage(store) is not QueueStorage.BOTH:
        return False
    return not any(queue.name.topic.startswith(LMQ_PREFIX) and not queue.in_rocksdb for queue in queues)


def queue_file_sizes(store: Store) -> dict[FileKind, int]:
    """Return the file size of each kind of queue, without the kinds whose files do not determine it."""
    by_kind: dict[FileKind, list[StoredFile]] = {}
    for stored in store.queue_files:
        by_kind.setdefault(stored.path_facts.kind, []).append(stored)
    sizes = {kind: _voted_size(kind, files) for kind, files in by_kind.items()}
    return {kind: size for kind, size in sizes.items() if size is not None}


def undecided_queue_file_sizes(store: Store) -> dict[FileKind, list[int]]:
    """Return the sizes of the files of each kind of queue for which the broker's own size is undecided."""
    decided = queue_file_sizes(store)
    sizes: dict[FileKind, set[int]] = {}
    for stored in store.queue_files:
        if stored.size and stored.path_facts.kind not in decided:
            sizes.setdefault(stored.path_facts.kind, set()).add(stored.size)
    return {kind: sorted(of_kind) for kind, of_kind in sizes.items()}


def _voted_size(kind: FileKind, files: Sequence[StoredFile]) -> int | None:
    """
    Return the size with the most votes; None if there is a tie.

    Each file votes for its length, and each name for its distance from the previous one: bases are multiples of the
    size. A length that its own name or the next one contradicts has no vote. A size that is not a multiple of a unit
    loses to one that is.
    """
    unit = QUEUE_KIND_OF_FILE[kind].layout.size if kind in QUEUE_KIND_OF_FILE else 1
    votes: Counter[int] = Counter()
    for _, group in groupby(sorted(files, key=_order_key), key=lambda file: _order_key(file)[:2]):
        of_queue = list(group)
        for file, after in zip_longest(of_queue, of_queue[1:]):
            base = file.base_offset
            distance = after.base_offset - base if after else 0
            for size in filter(None, (file.size, distance)):
                votes[size] += not (base % size or distance % size)
    ranks = {size: (size % unit == 0, count) for size, count in votes.items() if count}
    best = [size for size, rank in ranks.items() if rank == max(ranks.values())]
    is_certain = len(best) == 1 and (kind is not FileKind.CONSUME_QUEUE or best[0] % unit == 0)
    return best[0] if is_certain else None


def _order_key(file: StoredFile) -> tuple[str, int, int]:
    return file.path_facts.topic or "", file.path_facts.queue_id or 0, file.base_offset


def split_into_chunks(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [*start*, *stop*), none larger than *size*."""
    for at in range(start, stop, size):
        yield at, min(at + size, stop)


def may_have_default_file_sizes(store: Store) -> bool:
    """Return whether files of the log and of queues may have RocketMQ's default sizes; a damaged one proves nothing."""
    plain = [file.size for file in store.queue_files if file.path_facts.kind is FileKind.CONSUME_QUEUE]
    sizes = (([segment.size for segment in store.segments], DEFAULT_SEGMENT_SIZE), (plain, DEFAULT_FILE_SIZE))
    return all(not found or default in found for found, default in sizes)
