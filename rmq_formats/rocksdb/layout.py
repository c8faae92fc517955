"""
Rows of a broker's RocksDB databases: layouts of their values, and the parts of their keys.

Keys contain topics, transaction ids and index keys of any length between separators, so they have no fixed layout.

Queues have a row for each unit, and rows of the first and last unit of each queue. The keys of all units of a queue
share a prefix and end in the unit's number, so the rows of a queue are in the order of the queue. Rows of `min` are
written when a client asks for a queue's first unit; a missing, old or (0, 0) row is normal. Units are written to disk
at a flush or a clean stop; after a kill there may be none.

The index has a row for each key, tag and unique key of a message, under the hour in which it was stored. Nothing is
escaped, so a key may contain the separator. Therefore a row's key is split from both ends; only the end of the topic is
ambiguous, and the message itself resolves it.

Each pending timer message has a row, ordered by the time of delivery. Rows remain after the delivery: a row is pending
if its time is not before the value of the row `timeline_checkpoint`.

Transactions have a row for each half message that is neither committed nor rolled back. A commit, a rollback and too
many checks delete the row. The log contains the same information: a half message is pending if no op message names it
by TRANS_OFFSET.
"""

from typing import NamedTuple

from rmq_formats.consumequeue.dispatch import QueueKind, QueueName
from rmq_formats.errors import CorruptData
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.layout import Buffer, Layout

# consumequeue/, consumequeue_rocksdb/: column family `default`
UNIT_VALUE = Layout(
    ("physical_offset", "q", "offset of the record in the log"),
    ("size", "i", "the record's total_size"),
    ("tags_code", "q", "hash of the TAGS text or, on the schedule topic, time of delivery"),
    ("store_timestamp", "q", "store time of the record, in ms"),
)

# the same: column family `offset`
BOUND_VALUE = Layout(
    ("physical_offset", "q", "offset of that unit's record in the log"),
    ("queue_offset", "q", "number of the unit: the first one in a row of `min`, the last one in a row of `max`"),
)

# the same: the row of the topic CHECKPOINT_TOPIC
DISPATCHED_VALUE = Layout(("dispatched_end", "q", "offset at which the last dispatched record ends"))

# rocksdbstore/: column family `trans`
TRANSACTION_VALUE = Layout(
    ("check_times", "i", "number of times that the broker has checked the transaction's state with the producer"),
    ("size", "i", "the half message's total_size"),
)

# the same: column family `default`, the index
INDEX_VALUE = Layout(("store_timestamp", "q", "store time of the message, in ms"))

# the same: column family `timer`
TIMER_VALUE = Layout(
    ("size", "i", "total_size of the record in `rmq_sys_wheel_timer`"),
    ("physical_offset", "q", "offset of that record in the log"),
)

# rows of `rocksdbstore/` that state the progress of filling it: `lastOffsetPy`, `lastStoreTimeStamp`, the timer's
# checkpoints
PROGRESS_VALUE = Layout(("value", "q", "a physical offset, a queue offset, or ms"))


UNIT_FAMILY = "default"
BOUND_FAMILY = "offset"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"

SEPARATOR = b"\x01"
QUEUE_OFFSET_SIZE = 8  # bytes of the queue offset at the end of a unit's key
ABOVE_ALL_QUEUE_OFFSETS = b"\x80"  # after a prefix, greater than every key of the queue's units
_MIN, _MAX = b"min", b"max"


class UnitOffsets(NamedTuple):
    """A unit's number in its queue, and its record's offset in the log."""

    queue_offset: int
    physical_offset: int


def encode_prefix(queue: QueueName) -> bytes:
    """Return the common beginning of the keys of a queue's units: the bytes before a unit's number."""
    return _encode_topic(queue.topic) + queue.queue_id.to_bytes(4, "big", signed=True) + SEPARATOR


