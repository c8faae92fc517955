"""
A store's queues as a database of RocksDB, which a broker opens with `storeType=defaultRocksDB`.

Column family `default` holds a row for each unit, `offset` the first and the last unit of each queue and where the last
dispatched record ends: from there on a broker dispatches again. The database takes the tables of all groups as they
are, in the order of the log, and is compacted: what is handed over is one run of rows, each key once.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jobs.rebuild.expired_queues import stored_ends
from jobs.rebuild.queue_tables import BuiltTables, QueueOfRows, build_tables, table_options, write_table
from jobs.rebuild.queues import BuiltFile, QueueRecipe, named
from jobs.rebuild.unit_files import UnitFile
from jobs.storage.local import flush_directory, flush_file, sha256_of
from jobs.storage.locations import local_path
from jobs.storage.space import room_for
from jobs.store.features import features_of
from jobs.store.rocksdb import said_as_errors_of_files
from jobs.store.store import Store
from jobs.store.workers import Workers
from rmq_formats.consumequeue.unit import QueueName
from rmq_formats.rocksdb.build import Place
from rmq_formats.rocksdb.queues import (
    BOUND_FAMILY,
    UNIT_FAMILY,
    QueuePrefix,
    encode_bound_key,
    encode_bound_value,
    encode_checkpoint_row,
    encode_unit_key,
)
from rmq_formats.store import CONSUME_QUEUE_FOLDER

if TYPE_CHECKING:
    from rocksdict import Options, Rdict

_HANDED_OVER = ("CURRENT", "IDENTITY", "MANIFEST-")
_TABLE = ".sst"
_TABLE_SIZE = 128 << 20
_OPEN_TABLES = 20  # index and filter of an open one are in memory
_ROWS_AT_ONCE = 1 << 16
_ABOVE_ALL_NUMBERS = b"\x80"


class BuiltDatabase(NamedTuple):
    """The database that was written."""

    files: list[BuiltFile]
    queues: list[QueueOfRows]
    carried: dict[QueueName, Place]  # ends of queues that the log has no unit of, as the store has them


def build_database(
    workers: Workers, recipe: QueueRecipe, ranges: Sequence[UnitFile], store: Store, place: Path
) -> BuiltDatabase:
    """Write the database of a log's *ranges* to *place*, complete or not at all."""
    groups = [group for group in range(recipe.groups) if any(file.sections[group].units for file in ranges)]
    built = workers.map(groups, partial(build_tables, recipe=recipe, ranges=ranges), "writing tables")
    queues = sorted((queue for group in built for queue in group.queues), key=lambda queue: queue.name)
    carried = stored_ends(store, {queue.name for queue in queues})
    folder = Path(local_path(recipe.scratch.location)) / "database"
    with room_for(str(folder)), said_as_errors_of_files(str(place)):
        _write(folder, built, queues, carried)
    folder.rename(place)
    flush_directory(place.parent)
    return BuiltDatabase(list(_files(place)), queues, carried)


def _write(
    folder: Path, built: Sequence[BuiltTables], queues: Sequence[QueueOfRows], carried: Mapping[QueueName, Place]
) -> None:
    from rocksdict import BottommostLevelCompaction, CompactOptions, IngestExternalFileOptions, Rdict

    moved, whole = IngestExternalFileOptions(), CompactOptions()
    moved.set_move_files(v=True)
    whole.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
    folder.mkdir()
    database = Rdict(str(folder), _options(), {UNIT_FAMILY: _options(), BOUND_FAMILY: _options()})
    try:
        bounds = database.get_column_family(BOUND_FAMILY)
        for path in (path for group in built for path in group.paths):
            database.ingest_external_file([path], moved)
        _delete_dead_rows(database, queues)
        path = str(folder.parent / f"bounds{_TABLE}")
        write_table(path, _in_lists(_bounds(queues, carried, max((group.end for group in built), default=0))))
        bounds.ingest_external_file([path], moved)
        database.flush()
        for family in (database, bounds):
            family.compact_range(None, None, whole)
    finally:
        database.close()
    for child in folder.iterdir():
        if child.name.startswith(_HANDED_OVER) or child.name.endswith(_TABLE):
            flush_file(child)
        else:  # options, logs, and what is rocksdict's own: a broker writes its own ones
            child.unlink()
    flush_directory(folder)


