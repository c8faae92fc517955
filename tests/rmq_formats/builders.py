"""Make records and segments for tests, with default values of fields."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rmq_formats.commitlog.layout import (
    BLANK,
    DLEDGER_END,
    DLEDGER_END_MAGIC,
    DLEDGER_ENTRY,
    DLEDGER_MAGIC,
    MAGIC_BLANK,
    MAGIC_V1,
)
from rmq_formats.commitlog.record import Host, MessageRecord, encode_record, new_record
from rmq_formats.commitlog.segment import Framing
from rmq_formats.layout import Buffer
from rmq_formats.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

PRODUCER = Host(bytes([10, 0, 0, 7]), 51234)
BROKER = Host(bytes([10, 0, 0, 1]), 10911)
PRODUCER_V6 = Host(bytes.fromhex("20010db8000000000000000000000007"), 51234)
BROKER_V6 = Host(bytes.fromhex("20010db8000000000000000000000001"), 10911)
BORN = 1_763_600_000_000
STORED = BORN + 5


def make_record(
    body: bytes = b"hello",
    *,
    topic: str = "Orders",
    properties: Mapping[str, str] | bytes = b"KEYS\x01order-1\x02",
    **fields: Any,  # noqa: ANN401 - fields of new_record
) -> MessageRecord:
    raw = properties if isinstance(properties, bytes) else encode_properties(properties, trailing_separator=True)
    ordinary: dict[str, Any] = {
        "magic_code": MAGIC_V1,
        "born_timestamp": BORN,
        "born_host": PRODUCER,
        "store_timestamp": STORED,
        "store_host": BROKER,
    }
    return new_record(topic=topic.encode(), body=body, properties=raw, **ordinary | fields)


def encode_properties(properties: Mapping[str, str], *, trailing_separator: bool) -> bytes:
    text = PROPERTY_SEPARATOR.join(f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in properties.items())
    return (text + PROPERTY_SEPARATOR * (trailing_separator and bool(text))).encode("utf-8", "replace")


def fit_into_segment(record: MessageRecord, segment_size: int) -> MessageRecord:
    """Return the record at its offset, or at the start of the next segment if it does not fit before a blank."""
    offset = record.physical_offset
    if offset // segment_size == (record.end_offset + BLANK.size) // segment_size:
        return record
    return record._replace(physical_offset=(offset // segment_size + 1) * segment_size)


def place_records(
    records: Iterable[MessageRecord], base_offset: int = 0, framing: Framing = Framing.PLAIN
) -> list[MessageRecord]:
    """Return the records with consecutive physical offsets, the first at the start of a segment."""
    result: list[MessageRecord] = []
    offset = base_offset
    for record in records:
        result.append(record._replace(physical_offset=offset + framing.header_size))
        offset = result[-1].end_offset
    return result


def frame_record(record: MessageRecord, framing: Framing = Framing.PLAIN, index: int = 0) -> bytes:
    raw = encode_record(record)
    if framing is Framing.PLAIN:
        return raw
    pos = record.physical_offset - framing.header_size
    return DLEDGER_ENTRY.pack(DLEDGER_MAGIC, framing.header_size + len(raw), index, 0, pos, 0, 0, 0, len(raw)) + raw


def make_blank(size: int, framing: Framing = Framing.PLAIN) -> bytes:
    if framing is Framing.DLEDGER:
        return DLEDGER_END.pack(DLEDGER_END_MAGIC, size).ljust(size, b"\0")
    return BLANK.pack(size, MAGIC_BLANK).ljust(size, b"\0")


def make_log(records: Sequence[MessageRecord], base_offset: int = 0, framing: Framing = Framing.PLAIN) -> bytes:
    in_place = place_records(records, base_offset, framing)
    return b"".join(frame_record(record, framing, index) for index, record in enumerate(in_place))


def make_segment(
    records: Sequence[MessageRecord],
    size: int = 4096,
    base_offset: int = 0,
    framing: Framing = Framing.PLAIN,
    *,
    sealed: bool = False,
) -> bytes:
    log = make_log(records, base_offset, framing)
    assert len(log) + BLANK.size <= size, "the records do not fit"
    return log + (make_blank(size - len(log), framing) if sealed else bytes(size - len(log)))


def make_reader(data: Buffer, calls: list[int] | None = None) -> Callable[[int, int], Buffer]:
    """Return a function that reads *data*, and appends the requested lengths to *calls*."""

    def read(position: int, length: int) -> Buffer:
        if calls is not None:
            calls.append(length)
        return data[position : position + length]

    return read


def damage(data: bytes, at: int, new: bytes = b"\xff\xff") -> bytes:
    return data[:at] + new + data[at + len(new) :]


def make_writer(data: bytearray) -> Callable[[int, Buffer], None]:
    """Return a function that writes a block into *data* at a position."""

    def write(position: int, block: Buffer) -> None:
        data[position : position + len(block)] = block

    return write
