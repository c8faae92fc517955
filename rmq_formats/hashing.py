"""
Java's view of text and numbers, and its hash.

RocketMQ hashes Java strings: UTF-16 units made from UTF-8 by Java's decoder, which replaces malformed input in its own
way. Everything that is hashed (index keys, tags) comes through `java_text` first.
"""

import re
from functools import lru_cache
from struct import iter_unpack

# Java reads ED A0..BF as the start of a surrogate and replaces all of it by one character; Python replaces each byte.
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()

MIN_LONG, MAX_LONG = -(1 << 63), (1 << 63) - 1
_MIN_INT = -(1 << 31)


def java_text(raw: bytes) -> str:
    """Return the text that `new String(raw, UTF_8)` gives in Java."""
    return _SURROGATE.sub(_REPLACEMENT, raw).decode("utf-8", "replace")


def java_long(value: int) -> int:
    """Return *value* wrapped into 64 bits, as sums and differences of Java's `long` are."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


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
    return 0 if value == _MIN_INT else abs(value)
