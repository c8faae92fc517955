"""
Assembles records from rows of a table: the inverse of `columns`, without Python code for each record.

A row has every field of its record, so the record's bytes follow from it. Rows whose parts do not add up to their
stated size (a missing body, a changed text) are reported by number, and no record is assembled from them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_formats.arrow import MESSAGE_SCHEMA
from rmq_formats.commitlog import fill, kernels
from rmq_formats.commitlog.layout import (
    BORN_HOST_V6,
    HOST_V6_GROWTH,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH,
    STORE_HOST_V6,
)
from rmq_formats.commitlog.record import parse_host
from rmq_formats.compiled import compile_large_work, compiled, inlined_helper
from rmq_formats.errors import CorruptData
from rmq_formats.kernels.integers import Bytes, Integers, Sizes, copy_bytes, number_at, write_i32, write_i64
from rmq_formats.kernels.text import NAME_VALUE_SEPARATOR_CODE, PROPERTY_SEPARATOR_CODE

_NUMBERS, _WIDE_NUMBERS = fill.INT32_COLUMNS[: fill.STORE_DATE], fill.INT64_COLUMNS[: fill.BORN_TIME]  # those stored

ASSEMBLED_COLUMNS = (
    *_NUMBERS, *_WIDE_NUMBERS, "topic", "topic_raw", "born_host", "store_host", "properties", "properties_raw", "body",
)  # fmt: skip
"""The columns from which a record is rebuilt; all other columns are derived from them."""

_V4_SIZE = 4
_PORT_SIZE = 4
_HOST_ROOM = 20
_PROPERTIES_LENGTH_SIZE = PROPERTIES_LENGTH.size
_FIXED_SIZE = kernels.FIXED_SIZE
_NOT_WHOLE = -1


class _Text(NamedTuple):
    """A column of texts or bytes; NULL where `present` is 0."""

    offsets: Integers  # the start of each text, and the end of the last one
    data: Bytes
    present: Bytes


class _Hosts(NamedTuple):
    """The distinct addresses with ports, and for each row the number of its address."""

    numbers: Sizes
    sizes: Sizes  # the size of the address and its port; 0 if the text is not a host
    data: Bytes  # `_HOST_ROOM` bytes each


class _Rows(NamedTuple):
    int32_columns: NDArray[np.int32]
    int64_columns: NDArray[np.int64]
    topic: _Text
    topic_raw: _Text
    born_host: _Hosts
    store_host: _Hosts
    property_offsets: Integers  # the start of each row's properties, and the end of the last one
    property_names: _Text
    property_values: _Text
    properties_raw: _Text
    body: _Text


class AssembledRecords(NamedTuple):
    """Records, one after the other in a buffer."""

    buffer: Bytes
    offsets: Integers  # physical offset of each record
    positions: Integers  # the position of each record in the buffer
    sizes: Sizes
    incomplete_offsets: Sequence[int]  # physical offsets of the rows that cannot be assembled
    row_numbers: Integers  # the number of each record's row

    @property
    def offset_bounds(self) -> tuple[Integers, Integers]:
        """Offsets of each record's first byte, and of the one after its last, in the log."""
        return self.offsets, self.offsets + self.sizes

    def select(self, chosen: NDArray[np.bool_]) -> Self:
        """Return some of the records."""
        return self._replace(
            offsets=self.offsets[chosen], positions=self.positions[chosen], sizes=self.sizes[chosen],
            row_numbers=self.row_numbers[chosen],
        )  # fmt: skip


def assemble_records(batch: pa.RecordBatch) -> AssembledRecords:
    """Assemble the records of which *batch* has the rows, with at least `ASSEMBLED_COLUMNS`."""
    missing = [name for name in ASSEMBLED_COLUMNS if name not in batch.schema.names]
    if missing:
        raise CorruptData(f"rows without the column {missing[0]}", 0)
    compile_large_work(batch.nbytes)
    rows = _Rows(
        np.stack([_numbers(batch, name, np.int32) for name in _NUMBERS]),
        np.stack([_numbers(batch, name, np.int64) for name in _WIDE_NUMBERS]),
        _text(batch.column("topic")),
        _text(batch.column("topic_raw")),
        _hosts(batch.column("born_host")),
        _hosts(batch.column("store_host")),
        *_map(batch.column("properties")),
        _text(batch.column("properties_raw")),
        _text(batch.column("body")),
    )
    sizes = np.empty(batch.num_rows, np.int32)
    total = int(_measure(rows, sizes))
    is_whole = sizes >= 0
    buffer = np.empty(total, np.uint8)
    _fill_records(rows, sizes, buffer)
    offsets, kept = rows.int64_columns[fill.PHYSICAL_OFFSET], sizes[is_whole]
    positions = np.zeros(kept.size, np.int64)
    np.cumsum(kept[:-1], out=positions[1:])
    return AssembledRecords(
        buffer, offsets[is_whole], positions, kept, offsets[~is_whole].tolist(), np.flatnonzero(is_whole)
    )


