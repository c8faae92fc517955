"""
The index in RocksDB: a row for each key, tag and unique key of a message, under the hour in which it was stored.

Nothing is escaped: a key may hold the separator. So a row's key is split from both ends; the only doubt is where the
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
_LETTERS = {kind: letter for letter, kind in _KINDS.items()} | {KeyKind.UNIQUE: _UNIQUE}
_HOUR_SIZE = 8
_SMALLEST = _HOUR_SIZE + 8 + 2  # the hour, the offset, a separator on either side


class IndexRow(NamedTuple):
    """One row: under *key* a message of *topic* can be found at *physical_offset*."""

    hour_ms: int  # the store time, floored to the hour
    topic: str
    kind: KeyKind
    key: str
    unique_key: str
    physical_offset: int
    store_timestamp: int


def key_prefix(topic: str, kind: KeyKind, key: str) -> bytes:
    """Return the part after the hour in the rows of a key; rows of longer keys that continue with `@` also have it."""
    return _SEPARATOR.join(("", topic, _LETTERS[kind], key, "")).encode("utf-8", "replace")


def hour_of(key: bytes) -> bytes | None:
    """Return the hour that a row's key begins with; None of a row of progress."""
    return None if key in {LAST_OFFSET_KEY, LAST_TIME_KEY} else key[:_HOUR_SIZE]


def following_hour(hour: bytes) -> bytes | None:
    """Return the first key after all rows of an hour; None after the last."""
    number = int.from_bytes(hour.ljust(_HOUR_SIZE, b"\0"), "big") + 1
    return number.to_bytes(_HOUR_SIZE, "big") if number >> 64 == 0 else None


def decode_index_row(key: bytes, value: Buffer) -> IndexRow:
    """Decode a row."""
    text = key[_HOUR_SIZE:-8].decode("utf-8", "replace")
    if len(key) < _SMALLEST or not text.startswith(_SEPARATOR) or not text.endswith(_SEPARATOR):
        raise _no_key(key)
    topic, kind, name, unique_key = _split(key, text[1:-1])
    hour_ms, physical_offset = (int.from_bytes(part, "big", signed=True) for part in (key[:_HOUR_SIZE], key[-8:]))
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
