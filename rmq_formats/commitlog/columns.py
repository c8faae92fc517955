"""
Converts records to Arrow columns, without Python code for each record.

The buffers of each column are allocated for the largest possible content, filled by compiled passes, and wrapped
without a copy. If the tables are too small for very many distinct texts, all columns are filled again with larger ones.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_formats.arrow import MESSAGE_SCHEMA
from rmq_formats.commitlog import fill, kernels
from rmq_formats.commitlog.fill import Column, DistinctTexts, RecordColumns
from rmq_formats.commitlog.layout import COMPRESSED, TRANSACTION_MASK, TransactionType
from rmq_formats.commitlog.record import Host
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.compiled import compile_large_work
from rmq_formats.errors import SizeLimitExceeded
from rmq_formats.kernels.integers import Bytes, Integers, Sizes, read_i32
from rmq_formats.kernels.text import (
    MAX_TEXT_GROWTH,
    PROPERTY_PARSER_CODES,
    TextTable,
    find_or_add_text,
    new_text_table,
)
from rmq_formats.properties import PropertyParser

BadRecord = tuple[int, int]  # physical offset and size of a record whose body has changed

_LONGEST_TEXT = (1 << 15) - 1  # the longest topic or property list: their lengths have 16 bits
_LARGEST = (1 << 31) - 1  # the largest offset in Arrow's arrays
_ID_SIZE = 56  # characters of an offset id with an IPv6 address
_PORT_SIZE = 4
_SLOTS = 1 << 12  # the initial number of slots for distinct texts
_HEAP_SIZE = 1 << 16
_MORE = 4

_TRANSACTION_TYPES = pa.array([kind.name.lower() for kind in sorted(TransactionType)])
_TRANSACTION_SHIFT = 2


def message_batch(
    records: RawRecords,
    parser: PropertyParser,
    *,
    with_body: bool = True,
    wants_topic: Callable[[str], bool] | None = None,
) -> tuple[pa.RecordBatch, list[BadRecord]]:
    """
    Return the records as rows of `MESSAGE_SCHEMA`, and the records that are left out because their body's CRC is wrong.

    With *wants_topic*, only records of topics that it accepts; it is called once for each topic. Without *with_body*,
    bodies are checked, and then NULL.
    """
    compile_large_work(records.byte_count)
    buffer = records.buffer
    positions = records.positions if wants_topic is None else _select_records(records, wants_topic)
    out, distinct, rows = _fill_columns(buffer, positions, PROPERTY_PARSER_CODES[parser], with_body=with_body)
    columns = {
        **_numbers(out, rows),
        "topic": _dictionary_array(out.topic_numbers[:rows], _texts(distinct.topics)),
        "topic_raw": _column(pa.binary(), out.topic_raw, rows, is_optional=True),
        "born_host": _dictionary_array(out.born_host_numbers[:rows], _host_texts(distinct.born_hosts)),
        "store_host": _dictionary_array(out.store_host_numbers[:rows], _host_texts(distinct.store_hosts)),
        "offset_msg_id": _column(pa.string(), out.offset_ids, rows),
        **_properties(out, distinct.names, rows),
        "body": _column(pa.binary(), out.body, rows) if with_body else pa.nulls(rows, pa.binary()),
    }
    batch = pa.RecordBatch.from_arrays([columns[field.name] for field in MESSAGE_SCHEMA], schema=MESSAGE_SCHEMA)
    bad = [
        (records.base_offset + at, int(read_i32(buffer, at + kernels.TOTAL_SIZE_AT)))
        for at in out.bad_positions[: positions.size - rows].tolist()
    ]
    return batch, bad


def compute_record_crcs(buffer: Bytes, positions: Integers, sizes: Sizes) -> Integers:
    """Return the CRC-32 of all bytes of each record."""
    crcs = np.empty(positions.size, np.int64)
    kernels.compute_record_crcs(buffer, np.array(positions, np.int64), np.array(sizes, np.int32), crcs)
    return crcs


def _fill_columns(
    buffer: Bytes, positions: Integers, parser: int, *, with_body: bool
) -> tuple[RecordColumns, DistinctTexts, int]:
    bodies, topics, properties = fill.sum_part_sizes(buffer, positions)
    if max(bodies, MAX_TEXT_GROWTH * properties) > _LARGEST:
        found = f"{bodies} bytes of bodies and {properties} of properties"
        raise SizeLimitExceeded(f"a batch has {found}, but Arrow's limit is {_LARGEST}")
    bodies = bodies if with_body else 0
    slots, heap_size = _SLOTS, _HEAP_SIZE
    while True:
        out = _allocate_record_columns(positions.size, bodies, topics, properties)
        distinct = _allocate_distinct_texts(slots, heap_size)
        rows, status = fill.fill_columns(buffer, positions, parser, int(with_body), out, distinct)
        if status == fill.DONE:
            return out, distinct, int(rows)
        slots, heap_size = _MORE * slots, _MORE * heap_size


def _select_records(records: RawRecords, wants_topic: Callable[[str], bool]) -> Integers:
    buffer, positions = records.buffer, records.positions
    count = positions.size
    _, topics, _ = fill.sum_part_sizes(buffer, positions)
    numbers, raw = _allocate(np.int32, count), _allocate_column(count, topics)
    scratch = np.empty(MAX_TEXT_GROWTH * _LONGEST_TEXT, np.uint8)
    slots, heap_size = _SLOTS, _HEAP_SIZE
    while True:
        texts = new_text_table(slots, heap_size)
        if fill.fill_topics(buffer, positions, 0, count, texts, scratch, numbers, raw) == fill.DONE:
            break
        slots, heap_size = _MORE * slots, _MORE * heap_size
    wanted = np.array([wants_topic(topic) for topic in _texts(texts).to_pylist()], np.bool_)
    return positions[wanted[numbers]] if count else positions


def _numbers(out: RecordColumns, rows: int) -> dict[str, pa.Array]:
    by_name = dict(zip(fill.INT32_COLUMNS, out.int32_columns[:, :rows], strict=True))
    by_name |= dict(zip(fill.INT64_COLUMNS, out.int64_columns[:, :rows], strict=True))
    has_store_date = _has_date(by_name["store_timestamp"])
    present = {
        "store_date": has_store_date,
        "store_time": has_store_date,
        "born_time": _has_date(by_name["born_timestamp"]),
    }
    sys_flags = by_name["sys_flag"]
    transaction_types = (sys_flags & TRANSACTION_MASK) >> _TRANSACTION_SHIFT
    return {
        **{name: _array(MESSAGE_SCHEMA.field(name).type, line, present.get(name)) for name, line in by_name.items()},
        "is_compressed": pa.Array.from_buffers(pa.bool_(), rows, [None, _bits(sys_flags & COMPRESSED)]),
        "transaction_type": _dictionary_array(transaction_types, _TRANSACTION_TYPES),
    }


def _properties(out: RecordColumns, names: TextTable, rows: int) -> dict[str, pa.Array]:
    count, key_count = int(out.property_ends[rows]), int(out.key_ends[rows])
    keys = _column(pa.string(), out.keys, key_count)
    key_lists = [_validity(out.keys.present[:rows]), pa.py_buffer(out.key_ends[: rows + 1])]
    return {
        "properties": pa.MapArray.from_arrays(
            _array(pa.int32(), out.property_ends[: rows + 1]),
            _dictionary_array(out.name_numbers[:count], _texts(names)),
            _column(pa.string(), out.values, count),
        ),
        "properties_raw": _column(pa.binary(), out.properties_raw, rows, is_optional=True),
        "tags": _column(pa.string(), out.tags, rows, is_optional=True),
        "uniq_key": _column(pa.string(), out.uniq_key, rows, is_optional=True),
        "keys": pa.Array.from_buffers(MESSAGE_SCHEMA.field("keys").type, rows, key_lists, children=[keys]),
    }


def _allocate(type_: type[np.generic], count: int) -> NDArray[Any]:
    """Return an array in memory of Arrow, with arbitrary values."""
    buffer = pa.allocate_buffer(max(count, 1) * np.dtype(type_).itemsize)
    return np.frombuffer(buffer, type_)[:count]


def _allocate_ends(count: int) -> Sizes:
    """Return an array for the offsets of a column of *count* texts; only the first is set."""
    ends = _allocate(np.int32, count + 1)
    ends[0] = 0
    return ends


def _allocate_column(count: int, size: int) -> Column:
    return Column(_allocate_ends(count), _allocate(np.uint8, size), _allocate(np.uint8, count))


def _allocate_record_columns(rows: int, bodies: int, topics: int, properties: int) -> RecordColumns:
    """Allocate the output for records whose parts have these total sizes; unused pages take no memory."""
    texts = MAX_TEXT_GROWTH * properties
    most = properties // 3 + rows  # a property takes at least three bytes, but the last one of a row has no separator
    return RecordColumns(
        good_positions=_allocate(np.int64, rows),
        bad_positions=_allocate(np.int64, rows),
        body=_allocate_column(rows, bodies),
        int32_columns=_allocate(np.int32, len(fill.INT32_COLUMNS) * rows).reshape(len(fill.INT32_COLUMNS), rows),
        int64_columns=_allocate(np.int64, len(fill.INT64_COLUMNS) * rows).reshape(len(fill.INT64_COLUMNS), rows),
        topic_numbers=_allocate(np.int32, rows),
        topic_raw=_allocate_column(rows, topics),
        born_host_numbers=_allocate(np.int32, rows),
        store_host_numbers=_allocate(np.int32, rows),
        offset_ids=_allocate_column(rows, _ID_SIZE * rows),
        property_ends=_allocate_ends(rows),
        name_numbers=_allocate(np.int32, most),
        values=_allocate_column(most, texts),
        properties_raw=_allocate_column(rows, properties),
        tags=_allocate_column(rows, texts),
        uniq_key=_allocate_column(rows, texts),
        key_ends=_allocate_ends(rows),
        keys=_allocate_column(properties // 2 + rows, texts),
    )


def _allocate_distinct_texts(slots: int, heap_size: int) -> DistinctTexts:
    topics, born_hosts, store_hosts, names = (new_text_table(slots, heap_size) for _ in range(4))
    for name in fill.COLUMN_PROPERTIES:
        raw = np.frombuffer(bytearray(name.encode()), np.uint8)
        find_or_add_text(names, raw, 0, raw.size)
    return DistinctTexts(
        topics,
        born_hosts,
        store_hosts,
        names,
        last_row_plus_one=np.zeros(slots // 2, np.int32),
        property_number=np.empty(slots // 2, np.int32),
        value_starts=np.empty(_LONGEST_TEXT, np.int64),
        value_ends=np.empty(_LONGEST_TEXT, np.int64),
        scratch=np.empty(MAX_TEXT_GROWTH * _LONGEST_TEXT, np.uint8),
    )


def _has_date(timestamps: Integers) -> NDArray[np.bool_]:
    return (timestamps >= fill.MIN_DATE_MS) & (timestamps <= fill.MAX_DATE_MS)


def _bits(values: NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def _validity(present: NDArray[Any]) -> pa.Buffer | None:
    """Return Arrow's bitmap; none where nothing is missing."""
    return None if present.all() else _bits(present)


