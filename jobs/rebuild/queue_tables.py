"""
Tables of RocksDB that a task writes from the units of a group of queues.

Units are collected up to a number of them, sorted by key and written as one table, so memory grows neither with a queue
nor with how many there are. Of two rows with one key, that in the later table of a group counts.

Rows are given to rocksdict one by one, but not by Python code: `map` over two lists of bytes. On one core that puts 1.7
million rows a second into a finished table, a loop 1.4 million. A batch takes 3.7 million, and the database then 2.7
million of these, which are neither flushed nor in one order yet.

A broker reads a table by what the table says of itself. So block size, filter and compression are a broker's own, and
the format has version 5, the newest that the RocksDB of brokers up to 5.5.1 (8.4) knows; rocksdict's own choice is 6.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import numpy as np

from jobs.rebuild.queues import QueueRecipe
from jobs.rebuild.unit_files import UnitFile, read_units
from jobs.storage.locations import local_path
from jobs.storage.space import room_for
from jobs.store.rocksdb import said_as_errors_of_files
from jobs.store.units import Units
from rmq_formats.consumequeue.unit import QueueName
from rmq_formats.rocksdb.build import Place, RowBuilder, newest_of_each, unit_keys, unit_values
from rmq_formats.rocksdb.queues import QueuePrefix

if TYPE_CHECKING:
    from rocksdict import Options

_AT_ONCE = 1 << 21  # units of 40 bytes in memory
_ROWS_AT_ONCE = 1 << 16
_FORMAT_VERSION = 5
_BLOCK_SIZE = 32 << 10
_FILTER_BITS = 16  # a key


class QueueOfRows(NamedTuple):
    """The rows of a queue."""

    name: QueueName
    units: int
    first: Place
    last: Place
    highest: int  # number; rows above the last one are of an earlier life of the queue
    overwritten: int
    blanks: int

    @property
    def prefix(self) -> QueuePrefix:
        """The common beginning of its rows' keys."""
        return QueuePrefix(self.name.topic, self.name.queue_id)


class BuiltTables(NamedTuple):
    """The tables of a group, in the order in which they were made."""

    paths: list[str]
    queues: list[QueueOfRows]
    end: int  # of the last record that has a unit


def table_options(*, with_filter: bool = True) -> "Options":
    """Return how tables are written; who reads them once, from end to end, needs no filter."""
    from rocksdict import BlockBasedOptions, DataBlockIndexType, DBCompressionType, Options

    blocks = BlockBasedOptions()
    blocks.set_format_version(_FORMAT_VERSION)
    blocks.set_block_size(_BLOCK_SIZE)
    if with_filter:
        blocks.set_bloom_filter(_FILTER_BITS, block_based=False)
    blocks.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    blocks.disable_cache()
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.lz4())
    return options


def build_tables(group: int, *, recipe: QueueRecipe, ranges: Sequence[UnitFile]) -> BuiltTables:
    """Write the tables of a group into the scratch directory; those of a failed attempt stay there, unused."""
    folder = Path(local_path(recipe.scratch.location))
    queues: dict[QueueName, _Queue] = {}
    tables: list[str] = []
    waiting = end = 0
    for unit_file in ranges:
        for name, units in read_units(recipe.scratch, unit_file, group):
            queue = queues.get(name)
            if queue is None:
                queue = queues[name] = _Queue(recipe)
            waiting += queue.append(units)
            end = max(end, int(units["physical_offset"][-1]) + int(units["size"][-1]))
        if waiting >= _AT_ONCE:
            tables.append(_write_waiting(folder, queues))
            waiting = 0
    if waiting:
        tables.append(_write_waiting(folder, queues))
    return BuiltTables(tables, [queues[name].finish(name) for name in sorted(queues)], end)


class _Queue:
    """One queue, and those of its units that are in no table yet."""

    def __init__(self, recipe: QueueRecipe) -> None:
        self.waiting: list[Units] = []
        self._builder = RowBuilder(recipe.lost, recipe.segments)
        self._units = 0

    def append(self, units: Units) -> int:
        """Add *units*; return how many rows now wait for a table."""
        parts = list(self._builder.append(units))
        self._units += units.size
        self.waiting += parts
        return sum(part.size for part in parts)

    def finish(self, name: QueueName) -> QueueOfRows:
        builder = self._builder
        if builder.first is None or builder.last is None:
            raise AssertionError(f"{name}: a queue without a unit")
        return QueueOfRows(
            name, self._units, builder.first, builder.last, builder.highest, builder.overwritten, builder.blanks
        )


def _write_waiting(folder: Path, queues: dict[QueueName, _Queue]) -> str:
    """Write a table of the units that wait."""
    prefixes = {QueuePrefix(name.topic, name.queue_id): queue for name, queue in queues.items() if queue.waiting}
    path = str(folder / f"table-{uuid4()}.sst")
    write_table(path, _rows(prefixes))
    return path


def _rows(queues: dict[QueuePrefix, _Queue]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield the rows that wait in the order of their keys, some at a time."""
    for prefix in sorted(queues, key=lambda prefix: prefix.encoded):
        units = newest_of_each(np.concatenate(queues[prefix].waiting))
        queues[prefix].waiting.clear()
        for at in range(0, units.size, _ROWS_AT_ONCE):
            some = units[at : at + _ROWS_AT_ONCE]
            yield unit_keys(prefix, some), unit_values(some)


def write_table(path: str, rows: Iterator[tuple[list[bytes], list[bytes]]]) -> None:
    """Write *rows*, which come in the order of their keys, as one table; a compaction makes it a broker's."""
    from rocksdict import SstFileWriter

    with room_for(path), said_as_errors_of_files(path):
        writer = SstFileWriter(table_options(with_filter=False))
        writer.open(path)
        for keys, values in rows:
            deque(map(writer.__setitem__, keys, values), maxlen=0)
        writer.finish()
