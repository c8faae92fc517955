"""
Decodes and encodes the two kinds of message id, which text alone does not distinguish.

The broker's offset id is the location of a record: its store host and physical offset. The client's unique id (property
UNIQ_KEY) contains the process that created the message, and the time. Both are upper-case hex of 16 bytes, or of 28
with an IPv6 address, so every id can be decoded in both ways. Clients in other languages use other formats of unique
ids.
"""

import re
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

from rmq_formats.commitlog.record import Host
from rmq_formats.errors import CorruptData
from rmq_formats.layout import Layout

_ID = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")


# Layouts by the size of the address in bytes.
OFFSET_ID = {
    size: Layout(
        ("address", f"{size}s", "address of the store host"),
        ("port", "i", "port of the store host"),
        ("physical_offset", "q", "offset of the record"),
    )
    for size in (4, 16)
}
UNIQUE_ID = {
    size: Layout(
        ("address", f"{size}s", "address of the client; derived from the time if it has none"),
        ("process_id", "H", "low 16 bits; in 4.6.0 and 4.6.1 the high 16 bits"),
        ("loader_hash", "i", "hash of the client's class loader"),
        ("time_diff", "I", "ms since the client's month began"),
        ("counter", "H", "counter of the client's process"),
    )
    for size in (4, 16)
}


class OffsetId(NamedTuple):
    """The broker and the offset of a record."""

    host: Host
    physical_offset: int


class UniqueId(NamedTuple):
    """The client that created a message, and the time since the start of a month; the id does not contain the month."""

    address: bytes
    process_id: int
    loader_hash: int
    time_diff: int
    counter: int


def encode_offset_id(host: Host, physical_offset: int) -> str:
    """Return the id of the record that *host* stores at *physical_offset*."""
    return OFFSET_ID[len(host.address)].pack(*host, physical_offset).hex().upper()


def decode_offset_id(text: str) -> OffsetId:
    """Read an id as a broker's."""
    address, port, physical_offset = _unpack(text, OFFSET_ID)
    return OffsetId(Host(bytes(address), int(port)), int(physical_offset))


def decode_unique_id(text: str) -> UniqueId:
    """Read an id as a Java client's."""
    address, *numbers = _unpack(text, UNIQUE_ID)
    return UniqueId(bytes(address), *map(int, numbers))


def _unpack(text: str, layouts: dict[int, Layout]) -> tuple[int | bytes, ...]:
    if not _ID.fullmatch(text):
        raise CorruptData(f"{text[:80]!r} is not a message id: expected 32 or 56 hexadecimal digits")
    raw = bytes.fromhex(text)
    layout = next(layout for layout in layouts.values() if layout.size == len(raw))
    return layout.unpack(raw)


def creation_time(unique_id: UniqueId, now_ms: int, zone: tzinfo) -> int:
    """Return the time (ms) that a client reads from an id: in this month, or else in the last one."""
    # MessageClientIDSetter#getNearlyTimeFromID
    month = _month_start(now_ms, zone)
    time = month + unique_id.time_diff
    return time if time < now_ms else _month_start(month - 1, zone) + unique_id.time_diff


def _month_start(time_ms: int, zone: tzinfo) -> int:
    moment = datetime.fromtimestamp(time_ms // 1000, UTC).astimezone(zone)
    start = moment.replace(day=1, hour=0, minute=0, second=0, fold=0)
    return int(start.timestamp()) * 1000
