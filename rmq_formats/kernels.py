"""
What compiled scans are made of: integers, text as Java reads it, properties.

Compiled code has no bounds checks. Every function here trusts `0 <= start <= end <= buffer.size`: callers validate a
length before they use it, and the functions then stay inside. Buffers are one-dimensional arrays of uint8.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmq_formats.compiled import compiled, inlined
from rmq_formats.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, PropertyParser

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
Sizes = NDArray[np.int32]

PARSER_SPLIT = 0
PARSER_SCAN = 1
PARSER_CODES = {PropertyParser.SPLIT: PARSER_SPLIT, PropertyParser.SCAN: PARSER_SCAN}

_NAME_VALUE = ord(NAME_VALUE_SEPARATOR)
_PROPERTY = ord(PROPERTY_SEPARATOR)

_REPLACEMENT = 0xFFFD
_SIGN_16 = 1 << 15
_SIGN_32 = 1 << 31
_LOW_32 = (1 << 32) - 1


def as_bytes(data: Any) -> Bytes:  # noqa: ANN401 - whatever has a buffer
    """Return the bytes of *data* as an array that compiled code takes; read-only buffers are copied."""
    array = np.frombuffer(data, np.uint8)
    return array if array.flags.writeable else array.copy()


@inlined
def byte_at(buffer: Bytes, at: int) -> int:
    """Return one byte. Unsigned indexes spare the test for negative ones (and raise for them without the JIT)."""
    return int(np.int64(buffer[np.uintp(at)]))


@inlined
def integer(value: int) -> int:
    """Return *value* as what a variable holds: functions are compiled once more for each literal they are given."""
    return int(np.int64(value))


@inlined
def number_at(numbers: NDArray[Any], at: int) -> int:
    """Return one element of an array of integers."""
    return int(np.int64(numbers[np.uintp(at)]))


@inlined
def read_u32(buffer: Bytes, at: int) -> int:
    """Return four bytes as an unsigned integer."""
    return (
        (byte_at(buffer, at) << 24)
        | (byte_at(buffer, at + 1) << 16)
        | (byte_at(buffer, at + 2) << 8)
        | byte_at(buffer, at + 3)
    )


@inlined
def read_i8(buffer: Bytes, at: int) -> int:
    """Return one byte as a signed integer."""
    return (byte_at(buffer, at) ^ 0x80) - 0x80


@inlined
def read_i16(buffer: Bytes, at: int) -> int:
    """Return two bytes as a signed integer."""
    value = (byte_at(buffer, at) << 8) | byte_at(buffer, at + 1)
    return (value ^ _SIGN_16) - _SIGN_16


@inlined
def read_i32(buffer: Bytes, at: int) -> int:
    """Return four bytes as a signed integer."""
    return (read_u32(buffer, at) ^ _SIGN_32) - _SIGN_32


@inlined
def read_i64(buffer: Bytes, at: int) -> int:
    """Return eight bytes as a signed integer."""
    return (read_i32(buffer, at) << 32) | read_u32(buffer, at + 4)


@inlined
def write_i32(buffer: Bytes, at: int, value: int) -> None:
    """Store the low 32 bits of *value*."""
    for i in range(4):
        buffer[np.uintp(at + i)] = np.uint8((value >> (24 - 8 * i)) & 0xFF)


@inlined
def write_i64(buffer: Bytes, at: int, value: int) -> None:
    """Store *value*."""
    buffer[np.uintp(at)] = np.uint8((value >> 56) & 0xFF)
    buffer[np.uintp(at + 1)] = np.uint8((value >> 48) & 0xFF)
    buffer[np.uintp(at + 2)] = np.uint8((value >> 40) & 0xFF)
    buffer[np.uintp(at + 3)] = np.uint8((value >> 32) & 0xFF)
    buffer[np.uintp(at + 4)] = np.uint8((value >> 24) & 0xFF)
    buffer[np.uintp(at + 5)] = np.uint8((value >> 16) & 0xFF)
    buffer[np.uintp(at + 6)] = np.uint8((value >> 8) & 0xFF)
    buffer[np.uintp(at + 7)] = np.uint8(value & 0xFF)


@inlined
def copy_bytes(source: Bytes, start: int, end: int, target: Bytes, at: int) -> int:
    """Copy `source[start:end]` to *target* at *at*; return the place behind."""
    for i in range(end - start):
        target[np.uintp(at + i)] = source[np.uintp(start + i)]
    return at + end - start


@inlined
def copy_short(source: Bytes, start: int, end: int, target: Bytes, at: int) -> int:
    """Copy as `copy_bytes` does, eight bytes a step; what it writes behind the last byte is still to be written."""
    size = end - start
    done = 0
    while done < size and start + done + 8 <= source.size and at + done + 8 <= target.size:
        write_i64(target, at + done, read_i64(source, start + done))
        done += 8
    while done < size:
        target[np.uintp(at + done)] = source[np.uintp(start + done)]
        done += 1
    return at + size


@inlined
def same_bytes(left: Bytes, left_start: int, left_end: int, right: Bytes, right_start: int, right_end: int) -> bool:
    """Tell whether two stretches hold the same bytes."""
    size = left_end - left_start
    if right_end - right_start != size:
        return False
    at = 0
    while size - at >= 4:
        if read_u32(left, left_start + at) != read_u32(right, right_start + at):
            return False
        at += 4
    while at < size:
        if left[np.uintp(left_start + at)] != right[np.uintp(right_start + at)]:
            return False
        at += 1
    return True


# --- text ------------------------------------------------------------------------------------------------------------


@inlined
def _is_continuation(buffer: Bytes, at: int, end: int, low: int, high: int) -> bool:
    return at < end and low <= byte_at(buffer, at) <= high


@compiled
def _next_long_character(buffer: Bytes, at: int, end: int) -> tuple[int, int]:
    """Decode what begins with a byte from 0x80 on; malformed input ends where Java's decoder gives up."""
    first = byte_at(buffer, at)
    if first < 0xC2 or first > 0xF4:
        return _REPLACEMENT, at + 1
    if first < 0xE0:
        if not _is_continuation(buffer, at + 1, end, 0x80, 0xBF):
            return _REPLACEMENT, at + 1
        return ((first & 0x1F) << 6) | (byte_at(buffer, at + 1) & 0x3F), at + 2
    if first == 0xED and _is_continuation(buffer, at + 1, end, 0xA0, 0xBF):
        # A surrogate: Java replaces all of it by one character.
        return _REPLACEMENT, at + 3 if _is_continuation(buffer, at + 2, end, 0x80, 0xBF) else at + 2
    low, high = 0x80, 0xBF
    if first == 0xE0:
        low = 0xA0
    elif first == 0xF0:
        low = 0x90
    elif first == 0xF4:
        high = 0x8F
    if not _is_continuation(buffer, at + 1, end, low, high):
        return _REPLACEMENT, at + 1
    if not _is_continuation(buffer, at + 2, end, 0x80, 0xBF):
        return _REPLACEMENT, at + 2
    value = ((byte_at(buffer, at + 1) & 0x3F) << 6) | (byte_at(buffer, at + 2) & 0x3F)
    if first < 0xF0:
        return ((first & 0xF) << 12) | value, at + 3
    if not _is_continuation(buffer, at + 3, end, 0x80, 0xBF):
        return _REPLACEMENT, at + 3
    return ((first & 0x7) << 18) | (value << 6) | (byte_at(buffer, at + 3) & 0x3F), at + 4


