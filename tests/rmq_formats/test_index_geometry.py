"""How many slots and entries index files have, as they tell it themselves."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.indexfile.geometry import (
    StatedGeometry,
    detect_geometry,
    find_geometries,
    fits_geometry,
    stated_geometry,
)
from rmq_formats.indexfile.layout import DEFAULT_GEOMETRY, ENTRY, HEADER, Geometry, IndexHeader
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.layout import Buffer, Content
from tests.golden import GOLDEN, StoreOf
from tests.rmq_formats.builders import reading
from tests.rmq_formats.reference import index_file_of

SMALL = Geometry(hash_slots=8, index_num=20)
TINY = Geometry(hash_slots=100, index_num=20)


def a_file(entries: int, geometry: Geometry = SMALL) -> bytearray:
    return index_file_of((((number + 1) * 7919 % 1009, number, 1000) for number in range(entries)), geometry)


def index_bytes(data: Buffer, size: int | None = None) -> Content:
    return Content(len(data) if size is None else size, reading(data))


def reader(data: Buffer, geometry: Geometry) -> IndexReader:
    return IndexReader(index_bytes(data).read, geometry)


def test_a_full_file_tells_its_geometry_by_its_length_and_count() -> None:
    assert detect_geometry(TINY.file_size, IndexHeader(index_count=20)) == TINY
    assert detect_geometry(TINY.file_size + 1, IndexHeader(index_count=20)) is None
    for count in (1, -5, 10_000):
        assert detect_geometry(TINY.file_size, IndexHeader(index_count=count)) is None


@pytest.mark.parametrize("entries", [1, 7, 19])
@pytest.mark.parametrize("wrong", [Geometry(13, 19), Geometry(3, 21), Geometry(68, 8), Geometry(9, 20)])
def test_entries_hang_in_their_own_slots_under_one_geometry_alone(entries: int, wrong: Geometry) -> None:
    assert fits_geometry(reader(a_file(entries), SMALL))
    assert not fits_geometry(reader(a_file(entries), wrong))


def test_a_file_without_entries_contradicts_nothing() -> None:
    assert fits_geometry(reader(a_file(0), TINY))
    assert stated_geometry([index_bytes(a_file(0))]) is None
    assert find_geometries(index_bytes(a_file(0))) == []


@pytest.mark.parametrize("lost", ["first", "newest", "every third"])
def test_a_damaged_file_has_its_geometry_too(lost: str) -> None:
    geometry = Geometry(1000, 200)
    data = a_file(199, geometry)
    numbers = {"first": range(1, 20), "newest": range(180, 200), "every third": range(1, 200, 3)}[lost]
    for number in numbers:
        at = geometry.entry_position(number)
        data[at : at + 20] = b"\xff" * 20 if lost == "every third" else bytes(20)

    assert stated_geometry([index_bytes(data)]) == StatedGeometry(geometry, 1)


def test_most_full_files_decide_and_the_entries_confirm() -> None:
    """A count that was damaged supposes what no entry confirms; a file that is not full supposes nothing true."""
    full, other, damaged = a_file(19), a_file(19, TINY), a_file(19)
    damaged[36:40] = (21).to_bytes(4)
    files = [index_bytes(damaged), index_bytes(damaged), index_bytes(other), index_bytes(full), index_bytes(full)]

    assert stated_geometry(files) == StatedGeometry(SMALL, 2)
    assert stated_geometry([index_bytes(a_file(7))]) is None


def test_files_of_the_default_size_are_those_of_the_default() -> None:
    size = DEFAULT_GEOMETRY.file_size

    assert stated_geometry([index_bytes(b"", size)] * 3) == StatedGeometry(DEFAULT_GEOMETRY, 3)
    assert stated_geometry([index_bytes(b"\xff" * 40, size)]) == StatedGeometry(DEFAULT_GEOMETRY, 1)


def test_other_numbers_that_make_the_default_size_are_told_by_the_entries() -> None:
    """Twice the slots and a million entries less: the length is the same to the byte."""
    geometry = Geometry(10_000_000, 19_000_000)
    assert geometry.file_size == DEFAULT_GEOMETRY.file_size

    def read(position: int, length: int) -> bytes:
        """Return a part of a full file in which entry n has the hash n."""
        if position == 0:
            return HEADER.pack(1, 1, 1, 1, 10_000_000, 19_000_000)[:length]
        if position < geometry.entries_position:
            slot = (position - HEADER.size) // 4
            return (slot + 10_000_000 if slot < 9_000_000 else slot).to_bytes(4)
        number = (position - geometry.entries_position) // ENTRY.size
        return ENTRY.pack(number, 1, 0, max(number - 10_000_000, 0))

    assert stated_geometry([Content(geometry.file_size, read)]) == StatedGeometry(geometry, 1)


@pytest.mark.parametrize(("slots", "entries"), [(8, None), (None, 20)])
def test_one_number_that_is_given_tells_the_other(slots: int | None, entries: int | None) -> None:
    assert stated_geometry([index_bytes(a_file(7))], slots, entries) == StatedGeometry(SMALL, 1)
    assert stated_geometry([index_bytes(a_file(7))], 9, None) is None
    assert stated_geometry([index_bytes(a_file(7))], None, 1 << 20) is None


def test_a_file_that_cannot_be_read_says_nothing() -> None:
    def read(position: int, length: int) -> bytes:
        raise OSError(errno.EIO, f"{length} bytes at {position}")

    def read_header(position: int, length: int) -> Buffer:
        return a_file(19)[position : position + length] if position == 0 else read(position, length)

    size = SMALL.file_size
    assert stated_geometry([Content(size, read), Content(size, read_header)]) is None
    assert stated_geometry([Content(size, read), index_bytes(a_file(19))]) == StatedGeometry(SMALL, 1)


@given(st.integers(1, 18), st.integers(5, 60), st.integers(20, 40))
def test_a_file_that_is_not_full_is_told_by_trying(entries: int, slots: int, index_num: int) -> None:
    geometry = Geometry(slots, index_num)
    data = a_file(entries, geometry)

    assert geometry in find_geometries(index_bytes(data))
    assert find_geometries(index_bytes(data + b"\0")) == []


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", GOLDEN)
def test_the_files_of_every_broker_tell_their_geometry(golden: StoreOf, name: str) -> None:
    files = [index_bytes(path.read_bytes()) for path in sorted((golden(name) / "index").iterdir())]
    told = stated_geometry(files)

    assert told is None or told.geometry == TINY
    for file in files:
        found = find_geometries(file)
        assert TINY in found or IndexReader(file.read, TINY).header.entry_count == 0
