"""
The index in RocksDB: a row for each key, tag and unique key of a message, under the hour in which it was stored.

Nothing is escaped: a key may hold the separator. So a row's key is split from both ends; what is in doubt is where the
topic ends, of which the message itself is the judge.
"""

from typing import NamedTuple

from rmq_formats.errors import CorruptData
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.layout import Buffer
from rmq_formats.rocksdb.layout import INDEX_VALUE

FAMILY = "default"
LAST_OFFSET_KEY = b"lastOffsetPy"
LAST_TIME_KEY = b"lastStoreTimeStamp"

_SEPARATOR = "@"
_KINDS = {"K": KeyKind.KEY, "T": KeyKind.TAG}
_UNIQUE = "U"
_SMALLEST = 8 + 8 + 2  # the hour, the offset, a separator on either side


class IndexRow(NamedTuple):
    """One row: under *key* a message of *topic* can be found at *physical_offset*."""

    hour_ms: int  # the store time, floored to the hour
    topic: str
    kind: KeyKind
    key: str
    unique_key: str
    physical_offset: int
    store_timestamp: int


def decode_index_row(key: bytes, value: Buffer) -> IndexRow:
    """Return what a row says."""
    text = key[8:-8].decode("utf-8", "replace")
    if len(key) < _SMALLEST or not text.startswith(_SEPARATOR) or not text.endswith(_SEPARATOR):
        raise _no_key(key)
    topic, kind, name, unique_key = _split(key, text[1:-1])
    hour_ms, physical_offset = (int.from_bytes(part, "big", signed=True) for part in (key[:8], key[-8:]))
    (store_timestamp,) = map(int, INDEX_VALUE.unpack(value))
    return IndexRow(hour_ms, topic, kind, name, unique_key, physical_offset, store_timestamp)


def _split(key: bytes, text: str) -> tuple[str, KeyKind, str, str]:
    topic, _, rest = text.partition(_SEPARATOR)
    letter, _, named = rest.partition(_SEPARATOR)
    if letter == _UNIQUE and named:
        return topic, KeyKind.UNIQUE, named, named
    name, separator, unique_key = named.rpartition(_SEPARATOR)
    if letter not in _KINDS or not separator:
        raise _no_key(key)
    return topic, _KINDS[letter], name, unique_key


def _no_key(key: bytes) -> CorruptData:
    return CorruptData(f"{key.hex()} is no key of the index")
