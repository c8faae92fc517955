"""Whole chains, and every way in which they are broken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.indexfile import chains
from rmq_formats.indexfile.chains import BrokenLink, broken_links
from rmq_formats.indexfile.layout import Geometry
from tests.rmq_formats.builders import reading
from tests.rmq_formats.reference import index_file_of

GEOMETRY = Geometry(hash_slots=8, index_num=20)


def a_file(hashes: list[int]) -> bytearray:
    return index_file_of(((key_hash, 0, 1000) for key_hash in hashes), GEOMETRY)


def set_int(data: bytearray, position: int, value: int) -> None:
    data[position : position + 4] = value.to_bytes(4, "big", signed=True)


@given(st.lists(st.integers(0, 40), max_size=19), st.integers(1, 7))
def test_chains_are_whole_in_blocks_of_any_size(hashes: list[int], block: int) -> None:
    before = chains.BLOCK
    chains.BLOCK = block
    try:
        assert list(broken_links(reading(a_file(hashes)), GEOMETRY)) == []
    finally:
        chains.BLOCK = before


@pytest.mark.parametrize("wrong", [0, 3, 4, 5, -1, 1_000_000])
def test_an_entry_that_points_elsewhere_is_named(wrong: int) -> None:
    data = a_file([1, 9, 17, 25, 33])
    position = GEOMETRY.entry_position(4) + 16
    set_int(data, position, wrong)
    expected = [] if wrong == 3 else [BrokenLink("entry", 4, position, wrong, 3)]

    assert list(broken_links(reading(data), GEOMETRY)) == expected


def test_a_slot_that_points_elsewhere_is_named() -> None:
    data = a_file([1, 9, 2])
    set_int(data, GEOMETRY.slot_position(1), 1)
    set_int(data, GEOMETRY.slot_position(5), 3)

    assert [str(link) for link in broken_links(reading(data), GEOMETRY)] == [
        "slot 1 points at entry 1, not at 2",
        "slot 5 points at entry 3, not at 0",
    ]


def test_a_count_beyond_the_file_reads_no_further() -> None:
    data = a_file([1, 9, 2])
    set_int(data, 36, (1 << 31) - 1)

    assert len(list(broken_links(reading(data), GEOMETRY))) <= GEOMETRY.index_num + GEOMETRY.hash_slots
