"""
Compiled passes over a group of records, each of which fills some columns.

A pass relies on checked records (`scan`), and on arrays that are large enough for their content. Rows are in the order
of the positions. If an array is too small for another distinct text, the pass ends early and is repeated with larger
arrays.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_formats.commitlog import kernels
from rmq_formats.compiled import compiled, compiled_helper, inlined_helper
from rmq_formats.kernels.integers import (
    Bytes,
    Integers,
    Sizes,
    as_int64,
    byte_at,
    copy_by_words,
    copy_bytes,
    number_at,
    read_i16,
    read_i32,
    read_i64,
)
from rmq_formats.kernels.text import (
    NAME_VALUE_SEPARATOR_CODE,
    PROPERTY_PARSER_SCAN,
    PROPERTY_SEPARATOR_CODE,
    SEPARATOR_LIMIT,
    TABLE_FULL,
    TextTable,
    copy_as_java_text,
    find_byte_below,
    find_or_add_text,
    is_text_at,
    is_valid_utf8,
    next_property,
)
from rmq_formats.properties import KEY_SEPARATOR, KEYS, TAGS, UNIQ_KEY

# How a pass ended.
DONE = 0
TEXT_TABLE_FULL = 1  # no room for another distinct text

INT32_COLUMNS = (
    "total_size", "magic_code", "body_crc", "queue_id", "flag", "sys_flag", "reconsume_times", "body_length",
    "topic_length", "properties_length", "store_date",
)  # fmt: skip
(
    TOTAL_SIZE, MAGIC_CODE, BODY_CRC, QUEUE_ID, FLAG, SYS_FLAG, RECONSUME_TIMES, BODY_LENGTH,
    TOPIC_LENGTH, PROPERTIES_LENGTH, STORE_DATE,
) = range(len(INT32_COLUMNS))  # fmt: skip
INT64_COLUMNS = (
    "queue_offset", "physical_offset", "born_timestamp", "store_timestamp", "prepared_transaction_offset",
    "born_time", "store_time",
)  # fmt: skip
(
    QUEUE_OFFSET, PHYSICAL_OFFSET, BORN_TIMESTAMP, STORE_TIMESTAMP, PREPARED_TRANSACTION_OFFSET,
    BORN_TIME, STORE_TIME,
) = range(len(INT64_COLUMNS))  # fmt: skip

# Python's and every engine's calendar: 0001-01-01 to 9999-12-31.
MIN_DATE_MS = -62_135_596_800_000
MAX_DATE_MS = 253_402_300_799_999
_MS_PER_DAY = 86_400_000
_US_PER_MS = 1000

# Property names with dedicated columns are numbered first, in this order.
COLUMN_PROPERTIES = (TAGS, KEYS, UNIQ_KEY)
_TAGS, _KEYS, _UNIQ_KEY = range(len(COLUMN_PROPERTIES))

_KEY_SEPARATOR = ord(KEY_SEPARATOR)
_CACHED_SIZE = 1 << 18
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8).copy()


class Column(NamedTuple):
    """A column of texts or bytes."""

    ends: Sizes  # the end of each row, after a leading zero
    data: Bytes
    present: Bytes  # 0 for NULL


class RecordColumns(NamedTuple):
    """All columns of a group of records."""

    good_positions: Integers  # positions of the records that became rows
    bad_positions: Integers  # positions of the records whose body does not match its CRC
    body: Column
    int32_columns: NDArray[np.int32]  # one row for each name in INT32_COLUMNS
    int64_columns: Integers  # one row for each name in INT64_COLUMNS
    topic_numbers: Sizes  # number of each row's topic
    topic_raw: Column
    born_host_numbers: Sizes
    store_host_numbers: Sizes
    offset_ids: Column
    property_ends: Sizes  # the end of each row's properties, after a leading zero
    name_numbers: Sizes  # number of each property's name
    values: Column  # of the properties
    properties_raw: Column
    tags: Column
    uniq_key: Column
    key_ends: Sizes  # the end of each row's keys, after a leading zero
    keys: Column  # one `present` per row


class DistinctTexts(NamedTuple):
    """The distinct texts of a group of records, and the properties of the current row."""

    topics: TextTable
    born_hosts: TextTable  # address and port
    store_hosts: TextTable
    names: TextTable  # of properties
    last_row_plus_one: Sizes  # by name, the index of the last row with this property plus 1; 0: in no row
    property_number: Sizes  # by name, the index of this property in that row
    value_starts: Integers  # the start of each value of the row
    value_ends: Integers
    scratch: Bytes  # the row's text with malformed bytes replaced


@inlined_helper
def _append(column: Column, number: int, buffer: Bytes, start: int, end: int) -> None:
    """Write one text; *number* counts those before it."""
    at = number_at(column.ends, number)
    column.ends[np.uintp(number + 1)] = copy_by_words(buffer, start, end, column.data, at)


@inlined_helper
def _append_optional(column: Column, row: int, buffer: Bytes, start: int, end: int) -> None:
    _append(column, row, buffer, start, end)
    column.present[np.uintp(row)] = 1 if end > start else 0


@compiled
def sum_part_sizes(buffer: Bytes, positions: Integers) -> tuple[int, int, int]:
    """Return the bytes of all bodies, topics and properties."""
    bodies, topics, properties = 0, 0, 0
    for row in range(positions.size):
        parts = kernels.record_parts(buffer, number_at(positions, row))
        bodies += parts.body_end - parts.body
        topics += parts.topic_end - parts.topic
        properties += parts.properties_end - parts.properties
    return bodies, topics, properties


@compiled
def fill_columns(
    buffer: Bytes, positions: Integers, parser: int, with_body: int, out: RecordColumns, distinct: DistinctTexts
) -> tuple[int, int]:
    """
    Fill all columns; return the number of rows, and how the pass ended.

    Each group of records is small enough to stay in the processor's cache from the first pass to the last.
    """
    rows, last = as_int64(0), as_int64(0)
    status = DONE
    while last < positions.size and status == DONE:
        first = last
        while last < positions.size and number_at(positions, last) - number_at(positions, first) < _CACHED_SIZE:
            last += 1
        before, rows = rows, _fill_bodies(buffer, positions, first, last, rows, with_body, out)
        _fill_numbers(buffer, out.good_positions, before, rows, out.int32_columns, out.int64_columns)
        texts, scratch = distinct.topics, distinct.scratch
        status = fill_topics(buffer, out.good_positions, before, rows, texts, scratch, out.topic_numbers, out.topic_raw)
        if status == DONE:
            status = _fill_hosts(buffer, before, rows, distinct, out)
        if status == DONE:
            status = _fill_properties(buffer, before, rows, parser, distinct, out)
    return rows, status


@compiled_helper
def _fill_bodies(
    buffer: Bytes, positions: Integers, first: int, last: int, rows: int, with_body: int, out: RecordColumns
) -> int:
    """Add a row for each record of [*first*, *last*) with the right CRC to the *rows* so far; return the new number."""
    for i in range(first, last):
        at = number_at(positions, i)
        if kernels.has_right_body_crc(buffer, at):
            out.good_positions[np.uintp(rows)] = at
            parts = kernels.record_parts(buffer, at)
            end = parts.body_end if with_body else parts.body
            out.body.ends[np.uintp(rows + 1)] = copy_bytes(
                buffer, parts.body, end, out.body.data, number_at(out.body.ends, rows)
            )
            rows += 1
        else:
            out.bad_positions[np.uintp(i - rows)] = at
    return rows


@compiled_helper
def _fill_numbers(
    buffer: Bytes, positions: Integers, first: int, last: int, numbers: NDArray[np.int32], wide: Integers
) -> None:
    """Fill the lines of *numbers* and *wide* as INT32_COLUMNS and INT64_COLUMNS name them."""
    for row in range(first, last):
        at = number_at(positions, row)
        sys_flag = read_i32(buffer, at + kernels.SYS_FLAG_AT)
        growth = kernels.host_growth(sys_flag)
        born = read_i64(buffer, at + kernels.BORN_TIMESTAMP_AT)
        stored = read_i64(buffer, at + kernels.STORE_TIMESTAMP_AT_V4 + kernels.born_host_growth(sys_flag))
        has_date = MIN_DATE_MS <= stored <= MAX_DATE_MS
        parts = kernels.record_parts(buffer, at)
        numbers[TOTAL_SIZE, row] = read_i32(buffer, at + kernels.TOTAL_SIZE_AT)
        numbers[MAGIC_CODE, row] = read_i32(buffer, at + kernels.MAGIC_CODE_AT)
        numbers[BODY_CRC, row] = read_i32(buffer, at + kernels.BODY_CRC_AT)
        numbers[QUEUE_ID, row] = read_i32(buffer, at + kernels.QUEUE_ID_AT)
        numbers[FLAG, row] = read_i32(buffer, at + kernels.FLAG_AT)
        numbers[SYS_FLAG, row] = sys_flag
        numbers[RECONSUME_TIMES, row] = read_i32(buffer, at + kernels.RECONSUME_TIMES_AT_V4 + growth)
        numbers[BODY_LENGTH, row] = read_i32(buffer, at + kernels.BODY_LENGTH_AT_V4 + growth)
        numbers[TOPIC_LENGTH, row] = parts.topic_end - parts.topic
        numbers[PROPERTIES_LENGTH, row] = read_i16(buffer, parts.topic_end)
        numbers[STORE_DATE, row] = stored // _MS_PER_DAY if has_date else 0
        wide[QUEUE_OFFSET, row] = read_i64(buffer, at + kernels.QUEUE_OFFSET_AT)
        wide[PHYSICAL_OFFSET, row] = read_i64(buffer, at + kernels.PHYSICAL_OFFSET_AT)
        wide[BORN_TIMESTAMP, row] = born
        wide[STORE_TIMESTAMP, row] = stored
        prepared = at + kernels.PREPARED_TRANSACTION_OFFSET_AT_V4 + growth
        wide[PREPARED_TRANSACTION_OFFSET, row] = read_i64(buffer, prepared)
        wide[BORN_TIME, row] = born * _US_PER_MS if MIN_DATE_MS <= born <= MAX_DATE_MS else 0
        wide[STORE_TIME, row] = stored * _US_PER_MS if has_date else 0


@compiled
def fill_topics(
    buffer: Bytes,
    positions: Integers,
    first: int,
    last: int,
    texts: TextTable,
    scratch: Bytes,
    numbers: Sizes,
    topic_raw: Column,
) -> int:
    """Write the number of each topic, decoded as in Java; *topic_raw* has the bytes of malformed topics."""
    nothing = as_int64(0)
    number = number_at(numbers, first - 1) if first else -1
    for row in range(first, last):
        parts = kernels.record_parts(buffer, number_at(positions, row))
        topic, topic_end = parts.topic, parts.topic_end
        raw_end = topic
        if number < 0 or not is_text_at(texts, number, buffer, topic, topic_end):
            if is_valid_utf8(buffer, topic, topic_end):
                number = find_or_add_text(texts, buffer, topic, topic_end)
            else:
                clean_end = copy_as_java_text(buffer, topic, topic_end, scratch, nothing)
                number = find_or_add_text(texts, scratch, nothing, clean_end)
                raw_end = topic_end
            if number == TABLE_FULL:
                return TEXT_TABLE_FULL
        numbers[np.uintp(row)] = number
        _append_optional(topic_raw, row, buffer, topic, raw_end)
    return DONE


@compiled_helper
def _fill_hosts(buffer: Bytes, first: int, last: int, distinct: DistinctTexts, out: RecordColumns) -> int:
    """Write the numbers of the hosts by their bytes, and the offset ids, which begin with the store host's."""
    born = number_at(out.born_host_numbers, first - 1) if first else -1
    store = number_at(out.store_host_numbers, first - 1) if first else -1
    for row in range(first, last):
        at = number_at(out.good_positions, row)
        sys_flag = read_i32(buffer, at + kernels.SYS_FLAG_AT)
        growth = kernels.born_host_growth(sys_flag)
        start, end = at + kernels.BORN_HOST_AT, at + kernels.STORE_TIMESTAMP_AT_V4 + growth
        if born < 0 or not is_text_at(distinct.born_hosts, born, buffer, start, end):
            born = find_or_add_text(distinct.born_hosts, buffer, start, end)
        start = at + kernels.STORE_HOST_AT_V4 + growth
        end = at + kernels.RECONSUME_TIMES_AT_V4 + kernels.host_growth(sys_flag)
        if store < 0 or not is_text_at(distinct.store_hosts, store, buffer, start, end):
            store = find_or_add_text(distinct.store_hosts, buffer, start, end)
        if min(born, store) == TABLE_FULL:
            return TEXT_TABLE_FULL
        out.born_host_numbers[np.uintp(row)] = born
        out.store_host_numbers[np.uintp(row)] = store
        ids = out.offset_ids
        to = _write_hex(buffer, start, end, ids.data, number_at(ids.ends, row))
        offset = at + kernels.PHYSICAL_OFFSET_AT
        ids.ends[np.uintp(row + 1)] = _write_hex(buffer, offset, offset + 8, ids.data, to)
    return DONE


