"""
The lines that mqadmin prints for a message and for a queue, by release.

Information that only an online client has is omitted: the consumer groups that have consumed the message. The body is
only written to a file on request.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

from jobs.query import Message
from jobs.query.mqadmin.java import decode_as_java, hash_map_text
from rmq_formats.commitlog.record import Host
from rmq_formats.consumequeue.dispatch import SCHEDULE_TOPIC, Unit
from rmq_formats.errors import FormatError
from rmq_formats.message_id import creation_time, decode_offset_id, decode_unique_id
from rmq_formats.properties import UNIQ_KEY
from rmq_formats.release import Release

_TRANSACTION_PREPARED = "TRAN_MSG"
_NO_BODY = "(not in the lake)"
_QUEUE_LINE = "======================================\n"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
_PLAIN_BUCKETS = 16  # a map that the client makes because the message has no properties
_V6_SIZE = 16
_PORTS = 1 << 16
_HOUR_MS = 3_600_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OffsetRange(NamedTuple):
    """A queue's first offset, and the offset of the next message."""

    minimum: int
    maximum: int

    def __str__(self) -> str:
        if self.minimum == self.maximum:
            return f"no messages (its next offset is {self.maximum:,})"
        return f"offsets {self.minimum:,} to {self.maximum - 1:,}"


