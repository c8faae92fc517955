"""
Compiled readers of JSON values, into columns, at the positions that a scan has found.

Values in the usual forms are read, and become PRESENT; all others stay UNUSUAL, and the caller reads them with an exact
parser. Those that are missing or null are ABSENT from the start.
"""

import numpy as np

from rmq_formats.compiled import compiled, compiled_helper
from rmq_formats.json.scan import decode_escape, digits_end
from rmq_formats.kernels.integers import Bytes, Integers, Sizes, as_int64, byte_at, number_at

ABSENT, PRESENT, UNUSUAL = 0, 1, 2
_QUOTE, _BACKSLASH, _MINUS, _POINT, _ZERO, _COMMA = ord('"'), ord("\\"), ord("-"), ord("."), ord("0"), ord(",")
_COLON, _SPACE, _T_LARGE, _T_SMALL, _Z_LARGE, _Z_SMALL = (ord(letter) for letter in ": TtZz")
_DAYS_OF_400_YEARS, _DAYS_TO_1970 = 146097, 719468
_NO_DAY, _MOST_DIGITS = -(1 << 31), 19
_MICROSECONDS = 1_000_000
_DAY_SIZE, _CLOCK_SIZE = 10, 19  # the lengths of 2026-11-23 and of 2026-11-23T10:00:00


@compiled
def read_decimals(
    data: Bytes, starts: Sizes, ends: Sizes, scale: int, limit: int, takes_texts: int, values: Integers, states: Bytes
) -> None:
    """Read numbers without an exponent, times 10 to the power of *scale*, of -limit - 1 to *limit*."""
    for row in range(starts.size):
        at, end = number_at(starts, row), number_at(ends, row)
        if states[row] == ABSENT:
            continue
        if takes_texts and byte_at(data, at) == _QUOTE:
            at, end = at + 1, end - 1
        is_negative = at < end and byte_at(data, at) == _MINUS
        at = at + 1 if is_negative else at
        point = digits_end(data, at, end)
        last, fraction = point, 0
        if point < end and byte_at(data, point) == _POINT:
            last = digits_end(data, point + 1, end)
            fraction = last - point - 1
        has_digits = point > at and (last == point or fraction > 0)
        if last != end or not has_digits or fraction > scale or point - at + scale > _MOST_DIGITS:
            continue
        value = as_int64(0)
        for place in range(at, end):
            if place != point:
                value = value * 10 + byte_at(data, place) - _ZERO
        for _ in range(scale - fraction):
            value *= 10
        if 0 <= value <= limit:  # a value of more than 63 bits is negative here
            values[row] = -value if is_negative else value
            states[row] = PRESENT


@compiled
def read_dates(data: Bytes, starts: Sizes, ends: Sizes, values: Integers, states: Bytes) -> None:
    """Read texts like 2026-11-23, as days since 1970."""
    for row in range(starts.size):
        at, end = number_at(starts, row), number_at(ends, row)
        if states[row] == ABSENT:
            continue
        if end - at == _DAY_SIZE + 2 and byte_at(data, at) == _QUOTE:
            values[row] = _day(data, at + 1)
            states[row] = PRESENT if values[row] != _NO_DAY else UNUSUAL


@compiled
def read_timestamps(data: Bytes, starts: Sizes, ends: Sizes, values: Integers, states: Bytes) -> None:
    """Read texts like 2026-11-23T10:00:00.000Z, as microseconds since 1970."""
    for row in range(starts.size):
        at, end = number_at(starts, row), number_at(ends, row) - 2
        if states[row] == ABSENT:
            continue
        fraction = at + 1 + _CLOCK_SIZE
        size = end - fraction  # the length of the point and the digits after it
        if size < 0 or size == 1 or size > 7 or byte_at(data, at) != _QUOTE:
            continue
        if byte_at(data, end) not in (_Z_LARGE, _Z_SMALL):
            continue
        if size and (byte_at(data, fraction) not in (_POINT, _COMMA) or digits_end(data, fraction + 1, end) != end):
            continue
        day, second = _day(data, at + 1), _second(data, at + 1 + _DAY_SIZE)
        if day == _NO_DAY or second < 0:
            continue
        part = as_int64(0)
        for place in range(6):
            part = part * 10 + (byte_at(data, fraction + 1 + place) - _ZERO if place < size - 1 else 0)
        values[row] = (day * 86400 + second) * _MICROSECONDS + part
        states[row] = PRESENT