@inlined_helper
def _write_hex(buffer: Bytes, start: int, end: int, target: Bytes, at: int) -> int:
    for i in range(end - start):
        value = byte_at(buffer, start + i)
        target[np.uintp(at + 2 * i)] = _HEX[np.uintp(value >> 4)]
        target[np.uintp(at + 2 * i + 1)] = _HEX[np.uintp(value & 15)]
    return at + 2 * (end - start)


@compiled_helper
def _fill_properties(
    buffer: Bytes, first_row: int, last_row: int, parser: int, distinct: DistinctTexts, out: RecordColumns
) -> int:
    """
    Write each row's properties as the parser returns them: each name once, at its first position, with its last value.

    Return how the pass ended.
    """
    before = number_at(out.property_ends, first_row - 1) if first_row else 0
    first, keys = number_at(out.property_ends, first_row), number_at(out.key_ends, first_row)
    for row in range(first_row, last_row):
        parts = kernels.record_parts(buffer, number_at(out.good_positions, row))
        raw, raw_end = parts.properties, parts.properties_end
        source, start, end = buffer, raw, raw_end
        is_clean = is_valid_utf8(buffer, raw, raw_end)
        if not is_clean:
            source, start = distinct.scratch, as_int64(0)
            end = copy_as_java_text(buffer, raw, raw_end, source, start)
        count, is_rebuildable = _parse_row(source, start, end, parser, row, before, first, distinct, out)
        if count == TABLE_FULL:
            return TEXT_TABLE_FULL
        keys = _write_row(source, row, first, count, keys, distinct, out)
        _append_optional(out.properties_raw, row, buffer, raw, raw if is_clean and is_rebuildable else raw_end)
        before, first = first, first + count
        out.property_ends[np.uintp(row + 1)] = first
        out.key_ends[np.uintp(row + 1)] = keys
    return DONE


