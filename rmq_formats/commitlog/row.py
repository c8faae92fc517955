"""A record from its row, byte for byte. Standard library only, whichever engine read the row."""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any

from rmq_formats.commitlog.record import Host, MessageRecord
from rmq_formats.errors import CorruptData
from rmq_formats.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR


def record_of_row(row: Mapping[str, Any]) -> MessageRecord:
    """Return the record that *row* of the table was made of; it encodes to the bytes that were stored."""
    if row["body"] is None:
        raise CorruptData("a row without its body is not a complete record", row["physical_offset"])
    as_stored = {name: row[name] for name in MessageRecord._fields} | {
        "born_host": parse_host(row["born_host"]),
        "store_host": parse_host(row["store_host"]),
        "body": bytes(row["body"]),
        "topic_raw": row["topic"].encode() if row["topic_raw"] is None else bytes(row["topic_raw"]),
        "properties_raw": _stored_properties(row),
    }
    return MessageRecord(**as_stored)


def parse_host(text: str) -> Host:
    """Return the host that is printed as *text*."""
    address, _, port = text.rpartition(":")
    return Host(ip_address(address.strip("[]")).packed, int(port))


def _stored_properties(row: Mapping[str, Any]) -> bytes:
    """Return the stored text: the map's, with a separator after it if its length says so."""
    if row["properties_raw"] is not None:
        return bytes(row["properties_raw"])
    properties = row["properties"]
    items: Iterable[tuple[str, str]] = properties.items() if isinstance(properties, Mapping) else properties
    text = PROPERTY_SEPARATOR.join(f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in items).encode()
    return text + PROPERTY_SEPARATOR.encode() if text and len(text) < row["properties_length"] else text
