"""
Compiled readers of CommitLog records: the same rules as in `record` and `segment`, applied to a buffer.

Positions are those in the buffer; `limit` is the end of its bytes. Only `check_record` and `follow_chain` check a
record; the other functions rely on a checked one.
"""

from functools import partial
from typing import NamedTuple

from rmq_formats.commitlog.layout import (
    BLANK,
    BORN_HOST_V6,
    BRIDGE_FLAG,
    DLEDGER_END_MAGIC,
    DLEDGER_ENTRY,
    DLEDGER_MAGIC,
    HEAD,
    HOST_V6_GROWTH,
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
from rmq_formats.compiled import compiled, compiled_helper, inlined_helper
from rmq_formats.crc import crc32
from rmq_formats.kernels.emitted import emit_prefetch
from rmq_formats.kernels.integers import (
    Bytes,
    Integers,
    Sizes,
    byte_at,
    number_at,
    read_i8,
    read_i16,
    read_i32,
    read_i64,
)
from rmq_formats.properties import CRC_NAME, CRC_SIZE, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

# Positions of the fields before the hosts.
TOTAL_SIZE_AT = HEAD.offset("total_size")
MAGIC_CODE_AT = HEAD.offset("magic_code")
BODY_CRC_AT = HEAD.offset("body_crc")
QUEUE_ID_AT = HEAD.offset("queue_id")
FLAG_AT = HEAD.offset("flag")
QUEUE_OFFSET_AT = HEAD.offset("queue_offset")
PHYSICAL_OFFSET_AT = HEAD.offset("physical_offset")
SYS_FLAG_AT = HEAD.offset("sys_flag")
BORN_TIMESTAMP_AT = HEAD.offset("born_timestamp")
BORN_HOST_AT = RECORD[0].offset("born_host_address")
# Positions of the fields after an IPv4 born host; HOST_V6_GROWTH later for IPv6.
STORE_TIMESTAMP_AT_V4 = RECORD[0].offset("store_timestamp")
STORE_HOST_AT_V4 = RECORD[0].offset("store_host_address")
# Positions of the fields after two IPv4 hosts; HOST_V6_GROWTH later for each IPv6 host.
RECONSUME_TIMES_AT_V4 = RECORD[0].offset("reconsume_times")
PREPARED_TRANSACTION_OFFSET_AT_V4 = RECORD[0].offset("prepared_transaction_offset")
BODY_LENGTH_AT_V4 = RECORD[0].offset("body_length")
FIXED_SIZE = RECORD[0].size

_HEAD_SIZE = HEAD.size
_BLANK_SIZE = BLANK.size
_BLANK_MAGIC_AT = BLANK.offset("magic_code")
_TOPIC_LENGTH_V1_SIZE = TOPIC_LENGTH[MAGIC_V1].size
_TOPIC_LENGTH_V2_SIZE = TOPIC_LENGTH[MAGIC_V2].size
_PROPERTIES_LENGTH_SIZE = PROPERTIES_LENGTH.size
_ENTRY_SIZE = DLEDGER_ENTRY.size
_ENTRY_MAGIC_AT = DLEDGER_ENTRY.offset("magic")
_ENTRY_SIZE_AT = DLEDGER_ENTRY.offset("size")
_ENTRY_TERM_AT = DLEDGER_ENTRY.offset("term")
_ENTRY_POS_AT = DLEDGER_ENTRY.offset("pos")
_ENTRY_BODY_LENGTH_AT = DLEDGER_ENTRY.offset("body_length")

# The kinds of bytes at a position.
GOOD = 0
INCOMPLETE = 1  # the buffer ends before the record can be checked
BAD = 2  # not a record
END_OF_FILE = 3  # the broker closed the file here
RANGE_END = 4  # the range ends here
UNCHECKED_TERM = -(1 << 63)
LEFTOVER = 5  # an entry of a lower term than the one before it

_PREPARED = int(TransactionType.PREPARED)  # also a bit of rolled back records
_CRC_MASK = 0x7FFFFFFF
_CRC_HEAD = (*CRC_NAME.encode(), *NAME_VALUE_SEPARATOR.encode())
_CRC_HEAD_SIZE = len(_CRC_HEAD)
_DIGITS = CRC_SIZE - _CRC_HEAD_SIZE - 1
_SEPARATOR = ord(PROPERTY_SEPARATOR)

# Defects of a record whose lengths are right.
WRONG_BODY_CRC = 1
WRONG_RECORD_CRC = 2  # the optional one over the full record; or a queue offset where brokers store 0
TRAILING_ZEROS = 3  # at the end of its properties

_AHEAD = 6  # records
_LINE = 64  # bytes that a processor loads together
_PROPERTY_LINES, _FIELD_LINES = 4, 2  # cache lines of a record's properties, and of its fields, that are loaded
_LONG = 512  # bytes of a record; shorter ones are read as a stream


@inlined_helper
def host_growth(sys_flag: int) -> int:
    """Return by how much the hosts lengthen the fixed part."""
    growth = HOST_V6_GROWTH if sys_flag & BORN_HOST_V6 else 0
    return growth + HOST_V6_GROWTH if sys_flag & STORE_HOST_V6 else growth


@inlined_helper
def born_host_growth(sys_flag: int) -> int:
    """Return by how much the born host shifts the fields after it."""
    return HOST_V6_GROWTH if sys_flag & BORN_HOST_V6 else 0


@inlined_helper
def topic_length_size(magic: int) -> int:
    """Return how many bytes the length of a topic has."""
    return _TOPIC_LENGTH_V1_SIZE if magic == MAGIC_V1 else _TOPIC_LENGTH_V2_SIZE


@inlined_helper
def read_store_timestamp(buffer: Bytes, at: int) -> int:
    """Return when the record at *at* was stored."""
    return read_i64(buffer, at + STORE_TIMESTAMP_AT_V4 + born_host_growth(read_i32(buffer, at + SYS_FLAG_AT)))


def read_entry_term(buffer: Bytes, record_position: int) -> int:
    """Return the term of the entry around the record at *record_position*."""
    return int(read_i64(buffer, record_position - _ENTRY_SIZE + _ENTRY_TERM_AT))


@compiled
def count_settled_records(buffer: Bytes, positions: Integers, settled_until: int, plausible_until: int) -> int:
    """
    Return the number of records before the first one stored after *settled_until* and not after *plausible_until*.

    A time after *plausible_until* is from a wrong clock, and does not show the age of the record.
    """
    for number in range(positions.size):
        if settled_until < read_store_timestamp(buffer, positions[number]) <= plausible_until:
            return number
    return int(positions.size)


@inlined_helper
def _has_zero_body(buffer: Bytes, body_at: int) -> bool:
    at, end = body_at, body_at + max(read_i32(buffer, body_at - 4), 0)
    while at < end and byte_at(buffer, at) == 0:
        at += 1
    return at == end


@inlined_helper
def check_record(buffer: Bytes, at: int, limit: int, physical_offset: int) -> int:
    """Check the record at *at*, whose offset is *physical_offset*, as `decode_record` does: GOOD, INCOMPLETE or BAD."""
    if limit - at < _HEAD_SIZE:
        return INCOMPLETE
    magic = read_i32(buffer, at + MAGIC_CODE_AT)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return BAD
    total_size = read_i32(buffer, at + TOTAL_SIZE_AT)
    if total_size < MIN_RECORD_SIZE or read_i64(buffer, at + PHYSICAL_OFFSET_AT) != physical_offset:
        return BAD
    if total_size > limit - at:
        return INCOMPLETE
    # All sizes below are within the record: nothing overflows, and nothing is read after its end.
    fixed = FIXED_SIZE + host_growth(read_i32(buffer, at + SYS_FLAG_AT))
    if fixed > total_size:
        return BAD
    size = fixed + max(read_i32(buffer, at + fixed - 4), 0) + topic_length_size(magic)
    if size > total_size:
        return BAD
    topic_length = read_i8(buffer, at + size - 1) if magic == MAGIC_V1 else read_i16(buffer, at + size - 2)
    if topic_length < 0:
        return BAD
    size += topic_length + _PROPERTIES_LENGTH_SIZE
    if size > total_size:
        return BAD
    properties_length = read_i16(buffer, at + size - _PROPERTIES_LENGTH_SIZE)
    if size + max(properties_length, 0) != total_size:
        return BAD
    is_marked = read_i32(buffer, at + FLAG_AT) == BRIDGE_FLAG and properties_length == 0
    return BAD if is_marked and _has_zero_body(buffer, at + fixed) else GOOD


@compiled_helper
def check_framed_record(buffer: Bytes, at: int, limit: int, physical_offset: int, header_size: int) -> int:
    """Check the record at *at*, after a DLedger entry header if the log has them."""
    if header_size == 0:
        return check_record(buffer, at, limit, physical_offset)
    if limit - at < _ENTRY_SIZE:
        return INCOMPLETE
    body_length = read_i32(buffer, at + _ENTRY_BODY_LENGTH_AT)
    if (
        read_i32(buffer, at + _ENTRY_MAGIC_AT) != DLEDGER_MAGIC
        or read_i64(buffer, at + _ENTRY_POS_AT) != physical_offset
        or read_i32(buffer, at + _ENTRY_SIZE_AT) != _ENTRY_SIZE + body_length
    ):
        return BAD
    found = check_record(buffer, at + _ENTRY_SIZE, limit, physical_offset + _ENTRY_SIZE)
    if found == GOOD and read_i32(buffer, at + _ENTRY_SIZE + TOTAL_SIZE_AT) != body_length:
        return BAD
    return found


@inlined_helper
def is_end_of_file(buffer: Bytes, at: int, header_size: int) -> bool:
    """Return whether the broker closed the file at *at*, where at least the bytes of a blank are."""
    if header_size:
        return read_i32(buffer, at) == DLEDGER_END_MAGIC and read_i32(buffer, at + 4) > 0
    return read_i32(buffer, at + _BLANK_MAGIC_AT) == MAGIC_BLANK


@compiled
def follow_chain(
    buffer: Bytes,
    at: int,
    limit: int,
    stop: int,
    base_offset: int,
    header_size: int,
    positions: Integers,
    sizes: Sizes,
    term: int,
) -> tuple[int, int, int]:
    """
    Follow records from *at* until one begins at *stop* or after it, or no record follows.

    Return the number of records, their end, and the kind of the next bytes. *term* is that of the previous entry, or
    UNCHECKED_TERM if terms are not checked.
    """
    count = 0
    while at < stop:
        if limit - at < _BLANK_SIZE:
            return count, at, INCOMPLETE
        if is_end_of_file(buffer, at, header_size):
            return count, at, END_OF_FILE
        found = check_framed_record(buffer, at, limit, base_offset + at, header_size)
        if found != GOOD or count == positions.size:
            return count, at, found
        if header_size and term != UNCHECKED_TERM:
            found_term = read_i64(buffer, at + _ENTRY_TERM_AT)
            if found_term < term:
                return count, at, LEFTOVER
            term = found_term
        record = at + header_size
        size = read_i32(buffer, record + TOTAL_SIZE_AT)
        positions[count] = record
        sizes[count] = size
        count += 1
        at = record + size
    return count, at, RANGE_END


class RecordParts(NamedTuple):
    """The start and end of each part of a record."""

    body: int
    body_end: int
    topic: int
    topic_end: int
    properties: int
    properties_end: int


@inlined_helper
def record_parts(buffer: Bytes, at: int) -> RecordParts:
    """Return the places of a checked record's parts."""
    body = at + FIXED_SIZE + host_growth(read_i32(buffer, at + SYS_FLAG_AT))
    body_end = body + max(read_i32(buffer, body - 4), 0)
    magic = read_i32(buffer, at + MAGIC_CODE_AT)
    topic = body_end + topic_length_size(magic)
    topic_end = topic + (read_i8(buffer, body_end) if magic == MAGIC_V1 else read_i16(buffer, body_end))
    properties = topic_end + _PROPERTIES_LENGTH_SIZE
    properties_end = properties + max(read_i16(buffer, topic_end), 0)
    return RecordParts(body, body_end, topic, topic_end, properties, properties_end)


@emit_prefetch()
def _prefetch(buffer: Bytes, at: int) -> None:
    """Do nothing without compilation."""


@inlined_helper
def prefetch_record(buffer: Bytes, positions: Integers, number: int) -> None:
    """
    Begin to load the fields and properties of the record some records after *number* into the cache.

    Long bodies separate these places, so the processor cannot predict the loads, and would wait for each.
    """
    number += _AHEAD
    if number < positions.size and number_at(positions, number) - number_at(positions, number - 1) >= _LONG:
        at = number_at(positions, number)
        for line in range(-_PROPERTY_LINES, _FIELD_LINES):
            _prefetch(buffer, at + _LINE * line)


@compiled
def has_right_body_crc(buffer: Bytes, at: int) -> bool:
    """Return whether a checked record's body has the right CRC; an empty one always has."""
    parts = record_parts(buffer, at)
    crc = read_i32(buffer, at + BODY_CRC_AT)
    return parts.body == parts.body_end or crc32(buffer, parts.body, parts.body_end) & _CRC_MASK == crc


@compiled
def compute_record_crcs(buffer: Bytes, positions: Integers, sizes: Sizes, crcs: Integers) -> None:
    """Fill *crcs* with the CRC-32 of all bytes of each record."""
    for number in range(positions.size):
        crcs[number] = crc32(buffer, positions[number], positions[number] + sizes[number])


@inlined_helper
def _has_right_record_crc(buffer: Bytes, at: int, properties: int, end: int) -> bool:
    """Return whether the CRC over the full record, at the end of its properties, is right; True without one."""
    start = end - CRC_SIZE
    if start < properties:
        return True
    same = 0
    for i in range(_CRC_HEAD_SIZE):
        same += byte_at(buffer, start + i) == _CRC_HEAD[i]
    if same < _CRC_HEAD_SIZE - 1:  # one byte of its name may have changed
        return True
    crc = crc32(buffer, at, start) & _CRC_MASK
    for i in range(_DIGITS):  # the least significant digit comes first
        if byte_at(buffer, start + _CRC_HEAD_SIZE + i) != 48 + crc % 10:
            return False
        crc //= 10
    return same == _CRC_HEAD_SIZE and byte_at(buffer, end - 1) == 2


@inlined_helper
def _has_unused_queue_offset(buffer: Bytes, at: int) -> bool:
    """Return whether a prepared or rolled back record, which no queue has, states a queue offset: brokers store 0."""
    is_in_no_queue = read_i32(buffer, at + SYS_FLAG_AT) & _PREPARED != 0
    return is_in_no_queue and read_i64(buffer, at + QUEUE_OFFSET_AT) != 0


@inlined_helper
def _has_record_crc(buffer: Bytes, properties: int, end: int) -> bool:
    """Return whether properties end in a field that states a CRC over the full record."""
    start = end - CRC_SIZE
    if start < properties:
        return False
    same = 0
    for i in range(_CRC_HEAD_SIZE):
        same += byte_at(buffer, start + i) == _CRC_HEAD[i]
    return same == _CRC_HEAD_SIZE


@compiled
def find_records_with_wrong_crc(
    buffer: Bytes, positions: Integers, numbers: Integers, kinds: Integers
) -> tuple[int, int, int, int, int]:
    """
    Put the number and kind of fault of each record with a wrong or missing CRC into the arrays.

    Return how many there are, how many records have properties that end with a separator, and with neither a separator
    nor zeros, and the numbers of the first and the last record with a CRC over the full record (-1 without one).
    """
    count, with_separator, without_separator, first_crc, last_crc = 0, 0, 0, -1, -1
    for number in range(positions.size):
        at = positions[number]
        parts = record_parts(buffer, at)
        properties, end = parts.properties, parts.properties_end
        if end > properties and byte_at(buffer, end - 1) == _SEPARATOR:
            with_separator += 1
        elif end > properties and byte_at(buffer, end - 1) != 0:
            without_separator += 1
        if _has_record_crc(buffer, properties, end):
            first_crc = number if first_crc < 0 else first_crc
            last_crc = number
        kind = 0
        if not has_right_body_crc(buffer, at):
            kind = WRONG_BODY_CRC
        elif end > properties and byte_at(buffer, end - 1) == 0:
            kind = TRAILING_ZEROS
        elif not _has_right_record_crc(buffer, at, properties, end) or _has_unused_queue_offset(buffer, at):
            kind = WRONG_RECORD_CRC
        if kind:
            numbers[count] = number
            kinds[count] = kind
            count += 1
    return count, with_separator, without_separator, first_crc, last_crc


@compiled
def read_store_timestamps(buffer: Bytes, positions: Integers, times: Integers) -> None:
    """Fill *times* with the store times of the records at *positions*."""
    for number in range(positions.size):
        times[number] = read_store_timestamp(buffer, positions[number])


@compiled
def is_fully_written(buffer: Bytes, at: int) -> bool:
    """Return whether a checked record is certainly written to its last byte, as `is_fully_written` finds out."""
    parts = record_parts(buffer, at)
    if parts.properties_end > parts.properties and byte_at(buffer, parts.properties_end - 1) == 0:
        return False
    return has_right_body_crc(buffer, at)


# The following three functions look at each byte of a window, so they are written again for plain Python.
def _find_magic_in_python(buffer: Bytes, at: int, limit: int) -> int:
    data = buffer[at : max(limit, at)].tobytes()
    found = [data.find(magic.to_bytes(4, signed=True)) for magic in (MAGIC_V1, MAGIC_V2)]
    return min((at + place for place in found if place >= 0), default=limit)


@partial(compiled, python=_find_magic_in_python)
def find_magic(buffer: Bytes, at: int, limit: int) -> int:
    """Return the position of the next magic number of a record, or *limit*."""
    while at <= limit - 4:
        if read_i32(buffer, at) in (MAGIC_V1, MAGIC_V2):
            return at
        at += 1
    return limit


def _find_end_of_file_in_python(buffer: Bytes, at: int, limit: int, left: int, header_size: int) -> int:
    stated = buffer[at : max(limit, at)].tobytes()
    magic, magic_at, size_at = (DLEDGER_END_MAGIC, 0, 4) if header_size else (MAGIC_BLANK, _BLANK_MAGIC_AT, 0)
    pattern = magic.to_bytes(4, signed=True)
    found = stated.find(pattern, magic_at)
    while 0 <= found <= len(stated) - _BLANK_SIZE + magic_at:
        place = at + found - magic_at
        if read_i32(buffer, place + size_at) == left - (place - at):
            return place
        found = stated.find(pattern, found + 1)
    return -1


@partial(compiled, python=_find_end_of_file_in_python)
def find_end_of_file(buffer: Bytes, at: int, limit: int, left: int, header_size: int) -> int:
    """Return the position of an end that states the right number of remaining bytes (*left* at *at*), or -1."""
    size_at = 4 if header_size else 0
    for i in range(limit - _BLANK_SIZE + 1 - at):
        if is_end_of_file(buffer, at + i, header_size) and read_i32(buffer, at + i + size_at) == left - i:
            return at + i
    return -1


def _find_trailing_zeros_in_python(buffer: Bytes, start: int, end: int) -> int:
    return start + len(buffer[start : max(end, start)].tobytes().rstrip(b"\0"))


@partial(compiled, python=_find_trailing_zeros_in_python)
def find_trailing_zeros(buffer: Bytes, start: int, end: int) -> int:
    """Return the position of the first of the zeros at the end of the bytes."""
    block = 512
    while end - start >= block:
        seen = 0
        for i in range(block):
            seen |= byte_at(buffer, end - block + i)
        if seen:
            break
        end -= block
    while end > start and byte_at(buffer, end - 1) == 0:
        end -= 1
    return end
