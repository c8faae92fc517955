"""How a broker adds keys to index files and finds them, and the geometry of a file."""

import errno
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.commitlog.layout import TransactionType
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.errors import CorruptData
from rmq_formats.indexfile.build import time_diff_s
from rmq_formats.indexfile.keys import index_keys
from rmq_formats.indexfile.layout import DEFAULT_GEOMETRY, ENTRY, HEADER, Geometry, IndexHeader
from rmq_formats.indexfile.lookup import (
    IndexReader,
    StatedGeometry,
    detect_geometry,
    find_geometries,
    find_stated_geometry,
    fits_geometry,
)
from rmq_formats.layout import Content
from rmq_formats.properties import MAX_LONG, index_key_hash
from rmq_formats.release import NEWEST, Release
from tests.rmq_formats.builders import make_reader, make_record
from tests.rmq_formats.reference import index_file_of

TINY = Geometry(hash_slots=100, index_num=20)


def a_message(sys_flag: int = 0, **properties: str) -> MessageRecord:
    return make_record(topic="T", properties=properties, sys_flag=sys_flag)


@pytest.mark.parametrize(
    ("begin", "time", "expected"),
    [
        (0, 5000, 0),
        (-1, 5000, 0),
        (1000, 999, 0),
        (10_000, 1, 0),
        (1, 1000, 0),
        (1, 1001, 1),
        (1, (1 << 31) * 1000 + 1, (1 << 31) - 1),
        (1, (1 << 63) - 1, (1 << 31) - 1),
        ((1 << 63) - 1, -(1 << 63), 0),  # wraps to 1 ms
        (1000, -(1 << 63), (1 << 31) - 1),  # wraps to a huge positive number
    ],
)
def test_time_differences_are_computed_as_in_java(begin: int, time: int, expected: int) -> None:
    """Differences wrap at 64 bits, are truncated toward zero, and clamped to 0 and 2^31 - 1."""
    assert time_diff_s(begin, time) == expected


def test_only_rollbacks_are_not_indexed() -> None:
    left_out = [kind for kind in TransactionType if not index_keys(a_message(sys_flag=kind, UNIQ_KEY="u"), NEWEST)]

    assert left_out == [TransactionType.ROLLBACK]


def test_index_keys_are_unique_key_words_and_tags_in_this_order() -> None:
    """Duplicates are kept, empty words omitted; since 5.4.0, tags are indexed with another prefix."""
    record = a_message(KEYS=" dup  dup x\ty ", TAGS="a||b", UNIQ_KEY="U")

    assert index_keys(record, Release.from_version("5.3.3")) == ["T#U", "T#dup", "T#dup", "T#x\ty"]
    assert index_keys(record, Release.from_version("5.4.0")) == ["T#U", "T#dup", "T#dup", "T#x\ty", "T#T#a||b"]
    assert index_keys(a_message(), NEWEST) == []


GEOMETRY = Geometry(hash_slots=8, index_num=20)


def a_file(*puts: tuple[str, int, int]) -> bytearray:
    return index_file_of(((index_key_hash(text), offset, time) for text, offset, time in puts), GEOMETRY)


def a_reader(data: bytes | bytearray) -> IndexReader:
    return IndexReader(make_reader(data), GEOMETRY, "index/1")


def offsets_in(reader: IndexReader, begin: int = 0, end: int = MAX_LONG) -> list[int]:
    return [hop.entry.physical_offset for hop in reader.find_entries("T#a", begin, end)]


def set_entry(data: bytearray, number: int, *, time_diff_s: int | None = None, prev_entry: int | None = None) -> None:
    at = GEOMETRY.entry_position(number)
    if time_diff_s is not None:
        data[at + 12 : at + 16] = time_diff_s.to_bytes(4, "big", signed=True)
    if prev_entry is not None:
        data[at + 16 : at + 20] = prev_entry.to_bytes(4, "big", signed=True)


def test_lookups_compare_times_in_seconds() -> None:
    """An entry has seconds since the file's begin, so its time is up to 999 ms earlier than that of the message."""
    reader = a_reader(a_file(("T#a", 1, 10_000), ("T#a", 2, 12_999)))

    assert offsets_in(reader, 0, 12_000) == [2, 1]
    assert offsets_in(reader, 12_000, 20_000) == [2]
    assert offsets_in(reader, 12_001, 20_000) == []