@inlined_helper
def _parse_row(
    buffer: Bytes,
    start: int,
    end: int,
    parser: int,
    row: int,
    before: int,
    first: int,
    distinct: DistinctTexts,
    out: RecordColumns,
) -> tuple[int, bool]:
    """
    Find a row's properties; return their number, and whether the stored text can be rebuilt from them.

    The names from *before* to *first* are those of the previous row: this row probably has the same names.
    """
    # A guess saves hashing a name, and cannot be wrong: `_expected_value` compares the bytes of the guessed name, and
    # any mismatch parses the property in full. A repeated name keeps its first place and its last value, as in a map;
    # the text then cannot be rebuilt, and is stored raw.
    count = as_int64(0)
    is_rebuildable = True
    at, expected = start, start
    while at < end:
        name, name_start = -1, at
        value, value_end = at, at
        if before + count < first:
            name = number_at(out.name_numbers, before + count)
            value, value_end = _expected_value(distinct.names, name, buffer, at, end, parser)
        if value_end > value:
            at = value_end + 1
        else:
            name_start, name_end, value, value_end, at, _, _ = next_property(buffer, at, end, parser, at, as_int64(0))
            if value == value_end:
                break
            name = find_or_add_text(distinct.names, buffer, name_start, name_end)
            if name == TABLE_FULL:
                return TABLE_FULL, False
        is_rebuildable = is_rebuildable and name_start == expected
        expected = value_end + 1
        place = count
        if distinct.last_row_plus_one[np.uintp(name)] == row + 1:
            is_rebuildable = False
            place = number_at(distinct.property_number, name)
        else:
            distinct.last_row_plus_one[np.uintp(name)] = row + 1
            distinct.property_number[np.uintp(name)] = place
            out.name_numbers[np.uintp(first + place)] = name
            count += 1
        distinct.value_starts[np.uintp(place)] = value
        distinct.value_ends[np.uintp(place)] = value_end
    # After the last value, nothing is left but one separator.
    ends_well = (
        start == end or expected > end or (expected == end and byte_at(buffer, end - 1) == PROPERTY_SEPARATOR_CODE)
    )
    return count, is_rebuildable and ends_well


