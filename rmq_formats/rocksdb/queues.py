"""
Queues in RocksDB: a row for each unit, and rows of the first and last unit of each queue.

A unit's key begins as its queue's others do and ends in its number, so the rows of one queue follow each other in the
order of the queue. Rows of `min` are written when a client asks for a queue's first unit: that they are missing, old,
or (0, 0) is normal. Units go to disk at a flush or a clean stop: after a kill there may be none at all.
"""

from typing import NamedTuple

from rmq_formats.errors import CorruptData
from rmq_formats.layout import Buffer
from rmq_formats.rocksdb.layout import BOUND_VALUE, DISPATCHED_VALUE

UNIT_FAMILY = "default"
BOUND_FAMILY = "offset"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"

SEPARATOR = b"\x01"
NUMBER_SIZE = 8  # of the queue offset, with which a unit's key ends
ABOVE_ALL_NUMBERS = b"\x80"  # after a prefix: no key of a unit of the queue comes later
_MIN, _MAX = b"min", b"max"


class QueuePrefix(NamedTuple):
    """The common beginning of the keys of a queue's units."""

    topic: str
    queue_id: int

    @property
    def encoded(self) -> bytes:
        """The bytes before a unit's number."""
        return _head(self.topic) + self.queue_id.to_bytes(4, "big", signed=True) + SEPARATOR


class QueueBound(NamedTuple):
    """The first or the last unit of a queue, as the broker noted it."""

    queue: QueuePrefix
    is_max: bool
    physical_offset: int
    queue_offset: int


def encode_unit_key(queue: QueuePrefix, queue_offset: int) -> bytes:
    """Return the key of a unit's row."""
    return queue.encoded + queue_offset.to_bytes(NUMBER_SIZE, "big", signed=True)


def decode_prefix(prefix: bytes) -> QueuePrefix:
    """Return the queue that a unit's key without its number names."""
    topic, rest = _split_topic(prefix)
    if len(rest) != 4 + len(SEPARATOR) or not rest.endswith(SEPARATOR):
        raise CorruptData(f"{prefix.hex()} begins no key of a unit")
    return QueuePrefix(topic, int.from_bytes(rest[:4], "big", signed=True))


def encode_bound_key(queue: QueuePrefix, *, is_max: bool) -> bytes:
    """Return the key of the row of a queue's first or last unit."""
    return _head(queue.topic) + (_MAX if is_max else _MIN) + SEPARATOR + queue.queue_id.to_bytes(4, "big", signed=True)


def encode_bound_value(physical_offset: int, queue_offset: int) -> bytes:
    """Return the value in the row of a queue's first or last unit."""
    return BOUND_VALUE.pack(physical_offset, queue_offset)


def encode_checkpoint_row(dispatched_end: int) -> tuple[bytes, bytes]:
    """Return key and value of the row that says where the last dispatched record ends."""
    key = encode_bound_key(QueuePrefix(CHECKPOINT_TOPIC, 0), is_max=True)
    return key, DISPATCHED_VALUE.pack(dispatched_end)


def decode_bound_row(key: bytes, value: Buffer) -> QueueBound | int:
    """Return a queue's first or last unit; from the checkpoint's row, the end of the last dispatched record."""
    topic, rest = _split_topic(key)
    kind, separator, queue_id = rest[:3], rest[3:4], rest[4:]
    if kind not in {_MIN, _MAX} or separator != SEPARATOR or len(queue_id) != 4:  # noqa: PLR2004 - an i32
        raise CorruptData(f"{key.hex()} is no key of a queue's first or last unit")
    if topic == CHECKPOINT_TOPIC and len(value) == DISPATCHED_VALUE.size:
        (dispatched_end,) = map(int, DISPATCHED_VALUE.unpack(value))
        return dispatched_end
    physical_offset, queue_offset = map(int, BOUND_VALUE.unpack(value))
    queue = QueuePrefix(topic, int.from_bytes(queue_id, "big", signed=True))
    return QueueBound(queue, kind == _MAX, physical_offset, queue_offset)


def _head(topic: str) -> bytes:
    encoded = topic.encode()
    return len(encoded).to_bytes(4, "big", signed=True) + SEPARATOR + encoded + SEPARATOR


def _split_topic(key: bytes) -> tuple[str, bytes]:
    """Return the topic that a key begins with, and the bytes after its separator."""
    size = int.from_bytes(key[:4], "big", signed=True)
    end = 4 + len(SEPARATOR) + size
    if size < 0 or key[4:5] != SEPARATOR or key[end : end + 1] != SEPARATOR:
        raise CorruptData(f"{key.hex()} is no key that begins with a topic")
    try:
        return key[5:end].decode(), key[end + 1 :]
    except UnicodeDecodeError as error:
        raise CorruptData(f"{key.hex()}: the topic is no UTF-8") from error
