"""
A store's queues as a RocksDB database that a broker opens with `storeType=defaultRocksDB`.

The column family `default` has a row for each unit. `offset` has the first and last unit of each queue, and the end of
the last dispatched record, from which a broker continues dispatching. The tables of all groups are added to the
database in log order, and it is compacted: the result is one sorted run with unique keys.

A task writes the tables of a group of queues. Units are collected up to a limit, sorted by key and written as one
table, so memory does not depend on the size or number of queues. If two rows have the same key, the one in the group's
later table wins.

Rows are passed to rocksdict one by one, but not by Python code: by `map` over two lists of bytes. On one core this
writes 1.7 million rows per second into a finished table; a loop writes 1.4 million. A batch accepts 3.7 million, and
the database then 2.7 million of these, which are neither flushed nor sorted yet.

A broker reads a table with the settings stored in it. So block size, filter and compression are a broker's own, and the
format version is 5, the newest that the RocksDB of brokers up to 5.5.1 (8.4) supports; the default of rocksdict is 6.
"""

from collections import defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np

from jobs.console.log import log_message
from jobs.lake.tables import storable_text
from jobs.launch.engine import count_cores
from jobs.products.queues.unit_files import RangeUnits, has_units, read_units
from jobs.rebuild.queues import BuiltFile, QueueRecipe, count_note
from jobs.storage.local import explaining_full_disk, flush_directory, flush_file, sha256_of
from jobs.storage.locations import local_path
from jobs.store.queue_files import queues_in_files
from jobs.store.rocksdb import rocksdb_errors_as_oserror
from jobs.store.rocksdb_queues import find_queue_database
from jobs.store.store import Store
from jobs.store.topics import TopicFate, collect_topic_evidence
from jobs.store.units import Units, read_stored_units
from jobs.store.workers import Workers
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName
from rmq_formats.errors import FormatError
from rmq_formats.rocksdb.build import QueueRowBuilder, newest_by_queue_offset, unit_keys, unit_values
from rmq_formats.rocksdb.layout import (
    ABOVE_ALL_QUEUE_OFFSETS,
    BOUND_FAMILY,
    UNIT_FAMILY,
    UnitOffsets,
    encode_bound_key,
    encode_bound_value,
    encode_checkpoint_row,
    encode_prefix,
    encode_unit_key,
)

if TYPE_CHECKING:
    from rocksdict import Options

_HANDED_OVER = ("CURRENT", "IDENTITY", "MANIFEST-")
_TABLE = ".sst"
_TABLE_SIZE = 128 << 20
_OPEN_TABLES = 20  # index and filter of an open one are in memory
_UNITS_AT_ONCE = 1 << 21  # units in memory, of 40 bytes each
_ROWS_AT_ONCE = 1 << 16
_FORMAT_VERSION = 5
_BLOCK_SIZE = 32 << 10
_FILTER_BITS = 16  # a key
_Rows = tuple[Iterable[bytes], Iterable[bytes]]  # keys, and their values


def table_options(*, with_filter: bool = True) -> "Options":
    """Return the options for writing tables; a reader of complete tables needs no filter."""
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


def _build_tables(
    group: int, *, recipe: QueueRecipe, ranges: Sequence[RangeUnits]
) -> tuple[list[str], list[QueueRowBuilder], int]:
    """
    Write the tables of a group to the scratch directory; those of a failed attempt stay there, unused.

    Return their paths, the queues, and the end of the last record that has a unit.
    """
    directory = Path(local_path(recipe.scratch.location))
    builders: dict[QueueName, QueueRowBuilder] = {}
    rows = defaultdict[QueueName, list[Units]](list)
    tables: list[str] = []
    waiting = end = 0
    for parts in read_units(recipe.scratch, ranges, group):
        for name, units, *_ in parts:
            if name not in builders:
                builders[name] = QueueRowBuilder(name, recipe.lost_log_ranges, recipe.segment_base_offsets)
            added = list(builders[name].append(units))
            rows[name] += added
            waiting += sum(some.size for some in added)
            end = max(end, int(units["physical_offset"][-1]) + int(units["size"][-1]))
        if waiting >= _UNITS_AT_ONCE:
            tables.append(_write_rows(directory, rows))
            waiting = 0
    if waiting:
        tables.append(_write_rows(directory, rows))
    return tables, [builders[name] for name in sorted(builders)], end