@inlined_helper
def _expected_value(texts: TextTable, name: int, buffer: Bytes, at: int, end: int, parser: int) -> tuple[int, int]:
    """Return the slice of the value if the next property has this name and an ordinary form, else an empty slice."""
    start = at + number_at(texts.ends, name + 1) - number_at(texts.ends, name) + 1
    if (
        start >= end
        or byte_at(buffer, start - 1) != NAME_VALUE_SEPARATOR_CODE
        or not is_text_at(texts, name, buffer, at, start - 1)
    ):
        return at, at
    stop = find_byte_below(buffer, start, end, SEPARATOR_LIMIT)
    while parser == PROPERTY_PARSER_SCAN and stop < end and byte_at(buffer, stop) != PROPERTY_SEPARATOR_CODE:
        stop = find_byte_below(buffer, stop + 1, end, SEPARATOR_LIMIT)
    if stop < end and byte_at(buffer, stop) != PROPERTY_SEPARATOR_CODE:
        return at, at
    return start, stop


@inlined_helper
def _write_row(
    buffer: Bytes, row: int, first: int, count: int, keys: int, distinct: DistinctTexts, out: RecordColumns
) -> int:
    """Write the values that were found, also into dedicated columns; return the number of keys."""
    for i in range(count):
        _append(out.values, first + i, buffer, number_at(distinct.value_starts, i), number_at(distinct.value_ends, i))
    start, end = _value_of(as_int64(_TAGS), row, distinct)
    _append_optional(out.tags, row, buffer, start, end)
    start, end = _value_of(as_int64(_UNIQ_KEY), row, distinct)
    _append_optional(out.uniq_key, row, buffer, start, end)
    start, end = _value_of(as_int64(_KEYS), row, distinct)
    out.keys.present[np.uintp(row)] = 1 if end > start else 0
    while start < end:
        stop = start
        while stop < end and byte_at(buffer, stop) != _KEY_SEPARATOR:
            stop += 1
        if stop > start:
            _append(out.keys, keys, buffer, start, stop)
            keys += 1
        start = stop + 1
    return keys


@inlined_helper
def _value_of(name: int, row: int, distinct: DistinctTexts) -> tuple[int, int]:
    """Return the slice of a property's value in this row; an empty one if it has none."""
    if distinct.last_row_plus_one[np.uintp(name)] != row + 1:
        return 0, 0
    place = number_at(distinct.property_number, name)
    return number_at(distinct.value_starts, place), number_at(distinct.value_ends, place)
