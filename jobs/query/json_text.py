"""
Answers as JSON, one object per line. `docs/reference/queries.md` describes the fields; changes increase `VERSION`.

Integers are numbers, times are ISO 8601 in UTC. A client may set any 64-bit number as a timestamp, which a reader with
only 53 bits rounds; offsets are far smaller.
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from datetime import UTC

from jobs.query import Message
from jobs.query.mqadmin import OffsetRange, host_port_text, time_text

JSON_VERSION = 2

INTEGER_FIELDS = (
    *("total_size", "magic_code", "body_crc", "queue_id", "flag", "sys_flag", "reconsume_times"),
    *("body_length", "topic_length", "properties_length"),
    *("queue_offset", "physical_offset", "born_timestamp", "store_timestamp", "prepared_transaction_offset"),
)


def iso_time(milliseconds: int) -> str:
    """Format any number of milliseconds as ISO 8601 in UTC."""
    return f"{time_text(milliseconds, UTC).replace(' ', 'T').replace(',', '.')}Z"


def message_object(
    message: Message, offsets: OffsetRange | None = None, *, with_body: bool = False
) -> dict[str, object]:
    """Return every field of a message, and the derived values."""
    record = message.record
    fields = record._asdict()
    shown: dict[str, object] = {
        **({} if message.broker is None else {"broker": message.broker}),
        "topic": message.topic,
        **{name: fields[name] for name in INTEGER_FIELDS},
        "born_host": host_port_text(record.born_host),
        "store_host": host_port_text(record.store_host),
        "born_time": iso_time(record.born_timestamp),
        "store_time": iso_time(record.store_timestamp),
        "message_id": message.message_id,
        "unique_key": message.unique_key,
        "offset_id": message.offset_id,
        "keys": message.keys,
        "tags": message.tags,
        "transaction_type": message.transaction.name.lower(),
        "is_compressed": message.is_compressed,
        "has_right_body_crc": message.has_right_body,
        "properties": dict(message.properties),
        "properties_base64": b64encode(record.properties_raw).decode(),
        "topic_base64": b64encode(record.topic_raw).decode(),
        "body_base64": b64encode(record.body).decode() if message.has_body else None,
    }
    if offsets:
        shown |= {"min_offset": offsets.minimum, "max_offset": offsets.maximum}
    if with_body:
        shown["decoded_body_base64"] = None if message.body is None else b64encode(message.body).decode()
        shown["decoded_body_text"] = None if message.body is None else utf8_text(message.body)
    return shown


def utf8_text(body: bytes) -> str | None:
    """Return a body as text; None if it is not UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def json_line(value: Mapping[str, object]) -> str:
    """Return the line of a message."""
    return "".join(json_pieces(value))


def json_pieces(value: Mapping[str, object]) -> Iterator[str]:
    """Yield the line of a message field by field, so that a large body is in memory only once."""
    yield "{"
    for number, (name, field) in enumerate({"version": JSON_VERSION, "type": "message", **value}.items()):
        yield f"{', ' if number else ''}{json.dumps(name)}: "
        yield json.dumps(field, ensure_ascii=False)
    yield "}\n"
