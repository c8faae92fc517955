"""Java's strings and their hash. `tests/oracle/test_java_text.py` asks a real JVM for more."""

import importlib
import random
import sys
import zlib
from pathlib import Path

import pytest

from rmq_formats import compiled
from rmq_formats.carryless import _factors
from rmq_formats.crc import crc32
from rmq_formats.hashing import index_key_hash, java_hash, java_text
from rmq_formats.kernels.integers import as_bytes

R = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", ""),
        (b"plain", "plain"),
        ("주문-注文-😀".encode(), "주문-注文-😀"),
        # An encoded surrogate is one character to Java 17, three to Python's `errors="replace"`.
        (b"a\xed\xa0\x80b", f"a{R}b"),
        (b"\xed\xbf\xbf", R),
        (b"\xed\xa0", R),
        (b"\xed\xa0a", f"{R}a"),
        (b"\xed\x9f\xbf", "\ud7ff"),  # the last character before the surrogates is whole
        # The rest is replaced as Python does it.
        (b"\xc0\x80", R * 2),
        (b"\xf0\x9f\x98", R),
        (b"\xf4\x90\x80\x80", R * 4),
        (b"\xe0\x80\x80", R * 3),
        (b"\x80\xff", R * 2),
    ],
)
def test_malformed_utf8_becomes_as_many_replacements_as_in_java(raw: bytes, expected: str) -> None:
    """The number of replacement characters changes a key's hash."""
    assert java_text(raw) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("hello", 99162322),
        ("polygenelubricants", -(1 << 31)),
        ("😀", 0xD83D * 31 + 0xDE00),  # two UTF-16 units
        ("중", 0xC911),
    ],
)
def test_the_hash_is_a_polynomial_over_utf16_units(text: str, expected: int) -> None:
    """`String.hashCode`, wrapped to 32 bits."""
    assert java_hash(text) == expected


@pytest.mark.parametrize(("key", "expected"), [("polygenelubricants", 0), ("hello", 99162322), ("zzzzzz", 685785664)])
def test_an_index_hash_is_never_negative(key: str, expected: int) -> None:
    """The absolute value ("zzzzzz" hashes to -685785664); that of the smallest integer overflows and becomes 0."""
    assert index_key_hash(key) == expected


@pytest.mark.parametrize("lengths", [range(600), (4 << 10, (64 << 10) - 1, (64 << 10) + 17)], ids=["short", "long"])
def test_every_length_has_the_same_crc_as_in_zlib(lengths: range | tuple[int, ...]) -> None:
    data = random.Random(7).randbytes(max(lengths) + 3)
    buffer = as_bytes(data)
    for length in lengths:
        assert int(crc32(buffer, 3, 3 + length)) == zlib.crc32(data[3 : 3 + length]), length


def _multiplied(left: int, right: int) -> int:
    """Multiply polynomials over GF(2), as the processor's instruction does."""
    product = 0
    for bit in range(64):
        if right >> bit & 1:
            product ^= left << bit
    return product


def _remainder(data: bytes) -> int:
    return zlib.crc32(data, 0xFFFFFFFF) ^ 0xFFFFFFFF


@pytest.mark.parametrize("steps", [1, 2, 4, 7])
def test_factors_move_sixteen_bytes_over_those_after_them(steps: int) -> None:
    """What is moved leaves the CRC that the bytes leave with zeros after them; that is all that a fold does."""
    data = random.Random(steps).randbytes(16)
    halves = int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")
    factors = (factor.constant for factor in _factors(steps).constant)
    low, high = map(_multiplied, halves, factors)
    assert _remainder((low ^ high).to_bytes(16, "little")) == _remainder(data + bytes(16 * steps))


def test_without_numbas_internals_tables_give_the_same_crc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiled, "_CACHE", tmp_path)  # kept code would be that with the multiplication
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "rmq_formats.carryless", None)
        without.delitem(sys.modules, "rmq_formats.crc")
        tables_alone = importlib.import_module("rmq_formats.crc")
    data = random.Random(7).randbytes(1000)

    assert not tables_alone.HAS_MULTIPLICATION
    assert int(tables_alone.crc32(as_bytes(data), 3, 999)) == zlib.crc32(data[3:999])
