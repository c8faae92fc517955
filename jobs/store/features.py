"""
The storage of a broker's queues, transactions, index and timer messages: files, or RocksDB.

A store does not record its settings, but its folders show them. That RocksDB's files lie in `consumequeue/` says
neither that queue files are absent nor that the broker reads RocksDB: with double write both are there, and
files are read unless `combineCQPreferCQType` says otherwise.
"""

from enum import StrEnum, unique
from typing import NamedTuple

from jobs.store.store import Store
from rmq_formats.commitlog.layout import DEFAULT_SEGMENT_SIZE
from rmq_formats.consumequeue.layout import DEFAULT_FILE_SIZE
from rmq_formats.store import CONSUME_QUEUE_FOLDER, ROCKSDB_QUEUE_FOLDER, ROCKSDB_STORE_FOLDER, FileKind

_CURRENT = "CURRENT"  # the file that makes a folder a database
_TABLE = ".sst"


@unique
class QueueStorage(StrEnum):
    """The storage of a store's queues."""

    NONE = "no queues"
    FILES = "files"
    ROCKSDB = "RocksDB"
    BOTH = "files and RocksDB"


class Features(NamedTuple):
    """The settings of a broker that its store's folders show."""

    queues: QueueStorage
    queue_database: str | None  # its folder, below the root
    other_database: str | None  # of index, timer and transactions: 5.4.0+, often without a row


def has_default_sizes(store: Store) -> bool:
    """Return whether files of the log and of queues may have RocketMQ's default sizes; a damaged one proves nothing."""
    plain = [file.size for file in store.queue_files if file.about.kind is FileKind.CONSUME_QUEUE]
    sizes = (([segment.size for segment in store.segments], DEFAULT_SEGMENT_SIZE), (plain, DEFAULT_FILE_SIZE))
    return all(not found or default in found for found, default in sizes)


def features_of(store: Store) -> Features:
    """Return which kinds of storage (files or RocksDB) a store uses, detected from its folders."""
    database = rocksdb_queue_folder(store)
    has_files = any(file.about.kind is not FileKind.CONSUME_QUEUE_EXT for file in store.queue_files)
    if database is None:
        queues = QueueStorage.FILES if has_files else QueueStorage.NONE
    else:
        queues = QueueStorage.BOTH if has_files else QueueStorage.ROCKSDB
    return Features(queues, database, _database(store, ROCKSDB_STORE_FOLDER))


def rocksdb_queue_folder(store: Store) -> str | None:
    """Return the folder of the database that holds queues; of two, the one that was asked for by a switch."""
    return _database(store, ROCKSDB_QUEUE_FOLDER) or _database(store, CONSUME_QUEUE_FOLDER)


def _database(store: Store, folder: str) -> str | None:
    """Return the folder of a database, even if the database lost the file that names its parts."""
    if store.other_file(f"{folder}/{_CURRENT}"):
        return folder
    paths = (file.about.path.rpartition("/") for file in store.other_files)
    return folder if any(parent == folder and name.endswith(_TABLE) for parent, _, name in paths) else None
