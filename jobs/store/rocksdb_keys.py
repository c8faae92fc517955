"""Rows of the index in RocksDB by their key: looked up one by one, so that a question loads no arrays."""

from collections.abc import Iterator

from jobs.store.rocksdb import Database
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.rocksdb.index import FAMILY, IndexRow, decode_index_row, following_hour, hour_of, key_prefix


def has_rows(database: Database) -> bool:
    """Return whether a database holds a row of an index: every newer store has the database."""
    return any(hour_of(key) is not None for key, _ in database.items(FAMILY))


def rows_under(database: Database, topic: str, kind: KeyKind, key: str) -> Iterator[IndexRow]:
    """
    Yield the rows under a key in the order in which the broker finds them: by hour, unique key and offset.

    Rows of other keys that begin with this one and `@` are among them. Two looks an hour, however many rows it has.
    """
    prefix = key_prefix(topic, kind, key)
    start: bytes | None = b""
    while start is not None:
        hour = next((hour_of(found) for found, _ in database.items(FAMILY, start)), None)
        if hour is None:  # progress is stored after all hours up to the year 250,000
            return
        for found, value in database.items(FAMILY, hour + prefix):
            if not found.startswith(hour + prefix):
                break
            yield decode_index_row(found, value)
        start = following_hour(hour)