def test_a_lookup_ends_at_the_first_entry_before_its_begin() -> None:
    """Entries are assumed to be ordered by time; after the clock was set back, some are not found."""
    reader = a_reader(a_file(("T#a", 1, 10_000), ("T#a", 2, 30_000), ("T#a", 3, 11_000), ("T#a", 4, 31_000)))

    assert offsets_in(reader, 20_000, 40_000) == [4]
    assert offsets_in(a_reader(a_file(("T#a", 1, 10_000), ("T#a", 2, 10_000))), 10_000, 20_000) == [2, 1]


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, 999, False),
        (0, 1000, True),
        (0, 5000, True),  # begins earlier, and ends at its end
        (0, 9000, True),
        (1000, 1000, True),
        (3000, 4000, True),
        (5000, 9000, True),
        (5001, 9000, False),
    ],
)
def test_a_file_is_searched_if_its_times_overlap(begin: int, end: int, *, expected: bool) -> None:
    """IndexFile#isTimeMatched, both edges included."""
    reader = a_reader(a_file(("T#a", 1, 1000), ("T#a", 2, 5000)))

    assert reader.header.matches_time(begin, end) is expected


@pytest.mark.parametrize(("pointer", "count"), [(-1, 2), (0, 2), (3, 2), ((1 << 31) - 1, 2), (1, 0), (1, 1)])
def test_a_slot_that_does_not_point_to_a_counted_entry_is_not_followed(pointer: int, count: int) -> None:
    """Entry 0 is never used, even if it has bytes; a file whose header does not count its only entry yet is empty."""
    data = a_file(("T#a", 1, 1000))
    slot = index_key_hash("T#a") % GEOMETRY.hash_slots
    slot_at = GEOMETRY.slot_position(slot)
    first = GEOMETRY.entry_position(1)
    data[GEOMETRY.entry_position(0) : first] = data[first : GEOMETRY.entry_position(2)]
    data[slot_at : slot_at + 4] = pointer.to_bytes(4, "big", signed=True)
    data[HEADER.offset("index_count") : HEADER.size] = count.to_bytes(4, "big")

    assert a_reader(data).newest_entry(slot) == pointer
    assert list(a_reader(data).chain(slot)) == []
    assert offsets_in(a_reader(data)) == []


def test_a_file_without_entries_has_no_hits() -> None:
    assert offsets_in(a_reader(a_file())) == offsets_in(a_reader(b"")) == []


@pytest.mark.parametrize(
    ("number", "change"),
    [*((3, {"prev_entry": previous}) for previous in (-1, 5, (1 << 31) - 1, 3)), (2, {"time_diff_s": -1})],
)
def test_a_chain_ends_at_an_invalid_link_or_negative_time(number: int, change: dict[str, int]) -> None:
    data = a_file(("T#a", 1, 1000), ("T#a", 2, 1000), ("T#a", 3, 1000))
    set_entry(data, number, **change)

    assert offsets_in(a_reader(data)) == [3]


@pytest.mark.parametrize("back_to", [1, 2, 3, 7, 18])
def test_a_circular_chain_ends_with_an_error_after_its_hits(back_to: int) -> None:
    """A broker would follow the loop forever."""
    for bottom in range(2, 20):
        data = a_file(*(("T#a", number, 1000) for number in range(1, 20)))
        set_entry(data, bottom, prev_entry=max(bottom, min(bottom + back_to, 19)))
        reader = a_reader(data)
        found: list[int] = []
        with pytest.raises(CorruptData, match=r"index/1: .* loops back") if bottom < 19 else nullcontext():
            found.extend(hop.entry.physical_offset for hop in reader.find_entries("T#a", 0, MAX_LONG))

        assert list(dict.fromkeys(found)) == list(range(19, bottom - 1, -1))
        assert len(found) <= 3 * GEOMETRY.index_num


def test_a_header_with_an_absurd_begin_is_read_as_java_reads_it() -> None:
    """The sum of begin and difference wraps at 64 bits."""
    data = a_file(("T#a", 1, 1000), ("T#a", 2, 9000))
    HEADER.struct.pack_into(data, 0, (1 << 63) - 1, 9000, 1, 2, 1, 3)

    assert offsets_in(a_reader(data), -(1 << 63), 0) == [2]


def numbered_file(entries: int, geometry: Geometry = GEOMETRY) -> bytearray:
    return index_file_of((((number + 1) * 7919 % 1009, number, 1000) for number in range(entries)), geometry)


index_bytes = Content.from_bytes