def encode_unit_key(queue: QueueName, queue_offset: int) -> bytes:
    """Return the key of a unit's row."""
    return encode_prefix(queue) + queue_offset.to_bytes(QUEUE_OFFSET_SIZE, "big", signed=True)


def decode_prefix(prefix: bytes) -> QueueName:
    """Return the queue that a unit's key without its number names."""
    topic, rest = _split_topic(prefix)
    if len(rest) != 4 + len(SEPARATOR) or not rest.endswith(SEPARATOR):
        raise CorruptData(f"{prefix.hex()} is not the beginning of the key of a unit")
    return QueueName(QueueKind.PLAIN, topic, int.from_bytes(rest[:4], "big", signed=True))


def encode_bound_key(queue: QueueName, *, is_max: bool) -> bytes:
    """Return the key of the row of a queue's first or last unit."""
    bound = _MAX if is_max else _MIN
    return _encode_topic(queue.topic) + bound + SEPARATOR + queue.queue_id.to_bytes(4, "big", signed=True)


def encode_bound_value(place: UnitOffsets) -> bytes:
    """Return the value in the row of a queue's first or last unit."""
    return BOUND_VALUE.pack(place.physical_offset, place.queue_offset)


def encode_checkpoint_row(dispatched_end: int) -> tuple[bytes, bytes]:
    """Return key and value of the row with the end of the last dispatched record."""
    key = encode_bound_key(QueueName(QueueKind.PLAIN, CHECKPOINT_TOPIC, 0), is_max=True)
    return key, DISPATCHED_VALUE.pack(dispatched_end)


def decode_bound_row(key: bytes, value: Buffer) -> tuple[QueueName, bool, UnitOffsets] | int:
    """
    Return a queue, whether the row has its last unit and not its first, and the unit.

    From the checkpoint's row, return the end of the last dispatched record.
    """
    topic, rest = _split_topic(key)
    kind, separator, queue_id = rest[:3], rest[3:4], rest[4:]
    if kind not in {_MIN, _MAX} or separator != SEPARATOR or len(queue_id) != 4:  # noqa: PLR2004 - an i32
        raise CorruptData(f"{key.hex()} is not a key of a queue's first or last unit")
    if topic == CHECKPOINT_TOPIC and len(value) == DISPATCHED_VALUE.size:
        (dispatched_end,) = map(int, DISPATCHED_VALUE.unpack(value))
        return dispatched_end
    physical_offset, queue_offset = map(int, BOUND_VALUE.unpack(value))
    queue = QueueName(QueueKind.PLAIN, topic, int.from_bytes(queue_id, "big", signed=True))
    return queue, kind == _MAX, UnitOffsets(queue_offset, physical_offset)


def _encode_topic(topic: str) -> bytes:
    """Return the beginning of a key: the topic with its length, and a separator."""
    encoded = topic.encode()
    return len(encoded).to_bytes(4, "big", signed=True) + SEPARATOR + encoded + SEPARATOR


def _split_topic(key: bytes) -> tuple[str, bytes]:
    """Return the topic that a key begins with, and the bytes after its separator."""
    size = int.from_bytes(key[:4], "big", signed=True)
    end = 4 + len(SEPARATOR) + size
    if size < 0 or key[4:5] != SEPARATOR or key[end : end + 1] != SEPARATOR:
        raise CorruptData(f"{key.hex()} is not a key that begins with a topic")
    try:
        return key[5:end].decode(), key[end + 1 :]
    except UnicodeDecodeError as error:
        raise CorruptData(f"{key.hex()}: the topic is not valid UTF-8") from error


INDEX_FAMILY = "default"
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


def hour_of_key(key: bytes) -> bytes | None:
    """Return the hour that a row's key begins with; None of a row of progress."""
    return None if key in {LAST_OFFSET_KEY, LAST_TIME_KEY} else key[:_HOUR_SIZE]