def _numbers(batch: pa.RecordBatch, name: str, type_: type[np.generic]) -> NDArray[Any]:
    """Return a column of numbers; NULL is a size that no record has, and so makes its row incomplete."""
    column = batch.column(name).cast(MESSAGE_SCHEMA.field(name).type)
    return np.asarray(pc.fill_null(column, -1).to_numpy(zero_copy_only=False), type_)


def _text(column: pa.Array) -> _Text:
    """Return a column of texts or bytes, however wide its reader made the offsets."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    column = column.cast(pa.large_binary())
    _, ends, data = column.buffers()
    count = len(column)
    offsets = np.frombuffer(ends, np.int64)[column.offset : column.offset + count + 1] if count else np.zeros(1, int)
    raw = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    raw.setflags(write=False)  # some readers return read-only buffers, and compiled code accepts only one kind
    present = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.uint8)
    return _Text(offsets.astype(np.int64), raw, present)


def _hosts(column: pa.Array) -> _Hosts:
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    texts = column.dictionary.to_pylist()
    sizes, data = np.zeros(len(texts) + 1, np.int32), np.zeros((len(texts) + 1) * _HOST_ROOM, np.uint8)
    for number, text in enumerate(texts):
        raw = _host_bytes(text)
        sizes[number] = len(raw)
        data[number * _HOST_ROOM : number * _HOST_ROOM + len(raw)] = np.frombuffer(raw, np.uint8)
    numbers = pc.fill_null(column.indices.cast(pa.int32()), len(texts))
    return _Hosts(np.asarray(numbers.to_numpy(zero_copy_only=False), np.int32), sizes, data)


def _host_bytes(text: str | None) -> bytes:
    """Return an address and its port as stored; nothing for a text that is not a host."""
    try:
        host = parse_host(text or "")
        return host.address + host.port.to_bytes(_PORT_SIZE, "big", signed=True)
    except (ValueError, OverflowError):
        return b""


def _map(column: pa.Array) -> tuple[Integers, _Text, _Text]:
    if isinstance(column, pa.ListArray | pa.LargeListArray):  # some readers have no type for maps
        names, values = column.values.field(0), column.values.field(1)
    else:
        names, values = column.keys, column.items
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    return offsets, _text(names), _text(values)


@compiled
def _measure(rows: _Rows, sizes: Sizes) -> int:
    """Store each record's size, or `_NOT_WHOLE` where a row's parts contradict it; return the sum of the sizes."""
    total = 0
    for row in range(sizes.size):
        size = _record_size(rows, row)
        sizes[np.uintp(row)] = size
        total += max(size, 0)
    return total


@inlined_helper
def _record_size(rows: _Rows, row: int) -> int:
    """Return the size of a row's record; `_NOT_WHOLE` if the row does not have all of its bytes."""
    numbers = rows.int32_columns
    magic, sys_flag = number_at(numbers[fill.MAGIC_CODE], row), number_at(numbers[fill.SYS_FLAG], row)
    born = _host_size(rows.born_host, row, sys_flag & BORN_HOST_V6)
    stored = _host_size(rows.store_host, row, sys_flag & STORE_HOST_V6)
    if magic not in (MAGIC_V1, MAGIC_V2) or born < 0 or stored < 0 or not rows.body.present[np.uintp(row)]:
        return _NOT_WHOLE
    length_size = kernels.topic_length_size(magic)
    body = _length(rows.body, row)
    topic = _length(rows.topic_raw if rows.topic_raw.present[np.uintp(row)] else rows.topic, row)
    properties = _properties_size(rows, row)
    fits = (
        body == max(number_at(numbers[fill.BODY_LENGTH], row), 0)
        and topic == number_at(numbers[fill.TOPIC_LENGTH], row)
        and properties == max(number_at(numbers[fill.PROPERTIES_LENGTH], row), 0)
    )
    size = _FIXED_SIZE + born + stored + body + length_size + topic + _PROPERTIES_LENGTH_SIZE + properties
    return size if fits and size == number_at(numbers[fill.TOTAL_SIZE], row) else _NOT_WHOLE


@inlined_helper
def _host_size(hosts: _Hosts, row: int, is_v6: int) -> int:
    """Return how many bytes a host is longer than an IPv4 host; a negative number if it is not of the stated kind."""
    growth = HOST_V6_GROWTH if is_v6 else 0
    size = number_at(hosts.sizes, number_at(hosts.numbers, row))
    return growth if size == _V4_SIZE + _PORT_SIZE + growth else _NOT_WHOLE


@inlined_helper
def _length(text: _Text, row: int) -> int:
    return number_at(text.offsets, row + 1) - number_at(text.offsets, row)


@inlined_helper
def _properties_size(rows: _Rows, row: int) -> int:
    if rows.properties_raw.present[np.uintp(row)]:
        return _length(rows.properties_raw, row)
    size = 0
    for item in range(number_at(rows.property_offsets, row), number_at(rows.property_offsets, row + 1)):
        size += _length(rows.property_names, item) + _length(rows.property_values, item) + 2
    # A separator follows the last property if the stored length includes one.
    return size - 1 if size > 0 and size > number_at(rows.int32_columns[fill.PROPERTIES_LENGTH], row) else size


