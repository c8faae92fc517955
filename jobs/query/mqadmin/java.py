"""
Text as Java prints it: decoded bytes and maps.

Bytes are decoded as in Java if Python's codec of the same name differs. mqadmin prints properties like
`HashMap.toString()`: bucket by bucket, and within a bucket in insertion order.

GBK: in Java, two bytes in the user-defined zones are private-use characters. An invalid pair is replaced as one byte,
or as two if the second cannot begin a character.
"""

import codecs
from collections.abc import Iterable, Mapping
from typing import TypeVar

from rmq_formats.properties import decode_java_text, java_hash

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LEADS = range(0x81, 0xFF)
# The lead and trail bytes of user-defined zones, and a byte that is never a trail byte.
_OF_USERS = (
    (range(0xA1, 0xA8), range(0x40, 0xA1)),
    (range(0xAA, 0xB0), range(0xA1, 0xFF)),
    (range(0xF8, 0xFF), range(0xA1, 0xFF)),
)
_ASCII, _DELETE = 0x80, 0x7F
# `undefined`, `idna` and `punycode` are text encodings to Python, and reject all other bytes.
_PROBES = (bytes(range(256)), b"abc-", b"xn--\xff")


def check_charset(name: str) -> None:
    """Raise `ValueError` if *name* is not a charset in which any bytes can be shown."""
    try:
        codecs.lookup(name)
        for probe in _PROBES:
            probe.decode(name, "replace")
    except (LookupError, ValueError) as error:
        reason = f"unsupported charset {name[:40]!r} (examples: UTF-8, GBK, ISO-8859-1)"
        raise ValueError(reason) from error


def decode_as_java(data: bytes, charset: str) -> str:
    """Decode like Java's `new String(data, charset)`, for a checked charset."""
    name = codecs.lookup(charset).name
    if name == "utf-8":
        return decode_java_text(data)
    if name == "gbk":
        return data.decode(name, "java")
    if name == "utf-16" and not data.startswith((codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE)):
        name = "utf-16-be"
    return data.decode(name, "replace")


def _decode_like_java(error: UnicodeError) -> tuple[str, int]:
    """Return how Java decodes bytes that Python's GBK rejects, and the position at which it continues."""
    assert isinstance(error, UnicodeDecodeError)
    pair, begins_nothing = error.object[error.start : error.start + 2], False
    if len(pair) > 1 and pair[0] in _LEADS:
        if any(pair[0] in leads and pair[1] in trails and pair[1] != _DELETE for leads, trails in _OF_USERS):
            return pair.decode("gb18030"), error.start + 2
        begins_nothing = pair[1] >= _ASCII and pair[1] not in _LEADS
    return _REPLACEMENT, error.start + (2 if begins_nothing else 1)


codecs.register_error("java", _decode_like_java)


_LOAD_NUMERATOR, _LOAD_DENOMINATOR = 3, 4
_Element = TypeVar("_Element")


def hash_map_text(properties: Mapping[str, str], buckets: int) -> str:
    """Format `{name=value, …}` like a HashMap that was created with *buckets* buckets."""
    return "{" + ", ".join(f"{name}={properties[name]}" for name in hash_set_order(properties, buckets)) + "}"


def hash_set_order(names: Iterable[str], buckets: int = 16) -> list[str]:
    """Return names in the iteration order of a HashSet."""
    return hash_order({name: java_hash(name) for name in names}, buckets)


def hash_order(hashes: Mapping[_Element, int], buckets: int = 16) -> list[_Element]:
    """Return objects in the iteration order of a HashSet; *hashes* has their `hashCode()`."""
    while len(hashes) * _LOAD_DENOMINATOR > buckets * _LOAD_NUMERATOR:
        buckets *= 2
    spread = {element: value & 0xFFFFFFFF for element, value in hashes.items()}
    return sorted(hashes, key=lambda element: (spread[element] ^ spread[element] >> 16) & (buckets - 1))