def key_after_hour(hour: bytes) -> bytes | None:
    """Return the first key after all rows of an hour; None after the last."""
    number = int.from_bytes(hour.ljust(_HOUR_SIZE, b"\0"), "big") + 1
    return number.to_bytes(_HOUR_SIZE, "big") if number >> 64 == 0 else None


def decode_index_row(key: bytes, value: Buffer) -> IndexRow:
    """Decode a row."""
    text = key[_HOUR_SIZE:-8].decode("utf-8", "replace")
    if len(key) < _SMALLEST or not text.startswith(_SEPARATOR) or not text.endswith(_SEPARATOR):
        raise _no_key(key)
    topic, _, rest = text[1:-1].partition(_SEPARATOR)
    letter, _, named = rest.partition(_SEPARATOR)
    kind, name, unique_key = KeyKind.UNIQUE, named, named
    if letter != _UNIQUE or not named:
        name, separator, unique_key = named.rpartition(_SEPARATOR)
        if letter not in _KINDS or not separator:
            raise _no_key(key)
        kind = _KINDS[letter]
    hour_ms, physical_offset = (int.from_bytes(part, "big", signed=True) for part in (key[:_HOUR_SIZE], key[-8:]))
    (store_timestamp,) = map(int, INDEX_VALUE.unpack(value))
    return IndexRow(hour_ms, topic, kind, name, unique_key, physical_offset, store_timestamp)


def _no_key(key: bytes) -> CorruptData:
    return CorruptData(f"{key.hex()} is not a key of the index")


TIMER_FAMILY = "timer"
TIMER_SCAN_PROGRESS_KEY = b"sys_topic_scan_offset_checkpoint"
"""The row with the number of the next unit of `rmq_sys_wheel_timer` to read."""
TIMER_DELIVERY_PROGRESS_KEY = b"timeline_checkpoint"
"""The row with the time up to which messages were delivered."""

_TIME_SIZE = 8


class TimerRow(NamedTuple):
    """A message that is, or was, to be delivered at a time."""

    delivery_ms: int  # floored to timerRocksDBPrecisionMs
    unique_key: str
    size: int
    physical_offset: int  # the offset of the record in `rmq_sys_wheel_timer`


def decode_timer_row(key: bytes, value: Buffer) -> TimerRow:
    """Decode a row."""
    if len(key) <= _TIME_SIZE:
        raise CorruptData(f"{key.hex()} is not a key of a timer message")
    size, physical_offset = map(int, TIMER_VALUE.unpack(value))
    time = int.from_bytes(key[:_TIME_SIZE], "big", signed=True)
    return TimerRow(time, key[_TIME_SIZE:].decode("utf-8", "replace"), size, physical_offset)


def decode_progress(value: Buffer) -> int:
    """Return the number in a row of progress."""
    (number,) = map(int, PROGRESS_VALUE.unpack(value))
    return number


TRANSACTION_FAMILY = "trans"
ROCKSDB_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_OP_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
TRANS_OFFSET = "TRANS_OFFSET"
"""The property of an op message that holds the physical offset of its half message."""

_BEFORE_ID = b"@"


class PendingTransaction(NamedTuple):
    """A half message that waits for its producer's decision."""

    physical_offset: int
    topic: str  # the real one
    transaction_id: str
    check_times: int
    size: int


def decode_transaction_row(key: bytes, value: Buffer) -> PendingTransaction:
    """Decode a row; topics may contain the separator, transaction ids cannot."""
    offset, text = key[:8], key[9:]
    topic, separator, transaction_id = text.rpartition(_BEFORE_ID)
    if key[8:9] != _BEFORE_ID or not separator:
        raise CorruptData(f"{key.hex()} is not a key of a transaction")
    check_times, size = map(int, TRANSACTION_VALUE.unpack(value))
    place = int.from_bytes(offset, "big", signed=True)
    topic_name, transaction = (part.decode("utf-8", "replace") for part in (topic, transaction_id))
    return PendingTransaction(place, topic_name, transaction, check_times, size)
