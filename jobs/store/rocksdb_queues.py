"""
Queues that a broker keeps in RocksDB, as queue files in a folder of this process's own.

A unit's row holds what a queue file's unit holds, so a queue becomes one file of them, named by the logical offset of
its first unit. Whoever reads queues then reads these as any other. The rows of a queue follow each other, so that
memory does not grow with a queue, nor with their number. What a row says besides, the store time, is not kept here.
"""

import atexit
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.storage.locations import join
from jobs.store.features import rocksdb_queue_folder
from jobs.store.rocksdb import Database, open_database
from jobs.store.store import Store, StoredFile
from rmq_formats.arrays import dtype_of
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.errors import CorruptData
from rmq_formats.rocksdb.layout import UNIT_VALUE
from rmq_formats.rocksdb.queues import (
    BOUND_FAMILY,
    NUMBER_SIZE,
    UNIT_FAMILY,
    QueueBound,
    QueuePrefix,
    decode_bound_row,
    decode_prefix,
)
from rmq_formats.store import CONSUME_QUEUE_FOLDER, FileKind, StoreFile, name_of_offset

_LARGEST_HOLE = 1 << 30  # bytes: a queue has none, but one number may be damaged
_VALUES = dtype_of(UNIT_VALUE)
_UNITS = dtype_of(UNIT)
_SHARED = ("physical_offset", "size", "tags_code")


class RocksQueues(NamedTuple):
    """The queues in a store's RocksDB."""

    files: tuple[StoredFile, ...]
    dispatched_end: int | None  # where the last record ends that the broker noted as dispatched
    bounds: dict[QueuePrefix, QueueBound]  # the last unit of each queue, as noted


_Signature = tuple[tuple[str, int, int], ...]
_known: dict[tuple[str, _Signature], RocksQueues] = {}
_folders = ExitStack()
atexit.register(_folders.close)


def rocksdb_queues(store: Store) -> RocksQueues | None:
    """
    Return the queues that a store has in RocksDB; None where it has no such database.

    `FormatError` where the database cannot be read. Asked again, it answers from memory until the files change.
    """
    name = rocksdb_queue_folder(store)
    if name is None:
        return None
    location = join(store.root, name)
    key = (location, _signature(store, name))
    if key not in _known:
        folder = Path(_folders.enter_context(TemporaryDirectory(prefix="rmq-lake-queues-")))
        with open_database(location, store.storage) as database:
            _known[key] = RocksQueues(tuple(_convert(database, folder, location)), *_noted(database))
    return _known[key]


def rocksdb_ends(store: Store) -> dict[QueuePrefix, QueueBound]:
    """Return the last unit of each queue as the store's RocksDB notes it; none where it has no such database."""
    name = rocksdb_queue_folder(store)
    if name is None:
        return {}
    with open_database(join(store.root, name), store.storage) as database:
        return _noted(database)[1]


def _signature(store: Store, folder: str) -> _Signature:
    files = (file for file in store.other_files if file.about.path.startswith(f"{folder}/"))
    return tuple((file.about.path, file.size, file.modified_ms) for file in files)


def _noted(database: Database) -> tuple[int | None, dict[QueuePrefix, QueueBound]]:
    dispatched_end = None
    last: dict[QueuePrefix, QueueBound] = {}
    for key, value in database.items(BOUND_FAMILY):
        row = decode_bound_row(key, value)
        if isinstance(row, int):
            dispatched_end = row
        elif row.is_max:
            last[row.queue] = row
    return dispatched_end, last


class _Units(NamedTuple):
    """Units of one queue that follow each other in the database."""

    queue: QueuePrefix
    numbers: NDArray[np.int64]
    units: NDArray[np.void]


def _convert(database: Database, folder: Path, location: str) -> Iterator[StoredFile]:
    """Write each queue's file; yield it once it is complete."""
    for number, (queue, parts) in enumerate(groupby(_units(database, location), lambda part: part.queue)):
        base: int | None = None
        path = folder / str(number)
        with path.open("wb") as file:
            for part in parts:
                base = int(part.numbers[0]) if base is None else base
                for start, units in _rows_without_holes(part):
                    at = (start - base) * UNIT.size
                    if not 0 <= at - file.tell() <= _LARGEST_HOLE:
                        reason = f"the units of {queue.topic} queue {queue.queue_id} jump to number {start}"
                        raise CorruptData(reason, None, location)
                    file.seek(at)
                    file.write(units.tobytes())
        logical = (base or 0) * UNIT.size
        about = StoreFile(
            f"{CONSUME_QUEUE_FOLDER}/{queue.topic}/{queue.queue_id}/{name_of_offset(logical)}",
            FileKind.CONSUME_QUEUE,
            logical,
            queue.topic,
            queue.queue_id,
        )
        status = path.stat()
        yield StoredFile(str(path), about, status.st_size, status.st_mtime_ns // 1_000_000)


def _rows_without_holes(part: _Units) -> Iterator[tuple[int, NDArray[np.void]]]:
    breaks = np.flatnonzero(np.diff(part.numbers) != 1) + 1
    for some in np.split(np.arange(part.numbers.size), breaks):
        yield int(part.numbers[some[0]]), part.units[some]


def _units(database: Database, location: str) -> Iterator[_Units]:
    for rows in database.rows(UNIT_FAMILY):
        for first, last in _of_one_queue(rows.keys):
            keys, values = rows.keys[first:last], rows.values[first:last]
            queue = decode_prefix(keys[0][:-NUMBER_SIZE])
            if set(map(len, values)) != {UNIT_VALUE.size}:
                reason = f"a unit of {queue.topic} queue {queue.queue_id} has not the {UNIT_VALUE.size} bytes of one"
                raise CorruptData(reason, None, location)
            # Of equal length, for their beginning is the same: what follows it is their end.
            encoded = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)[:, -NUMBER_SIZE:]
            numbers = np.ascontiguousarray(encoded).view(">i8").ravel().astype(np.int64)
            stored = np.frombuffer(b"".join(values), _VALUES)
            units = np.zeros(stored.size, _UNITS)
            for field in _SHARED:
                units[field] = stored[field]
            yield _Units(queue, numbers, units)


def _of_one_queue(keys: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last row, plus 1, of each queue in sorted keys."""
    first = 0
    while first < len(keys):
        prefix = keys[first][:-NUMBER_SIZE]
        # Whether it is the same, not how it compares: a shorter prefix may come after a longer one.
        end = bisect_left(keys, 1, first, key=lambda key: key[:-NUMBER_SIZE] != prefix)
        yield first, end
        first = end
