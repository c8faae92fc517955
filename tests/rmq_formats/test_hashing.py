"""Java's strings and their hash. `tests/oracle/test_java_text.py` asks a real JVM for more."""

import pytest

from rmq_formats.hashing import index_key_hash, java_hash, java_text

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
