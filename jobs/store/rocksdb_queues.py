"""
Queues that a broker keeps in RocksDB, read as files of units.

A unit's row contains the same fields as a unit in a queue file, so a queue is read as one file of units, named by the
logical offset of its first unit, and by the same code as any other queue. Only requested rows are read: neither time
nor memory grows with the other units. The store time, which a row has in addition, is left out.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from jobs.storage.model import Reader
from jobs.store.queue_storage import rocksdb_queue_directory
from jobs.store.rocksdb import StoredDatabase
from jobs.store.store import Store, StoredFile
from rmq_formats.arrays import dtype_of
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.errors import CorruptData, FormatError
from rmq_formats.rocksdb.layout import (
    ABOVE_ALL_QUEUE_OFFSETS,
    BOUND_FAMILY,
    QUEUE_OFFSET_SIZE,
    UNIT_FAMILY,
    UNIT_VALUE,
    UnitOffsets,
    decode_bound_row,
    decode_prefix,
    encode_prefix,
    encode_unit_key,
)
from rmq_formats.store import CONSUME_QUEUE_DIRECTORY, FileKind, StoreFile, file_name_of_offset

_AT_ONCE = 1 << 16  # rows
_UNITS_A_BYTE = 4  # units for each byte of a database; if there are more, a number in a key is damaged
_ANY = 1 << 20  # units, however small the database is
_UNITS_A_TASK = 1 << 20
_VALUES = dtype_of(UNIT_VALUE)
_UNITS = dtype_of(UNIT)
_SHARED = ("physical_offset", "size", "tags_code")

UnitRange = tuple[QueueName, int, int]
"""Units of a queue: the number of the first one, and of the one after the last."""


class DatabaseQueueOpener(StoredDatabase):
    """Opens queues in a database as files."""

    @contextmanager
    def open(self, location: str) -> Iterator[Reader]:
        """Open the file of a queue: its path names the queue and its first unit."""
        topic, queue_id, base = location.removeprefix(f"{self.location}/").rsplit("/", 2)
        yield _RowReader(self, QueueName(QueueKind.PLAIN, topic, int(queue_id)), int(base) // UNIT.size)

    def list_queue_files(self) -> list[StoredFile]:
        """Return the file of each queue; `FormatError` if these, or their bounds, cannot be read."""
        self.read_bounds()
        with self._naming_itself_in_errors():
            return list(self._find_queue_files())

    def read_bounds(self) -> tuple[int | None, dict[QueueName, UnitOffsets]]:
        """Return the end of the last record that the broker marked as dispatched, and the last unit of each queue."""
        dispatched_end = None
        last: dict[QueueName, UnitOffsets] = {}
        with self._naming_itself_in_errors():
            for row in (decode_bound_row(key, value) for key, value in self.database.items(BOUND_FAMILY)):
                if isinstance(row, int):
                    dispatched_end = row
                else:
                    queue, is_last, place = row
                    last |= {queue: place} if is_last else {}
        return dispatched_end, last

    @contextmanager
    def _naming_itself_in_errors(self) -> Iterator[None]:
        try:
            yield
        except FormatError as error:
            raise error.in_file(self.location) from error

    def _find_queue_files(self) -> Iterator[StoredFile]:
        """Yield the file of each queue, by the keys of its first and last unit."""
        key = b""
        most = max(sum(size for _, size, _ in self.signature) * _UNITS_A_BYTE, _ANY)
        modified_ms = max((modified_ms for _, _, modified_ms in self.signature), default=0)
        while first := next((keys[0] for keys, _ in self.database.rows(UNIT_FAMILY, key, 1)), None):
            prefix, number = first[:-QUEUE_OFFSET_SIZE], _number_of(first)
            queue = decode_prefix(prefix)
            last = self.database.last_key(UNIT_FAMILY, prefix + ABOVE_ALL_QUEUE_OFFSETS)
            count = _number_of(last) - number + 1 if last is not None and last.startswith(prefix) else 1
            if count > most:
                self._check_all_rows()
                reason = (
                    f"the units of {queue.topic} queue {queue.queue_id} have an implausible range of queue offsets: "
                    f"{number} to {number + count}"
                )
                raise CorruptData(reason, None, self.location)
            name = f"{queue.topic}/{queue.queue_id}/{file_name_of_offset(number * UNIT.size)}"
            path, base = f"{CONSUME_QUEUE_DIRECTORY}/{name}", number * UNIT.size
            about = StoreFile(path, FileKind.CONSUME_QUEUE, base, queue.topic, queue.queue_id)
            yield StoredFile(f"{self.location}/{name}", about, count * UNIT.size, modified_ms)
            key = prefix + b"\xff" * (QUEUE_OFFSET_SIZE + 1)

    def read_units(
        self, queue: QueueName, start: int, stop: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.void]]]:
        """Yield the numbers in [*start*, *stop*) of units of a queue, and the units, some at a time."""
        prefix, at_once = encode_prefix(queue), max(1, min(stop - start, _AT_ONCE))
        for keys, values in self.database.rows(UNIT_FAMILY, encode_unit_key(queue, start), at_once):
            own = sum(key.startswith(prefix) for key in keys) if not keys[-1].startswith(prefix) else None
            numbers, units = self._decode_units(queue, keys[:own], values[:own])
            inside = int(np.searchsorted(numbers, stop))
            if inside:
                yield numbers[:inside], units[:inside]
            if own is not None or inside < numbers.size or (inside and numbers[-1] == stop - 1):
                return

    def _decode_units(
        self, queue: QueueName, keys: Sequence[bytes], values: Sequence[bytes]
    ) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        if not keys:
            return np.zeros(0, np.int64), np.zeros(0, _UNITS)
        if set(map(len, values)) != {UNIT_VALUE.size}:
            raise self._no_unit(queue)
        # Keys of equal length with the same beginning: the rest is their end.
        encoded = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)[:, -QUEUE_OFFSET_SIZE:]
        numbers = np.ascontiguousarray(encoded).view(">i8").ravel().astype(np.int64)
        stored = np.frombuffer(b"".join(values), _VALUES)
        units = np.zeros(stored.size, _UNITS)
        for name in _SHARED:
            units[name] = stored[name]
        return numbers, units

    def plan_row_checks(self, units_a_task: int = _UNITS_A_TASK) -> list[list[UnitRange]]:
        """Return the units of all queues, in parts of about equal size; a large queue is in several parts."""
        parts: list[list[UnitRange]] = [[]]
        left = units_a_task
        for file in self.list_queue_files():
            queue = QueueName(QueueKind.PLAIN, file.path_facts.topic or "", file.path_facts.queue_id or 0)
            start, end = file.base_offset // UNIT.size, file.end // UNIT.size
            while start < end:
                stop = min(start + left, end)
                parts[-1].append((queue, start, stop))
                left -= stop - start
                start = stop
                if not left:
                    parts.append([])
                    left = units_a_task
        return [part for part in parts if part]

    def check_rows(self, part: Sequence[UnitRange]) -> int:
        """Read the rows of units, and return their number; `CorruptData` if one cannot be read, or is not a unit."""
        return sum(numbers.size for units in part for numbers, _ in self.read_units(*units))

    def _check_all_rows(self) -> None:
        for keys, values in self.database.rows(UNIT_FAMILY):
            wrong = next((key for key, value in zip(keys, values, strict=True) if len(value) != UNIT_VALUE.size), None)
            if wrong is not None:
                raise self._no_unit(decode_prefix(wrong[:-QUEUE_OFFSET_SIZE]))

    def _no_unit(self, queue: QueueName) -> CorruptData:
        reason = f"a unit of {queue.topic} queue {queue.queue_id} is not {UNIT_VALUE.size} bytes long"
        return CorruptData(reason, None, self.location)


def _number_of(key: bytes) -> int:
    return int.from_bytes(key[-QUEUE_OFFSET_SIZE:], "big", signed=True)


class _RowReader(Reader):
    """The rows of a queue as the bytes of a file."""

    def __init__(self, rows: DatabaseQueueOpener, queue: QueueName, first: int) -> None:
        self._rows = rows
        self._queue = queue
        self._first = first
        last = rows.database.last_key(UNIT_FAMILY, encode_prefix(queue) + ABOVE_ALL_QUEUE_OFFSETS)
        count = 0 if last is None or not last.startswith(encode_prefix(queue)) else _number_of(last) - first + 1
        self.size = max(count, 0) * UNIT.size

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes at *position*; numbers without a row are zeros."""
        end = min(position + length, self.size)
        start, stop = position // UNIT.size, -(-end // UNIT.size)
        made = np.zeros(max(stop - start, 0), _UNITS)
        for numbers, units in self._rows.read_units(self._queue, self._first + start, self._first + stop):
            made[numbers - (self._first + start)] = units
        return made.tobytes()[position - start * UNIT.size :][: max(end - position, 0)]

    def next_written(self, position: int) -> int:
        """Return the position of the next number that has a row."""
        start = self._first + position // UNIT.size
        last = self._first + self.size // UNIT.size
        for numbers, _ in self._rows.read_units(self._queue, start, last) if start < last else ():
            return max((int(numbers[0]) - self._first) * UNIT.size, position)
        return self.size


def find_queue_database(store: Store) -> DatabaseQueueOpener | None:
    """Return the database of a store's queues, not opened yet; None without one."""
    name = rocksdb_queue_directory(store)
    return None if name is None else DatabaseQueueOpener.in_directory(store, name)
