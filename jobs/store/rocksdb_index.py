"""The index in RocksDB (`indexRocksDBEnable`): a row for each key of a message, read as the hash that files hold."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.storage.locations import join
from jobs.store.features import features_of
from jobs.store.rocksdb import Database, open_database
from jobs.store.store import Store
from rmq_formats.errors import FormatError
from rmq_formats.hashing import index_key_hash
from rmq_formats.indexfile.keys import IndexKey, KeyKind
from rmq_formats.rocksdb.index import (
    FAMILY,
    LAST_OFFSET_KEY,
    LAST_TIME_KEY,
    IndexRow,
    decode_index_row,
    following_hour,
    hour_of,
    key_prefix,
)

KEY_PLACE = np.dtype([("physical_offset", "<i8"), ("key_hash", "<i4")])
"""Where a key leads: what both kinds of index say of it."""


class RocksIndex(NamedTuple):
    """All rows of the index in RocksDB."""

    folder: str
    places: NDArray[np.void]
    last_offset: int | None  # of the newest message that was indexed
    odd_rows: int = 0  # that are none of an index


def rocksdb_index(store: Store) -> RocksIndex | None:
    """Return the index that a store has in RocksDB; None where it has no such rows."""
    folder = features_of(store).other_database
    if folder is None:
        return None
    places: list[tuple[int, int]] = []
    last_offset: int | None = None
    odd = 0
    with open_database(join(store.root, folder), store.storage) as database:
        for key, value in database.items(FAMILY):
            if key == LAST_OFFSET_KEY:
                last_offset = int.from_bytes(value, "big", signed=True)
            elif key != LAST_TIME_KEY:
                try:
                    row = decode_index_row(key, value)
                except FormatError:
                    odd += 1
                else:
                    hash_ = index_key_hash(IndexKey(row.topic, row.key, row.kind).text)
                    places.append((row.physical_offset, hash_))
    if not places and not odd:
        return None
    return RocksIndex(folder, np.array(places, KEY_PLACE), last_offset, odd)


def has_rows(database: Database) -> bool:
    """Return whether a database holds a row of an index: every newer store has the database."""
    return any(hour_of(key) is not None for key, _ in database.rows_from(FAMILY, b""))


def rows_under(database: Database, topic: str, kind: KeyKind, key: str) -> Iterator[IndexRow]:
    """
    Yield the rows under a key in the order in which the broker finds them: by hour, unique key and offset.

    Rows of other keys that begin with this one and `@` are among them. Two looks an hour, however many rows it has.
    """
    prefix = key_prefix(topic, kind, key)
    start: bytes | None = b""
    while start is not None:
        hour = next((hour_of(found) for found, _ in database.rows_from(FAMILY, start)), None)
        if hour is None:  # progress is stored after all hours up to the year 250,000
            return
        for found, value in database.rows_from(FAMILY, hour + prefix):
            if not found.startswith(hour + prefix):
                break
            yield decode_index_row(found, value)
        start = following_hour(hour)