def test_length_and_count_of_a_full_file_determine_its_geometry() -> None:
    assert detect_geometry(TINY.file_size, IndexHeader(index_count=20)) == TINY
    assert detect_geometry(TINY.file_size + 1, IndexHeader(index_count=20)) is None
    for count in (1, -5, 10_000):
        assert detect_geometry(TINY.file_size, IndexHeader(index_count=count)) is None


@pytest.mark.parametrize("entries", [1, 7, 19])
@pytest.mark.parametrize("wrong", [Geometry(13, 19), Geometry(3, 21), Geometry(68, 8), Geometry(9, 20)])
def test_entries_fit_only_one_geometry(entries: int, wrong: Geometry) -> None:
    assert fits_geometry(index_bytes(numbered_file(entries)), GEOMETRY)
    assert not fits_geometry(index_bytes(numbered_file(entries)), wrong)


def test_a_file_without_entries_fits_any_geometry() -> None:
    assert fits_geometry(index_bytes(numbered_file(0)), TINY)
    assert find_stated_geometry([index_bytes(numbered_file(0))]) is None
    assert find_geometries(index_bytes(numbered_file(0))) == []


@pytest.mark.parametrize("lost", ["first", "newest", "every third"])
def test_the_geometry_of_a_damaged_file_is_found(lost: str) -> None:
    geometry = Geometry(1000, 200)
    data = numbered_file(199, geometry)
    numbers = {"first": range(1, 20), "newest": range(180, 200), "every third": range(1, 200, 3)}[lost]
    for number in numbers:
        at = geometry.entry_position(number)
        data[at : at + 20] = b"\xff" * 20 if lost == "every third" else bytes(20)

    assert find_stated_geometry([index_bytes(data)]) == StatedGeometry(geometry, 1)


def test_the_geometry_of_most_full_files_is_confirmed_by_their_entries() -> None:
    """Entries do not confirm a damaged count, and the count of a file that is not full is misleading."""
    full = numbered_file(19)
    other = numbered_file(19, TINY)
    damaged = numbered_file(19)
    damaged[36:40] = (21).to_bytes(4)
    files = [index_bytes(damaged), index_bytes(damaged), index_bytes(other), index_bytes(full), index_bytes(full)]

    assert find_stated_geometry(files) == StatedGeometry(GEOMETRY, 2)
    assert find_stated_geometry([index_bytes(numbered_file(7))]) is None


def test_files_of_default_size_have_the_default_geometry() -> None:
    size = DEFAULT_GEOMETRY.file_size

    assert find_stated_geometry([Content(size, make_reader(b""))] * 3) == StatedGeometry(DEFAULT_GEOMETRY, 3)
    assert find_stated_geometry([Content(size, make_reader(b"\xff" * 40))]) == StatedGeometry(DEFAULT_GEOMETRY, 1)


def test_entries_show_a_different_geometry_of_the_same_file_size() -> None:
    """With twice the slots and a million entries fewer, the length is the same to the byte."""
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

    assert find_stated_geometry([Content(geometry.file_size, read)]) == StatedGeometry(geometry, 1)


@pytest.mark.parametrize(("slots", "entries"), [(8, None), (None, 20)])
def test_one_given_number_determines_the_other(slots: int | None, entries: int | None) -> None:
    assert find_stated_geometry([index_bytes(numbered_file(7))], slots, entries) == StatedGeometry(GEOMETRY, 1)
    assert find_stated_geometry([index_bytes(numbered_file(7))], 9, None) is None
    assert find_stated_geometry([index_bytes(numbered_file(7))], None, 1 << 20) is None


def test_unreadable_files_are_ignored() -> None:
    def read(position: int, length: int) -> bytes:
        raise OSError(errno.EIO, f"{length} bytes at {position}")

    size = GEOMETRY.file_size
    header_only = Content(size, lambda at, length: read(at, length) if at else numbered_file(19)[:length])

    assert find_stated_geometry([Content(size, read), header_only]) is None
    assert find_stated_geometry([Content(size, read), index_bytes(numbered_file(19))]) == StatedGeometry(GEOMETRY, 1)


@given(st.integers(1, 18), st.integers(5, 60), st.integers(20, 40))
def test_the_geometry_of_a_partial_file_is_found_by_trying(entries: int, slots: int, index_num: int) -> None:
    geometry = Geometry(slots, index_num)
    data = numbered_file(entries, geometry)

    assert geometry in find_geometries(index_bytes(data))
    assert find_geometries(index_bytes(data + b"\0")) == []
