"""
Message properties: `name 0x01 value 0x02 …` as text, and as the map into which a release parses it.

Two parsers exist and disagree on unusual input; the broker's parser decides what its index contains. The stored text is
never rebuilt from the map, whose order is that of a Java HashMap.

Hashed texts (index keys, tags) pass through `decode_java_text` first. RocketMQ hashes Java strings: UTF-16 units
decoded from UTF-8 by Java, which replaces malformed input differently from Python.
"""

import re
import zlib
from collections.abc import Iterator
from enum import Enum, unique
from functools import lru_cache
from struct import iter_unpack

# Java reads ED A0..BF as the start of a surrogate and replaces all of it by one character; Python replaces each byte.
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()

MIN_LONG, MAX_LONG = -(1 << 63), (1 << 63) - 1
MIN_INT, MAX_INT = -(1 << 31), (1 << 31) - 1
# Character#isDigit knows the digits of all scripts; those after U+FFFF are two characters to Java. Repeats are
# possessive: matching a body of millions of zeros and a letter takes one pass.
_INTEGER = r"([+-]?)(?=\d)0*+([^\D\U00010000-\U0010ffff]{0,20}+)"


def decode_java_text(raw: bytes) -> str:
    """Return the text that `new String(raw, UTF_8)` returns in Java."""
    return _SURROGATE.sub(_REPLACEMENT, raw).decode("utf-8", "replace")


def wrap_to_java_long(value: int) -> int:
    """Return *value* wrapped into 64 bits, as sums and differences of Java's `long` are."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def parse_java_integer(text: str | None, bits: int = 64) -> int | None:
    """Return the number that `Long.parseLong` (with fewer *bits*, `Integer.parseInt`) returns; None if it throws."""
    match = re.fullmatch(_INTEGER, text or "")
    number = int(f"{match[1]}0{match[2]}") if match else 1 << 63
    return number if -(1 << bits - 1) <= number < 1 << bits - 1 else None


def java_hash(text: str) -> int:
    """Return `text.hashCode()`: a signed 32-bit polynomial over UTF-16 units."""
    value = 0
    for (unit,) in iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@lru_cache(maxsize=256)
def index_key_hash(key: str) -> int:
    """Return the hash that an index entry stores; `abs` of the smallest integer overflows and becomes 0."""
    # IndexFile#indexKeyHashMethod
    value = java_hash(key)
    return 0 if value == MIN_INT else abs(value)


NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"

KEYS = "KEYS"
TAGS = "TAGS"
UNIQ_KEY = "UNIQ_KEY"
DELAY = "DELAY"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
KEY_SEPARATOR = " "

CRC_NAME = "__CRC32#"
CRC_SIZE = len(CRC_NAME) + len(NAME_VALUE_SEPARATOR) + 10 + len(PROPERTY_SEPARATOR)

_MOST_NULS = 4  # at the end of a value
# Properties whose values clients and brokers write themselves: no such value contains a zero byte.
_OWN_VALUES = frozenset({
    UNIQ_KEY, DELAY, REAL_TOPIC, REAL_QID, INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, INNER_NUM, INNER_BASE,
    "CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT", "TRAN_MSG", "PGROUP", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID",
})  # fmt: skip


@unique
class PropertyParser(Enum):
    """The parser that a release uses."""

    SPLIT = "split"
    SCAN = "scan"


def parse_properties(raw: bytes, parser: PropertyParser) -> dict[str, str]:
    """Return the properties as the broker sees them: each name once, at its first position, with its last value."""
    return dict(property_items(decode_java_text(raw), parser))


def property_items(text: str, parser: PropertyParser) -> Iterator[tuple[str, str]]:
    """Yield every name and value that *parser* accepts, duplicates included."""
    for item in text.split(PROPERTY_SEPARATOR):
        if parser is PropertyParser.SPLIT:
            # MessageDecoder#string2messageProperties to 4.9.0, where Java's `split` drops trailing empty parts
            name, separator, value = item.rstrip(NAME_VALUE_SEPARATOR).partition(NAME_VALUE_SEPARATOR)
            is_property = bool(separator) and NAME_VALUE_SEPARATOR not in value
        else:  # from 4.9.1 it cuts at the first separator
            name, _, value = item.partition(NAME_VALUE_SEPARATOR)
            is_property = bool(name and value)
        if is_property:
            yield name, value


def split_keys(keys: str) -> list[str]:
    """Return the parts of a KEYS text in order; empty parts are dropped, duplicates are kept."""
    return [key for key in keys.split(KEY_SEPARATOR) if key]


def property_crc_text(record_without_crc: bytes) -> bytes:
    """Return the 20 bytes that 5.2.0+ with `enabledAppendPropCRC` puts at the end of a record."""
    # Ten decimal digits, the least significant one first (MessageDecoder#appendCRC of 5.2.0)
    digits = f"{zlib.crc32(record_without_crc) & 0x7FFFFFFF:010d}"[::-1]
    return f"{CRC_NAME}{NAME_VALUE_SEPARATOR}{digits}{PROPERTY_SEPARATOR}".encode()


def ends_in_unused_crc_field(raw: bytes) -> bool:
    """
    Return whether properties end in a CRC field without a CRC, as 5.2.0 and 5.3.0 write for a multi-dispatch record.

    They reserve the field even if CRCs are off. It then contains old bytes of the encoder's buffer, or zeros.
    """
    text = raw[:-CRC_SIZE]
    if not text.endswith(PROPERTY_SEPARATOR.encode()):
        return False
    return {INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET} <= parse_properties(text, PropertyParser.SCAN).keys()


def are_zeroed(raw: bytes) -> bool:
    """Return whether zeros overwrote the end of properties, in any release."""
    return raw.endswith(b"\0") and not ends_in_unused_crc_field(raw) and not may_end_in_complete_value(raw)


def may_end_in_complete_value(raw: bytes) -> bool:
    """
    Return whether the zeros at the end of properties may be the end of a value, as a producer sent it.

    The bytes do not prove it. A value may end in one or two terminators; a lost page, or an unfinished write, leaves
    more zeros.
    """
    text = raw.rstrip(b"\0")
    if len(raw) - len(text) > _MOST_NULS:
        return False
    last = text.rpartition(PROPERTY_SEPARATOR.encode())[2]
    name, separator, _ = decode_java_text(last).partition(NAME_VALUE_SEPARATOR)
    return bool(name and separator) and "\0" not in name and name not in _OWN_VALUES
