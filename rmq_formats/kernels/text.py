"""
Texts in compiled code: UTF-8 as Java decodes it, the hash of a text, and the properties of a record by both parsers.

The rules are those of `rmq_formats.properties`. Distinct texts get numbers, for dictionary-encoded columns, from an
open hash table and a heap of the texts in order of appearance. The hash starts from a random number, so a log whose
texts all collide cannot be constructed.
"""

import secrets
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rmq_formats.compiled import compiled_helper, inlined_helper
from rmq_formats.kernels.emitted import emit_byte_comparison, emit_trailing_zeros, emit_weighted_sum
from rmq_formats.kernels.integers import (
    Bytes,
    Integers,
    Sizes,
    as_int64,
    byte_at,
    copy_by_words,
    copy_bytes,
    number_at,
    read_u32,
    same_bytes,
)
from rmq_formats.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, PropertyParser

MAX_TEXT_GROWTH = 3  # a malformed byte becomes a character of three bytes
_REPLACEMENT = 0xFFFD
_REPLACEMENT_UTF8 = np.frombuffer(chr(_REPLACEMENT).encode(), np.uint8).copy()
_SIGN_32 = 1 << 31
_LOW_32 = (1 << 32) - 1
_HASHED_AT_ONCE = 32
_POWERS = np.array([31**power & _LOW_32 for power in range(_HASHED_AT_ONCE + 1)], np.int64)


@inlined_helper
def _is_continuation(buffer: Bytes, at: int, end: int, low: int, high: int) -> bool:
    return at < end and low <= byte_at(buffer, at) <= high


@compiled_helper
def _next_long_character(buffer: Bytes, at: int, end: int) -> tuple[int, int]:
    """Decode a character that begins with a byte of 0x80 or more; malformed input ends where Java's decoder stops."""
    first = byte_at(buffer, at)
    if first < 0xC2 or first > 0xF4:
        return _REPLACEMENT, at + 1
    if first < 0xE0:
        if not _is_continuation(buffer, at + 1, end, 0x80, 0xBF):
            return _REPLACEMENT, at + 1
        return ((first & 0x1F) << 6) | (byte_at(buffer, at + 1) & 0x3F), at + 2
    if first == 0xED and _is_continuation(buffer, at + 1, end, 0xA0, 0xBF):
        # Java replaces a whole surrogate by one character.
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


@inlined_helper
def is_ascii(buffer: Bytes, start: int, end: int) -> bool:
    """Return whether no byte has its top bit set."""
    seen = np.uint8(0)
    for i in range(end - start):
        seen |= buffer[np.uintp(start + i)]
    return bool(seen < 0x80)


@compiled_helper
def is_valid_utf8(buffer: Bytes, start: int, end: int) -> bool:
    """Return whether the bytes are valid UTF-8, so that decoding and encoding returns the same bytes."""
    if is_ascii(buffer, start, end):
        return True
    at = start
    while at < end:
        if byte_at(buffer, at) < 0x80:
            at += 1
            continue
        before = at
        code, at = _next_long_character(buffer, at, end)
        if code == _REPLACEMENT and not same_bytes(buffer, before, at, _REPLACEMENT_UTF8, as_int64(0), as_int64(3)):
            return False
    return True


@compiled_helper
def copy_as_java_text(source: Bytes, start: int, end: int, target: Bytes, to: int) -> int:
    """
    Write the UTF-8 of the text that Java reads, and return the position after its last byte.

    Bytes after it may be overwritten.
    *target* has room for MAX_TEXT_GROWTH bytes for each one of the source.
    """
    if is_ascii(source, start, end):
        return copy_by_words(source, start, end, target, to)
    at = start
    while at < end:
        before = at
        if byte_at(source, at) < 0x80:
            at += 1
        else:
            code, at = _next_long_character(source, at, end)
            if code == _REPLACEMENT:
                to = copy_bytes(_REPLACEMENT_UTF8, as_int64(0), as_int64(3), target, to)
                continue
        to = copy_bytes(source, before, at, target, to)
    return to


@emit_weighted_sum(by=_POWERS[_HASHED_AT_ONCE - 1 :: -1].tolist())
def _hash_of_last(buffer: Bytes, at: int, count: int) -> int:
    """Return the hash of the last characters of a row, or -1 where one of them is not ASCII."""
    value = 0
    for place in range(at + _HASHED_AT_ONCE - count, at + _HASHED_AT_ONCE):
        if byte_at(buffer, place) >= 0x80:
            return -1
        value = 31 * value + byte_at(buffer, place)
    return value & _LOW_32


