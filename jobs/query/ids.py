"""Both readings of a message id: the text does not tell which one is meant."""

from datetime import UTC, tzinfo
from ipaddress import ip_address
from typing import NamedTuple

from jobs.query.mqadmin.text import host_text, pad, time_text
from rmq_formats.commitlog.record import Host
from rmq_formats.errors import FormatError
from rmq_formats.message_id import OffsetId, UniqueId, decode_offset_id, decode_unique_id, nearly_time

_PORTS = 1 << 16


class Readings(NamedTuple):
    """An id, read as a broker's and as a producer's."""

    offset_id: OffsetId
    unique_id: UniqueId
    nearly_time: int  # ms, as a client reads it today
    zone: tzinfo


def readings(text: str, zone: tzinfo | None, now_ms: int) -> Readings | None:
    """Return both readings of *text*; None when it is not an id of a Java client."""
    client_zone = zone or UTC
    try:
        unique_id = decode_unique_id(text)
        return Readings(decode_offset_id(text), unique_id, nearly_time(unique_id, now_ms, client_zone), client_zone)
    except FormatError:
        return None


def _impossible(host: Host) -> str:
    """Return a remark on a port that no broker has."""
    return "" if 0 < host.port < _PORTS else " (not a port: this is not a broker's id)"


def as_text(read: Readings) -> str:
    """Return both readings for people."""
    unique = read.unique_id
    lines = (
        ("As a broker's id", ""),
        ("  Store Host:", f"{host_text(read.offset_id.host)}{_impossible(read.offset_id.host)}"),
        ("  CommitLog Offset:", read.offset_id.physical_offset),
        ("As a producer's id", ""),
        ("  Address:", ip_address(unique.address)),
        ("  Process:", unique.process_id),
        ("  Class loader:", unique.loader_hash),
        ("  In its month:", f"{unique.time_diff} ms"),
        ("  Time:", f"{time_text(read.nearly_time, read.zone)} {read.zone} (if it is younger than a month)"),
        ("  Counter:", unique.counter),
    )
    return "".join(f"{pad(label, 20)} {value}".rstrip() + "\n" for label, value in lines)


def as_json(read: Readings) -> dict[str, object]:
    """Return both readings for programs."""
    unique = read.unique_id
    return {
        "offset_id": {
            "store_host": host_text(read.offset_id.host),
            "physical_offset": read.offset_id.physical_offset,
        },
        "unique_id": {
            "address": str(ip_address(unique.address)),
            "process_id": unique.process_id,
            "loader_hash": unique.loader_hash,
            "time_diff": unique.time_diff,
            "nearly_time": read.nearly_time,
            "counter": unique.counter,
        },
    }
