"""The properties of a record in compiled code, by both parsers of `rmq_formats.properties`."""

from rmq_formats.compiled import helper, inlined
from rmq_formats.kernels.integers import Bytes, byte_at, read_u32
from rmq_formats.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, PropertyParser

PARSER_SPLIT = 0
PARSER_SCAN = 1
PARSER_CODES = {PropertyParser.SPLIT: PARSER_SPLIT, PropertyParser.SCAN: PARSER_SCAN}

_NAME_VALUE = ord(NAME_VALUE_SEPARATOR)
_PROPERTY = ord(PROPERTY_SEPARATOR)


@inlined
def find_control(buffer: Bytes, at: int, end: int) -> int:
    """Return the position of the next byte below 3, as both separators are, or *end*; four bytes a step."""
    while end - at >= 4:
        four = read_u32(buffer, at)
        if (four - 0x03030303) & ~four & 0x80808080:
            break
        at += 4
    while at < end and byte_at(buffer, at) > _PROPERTY:
        at += 1
    return at


@helper
def next_property(buffer: Bytes, at: int, end: int, parser: int) -> tuple[int, int, int, int, int]:
    """
    Return the slices of the next name and value that *parser* accepts, and the position after them.

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
