"""Property texts, and the two parsers that disagree about odd ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.properties import (
    CRC_SIZE,
    PropertyParser,
    parse_properties,
    property_crc_text,
    property_items,
    split_keys,
)
from tests.rmq_formats.builders import encode_properties

SPLIT, SCAN = PropertyParser.SPLIT, PropertyParser.SCAN


@pytest.mark.parametrize("parser", PropertyParser)
@pytest.mark.parametrize(
    "raw",
    [
        b"KEYS\x01k1 k2\x02TAGS\x01A\x02",  # to 4.9.0, and from 5.2.0
        b"KEYS\x01k1 k2\x02TAGS\x01A",  # 4.9.1 to 5.1.4
        b"\x02KEYS\x01k1 k2\x02\x02TAGS\x01A",
    ],
)
def test_a_separator_at_the_end_makes_no_difference(raw: bytes, parser: PropertyParser) -> None:
    assert parse_properties(raw, parser) == {"KEYS": "k1 k2", "TAGS": "A"}


@pytest.mark.parametrize(
    ("raw", "split", "scan"),
    [
        (b"a\x01b\x01c\x02", {}, {"a": "b\x01c"}),  # a value that holds the separator
        (b"a\x01b\x01\x02", {"a": "b"}, {"a": "b\x01"}),  # Java's split drops empty parts at the end
        (b"a\x01\x02", {}, {}),  # an empty value
        (b"\x01b\x02", {"": "b"}, {}),  # an empty name
        (b"a\x02b\x01c\x02", {"b": "c"}, {"b": "c"}),  # no separator: the search may run into the next item
        (b"\x01\x02", {}, {}),
        (b"ab", {}, {}),
        (b"", {}, {}),
    ],
)
def test_the_parsers_disagree_on_odd_items(raw: bytes, split: dict[str, str], scan: dict[str, str]) -> None:
    assert parse_properties(raw, SPLIT) == split
    assert parse_properties(raw, SCAN) == scan


@pytest.mark.parametrize("parser", PropertyParser)
def test_of_a_name_that_stands_twice_the_last_value_wins(parser: PropertyParser) -> None:
    """Batches of 5.0.0 to 5.3.3 have two UNIQ_KEYs; the name keeps its first place."""
    raw = b"UNIQ_KEY\x01own\x02WAIT\x01true\x02UNIQ_KEY\x01envelope\x02"

    assert list(parse_properties(raw, parser).items()) == [("UNIQ_KEY", "envelope"), ("WAIT", "true")]
    assert ("UNIQ_KEY", "own") in list(property_items(raw.decode(), parser))


TEXTS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize("parser", PropertyParser)
@given(properties=st.dictionaries(TEXTS, TEXTS), trailing=st.booleans())
def test_what_is_written_is_read_again(parser: PropertyParser, properties: dict[str, str], trailing: bool) -> None:
    assert parse_properties(encode_properties(properties, trailing_separator=trailing), parser) == properties


def test_keys_keep_their_order_and_duplicates_and_lose_empty_parts() -> None:
    assert split_keys(" k1  dup dup\tx ") == ["k1", "dup", "dup\tx"]


def test_the_record_crc_is_written_backwards() -> None:
    """Ten decimal digits: CRC-32 of "123456789" is 0xCBF43926, without its top bit 1274296614."""
    text = property_crc_text(b"123456789")

    assert text == b"__CRC32#\x014166924721\x02"
    assert len(text) == CRC_SIZE == 20