def _array(type_: pa.DataType, values: NDArray[Any], present: NDArray[Any] | None = None) -> pa.Array:
    validity = None if present is None else _validity(present)
    return pa.Array.from_buffers(type_, values.size, [validity, pa.py_buffer(values)])


def _column(type_: pa.DataType, column: Column, count: int, *, is_optional: bool = False) -> pa.Array:
    validity = _validity(column.present[:count]) if is_optional else None
    ends = column.ends[: count + 1]
    return pa.Array.from_buffers(type_, count, [validity, pa.py_buffer(ends), pa.py_buffer(column.data[: ends[count]])])


def _dictionary_array(numbers: Sizes, texts: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(_array(pa.int32(), numbers), texts, safe=False)


def _texts(texts: TextTable) -> pa.Array:
    return pa.Array.from_buffers(
        pa.string(),
        texts.text_count,
        [None, pa.py_buffer(texts.ends[: texts.text_count + 1]), pa.py_buffer(texts.heap)],
    )


def _host_texts(texts: TextTable) -> pa.Array:
    hosts = (
        Host(raw[:-_PORT_SIZE], int.from_bytes(raw[-_PORT_SIZE:], "big", signed=True)) for raw in texts.list_texts()
    )
    return pa.array(map(str, hosts), pa.string())