@inlined
def is_ascii(buffer: Bytes, start: int, end: int) -> bool:
    """Tell whether no byte has its top bit set."""
    seen = np.uint8(0)
    for i in range(end - start):
        seen |= buffer[np.uintp(start + i)]
    return bool(seen < 0x80)


@compiled
def is_clean_text(buffer: Bytes, start: int, end: int) -> bool:
    """Tell whether the bytes are the UTF-8 of some text, so that reading and writing it gives them back."""
    if is_ascii(buffer, start, end):
        return True
    at = start
    while at < end:
        if byte_at(buffer, at) < 0x80:
            at += 1
            continue
        before = at
        code, at = _next_long_character(buffer, at, end)
        if code == _REPLACEMENT and not (
            at - before == 3
            and byte_at(buffer, before) == 0xEF
            and byte_at(buffer, before + 1) == 0xBF
            and byte_at(buffer, before + 2) == 0xBD
        ):
            return False
    return True


@compiled
def clean_text_size(buffer: Bytes, start: int, end: int) -> int:
    """Return how many bytes `copy_clean_text` writes."""
    size = 0
    at = start
    while at < end:
        if byte_at(buffer, at) < 0x80:
            at += 1
            size += 1
            continue
        code, at = _next_long_character(buffer, at, end)
        size += 2 if code < 0x800 else 3 if code < 0x10000 else 4
    return size