def pad_right(text: object, width: int) -> str:
    """Pad on the right like Java's `%-Ns`, which counts UTF-16 units."""
    shown = str(text)
    return shown + " " * (width - len(shown.encode("utf-16-le", "surrogatepass")) // 2)


def _pad_left(text: object, width: int) -> str:
    shown = str(text)
    return " " * (width - len(shown.encode("utf-16-le", "surrogatepass")) // 2) + shown


def time_text(milliseconds: int, zone: tzinfo | None) -> str:
    """Format any number of milliseconds as `yyyy-MM-dd HH:mm:ss,SSS` in *zone* (None: this machine's)."""
    try:
        moment = (_EPOCH + timedelta(milliseconds=milliseconds)).astimezone(zone)
    except (OverflowError, ValueError):
        return _distant_time_text(milliseconds)
    return f"{moment:%H:%M:%S}".join((f"{moment.year:04d}-{moment:%m-%d} ", f",{moment.microsecond // 1000:03d}"))


def time_text_without_ms(milliseconds: int, zone: tzinfo | None) -> str:
    """Format a time as `yyyy-MM-dd HH:mm:ss`."""
    return time_text(milliseconds, zone).partition(",")[0]


def _distant_time_text(milliseconds: int) -> str:
    """Format a time outside the years 1 to 9999, in UTC: the calendar repeats every 400 years."""
    cycle_days = 146_097
    days, rest = divmod(milliseconds, 86_400_000)
    cycles, day = divmod(days + (_EPOCH - datetime(1, 1, 1, tzinfo=UTC)).days, cycle_days)
    moment = datetime(1, 1, 1, tzinfo=UTC) + timedelta(days=day, milliseconds=rest)
    # Calendar.YEAR counts backwards before year 1.
    year = moment.year + cycles * 400
    year = year if year > 0 else 1 - year
    return f"{year:04d}-{moment:%m-%d %H:%M:%S},{moment.microsecond // 1000:03d}"


def host_port_text(host: Host) -> str:
    """Format `address:port` like Java's socket address, with IPv6 in brackets."""
    address = address_text(host)
    return f"[{address}]:{host.port}" if len(host.address) == _V6_SIZE else f"{address}:{host.port}"


def address_text(host: Host) -> str:
    """Format an address like Java: IPv6 with all zeros."""
    if len(host.address) == _V6_SIZE:
        groups = IPv6Address(host.address).exploded.split(":")
        return ":".join(group.lstrip("0") or "0" for group in groups)
    return ".".join(map(str, host.address))


def properties_text(message: Message, offsets: OffsetRange | None = None) -> str | None:
    """Format the properties like Java's map, None if there are none; a pull appends its *offsets*."""
    stored = message.properties if message.record.properties_length > 0 else None
    buckets = _PLAIN_BUCKETS if stored is None else message.release.property_map_buckets
    if offsets is None:
        return None if stored is None else hash_map_text(stored, buckets)
    pulled = {"MIN_OFFSET": str(offsets.minimum), "MAX_OFFSET": str(offsets.maximum)}
    return hash_map_text({**(stored or {}), **pulled}, buckets)


def query_by_key_lines(
    messages: Iterable[Message], searched_key: str | None, charset: str | None = None
) -> Iterator[str]:
    """
    Yield the lines of queryMsgByKey; *searched_key*, `topic@type@key`, is the last column since 5.4.0.

    With a *charset*, each message's line is followed by one with its body; messages of several brokers have theirs in
    the last column. mqadmin prints neither.
    """
    listed = list(messages)
    has_brokers = any(message.broker is not None for message in listed)
    plain = f"{pad_right('#Message ID', 50)} {_pad_left('#QID', 4)} {_pad_left('#Offset', 40)}"
    plain = plain if searched_key is None else f"{plain} {pad_right('#IndexKey', 200)}"
    yield f"{plain} #Broker\n" if has_brokers else f"{plain}\n"
    for message in listed:
        record = message.record
        plain = (
            f"{pad_right(message.message_id, 50)} {_pad_left(record.queue_id, 4)} {_pad_left(record.queue_offset, 40)}"
        )
        # The key that the next query would begin after. MixAll#dealTimeToHourStamps; Java's division goes to zero.
        hours = abs(record.store_timestamp) // _HOUR_MS * (1 if record.store_timestamp >= 0 else -1)
        index_key = f"{hours * _HOUR_MS}@{searched_key}@{message.message_id}@{record.physical_offset}"
        plain = plain if searched_key is None else f"{plain} {pad_right(index_key, 200)}"
        yield f"{plain} {message.to_printable(message.broker or '')}\n" if has_brokers else f"{plain}\n"
        if charset is not None:
            yield _body_line(message, charset)


def _body_line(message: Message, charset: str) -> str:
    return f"{pad_right('Message Body:', 20)} {body_text(message, charset)}\n"


def message_detail_text(  # noqa: PLR0913 - what of a message is printed, and how
    message: Message,
    zone: tzinfo | None,
    *,
    has_offset_id: bool = True,
    offsets: OffsetRange | None = None,
    body_path: Path | None = None,
    charset: str | None = None,
) -> str:
    """
    Return the lines of queryMsgById, queryMsgByOffset and queryMsgByUniqueKey (without the offset id).

    *offsets*: those of the queue, for a pull; *charset*: that of the body, which is not printed without one.
    """
    record = message.record
    offset_id = ("OffsetID:", message.offset_id)
    lines: list[tuple[str, object]] = [
        *[offset_id] * ((2 if message.release.prints_offset_id_twice else 1) if has_offset_id else 0),
        ("Topic:", message.topic),
        ("Tags:", f"[{_java_null(message.tags)}]"),
        ("Keys:", f"[{_java_null(message.properties.get('KEYS'))}]"),
        ("Queue ID:", record.queue_id),
        ("Queue Offset:", record.queue_offset),
        ("CommitLog Offset:", record.physical_offset),
        ("Reconsume Times:", record.reconsume_times),
        ("Born Timestamp:", time_text(record.born_timestamp, zone)),
        ("Store Timestamp:", time_text(record.store_timestamp, zone)),
        ("Born Host:", host_port_text(record.born_host)),
        ("Store Host:", host_port_text(record.store_host)),
        *([] if message.broker is None else [("Broker:", message.to_printable(message.broker))]),
        ("System Flag:", message.printed_sys_flag),
        ("Properties:", properties_text(message, offsets) or ""),
        ("Message Body Path:", body_path or "(not written)"),
    ]
    shown = "".join(f"{pad_right(label, 20)} {value}\n" for label, value in lines)
    if charset is not None:
        shown += _body_line(message, charset)
    # Then mqadmin asks for the topic's consumers; without a route to it that fails before the empty lines.
    return shown + "\n\n" if has_route(message.topic, message.release) else shown


def has_route(topic: str, release: Release) -> bool:
    """Return whether clients find a broker for *topic*; for a broker's system topics, only since 4.7.1 and 5.0.0."""
    if topic == SCHEDULE_TOPIC:
        return release.schedule_topic_has_route
    return topic != HALF_TOPIC or release.half_topic_has_route


def body_text(message: Message, charset: str) -> str:
    """Return the body in *charset*; as stored if it cannot be decompressed."""
    if not message.has_body:
        return _NO_BODY
    return message.to_printable(decode_as_java(message.body_or_stored_bytes, charset))


def topic_status_row(broker: str, queue_id: object, minimum: object, maximum: object, updated: str) -> str:
    """Return the line of topicStatus for one queue, or its headline."""
    # UtilAll#frontStringAtLeast cuts the name.
    offsets = f"{pad_right(minimum, 20)}  {pad_right(maximum, 20)}"
    return f"{pad_right(broker[:32], 32)}  {pad_right(queue_id, 4)}  {offsets}    {updated}\n"


def queue_header(offsets: OffsetRange) -> str:
    """Return the headline of queryCq."""
    return f"Queue data: \nmax: {offsets.maximum}, min: {offsets.minimum}\n{_QUEUE_LINE}"


def unit_text(index: int, unit: Unit) -> str:
    """Return the lines of queryCq for one unit."""
    return (
        f"idx: {index}\nConsumeQueueData{{physicOffset={unit.physical_offset}, physicSize={unit.size}, "
        f"tagsCode={unit.tags_code}, extendDataJson='null', bitMap='null', eval=false, msg='null'}}\n{_QUEUE_LINE}"
    )


def message_line(message: Message, offsets: OffsetRange, broker: str, charset: str | None) -> str:
    """Return the line of printMsg for one message, with the body in a charset or without it (None)."""
    record = message.record
    body = "NOT PRINT BODY" if charset is None else body_text(message, charset)
    named = f"brokerName={broker}, " if message.release.prints_broker_of_message else ""
    return (
        f"MSGID: {message.message_id} MessageExt [{named}queueId={record.queue_id}, storeSize={record.total_size}, "
        f"queueOffset={record.queue_offset}, sysFlag={message.printed_sys_flag}, "
        f"bornTimestamp={record.born_timestamp}, bornHost=/{host_port_text(record.born_host)}, "
        f"storeTimestamp={record.store_timestamp}, storeHost=/{host_port_text(record.store_host)}, "
        f"msgId={message.offset_id}, commitLogOffset={record.physical_offset}, bodyCRC={record.body_crc}, "
        f"reconsumeTimes={record.reconsume_times}, preparedTransactionOffset={record.prepared_transaction_offset}, "
        f"toString()={_message_text(message, offsets)}] BODY: {body}\n"
    )


def _message_text(message: Message, offsets: OffsetRange) -> str:
    properties = properties_text(message, offsets) or "null"
    body = message.body_or_stored_bytes
    if not message.release.prints_message_in_braces:
        size = len(body) if message.has_body else _NO_BODY
        return f"Message [topic={message.topic}, flag={message.record.flag}, properties={properties}, body={size}]"
    numbers = f"[{', '.join(str(byte - (byte >> 7 << 8)) for byte in body)}]" if body else "null"
    numbers = numbers if message.has_body else _NO_BODY
    is_transactional = message.properties.get(_TRANSACTION_PREPARED, "").lower() == "true"
    transaction_id = _java_null(message.properties.get(UNIQ_KEY) if is_transactional else None)
    return (
        f"Message{{topic='{message.topic}', flag={message.record.flag}, properties={properties}, body={numbers}, "
        f"transactionId='{transaction_id}'}}"
    )


def _java_null(text: str | None) -> str:
    return "null" if text is None else text


def decode_id_both_ways(text: str, zone: tzinfo, now_ms: int) -> tuple[dict[str, object], str] | None:
    """Return both readings of an id, a broker's and a producer's, as data and text; None for other text."""
    try:
        offset_id, unique = decode_offset_id(text), decode_unique_id(text)
        near = creation_time(unique, now_ms, zone)
    except FormatError:
        return None
    host, address = host_port_text(offset_id.host), str(ip_address(unique.address))
    is_port = 0 < offset_id.host.port < _PORTS
    lines = (
        ("Decoded as an offset id", ""),
        ("  Store Host:", host if is_port else f"{host} (not a valid port, so this is not an offset id)"),
        ("  CommitLog Offset:", offset_id.physical_offset),
        ("Decoded as a unique key", ""),
        ("  Address:", address),
        ("  Process:", unique.process_id),
        ("  Class loader:", unique.loader_hash),
        ("  Time in month:", f"{unique.time_diff} ms"),
        ("  Time:", f"{time_text(near, zone)} {zone} (if the id is less than a month old)"),
        ("  Counter:", unique.counter),
    )
    value: dict[str, object] = {
        "offset_id": {"store_host": host, "physical_offset": offset_id.physical_offset},
        "unique_id": {
            "address": address,
            "process_id": unique.process_id,
            "loader_hash": unique.loader_hash,
            "time_diff": unique.time_diff,
            "nearly_time": near,
            "counter": unique.counter,
        },
    }
    return value, "".join(f"{pad_right(label, 20)} {shown}".rstrip() + "\n" for label, shown in lines)