def _options() -> "Options":
    options = table_options()
    options.create_if_missing(create_if_missing=True)
    options.create_missing_column_families(create_missing_cfs=True)
    options.set_disable_auto_compactions(disable=True)
    options.set_target_file_size_base(_TABLE_SIZE)
    options.set_max_open_files(_OPEN_TABLES)
    options.set_max_subcompactions(os.cpu_count() or 1)
    return options


def _delete_dead_rows(database: "Rdict", queues: Sequence[QueueOfRows]) -> None:
    """Delete what an earlier life of a queue has above the last number of this one: the next messages come there."""
    for queue in queues:
        if 0 <= queue.last.queue_offset < queue.highest:
            after = encode_unit_key(queue.prefix, queue.last.queue_offset + 1)
            database.delete_range(after, queue.prefix.encoded + _ABOVE_ALL_NUMBERS)


def _bounds(
    queues: Sequence[QueueOfRows], carried: Mapping[QueueName, Place], dispatched_end: int
) -> list[tuple[bytes, bytes]]:
    """Return the rows of the first and last units in the order of their keys, with that of the log's end."""
    rows = {}
    for queue in queues:
        rows[encode_bound_key(queue.prefix, is_max=False)] = _bound(queue.first)
        rows[encode_bound_key(queue.prefix, is_max=True)] = _bound(queue.last)
    for name, last in carried.items():
        rows[encode_bound_key(QueuePrefix(name.topic, name.queue_id), is_max=True)] = _bound(last)
    key, value = encode_checkpoint_row(dispatched_end)
    rows[key] = value
    return sorted(rows.items())


def _bound(place: Place) -> bytes:
    return encode_bound_value(place.physical_offset, place.queue_offset)


def _in_lists(rows: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    for at in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[at : at + _ROWS_AT_ONCE]
        yield [key for key, _ in some], [value for _, value in some]


def _files(place: Path) -> Iterator[BuiltFile]:
    for path in sorted(place.iterdir()):
        size = path.stat().st_size
        yield BuiltFile(f"{place.name}/{path.name}", size, size, sha256_of(path))


def database_folder(store: Store) -> str:
    """Return the name of the folder in which a broker looks for it: that of the store's own database, if it has one."""
    return features_of(store).queue_database or CONSUME_QUEUE_FOLDER


def describe_database(database: BuiltDatabase) -> dict[str, object]:
    """Return the manifest's entry."""
    return {
        "files": [file._asdict() for file in database.files],
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
            for queue in database.queues
        ],
        "carried": [
            {"topic": name.topic, "queue_id": name.queue_id, "max": last.queue_offset}
            for name, last in database.carried.items()
        ],
    }


def notes_of_database(database: BuiltDatabase, recipe: QueueRecipe) -> Iterator[str]:
    """Yield the differences from a healthy log, and their effect on a broker."""
    queues = database.queues
    beginning = [queue.name for queue in queues if queue.first.queue_offset > 0]
    if beginning:
        yield (
            f"queues that begin after queue offset 0: {len(beginning)} ({named(beginning)}); of deleted messages there "
            "are no rows"
        )
    again = [queue.name for queue in queues if queue.overwritten]
    if again:
        yield (
            "records that state a queue offset that their queue had reached before: "
            f"{sum(queue.overwritten for queue in queues)} ({named(again)}); the later one counts, as for a broker"
        )
    blank = [queue.name for queue in queues if queue.blanks]
    if blank:
        yield (
            f"rows for records that the log has lost: {sum(queue.blanks for queue in queues)} ({named(blank)}); they "
            "lead to no message, but without a row no consumer gets past a number"
        )
    if database.carried:
        yield (
            f"queues without a message in the log any more: {len(database.carried)} "
            f"({named(sorted(database.carried))}); they go on after the last unit that the store has of them"
        )
    batches = [queue.name for queue in queues if queue.name.topic in recipe.rules.batch_topics]
    if batches:
        yield (
            f"queues of batch topics (queue.type=BatchCQ): {len(batches)} ({named(batches)}); with queues in RocksDB "
            "no broker serves them further than their first batch"
        )