@compiled
def copy_clean_text(source: Bytes, start: int, end: int, target: Bytes, to: int) -> int:
    """Write the UTF-8 of the text that Java reads; *target* has room for `clean_text_size`. Return the place behind."""
    at = start
    while at < end:
        before = at
        if byte_at(source, at) < 0x80:
            at += 1
        else:
            code, at = _next_long_character(source, at, end)
            if code == _REPLACEMENT:
                target[np.uintp(to)] = np.uint8(0xEF)
                target[np.uintp(to + 1)] = np.uint8(0xBF)
                target[np.uintp(to + 2)] = np.uint8(0xBD)
                to += 3
                continue
        to = copy_bytes(source, before, at, target, to)
    return to


@compiled
def hash_text(buffer: Bytes, start: int, end: int, seed: int = 0) -> int:
    """
    Return Java's `hashCode` of a text (signed), begun with the hash *seed* of the text before it.

    The hash of `topic + "#" + key` is that of three calls.
    """
    value = seed & _LOW_32
    at = start
    while end - at >= 4:
        four = read_u32(buffer, at)
        if four & 0x80808080:
            break
        # Four steps of 31 * value + character at once: each alone would wait for the one before.
        value = value * 31**4 + (four >> 24) * 31**3 + ((four >> 16) & 0xFF) * 31**2 + ((four >> 8) & 0xFF) * 31
        value = (value + (four & 0xFF)) & _LOW_32
        at += 4
    while at < end:
        code = byte_at(buffer, at)
        if code < 0x80:
            at += 1
        else:
            code, at = _next_long_character(buffer, at, end)
            if code >= 0x10000:
                value = (31 * value + 0xD800 + ((code - 0x10000) >> 10)) & _LOW_32
                code = 0xDC00 + (code & 0x3FF)
        value = (31 * value + code) & _LOW_32
    return (value ^ _SIGN_32) - _SIGN_32


@compiled
def hash_character(code: int, seed: int) -> int:
    """Return Java's `hashCode` of a text and one more ASCII character, such as the `#` between topic and key."""
    value = (31 * (seed & _LOW_32) + code) & _LOW_32
    return (value ^ _SIGN_32) - _SIGN_32


# --- properties ------------------------------------------------------------------------------------------------------


@inlined
def find_control(buffer: Bytes, at: int, end: int) -> int:
    """Return where the next byte below 3 stands, as both separators are, or *end*; four bytes a step."""
    while end - at >= 4:
        four = read_u32(buffer, at)
        if (four - 0x03030303) & ~four & 0x80808080:
            break
        at += 4
    while at < end and byte_at(buffer, at) > _PROPERTY:
        at += 1
    return at


@compiled
def next_property(buffer: Bytes, at: int, end: int, parser: int) -> tuple[int, int, int, int, int]:
    """
    Return the next name and value that *parser* accepts, and where to go on.

    (name start, name end, value start, value end, next); values are never empty: an empty one: nothing is left.
    Separators are ASCII, so bytes split where the text does, however malformed it is.
    """
    # Nearly always: a name, a separator, a value without any, on which both parsers agree.
    name_end = find_control(buffer, at, end)
    if at < name_end < end and byte_at(buffer, name_end) == _NAME_VALUE:
        value_end = find_control(buffer, name_end + 1, end)
        if value_end > name_end + 1 and (value_end == end or byte_at(buffer, value_end) == _PROPERTY):
            return at, name_end, name_end + 1, value_end, min(value_end + 1, end)
    while at < end:
        first = -1  # the item's first name-value separator
        last_other = at - 1  # its last byte that is no such separator
        separators = 0  # those between the first and that byte
        seen = 0
        item_end = at
        while item_end < end:
            code = byte_at(buffer, item_end)
            if code == _PROPERTY:
                break
            if code == _NAME_VALUE:
                if first < 0:
                    first = item_end
                seen += 1
            else:
                last_other = item_end
                separators = seen
            item_end += 1
        start, at = at, item_end + 1
        if first < 0:
            continue
        if parser == PARSER_SPLIT:
            if separators == 1:
                return start, first, first + 1, last_other + 1, min(at, end)
        elif first > start and item_end > first + 1:
            return start, first, first + 1, item_end, min(at, end)
    return end, end, end, end, end


@compiled
def property_value(buffer: Bytes, start: int, end: int, parser: int, name: Bytes) -> tuple[int, int]:
    """Return where the last value of *name* stands; an empty stretch when there is none. *name* is clean text."""
    value_start, value_end = start, start
    at = start
    while at < end:
        name_start, name_end, from_, to, at = next_property(buffer, at, end, parser)
        if to > from_ and same_bytes(buffer, name_start, name_end, name, 0, name.size):
            value_start, value_end = from_, to
    return value_start, value_end
