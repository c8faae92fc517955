"""
Bridges: records that a repair writes over lost bytes, so that a broker which starts does not end its log there.

To a broker a bridge is a message: V1 magic, or V2 where its topic is too long for that, lengths that add up, a body of
zeros with its CRC. Our own readers treat it as the hole that it covers (`decode_record` refuses it), so the lost range
is still reported. Its flag is `BRIDGE_FLAG`, it has no property, and its body is zeros; no client sends all three
together.

A bridge is rolled back: a broker makes neither unit nor key of it, and delivers it to no consumer. Only where a unit
of a queue leads to it all the same does it have the topic, queue and queue offset of the lost message.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rmq_formats.commitlog.layout import (
    BLANK,
    BRIDGE_FLAG,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    TOPIC_LENGTH,
)
from rmq_formats.commitlog.record import encode_record, new_record
from rmq_formats.flags import TransactionType

_TOPIC = "RMQ_LAKE_BRIDGE"  # its beginning, in a small hole
_SMALLEST = MIN_RECORD_SIZE + 1
_LONGEST_V1 = 127  # bytes of a topic


class LostMessage(NamedTuple):
    """A message whose bytes are lost, as its queue's unit names it."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int


def bridge(start: int, end: int, lost: Sequence[LostMessage], store_timestamp: int) -> bytes | None:
    """
    Return the bytes over the hole from *start* to *end*; None where it is too small for a record.

    *lost* are the messages in the hole that units still lead to, in the order of the log. Where they do not fit side by
    side, one bridge covers all of it.
    """
    if end - start < _SMALLEST:
        return None
    tiles = list(_tiles(start, end, lost))
    if any(tile.size < _size_without_body(tile.topic.encode()) for tile in tiles):
        tiles = [_filler(start, end)]
    return b"".join(_record(tile, store_timestamp) for tile in tiles)


def closed(start: int, end: int, lost: Sequence[LostMessage], store_timestamp: int) -> bytes:
    """Return the bytes over a hole that reaches to the end of its segment: the last ones are a blank."""
    covered = bridge(start, end - BLANK.size, lost, store_timestamp) or b""
    left = end - start - len(covered)
    return covered + BLANK.pack(left, MAGIC_BLANK).ljust(left, b"\0")


def _tiles(start: int, end: int, lost: Sequence[LostMessage]) -> Iterator[LostMessage]:
    for message in lost:
        if message.offset > start:
            yield _filler(start, message.offset)
        yield message._replace(size=message.size if message.offset >= start else 0)  # two that overlap fit nowhere
        start = message.offset + message.size
    if start != end:
        yield _filler(start, end)


def _filler(start: int, end: int) -> LostMessage:
    topic = _TOPIC[: max(end - start - MIN_RECORD_SIZE, 1)]
    return LostMessage(start, end - start, topic, -1, 0)


def _magic(topic: bytes) -> int:
    return MAGIC_V1 if len(topic) <= _LONGEST_V1 else MAGIC_V2


def _size_without_body(topic: bytes) -> int:
    return MIN_RECORD_SIZE + TOPIC_LENGTH[_magic(topic)].size - TOPIC_LENGTH[MAGIC_V1].size + len(topic)


def _record(tile: LostMessage, store_timestamp: int) -> bytes:
    topic = tile.topic.encode()
    return encode_record(
        new_record(
            topic=topic,
            magic_code=_magic(topic),
            body=bytes(tile.size - _size_without_body(topic)),
            queue_id=max(tile.queue_id, 0),
            flag=BRIDGE_FLAG,
            queue_offset=tile.queue_offset,
            physical_offset=tile.offset,
            sys_flag=TransactionType.ROLLBACK if tile.queue_id < 0 else 0,
            store_timestamp=store_timestamp,
            born_timestamp=store_timestamp,
        )
    )
