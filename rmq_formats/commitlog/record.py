"""
Decodes and encodes one CommitLog record, readably; property tests compare the compiled columns with this module.

`decode_record`, like every reader of this package, returns a value, or raises `NeedMoreData` if the buffer ends before
the record does, or `CorruptData` if the bytes contradict each other. A record is valid if the lengths of its parts add
up to its size, and it is at the physical offset that it states.

Bridges are records that a repair writes over lost bytes, so that a starting broker does not end its log there.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, NamedTuple

from rmq_formats.commitlog.layout import (
    BLANK,
    BORN_HOST_V6,
    BRIDGE_FLAG,
    HEAD,
    HOST_BITS,
    INNER_MESSAGE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    PROPERTIES_LENGTH,
    RECORD,
    STORE_HOST_V6,
    TOPIC_LENGTH,
    TransactionType,
)
from rmq_formats.errors import CorruptData, NeedMoreData
from rmq_formats.layout import Buffer, Layout, Read
from rmq_formats.properties import (
    CRC_NAME,
    CRC_SIZE,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    decode_java_text,
    property_crc_text,
)

_V6_SIZE = 16
_FLAG = HEAD.index("flag")


INVALID_MAGIC_PREFIX = "invalid magic "  # precedes the number in the reason why bytes are not a record
OTHER_OFFSET_PREFIX = "physical_offset "  # precedes the offset that a record states, in the same kind of reason
BRIDGE_REASON = "a repair wrote a bridge record over the lost bytes"


class Host(NamedTuple):
    """An address of 4 or 16 bytes, and a port."""

    address: bytes
    port: int

    def __str__(self) -> str:
        if len(self.address) == _V6_SIZE:
            return f"[{IPv6Address(self.address)}]:{self.port}"
        return f"{IPv4Address(self.address)}:{self.port}"


class MessageRecord(NamedTuple):
    """Every field of a record, as stored, in stored order."""

    total_size: int
    magic_code: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: Host
    store_timestamp: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body_length: int
    body: bytes
    topic_length: int
    topic_raw: bytes
    properties_length: int
    properties_raw: bytes

    @property
    def topic(self) -> str:
        """The topic as Java reads it."""
        return decode_java_text(self.topic_raw)

    @property
    def end_offset(self) -> int:
        """The physical offset after this record."""
        return self.physical_offset + self.total_size


def decode_record(buffer: Buffer, position: int = 0, physical_offset: int | None = None) -> MessageRecord:
    """
    Return the record at *position*.

    With *physical_offset*, the record must state this offset, and errors contain it; otherwise they contain *position*.
    The body's CRC is not checked here: see `body_crc`.
    """
    view = memoryview(buffer)
    error_offset = position if physical_offset is None else physical_offset

    def read(at: int, length: int) -> Buffer:
        return view[position + at : position + at + length]

    return _read_record(read, view.nbytes - position, error_offset, physical_offset)


def read_record(read: Read, limit: int, physical_offset: int) -> MessageRecord:
    """
    Return the record whose bytes *read* returns by their position in it, of which there are at most *limit*.

    All lengths are checked before the body is read, so a wrong size does not cost any memory.
    """
    return _read_record(read, limit, physical_offset, physical_offset)


def require_right_lengths(read: Read, limit: int, physical_offset: int) -> None:
    """Raise `FormatError` if `read_record` would do so for another reason than the contents of the body."""
    _find_parts(read, limit, physical_offset, physical_offset)


def _read_record(read: Read, limit: int, error_offset: int, physical_offset: int | None) -> MessageRecord:
    values, body_at, topic_at, topic_length, properties_at, properties_length = _find_parts(
        read, limit, error_offset, physical_offset
    )
    *head, born_address, born_port, stored, store_address, store_port, reconsumed, prepared, body_length = values
    topic = bytes(read(topic_at, topic_length))
    properties_size = max(properties_length, 0)
    properties = bytes(read(properties_at, properties_size))
    body_size = max(int(body_length), 0)
    body = bytes(read(body_at, body_size))
    if len(properties) < properties_size or len(body) < body_size:
        raise NeedMoreData(f"record of {int(head[0])} bytes is truncated", error_offset)
    if head[_FLAG] == BRIDGE_FLAG and properties_length == 0 and body.count(0) == len(body):
        raise CorruptData(BRIDGE_REASON, error_offset)
    hosts = Host._make((born_address, born_port)), stored, Host._make((store_address, store_port))
    strings = body, topic_length, topic, properties_length, properties
    return MessageRecord._make((*head, *hosts, reconsumed, prepared, body_length, *strings))


def _find_parts(
    read: Read, limit: int, error_offset: int, physical_offset: int | None
) -> tuple[tuple[int | bytes, ...], int, int, int, int, int]:
    """Return the fixed fields of a record, and the positions and lengths of the parts after them."""
    total_size, magic_code, _, _, _, _, stated_offset, sys_flag, _ = map(
        int, HEAD.unpack(read(0, HEAD.size), 0, error_offset)
    )
    topic_length_layout = TOPIC_LENGTH.get(magic_code)
    if topic_length_layout is None:
        raise CorruptData(f"{INVALID_MAGIC_PREFIX}{magic_code & 0xFFFFFFFF:08X}", error_offset)
    if total_size < MIN_RECORD_SIZE:
        raise CorruptData(f"total_size {total_size} is below the minimum of {MIN_RECORD_SIZE}", error_offset)
    if physical_offset is not None and stated_offset != physical_offset:
        raise CorruptData(f"{OTHER_OFFSET_PREFIX}{stated_offset} in a record", error_offset)
    if total_size > limit:
        raise NeedMoreData(f"record of {total_size} bytes is truncated", error_offset)

    fixed = RECORD[sys_flag & HOST_BITS]
    body_at = _require_within(fixed.size, total_size, error_offset)
    values = fixed.unpack(read(0, fixed.size), 0, error_offset)
    topic_at = _require_within(body_at + max(int(values[-1]), 0) + topic_length_layout.size, total_size, error_offset)
    topic_length = _read_length(read, topic_length_layout, topic_at, error_offset)
    if topic_length < 0:
        raise CorruptData(f"topic_length {topic_length}", error_offset)
    properties_at = _require_within(topic_at + topic_length + PROPERTIES_LENGTH.size, total_size, error_offset)
    properties_length = _read_length(read, PROPERTIES_LENGTH, properties_at, error_offset)
    computed = properties_at + max(properties_length, 0)
    if computed != total_size:
        raise CorruptData(f"total_size is {total_size}, but the fields add up to {computed} bytes", error_offset)
    return values, body_at, topic_at, topic_length, properties_at, properties_length


def _read_length(read: Read, layout: Layout, end: int, error_offset: int) -> int:
    """Return the length that ends at position *end* of a record."""
    return int(layout.unpack(read(end - layout.size, layout.size), 0, error_offset)[0])


def _require_within(cursor: int, end: int, error_offset: int) -> int:
    if cursor > end:
        raise CorruptData(f"a field ends {cursor - end} bytes after the end of the record", error_offset)
    return cursor


def encode_record(record: MessageRecord) -> bytes:
    """Encode a record, with the lengths that its fields state: the inverse of `decode_record`."""
    *head, born_host, stored, store_host, reconsumed, prepared, body_length = record[:15]
    fixed = RECORD[record.sys_flag & HOST_BITS].pack(
        *head, *born_host, stored, *store_host, reconsumed, prepared, body_length
    )
    topic_length = TOPIC_LENGTH[record.magic_code].pack(record.topic_length)
    properties_length = PROPERTIES_LENGTH.pack(record.properties_length)
    return b"".join((fixed, record.body, topic_length, record.topic_raw, properties_length, record.properties_raw))


def new_record(  # noqa: PLR0913 - a record has this many fields
    *,
    topic: bytes,
    magic_code: int,
    body: bytes = b"",
    properties: bytes = b"",
    queue_id: int = 0,
    flag: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    sys_flag: int = 0,
    born_timestamp: int = 0,
    born_host: Host = Host(bytes(4), 0),  # noqa: B008 - immutable
    store_timestamp: int = 0,
    store_host: Host = Host(bytes(4), 0),  # noqa: B008 - immutable
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> MessageRecord:
    """Return a record whose sizes, host bits and CRC follow from its parts."""
    sys_flag &= ~HOST_BITS
    sys_flag |= BORN_HOST_V6 if len(born_host.address) == _V6_SIZE else 0
    sys_flag |= STORE_HOST_V6 if len(store_host.address) == _V6_SIZE else 0
    fixed = RECORD[sys_flag & HOST_BITS].size + TOPIC_LENGTH[magic_code].size + PROPERTIES_LENGTH.size
    return MessageRecord(
        total_size=fixed + len(body) + len(topic) + len(properties),
        magic_code=magic_code,
        body_crc=body_crc(body),
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body_length=len(body),
        body=body,
        topic_length=len(topic),
        topic_raw=topic,
        properties_length=len(properties),
        properties_raw=properties,
    )


def body_crc(body: bytes) -> int:
    """Return the CRC that a record stores for *body*; the top bit is dropped, so that it is never negative."""
    return zlib.crc32(body) & 0x7FFFFFFF


def has_right_body_crc(record: MessageRecord) -> bool:
    """Return whether the body has the right CRC; the broker does not check an empty one, nor do we."""
    return not record.body or record.body_crc == body_crc(record.body)


def has_right_property_crc(record: MessageRecord) -> bool | None:
    """Return whether the CRC at the end of the properties fits the record; None without one (5.2.0+, optional)."""
    text = record.properties_raw[-CRC_SIZE:]
    if len(text) < CRC_SIZE or not text.startswith(CRC_NAME.encode()):
        return None
    return text == property_crc_text(encode_record(record)[:-CRC_SIZE])


class InnerMessage(NamedTuple):
    """One message of an inner batch."""

    flag: int
    body: bytes
    properties_raw: bytes


def decode_inner_batch(body: Buffer) -> Iterator[InnerMessage]:
    """Yield the messages in the record of an inner batch."""
    view = memoryview(body)
    position = 0
    while position < view.nbytes:
        total_size, _, _, flag, body_length = map(int, INNER_MESSAGE.unpack(view, position))
        start = position + INNER_MESSAGE.size
        end = position + total_size
        smallest = INNER_MESSAGE.size + PROPERTIES_LENGTH.size
        if total_size < smallest or end > view.nbytes or not 0 <= body_length <= total_size - smallest:
            raise CorruptData(f"inner message of {total_size} bytes with a body of {body_length}", position)
        (properties_length,) = map(int, PROPERTIES_LENGTH.unpack(view, start + body_length))
        properties_at = start + body_length + PROPERTIES_LENGTH.size
        if properties_at + properties_length != end or properties_length < 0:
            parts = properties_at + properties_length - position
            reason = f"inner message of {total_size} bytes whose parts add up to {parts} bytes"
            raise CorruptData(reason, position)
        yield InnerMessage(flag, bytes(view[start : start + body_length]), bytes(view[properties_at:end]))
        position = end


def record_from_row(row: Mapping[str, Any]) -> MessageRecord:
    """
    Return the record of a *row* of the table; it encodes to the stored bytes.

    Raises `CorruptData` if the row is not one that a run has written: another engine can change every value.
    """
    if row["body"] is None:
        raise CorruptData("a row without its body is not a complete record", row["physical_offset"])
    as_stored = {name: row[name] for name in MessageRecord._fields}
    try:
        as_stored |= {
            "born_host": parse_host(row["born_host"]),
            "store_host": parse_host(row["store_host"]),
            "body": bytes(row["body"]),
            "topic_raw": row["topic"].encode() if row["topic_raw"] is None else bytes(row["topic_raw"]),
            "properties_raw": _stored_properties(row),
        }
    except (ValueError, TypeError, AttributeError) as error:  # NULL, or not a host
        raise CorruptData(f"this row of a message is invalid: {error}", row["physical_offset"]) from error
    if None in as_stored.values():
        lacking = next(name for name, value in as_stored.items() if value is None)
        raise CorruptData(f"this row of a message has no {lacking}", row["physical_offset"])
    return MessageRecord(**as_stored)


def parse_host(text: str) -> Host:
    """Return the host that is printed as *text*."""
    address, _, port = text.rpartition(":")
    return Host(ip_address(address.strip("[]")).packed, int(port))


def _stored_properties(row: Mapping[str, Any]) -> bytes:
    """Return the stored text: that of the map, and a final separator if the stored length includes one."""
    if row["properties_raw"] is not None:
        return bytes(row["properties_raw"])
    properties = row["properties"]
    items: Iterable[tuple[str, str]] = properties.items() if isinstance(properties, Mapping) else properties
    text = PROPERTY_SEPARATOR.join(f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in items).encode()
    return text + PROPERTY_SEPARATOR.encode() if text and len(text) < row["properties_length"] else text


_TOPIC = "RMQ_LAKE_BRIDGE"  # the topic; a small hole has only its beginning
_SMALLEST = MIN_RECORD_SIZE + 1
_LONGEST_V1 = 127  # bytes of a topic


class LostMessage(NamedTuple):
    """A message whose bytes are lost, as far as the unit in its queue describes it."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int