def _write_rows(directory: Path, rows: dict[QueueName, list[Units]]) -> str:
    path = str(directory / f"table-{uuid4()}.sst")
    write_table(path, _take_rows(rows))
    return path


def _take_rows(rows: dict[QueueName, list[Units]]) -> Iterator[_Rows]:
    """Yield the rows in key order, in portions, and remove them."""
    for queue in sorted(rows, key=encode_prefix):
        units = newest_by_queue_offset(np.concatenate(rows.pop(queue)))
        for at in range(0, units.size, _ROWS_AT_ONCE):
            some = units[at : at + _ROWS_AT_ONCE]
            yield unit_keys(queue, some), unit_values(some)


def write_table(path: str, rows: Iterable[_Rows]) -> None:
    """Write sorted keys and values as one table; compaction turns it into a table like a broker's."""
    from rocksdict import SstFileWriter

    with explaining_full_disk(path), rocksdb_errors_as_oserror(path):
        writer = SstFileWriter(table_options(with_filter=False))
        writer.open(path)
        for keys, values in rows:
            deque(map(writer.__setitem__, keys, values), maxlen=0)
        writer.finish()


CarriedEnds = Mapping[QueueName, UnitOffsets]  # ends of queues, as in the store, of which the log has no unit


def describe_database(
    files: Sequence[BuiltFile], queues: Sequence[QueueRowBuilder], carried: CarriedEnds
) -> dict[str, object]:
    """Return the manifest's entry of a database."""
    return {
        "files": [file._asdict() for file in files],
        "queues": [
            {
                "topic": queue.name.topic,
                "queue_id": queue.name.queue_id,
                "units": queue.units,
                "min": queue.first.queue_offset,
                "max": queue.last.queue_offset,
                "overwritten": queue.overwritten,
                "blanks": queue.blanks,
            }
            for queue in queues
        ],
        "carried": [
            {"topic": name.topic, "queue_id": name.queue_id, "max": last.queue_offset} for name, last in carried.items()
        ],
    }


def notes_of_database(
    queues: Sequence[QueueRowBuilder], carried: CarriedEnds, batch_topics: Container[str]
) -> Iterator[str]:
    """Yield the differences from a healthy log, and their effect on a broker."""
    yield from count_note(
        "queues that start after queue offset 0",
        {queue.name: int(queue.first.queue_offset > 0) for queue in queues},
        "Deleted messages have no rows",
    )
    yield from count_note(
        "records whose queue offset was already used in their queue",
        {queue.name: queue.overwritten for queue in queues},
        "The later record is used, as in a broker",
    )
    yield from count_note(
        "rows for records that the log has lost",
        {queue.name: queue.blanks for queue in queues},
        "They point to no message, but without them, consumers would be stuck at these queue offsets",
    )
    yield from count_note(
        "queues without messages in the log",
        dict.fromkeys(sorted(carried), 1),
        "They continue after their last unit in the store",
    )
    yield from count_note(
        "queues of batch topics (queue.type=BatchCQ)",
        {queue.name: int(queue.name.topic in batch_topics) for queue in queues},
        "With queues in RocksDB, brokers serve only the first batch of such a queue",
    )


def build_database(
    workers: Workers, recipe: QueueRecipe, ranges: Sequence[RangeUnits], store: Store, target: Path
) -> tuple[list[BuiltFile], list[QueueRowBuilder], CarriedEnds]:
    """Write the database of a log's *ranges* to *target* atomically; return its files and its queues."""
    task = partial(_build_tables, recipe=recipe, ranges=ranges)
    groups = [group for group in range(recipe.group_count) if has_units(ranges, group)]
    built = workers.map(groups, task, "writing tables")
    queues = sorted((queue for _, some, _ in built for queue in some), key=lambda queue: queue.name)
    carried = stored_queue_ends(store, {queue.name for queue in queues})
    directory = Path(local_path(recipe.scratch.location)) / "database"
    with explaining_full_disk(str(directory)), rocksdb_errors_as_oserror(str(target)):
        tables = [path for paths, *_ in built for path in paths]
        _write_database(directory, tables, queues, _bounds(queues, carried, max((end for *_, end in built), default=0)))
    directory.rename(target)
    flush_directory(target.parent)
    sizes = [(path, path.stat().st_size) for path in sorted(target.iterdir())]
    files = [BuiltFile(f"{target.name}/{path.name}", size, size, sha256_of(path)) for path, size in sizes]
    return files, queues, carried


