"""
The messages that rows of an index in RocksDB name, many rows in one call: compiled, for databases of millions of rows.

What a row's key looks like says `rmq_formats.rocksdb.index`; a property test holds the two to each other.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rmq_formats.compiled import compiled
from rmq_formats.indexfile.keys import TAG_MARK, TOPIC_SEPARATOR
from rmq_formats.kernels.integers import Bytes, Integers, Sizes, as_bytes, byte_at, read_i64
from rmq_formats.kernels.text import hash_character, hash_text
from rmq_formats.rocksdb.layout import INDEX_VALUE

KEY_PLACE = np.dtype([("physical_offset", "<i8"), ("key_hash", "<i4")])
"""A key's message, as both kinds of index name it."""

_SEPARATOR = ord("@")
_HASH, _TAG = ord(TOPIC_SEPARATOR), ord(TAG_MARK)
_KEY_LETTER, _TAG_LETTER, _UNIQUE_LETTER = map(ord, "KTU")
_HOUR_SIZE = _OFFSET_SIZE = 8
_SMALLEST = _HOUR_SIZE + _OFFSET_SIZE + 2
_NO_KEY = -1  # no index stores a negative hash
_MIN_INT = -(1 << 31)


def key_places(keys: Sequence[bytes], values: Sequence[bytes]) -> NDArray[np.void]:
    """Return offset and key hash of each row that is one of an index; the others are left out."""
    ends = np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)))
    offsets, hashes = np.empty(len(keys), np.int64), np.empty(len(keys), np.int32)
    _read_keys(as_bytes(b"".join(keys)), ends, offsets, hashes)
    whole = np.fromiter(map(len, values), np.int64, len(values)) >= INDEX_VALUE.size
    found = whole & (hashes != _NO_KEY)
    places = np.empty(int(np.count_nonzero(found)), KEY_PLACE)
    places["physical_offset"], places["key_hash"] = offsets[found], hashes[found]
    return places


@compiled
def _read_keys(buffer: Bytes, ends: Integers, offsets: Integers, hashes: Sizes) -> None:
    """Read the keys, which lie one after another in *buffer*."""
    start = 0
    for number in range(ends.size):
        end = ends[number]
        hashes[number] = _NO_KEY
        first, last = start + _HOUR_SIZE, end - _OFFSET_SIZE - 1  # the separators on either side
        start = end
        if last <= first or byte_at(buffer, first) != _SEPARATOR or byte_at(buffer, last) != _SEPARATOR:
            continue
        topic_end = first + 1
        while topic_end < last and byte_at(buffer, topic_end) != _SEPARATOR:
            topic_end += 1
        if topic_end + 2 >= last or byte_at(buffer, topic_end + 2) != _SEPARATOR:
            continue
        letter, key, key_end = byte_at(buffer, topic_end + 1), topic_end + 3, last
        if letter in (_KEY_LETTER, _TAG_LETTER):
            key_end -= 1  # after the key comes the unique key
            while key_end >= key and byte_at(buffer, key_end) != _SEPARATOR:
                key_end -= 1
        if key_end < key or (letter == _UNIQUE_LETTER and key_end == key):
            continue
        if letter not in (_KEY_LETTER, _TAG_LETTER, _UNIQUE_LETTER):
            continue
        seed = hash_character(_HASH, hash_text(buffer, first + 1, topic_end, 0))
        if letter == _TAG_LETTER:
            seed = hash_character(_HASH, hash_character(_TAG, seed))
        key_hash = hash_text(buffer, key, key_end, seed)
        hashes[number] = 0 if key_hash == _MIN_INT else abs(key_hash)
        offsets[number] = read_i64(buffer, end - _OFFSET_SIZE)
