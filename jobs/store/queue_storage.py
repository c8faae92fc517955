"""The storage of a store's queues and of its other databases: files, RocksDB, or both."""

from enum import StrEnum, unique

from jobs.storage.locations import join_location
from jobs.store.store import Store
from rmq_formats.errors import CorruptData, FormatError, NeedMoreData
from rmq_formats.store import CONSUME_QUEUE_DIRECTORY, ROCKSDB_QUEUE_DIRECTORY, ROCKSDB_STORE_DIRECTORY, FileKind

_CURRENT = "CURRENT"  # the file that makes a directory a database
_TABLE = ".sst"


@unique
class QueueStorage(StrEnum):
    """The storage of a store's queues."""

    NONE = "no queues"
    FILES = "files"
    ROCKSDB = "RocksDB"
    BOTH = "files and RocksDB"


def detect_queue_storage(store: Store) -> QueueStorage:
    """Return whether a store has its queues in files or in RocksDB, as its directories show."""
    has_files = any(file.path_facts.kind is not FileKind.CONSUME_QUEUE_EXT for file in store.queue_files)
    if rocksdb_queue_directory(store) is None:
        return QueueStorage.FILES if has_files else QueueStorage.NONE
    return QueueStorage.BOTH if has_files else QueueStorage.ROCKSDB


def rocksdb_queue_directory(store: Store) -> str | None:
    """Return the directory of the queue database; if there are two, the one that a switch has enabled."""
    return _database(store, ROCKSDB_QUEUE_DIRECTORY) or _database(store, CONSUME_QUEUE_DIRECTORY)


def is_about_queue_database(error: FormatError, store: Store) -> bool:
    """Return whether an error says that the database of a store's queues is damaged."""
    name = rocksdb_queue_directory(store)
    is_damage = isinstance(error, CorruptData | NeedMoreData)
    return is_damage and name is not None and error.file == join_location(store.root, name)


def rocksdbstore_directory(store: Store) -> str | None:
    """Return the directory of the database of index, timer and transactions (5.4.0+); it is often empty."""
    return _database(store, ROCKSDB_STORE_DIRECTORY)


def _database(store: Store, directory: str) -> str | None:
    """Return the directory of a database, even if the database lost the file that names its parts."""
    if store.other_file(f"{directory}/{_CURRENT}"):
        return directory
    paths = (file.path_facts.path.rpartition("/") for file in store.other_files)
    return directory if any(parent == directory and name.endswith(_TABLE) for parent, _, name in paths) else None
