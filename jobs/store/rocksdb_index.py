"""The index in RocksDB (`indexRocksDBEnable`): a row for each key of a message, read as the hash that files hold."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.storage.locations import join
from jobs.store.features import features_of
from jobs.store.rocksdb import open_database
from jobs.store.store import Store
from rmq_formats.errors import FormatError
from rmq_formats.hashing import index_key_hash
from rmq_formats.indexfile.keys import IndexKey
from rmq_formats.rocksdb.index import FAMILY, LAST_OFFSET_KEY, LAST_TIME_KEY, decode_index_row

KEY_PLACE = np.dtype([("physical_offset", "<i8"), ("key_hash", "<i4")])
"""A key's message, as both kinds of index name it."""


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