@compiled_helper
def hash_text(buffer: Bytes, start: int, end: int, seed: int) -> int:
    """
    Return Java's `hashCode` of a text (signed), started with the hash *seed* of the text before it.

    The hash of `topic + "#" + key` is that of three calls.
    """
    value = seed & _LOW_32
    at = start
    while at < end:
        # Many steps of 31 * value + character in parallel: each alone would wait for the one before.
        count = min(end - at, _HASHED_AT_ONCE)
        if at + count < _HASHED_AT_ONCE:
            break
        some = _hash_of_last(buffer, at + count - _HASHED_AT_ONCE, count)
        if some < 0:
            break
        value = (value * number_at(_POWERS, count) + some) & _LOW_32
        at += count
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


@compiled_helper
def hash_character(code: int, seed: int) -> int:
    """Return Java's `hashCode` of a text and one more ASCII character, such as the `#` between topic and key."""
    value = (31 * (seed & _LOW_32) + code) & _LOW_32
    return (value ^ _SIGN_32) - _SIGN_32


PROPERTY_PARSER_SPLIT = 0
PROPERTY_PARSER_SCAN = 1
PROPERTY_PARSER_CODES = {PropertyParser.SPLIT: PROPERTY_PARSER_SPLIT, PropertyParser.SCAN: PROPERTY_PARSER_SCAN}

NAME_VALUE_SEPARATOR_CODE, PROPERTY_SEPARATOR_CODE = ord(NAME_VALUE_SEPARATOR), ord(PROPERTY_SEPARATOR)


SEPARATOR_LIMIT = PROPERTY_SEPARATOR_CODE + 1  # both separators are below it, and nothing in ordinary text is
_AT_ONCE = 63  # bytes, after which there must be one more


@emit_byte_comparison()
def _below_in_row(buffer: Bytes, at: int, limit: int) -> int:
    """Return a bit for each of some bytes: whether it is below *limit*."""
    return sum((byte_at(buffer, at + number) < limit) << number for number in range(_AT_ONCE))


@emit_trailing_zeros()
def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


@inlined_helper
def find_byte_below(buffer: Bytes, at: int, end: int, limit: int) -> int:
    """Return the position of the next byte below *limit*, or *end*."""
    while at < end and buffer.size - at > _AT_ONCE:
        bits = _below_in_row(buffer, at, limit)
        if bits:
            return min(at + _lowest(bits), end)
        at += _AT_ONCE
    while at < end and byte_at(buffer, at) >= limit:
        at += 1
    return min(at, end)


@inlined_helper
def _next_control(buffer: Bytes, end: int, seen: int, bits: int) -> tuple[int, int, int]:
    """Return the position of the next separator, or *end*; *bits* are those before *seen* not returned yet."""
    while bits == 0:
        if seen >= end:
            return end, seen, bits
        bits = _below_in_row(buffer, seen, SEPARATOR_LIMIT)
        seen += _AT_ONCE
    return min(seen - _AT_ONCE + _lowest(bits), end), seen, bits & (bits - 1)


# Start and end of the name and of the value, the position after them, the end of the bytes that were searched for
# separators, and which of these bytes are separators that were not returned yet.
_Property = tuple[int, int, int, int, int, int, int]


@inlined_helper
def next_property(buffer: Bytes, at: int, end: int, parser: int, seen: int, bits: int) -> _Property:
    """
    Return the next property that *parser* accepts; an empty value means that there is none.

    *seen* and *bits* are those of the previous property; for the first one, the beginning of the properties and 0.
    Separators are ASCII, so bytes are split where the text is, even if it is malformed.
    """
    # Nearly always: a name, a separator, a value without any, on which both parsers agree; and one more row can be
    # read.
    if buffer.size - end > _AT_ONCE:
        name_end, seen, bits = _next_control(buffer, end, seen, bits)
        if at < name_end < end and byte_at(buffer, name_end) == NAME_VALUE_SEPARATOR_CODE:
            value_end, seen, bits = _next_control(buffer, end, seen, bits)
            if value_end > name_end + 1 and (value_end == end or byte_at(buffer, value_end) == PROPERTY_SEPARATOR_CODE):
                return at, name_end, name_end + 1, value_end, min(value_end + 1, end), seen, bits
    name, name_end, value, value_end, at = _next_unusual(buffer, at, end, parser)
    return name, name_end, value, value_end, at, at, 0


