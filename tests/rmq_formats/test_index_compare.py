"""Two index files held against each other, block by block."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.indexfile.compare import Comparison, Difference, Part
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.layout import Buffer
from tests.rmq_formats.builders import reading
from tests.rmq_formats.reference import index_file_of

GEOMETRY = Geometry(hash_slots=8, index_num=12)


def a_file(count: int = 9) -> bytes:
    puts = ((7 * number + 1, 1000 + number, 1_700_000_000_000 + 5000 * number) for number in range(count))
    return bytes(index_file_of(puts, GEOMETRY))


def compared(actual: Buffer, expected: bytes, entries_a_block: int = 4) -> Comparison:
    comparison = Comparison(GEOMETRY, reading(actual))
    for number in range(1, 10, entries_a_block):
        start, end = GEOMETRY.entry_position(number), GEOMETRY.entry_position(min(number + entries_a_block, 10))
        comparison.write(start, expected[start:end])
    comparison.write(40, expected[40 : GEOMETRY.entries_position])
    comparison.write(0, expected[:40])
    return comparison


def changed(position: int, value: int) -> bytearray:
    data = bytearray(a_file())
    data[position] = value
    return data


@pytest.mark.parametrize("size", [1, 4, 9])
def test_an_entry_that_differs_is_named_by_number_and_field(size: int) -> None:
    at = GEOMETRY.entry_position(6)
    comparison = compared(changed(at + 15, 200), a_file(), size)

    assert not comparison.is_equal
    assert comparison.differences == [Difference(Part.ENTRY, 6, "time_diff_s", at + 12, 200, 25)]
    assert str(comparison.differences[0]) == f"entry 6 time_diff_s: 200, expected 25, at position {at + 12}"
    assert comparison.counts == {Part.HEADER: 0, Part.SLOT: 0, Part.ENTRY: 1}
    assert comparison.bits == (200 ^ 25).bit_count()


def test_a_slot_that_differs_is_named_by_its_number() -> None:
    comparison = compared(changed(GEOMETRY.slot_position(3) + 3, 99), a_file())

    (difference,) = comparison.differences
    assert (difference.part, difference.number, difference.field, difference.found) == (
        Part.SLOT,
        3,
        "newest_entry",
        99,
    )


def test_all_header_fields_that_differ_are_named_first() -> None:
    data = changed(15, 1)
    data[39] = 77
    data[GEOMETRY.entry_position(2)] = 1
    comparison = compared(data, a_file())

    assert [difference.field for difference in comparison.differences] == ["end_timestamp", "index_count", "key_hash"]
    assert str(comparison.differences[1]) == "header index_count: 77, expected 10, at position 36"


def test_what_is_zero_in_the_real_file_is_counted() -> None:
    data = bytearray(a_file())
    data[GEOMETRY.entry_position(5) :] = bytes(len(data) - GEOMETRY.entry_position(5))
    comparison = compared(data, a_file())

    assert (comparison.counts[Part.ENTRY], comparison.zeroed) == (5, 5)


def test_a_file_cut_short_is_compared_as_if_zeros_followed() -> None:
    comparison = compared(a_file()[: GEOMETRY.entry_position(8)], a_file())

    assert comparison.first[Part.ENTRY].number == 8
    assert comparison.zeroed == 2


@given(st.integers(0, GEOMETRY.entry_position(10) - 1), st.integers(0, 255), st.integers(1, 9))
def test_any_changed_byte_is_found_once(position: int, value: int, size: int) -> None:
    expected = a_file()
    comparison = compared(changed(position, value), expected, size)
    is_entry_0 = GEOMETRY.entry_position(0) <= position < GEOMETRY.entry_position(1)
    if value == expected[position] or is_entry_0:
        assert comparison.is_equal
        return
    (difference,) = comparison.differences

    assert difference.position <= position < difference.position + 8
    assert sum(comparison.counts.values()) == 1