@compiled
def _fill_records(rows: _Rows, sizes: Sizes, buffer: Bytes) -> None:
    at = 0
    for row in range(sizes.size):
        if sizes[np.uintp(row)] >= 0:
            at = _fill_record(rows, row, buffer, at)


@inlined_helper
def _fill_record(rows: _Rows, row: int, buffer: Bytes, at: int) -> int:
    numbers, int64_columns = rows.int32_columns, rows.int64_columns
    magic, sys_flag = number_at(numbers[fill.MAGIC_CODE], row), number_at(numbers[fill.SYS_FLAG], row)
    write_i32(buffer, at + kernels.TOTAL_SIZE_AT, number_at(numbers[fill.TOTAL_SIZE], row))
    write_i32(buffer, at + kernels.MAGIC_CODE_AT, magic)
    write_i32(buffer, at + kernels.BODY_CRC_AT, number_at(numbers[fill.BODY_CRC], row))
    write_i32(buffer, at + kernels.QUEUE_ID_AT, number_at(numbers[fill.QUEUE_ID], row))
    write_i32(buffer, at + kernels.FLAG_AT, number_at(numbers[fill.FLAG], row))
    write_i64(buffer, at + kernels.QUEUE_OFFSET_AT, number_at(int64_columns[fill.QUEUE_OFFSET], row))
    write_i64(buffer, at + kernels.PHYSICAL_OFFSET_AT, number_at(int64_columns[fill.PHYSICAL_OFFSET], row))
    write_i32(buffer, at + kernels.SYS_FLAG_AT, sys_flag)
    write_i64(buffer, at + kernels.BORN_TIMESTAMP_AT, number_at(int64_columns[fill.BORN_TIMESTAMP], row))
    _fill_host(rows.born_host, row, buffer, at + kernels.BORN_HOST_AT)
    moved = at + (HOST_V6_GROWTH if sys_flag & BORN_HOST_V6 else 0)
    write_i64(buffer, moved + kernels.STORE_TIMESTAMP_AT_V4, number_at(int64_columns[fill.STORE_TIMESTAMP], row))
    _fill_host(rows.store_host, row, buffer, moved + kernels.STORE_HOST_AT_V4)
    moved += HOST_V6_GROWTH if sys_flag & STORE_HOST_V6 else 0
    write_i32(buffer, moved + kernels.RECONSUME_TIMES_AT_V4, number_at(numbers[fill.RECONSUME_TIMES], row))
    prepared = number_at(int64_columns[fill.PREPARED_TRANSACTION_OFFSET], row)
    write_i64(buffer, moved + kernels.PREPARED_TRANSACTION_OFFSET_AT_V4, prepared)
    write_i32(buffer, moved + kernels.BODY_LENGTH_AT_V4, number_at(numbers[fill.BODY_LENGTH], row))
    at = _fill_text(rows.body, row, buffer, moved + _FIXED_SIZE)
    topic_length = number_at(numbers[fill.TOPIC_LENGTH], row)
    if magic == MAGIC_V2:
        buffer[np.uintp(at)] = np.uint8((topic_length >> 8) & 0xFF)
        at += 1
    buffer[np.uintp(at)] = np.uint8(topic_length & 0xFF)
    at = _fill_text(rows.topic_raw if rows.topic_raw.present[np.uintp(row)] else rows.topic, row, buffer, at + 1)
    length = number_at(numbers[fill.PROPERTIES_LENGTH], row)
    buffer[np.uintp(at)] = np.uint8((length >> 8) & 0xFF)
    buffer[np.uintp(at + 1)] = np.uint8(length & 0xFF)
    return _fill_properties(rows, row, buffer, at + 2, max(length, 0))


@inlined_helper
def _fill_host(hosts: _Hosts, row: int, buffer: Bytes, at: int) -> None:
    number = number_at(hosts.numbers, row)
    start = number * _HOST_ROOM
    copy_bytes(hosts.data, start, start + number_at(hosts.sizes, number), buffer, at)


@inlined_helper
def _fill_text(text: _Text, row: int, buffer: Bytes, at: int) -> int:
    return copy_bytes(text.data, number_at(text.offsets, row), number_at(text.offsets, row + 1), buffer, at)


@inlined_helper
def _fill_properties(rows: _Rows, row: int, buffer: Bytes, at: int, size: int) -> int:
    if rows.properties_raw.present[np.uintp(row)]:
        return _fill_text(rows.properties_raw, row, buffer, at)
    end = at + size
    for item in range(number_at(rows.property_offsets, row), number_at(rows.property_offsets, row + 1)):
        at = _fill_text(rows.property_names, item, buffer, at)
        buffer[np.uintp(at)] = np.uint8(NAME_VALUE_SEPARATOR_CODE)
        at = _fill_text(rows.property_values, item, buffer, at + 1)
        if at < end:
            buffer[np.uintp(at)] = np.uint8(PROPERTY_SEPARATOR_CODE)
            at += 1
    return at