@compiled_helper
def _next_unusual(buffer: Bytes, at: int, end: int, parser: int) -> tuple[int, int, int, int, int]:
    """Return the slices of the next property and the position after it, byte by byte."""
    while at < end:
        first = -1  # the item's first name-value separator
        last_other = at - 1  # the last byte that is not such a separator
        separators = 0  # separators between the first byte and that one
        seen = 0
        item_end = at
        while item_end < end:
            code = byte_at(buffer, item_end)
            if code == PROPERTY_SEPARATOR_CODE:
                break
            if code == NAME_VALUE_SEPARATOR_CODE:
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
        if parser == PROPERTY_PARSER_SPLIT:
            if separators == 1:
                return start, first, first + 1, last_other + 1, min(at, end)
        elif first > start and item_end > first + 1:
            return start, first, first + 1, item_end, min(at, end)
    return end, end, end, end, end


TABLE_FULL = -1

_COUNT, _SEED = range(2)  # places in a state

_MULTIPLIER = 0x5BD1E995
_RANDOM = secrets.randbits(32)


class TextTable(NamedTuple):
    """A hash table that gives each distinct text a number. Arrays only, because compiled code fills them."""

    count_and_seed: Integers  # the number of texts, and the seed of the hash
    slots: Sizes  # number + 1 of the text whose hash leads here, 0 for none; a power of two
    ends: Sizes  # the start of each text in the heap, and the end of the last one
    heap: Bytes

    @property
    def text_count(self) -> int:
        """The number of texts."""
        return int(self.count_and_seed[_COUNT])

    def list_texts(self) -> list[bytes]:
        """Return the texts, by their numbers."""
        ends = self.ends[: self.text_count + 1].tolist()
        heap = self.heap[: ends[-1]].tobytes()
        return [heap[start:end] for start, end in pairwise(ends)]


def new_text_table(slots: int, heap_size: int) -> TextTable:
    """Return room for half as many texts as *slots*, a power of two."""
    state = np.array([0, _RANDOM], np.int64)
    ends = np.zeros(slots // 2 + 1, np.int32)
    return TextTable(state, np.zeros(slots, np.int32), ends, np.empty(heap_size, np.uint8))


@inlined_helper
def is_text_at(texts: TextTable, number: int, buffer: Bytes, start: int, end: int) -> bool:
    """Return whether the text with this number is at a place."""
    ends = texts.ends
    return same_bytes(texts.heap, number_at(ends, number), number_at(ends, number + 1), buffer, start, end)


@inlined_helper
def table_hash(buffer: Bytes, start: int, end: int, seed: int) -> int:
    """Return a number of 32 bits that spreads texts over a table; *seed* also has 32 bits: no product leaves 64."""
    value = seed
    at = start
    while end - at >= 4:
        value = ((value ^ read_u32(buffer, at)) * _MULTIPLIER) & _LOW_32
        value ^= value >> 15
        at += 4
    while at < end:
        value = ((value ^ byte_at(buffer, at)) * _MULTIPLIER) & _LOW_32
        at += 1
    return value ^ (value >> 15)


@compiled_helper
def find_or_add_text(texts: TextTable, buffer: Bytes, start: int, end: int) -> int:
    """Return the number of a text, a new one if it was not seen before; TABLE_FULL if the table is full."""
    state, slots, ends, heap = texts
    mask = slots.size - 1
    slot = table_hash(buffer, start, end, number_at(state, as_int64(_SEED))) & mask
    while True:
        number = number_at(slots, slot) - 1
        if number < 0:
            break
        if is_text_at(texts, number, buffer, start, end):
            return number
        slot = (slot + 1) & mask
    number = number_at(state, as_int64(_COUNT))
    used = number_at(ends, number)
    if number + 1 >= ends.size or used + end - start > heap.size:
        return TABLE_FULL
    copy_bytes(buffer, start, end, heap, used)
    ends[np.uintp(number + 1)] = used + end - start
    slots[np.uintp(slot)] = number + 1
    state[_COUNT] = number + 1
    return number