@compiled_helper
def _pair(data: Bytes, at: int) -> int:
    """Return the number that two digits spell; 100 for other characters."""
    tens, ones = byte_at(data, at) - _ZERO, byte_at(data, at + 1) - _ZERO
    return tens * 10 + ones if 0 <= tens < 10 and 0 <= ones < 10 else 100


@compiled_helper
def _day(data: Bytes, at: int) -> int:
    """Return the days from 1970 to a day, by counting from March."""
    century, year, month, day = _pair(data, at), _pair(data, at + 2), _pair(data, at + 5), _pair(data, at + 8)
    is_written = byte_at(data, at + 4) == _MINUS and byte_at(data, at + 7) == _MINUS
    if not is_written or century > 99 or year > 99 or not 1 <= month <= 12 or not 1 <= day <= 31:
        return _NO_DAY
    year += century * 100
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    longest = 30 if month in (4, 6, 9, 11) else 31
    longest = (29 if is_leap else 28) if month == 2 else longest
    if year == 0 or day > longest:
        return _NO_DAY
    year = year - 1 if month <= 2 else year
    in_400, month = year % 400, (month + 9) % 12
    of_400 = in_400 * 365 + in_400 // 4 - in_400 // 100 + (153 * month + 2) // 5 + day - 1
    return year // 400 * _DAYS_OF_400_YEARS + of_400 - _DAYS_TO_1970


@compiled_helper
def _second(data: Bytes, at: int) -> int:
    """Return the second of the day of a text like T10:00:00; -1 if the text is another."""
    hour, minute, second = _pair(data, at + 1), _pair(data, at + 4), _pair(data, at + 7)
    is_written = byte_at(data, at + 3) == _COLON and byte_at(data, at + 6) == _COLON
    is_written = is_written and byte_at(data, at) in (_T_LARGE, _T_SMALL, _SPACE)
    return hour * 3600 + minute * 60 + second if is_written and hour < 24 and minute < 60 and second < 60 else -1


def decode_texts(data: Bytes, starts: Sizes, ends: Sizes) -> tuple[Sizes, Bytes]:
    """Return the texts without escapes: the end of each one, after a leading zero, and their bytes."""
    offsets = np.zeros(starts.size + 1, np.int32)
    # No escape is shorter than its character.
    found = np.empty(int(np.maximum(ends - starts, 0).sum(dtype=np.int64)), np.uint8)
    _copy(data, starts, ends, found, offsets)
    return offsets, found[: offsets[-1]]


@compiled
def _copy(data: Bytes, starts: Sizes, ends: Sizes, found: Bytes, offsets: Sizes) -> None:
    to = as_int64(0)
    for row in range(starts.size):
        at, end = number_at(starts, row), number_at(ends, row)
        while at < end:
            byte = byte_at(data, at)
            if byte != _BACKSLASH:
                found[np.uintp(to)] = byte
                to += 1
                at += 1
                continue
            code, at = decode_escape(data, at, end)
            size = 1 + (code >= 0x80) + (code >= 0x800) + (code >= 0x10000)  # in UTF-8
            if size == 1:
                found[np.uintp(to)] = code
            else:
                found[np.uintp(to)] = (0xF00 >> size & 0xFF) | code >> 6 * (size - 1)
                for place in range(1, size):
                    found[np.uintp(to + place)] = 0x80 | (code >> 6 * (size - 1 - place) & 0x3F)
            to += size
        offsets[np.uintp(row + 1)] = to