def build_bridge(start: int, end: int, lost: Sequence[LostMessage], store_timestamp: int) -> bytes | None:
    """
    Return the bytes that bridge the hole from *start* to *end*; None if it is too small for a record.

    *lost* are the messages in the hole to which units still point, in log order. If no separate bridge fits for each
    message, one bridge covers the hole.
    """
    if end - start < _SMALLEST:
        return None
    tiles = list(_tile_lost_range(start, end, lost))
    if any(tile.size < _size_without_body(tile.topic.encode()) for tile in tiles):
        tiles = [_filler_message(start, end)]
    return b"".join(_encode_bridge(tile, store_timestamp) for tile in tiles)


def build_bridge_to_segment_end(start: int, end: int, lost: Sequence[LostMessage], store_timestamp: int) -> bytes:
    """Return the bytes that bridge a hole up to the end of its segment; they end with a blank."""
    covered = build_bridge(start, end - BLANK.size, lost, store_timestamp) or b""
    left = end - start - len(covered)
    return covered + BLANK.pack(left, MAGIC_BLANK).ljust(left, b"\0")


def _tile_lost_range(start: int, end: int, lost: Sequence[LostMessage]) -> Iterator[LostMessage]:
    for message in lost:
        if message.offset > start:
            yield _filler_message(start, message.offset)
        yield message._replace(size=message.size if message.offset >= start else 0)  # an overlapping one does not fit
        start = message.offset + message.size
    if start != end:
        yield _filler_message(start, end)


def _filler_message(start: int, end: int) -> LostMessage:
    topic = _TOPIC[: max(end - start - MIN_RECORD_SIZE, 1)]
    return LostMessage(start, end - start, topic, -1, 0)


def _magic_of_topic(topic: bytes) -> int:
    return MAGIC_V1 if len(topic) <= _LONGEST_V1 else MAGIC_V2


def _size_without_body(topic: bytes) -> int:
    return MIN_RECORD_SIZE + TOPIC_LENGTH[_magic_of_topic(topic)].size - TOPIC_LENGTH[MAGIC_V1].size + len(topic)


def _encode_bridge(tile: LostMessage, store_timestamp: int) -> bytes:
    topic = tile.topic.encode()
    return encode_record(
        new_record(
            topic=topic,
            magic_code=_magic_of_topic(topic),
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
