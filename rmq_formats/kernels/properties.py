"""The properties of a record in compiled code, by both parsers of `rmq_formats.properties`."""

from typing import NamedTuple

from rmq_formats.compiled import helper, inlined
from rmq_formats.kernels.emitted import compares, trails
from rmq_formats.kernels.integers import Bytes, byte_at
from rmq_formats.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, PropertyParser

PARSER_SPLIT = 0
PARSER_SCAN = 1
PARSER_CODES = {PropertyParser.SPLIT: PARSER_SPLIT, PropertyParser.SCAN: PARSER_SCAN}

_NAME_VALUE = ord(NAME_VALUE_SEPARATOR)
_PROPERTY = ord(PROPERTY_SEPARATOR)


CONTROL = _PROPERTY + 1  # both separators are below it, and nothing in ordinary text is
_AT_ONCE = 63  # bytes, after which there must be one more


@compares()
def _below_in_row(buffer: Bytes, at: int, limit: int) -> int:
    """Return a bit for each of some bytes: whether it is below *limit*."""
    return sum((byte_at(buffer, at + number) < limit) << number for number in range(_AT_ONCE))


@trails()
def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


@inlined
def find_below(buffer: Bytes, at: int, end: int, limit: int) -> int:
    """Return the position of the next byte below *limit*, or *end*."""
    while at < end and buffer.size - at > _AT_ONCE:
        bits = _below_in_row(buffer, at, limit)
        if bits:
            return min(at + _lowest(bits), end)
        at += _AT_ONCE
    while at < end and byte_at(buffer, at) >= limit:
        at += 1
    return min(at, end)


@inlined
def _next_control(buffer: Bytes, end: int, seen: int, bits: int) -> tuple[int, int, int]:
    """Return the position of the next separator, or *end*; *bits* are of those before *seen* that are still due."""
    while bits == 0:
        if seen >= end:
            return end, seen, bits
        bits = _below_in_row(buffer, seen, CONTROL)
        seen += _AT_ONCE
    return min(seen - _AT_ONCE + _lowest(bits), end), seen, bits & (bits - 1)


class Property(NamedTuple):
    """The slices of a name and a value, the position after them, and the separators that were found on the way."""

    name: int
    name_end: int
    value: int
    value_end: int
    next_at: int
    seen: int
    bits: int  # which of the bytes before *seen* are separators that are still due


@inlined
def next_property(buffer: Bytes, at: int, end: int, parser: int, seen: int, bits: int) -> Property:
    """
    Return the next property that *parser* accepts; values are never empty: with an empty one nothing is left.

    *seen* and *bits* are those of the property before, and at first where the properties begin, and 0. Separators are
    ASCII, so bytes split where the text does, however malformed it is.
    """
    # Nearly always: a name, a separator, a value without any, on which both parsers agree; and a row more can be read.
    if buffer.size - end > _AT_ONCE:
        name_end, seen, bits = _next_control(buffer, end, seen, bits)
        if at < name_end < end and byte_at(buffer, name_end) == _NAME_VALUE:
            value_end, seen, bits = _next_control(buffer, end, seen, bits)
            if value_end > name_end + 1 and (value_end == end or byte_at(buffer, value_end) == _PROPERTY):
                return Property(at, name_end, name_end + 1, value_end, min(value_end + 1, end), seen, bits)
    name, name_end, value, value_end, at = _next_unusual(buffer, at, end, parser)
    return Property(name, name_end, value, value_end, at, at, 0)


@helper
def _next_unusual(buffer: Bytes, at: int, end: int, parser: int) -> tuple[int, int, int, int, int]:
    """Return the slices of the next property and the position after it, byte by byte."""
    while at < end:
        first = -1  # the item's first name-value separator
        last_other = at - 1  # its last byte that is not such a separator
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