def _write_database(
    directory: Path, tables: Sequence[str], queues: Sequence[QueueRowBuilder], bound_rows: Mapping[bytes, bytes]
) -> None:
    """Write a database with the units of *tables*, which are files of RocksDB, and the bounds of queues."""
    from rocksdict import BottommostLevelCompaction, CompactOptions, IngestExternalFileOptions, Rdict

    moved, whole = IngestExternalFileOptions(), CompactOptions()
    moved.set_move_files(v=True)
    whole.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
    directory.mkdir()
    families = {family: database_options() for family in (UNIT_FAMILY, BOUND_FAMILY)}
    database = Rdict(str(directory), database_options(), families)
    try:
        bounds = database.get_column_family(BOUND_FAMILY)
        for path in tables:
            database.ingest_external_file([path], moved)
        for queue in queues:
            if 0 <= queue.last.queue_offset < queue.highest:  # of a deleted topic: the next messages continue there
                after = encode_unit_key(queue.name, queue.last.queue_offset + 1)
                database.delete_range(after, encode_prefix(queue.name) + ABOVE_ALL_QUEUE_OFFSETS)
        path = str(directory.parent / f"bounds{_TABLE}")
        write_table(path, [(bound_rows, bound_rows.values())])
        bounds.ingest_external_file([path], moved)
        database.flush()
        for family in (database, bounds):
            family.compact_range(None, None, whole)
    finally:
        database.close()
    for child in directory.iterdir():
        if child.name.startswith(_HANDED_OVER) or child.name.endswith(_TABLE):
            flush_file(child)
        else:  # options, logs, and files of rocksdict: a broker writes its own ones
            child.unlink()
    flush_directory(directory)


def database_options() -> "Options":
    """Return the options of a database to which complete tables are added."""
    options = table_options()
    options.create_if_missing(create_if_missing=True)
    options.create_missing_column_families(create_missing_cfs=True)
    options.set_disable_auto_compactions(disable=True)
    options.set_target_file_size_base(_TABLE_SIZE)
    options.set_max_open_files(_OPEN_TABLES)
    options.set_max_subcompactions(count_cores())
    return options


def _bounds(queues: Sequence[QueueRowBuilder], carried: CarriedEnds, dispatched_end: int) -> dict[bytes, bytes]:
    """Return the rows of the first and last units in key order, with that of the log's end."""
    rows = {}
    for queue in queues:
        rows[encode_bound_key(queue.name, is_max=False)] = queue.first
        rows[encode_bound_key(queue.name, is_max=True)] = queue.last
    for name, last in carried.items():
        rows[encode_bound_key(name, is_max=True)] = last
    encoded = {key: encode_bound_value(place) for key, place in rows.items()}
    key, value = encode_checkpoint_row(dispatched_end)
    encoded[key] = value
    return dict(sorted(encoded.items()))


def stored_queue_ends(store: Store, excluded: Container[QueueName]) -> dict[QueueName, UnitOffsets]:
    """
    Return the last unit of each plain queue that is not in *excluded*; warn if a database cannot be read.

    A directory whose name is not UTF-8 is not the queue of any topic.

    A broker numbers the next message of such a queue after its last unit, up to which consumers have read: if the queue
    restarted at 0, they would skip new messages.
    """
    ends = {}
    for queue in queues_in_files(store):
        is_wanted = queue.name.kind is QueueKind.PLAIN and queue.name not in excluded
        is_wanted &= storable_text(queue.name.topic) == queue.name.topic
        end = queue.find_written_end() if is_wanted else 0
        if end:
            ends[queue.name] = UnitOffsets(end - 1, int(read_stored_units(queue, end - 1, end)["physical_offset"][0]))
    try:
        database = find_queue_database(store)
        last_units = {} if database is None else database.read_bounds()[1]
    except FormatError as error:
        log_message(f"{error}. So brokers restart queues without messages in the log at queue offset 0", "warning")
        last_units = {}
    for name, last in last_units.items():
        if name not in excluded and last.queue_offset > ends.get(name, UnitOffsets(-1, -1)).queue_offset:
            ends[name] = last
    topics = collect_topic_evidence(store)
    return {name: last for name, last in ends.items() if topics.fate(name.topic, 0) is not TopicFate.DELETED}
