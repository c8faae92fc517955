"""How a broker finds a key in index files."""

import pytest

from rmq_formats.errors import CorruptData
from rmq_formats.hashing import index_key_hash
from rmq_formats.indexfile.keys import key_text, tag_text
from rmq_formats.indexfile.layout import HEADER, Geometry
from rmq_formats.indexfile.lookup import IndexReader, Selection, select
from tests.golden import StoreOf
from tests.rmq_formats.builders import reading
from tests.rmq_formats.reference import index_file_of

GEOMETRY = Geometry(hash_slots=8, index_num=20)
FOR_EVER = (0, (1 << 63) - 1)


def a_file(*puts: tuple[str, int, int], geometry: Geometry = GEOMETRY) -> bytearray:
    return index_file_of(((index_key_hash(text), offset, time) for text, offset, time in puts), geometry)


def a_reader(data: bytes | bytearray, geometry: Geometry = GEOMETRY) -> IndexReader:
    return IndexReader(reading(data), geometry, "index/1")


def set_entry(data: bytearray, number: int, *, time_diff_s: int | None = None, prev_entry: int | None = None) -> None:
    at = GEOMETRY.entry_position(number)
    if time_diff_s is not None:
        data[at + 12 : at + 16] = time_diff_s.to_bytes(4, "big", signed=True)
    if prev_entry is not None:
        data[at + 16 : at + 20] = prev_entry.to_bytes(4, "big", signed=True)


def test_a_key_is_found_newest_first() -> None:
    reader = a_reader(
        a_file(("T#a", 100, 1000), ("T#b", 200, 2000), ("T#a", 300, 3000), (tag_text("T", "red"), 400, 0))
    )

    assert reader.select(key_text("T", "a"), *FOR_EVER).physical_offsets == [300, 100]
    assert reader.select(key_text("T", "none"), *FOR_EVER) == Selection([])
    assert reader.select("T#T#red", *FOR_EVER) == Selection([400])  # tags have a text of their own, from 5.4.0 on


def test_another_key_of_the_same_slot_is_not_a_hit_but_one_of_the_same_hash_is() -> None:
    """The whole hash is compared, never the text: "Aa" and "BB" have one hash."""
    reader = a_reader(a_file(("T#Aa", 100, 1000), ("T#BB", 200, 1000), ("T#Ai", 300, 1000)))

    assert {index_key_hash(text) % GEOMETRY.hash_slots for text in ("T#Aa", "T#Ai")} == {7}
    assert reader.select("T#Aa", *FOR_EVER).physical_offsets == [200, 100]


def test_a_limit_cuts_the_oldest_hits() -> None:
    reader = a_reader(a_file(*(("T#a", offset, 1000) for offset in (1, 2, 3, 4))))

    assert reader.select("T#a", *FOR_EVER, 2).physical_offsets == [4, 3]
    assert reader.select("T#a", *FOR_EVER, 0).physical_offsets == []


def test_times_are_compared_without_their_milliseconds() -> None:
    """An entry knows seconds since the file's begin: a message counts as up to 999 ms older than it is."""
    reader = a_reader(a_file(("T#a", 1, 10_000), ("T#a", 2, 12_999)))

    assert reader.select("T#a", 0, 12_000).physical_offsets == [2, 1]
    assert reader.select("T#a", 12_000, 20_000).physical_offsets == [2]
    assert reader.select("T#a", 12_001, 20_000).physical_offsets == []


def test_the_walk_ends_at_the_first_entry_before_the_begin() -> None:
    """Entries are in the order of time as far as the broker knows; a clock that went back hides what lies after."""
    reader = a_reader(a_file(("T#a", 1, 10_000), ("T#a", 2, 30_000), ("T#a", 3, 11_000), ("T#a", 4, 31_000)))

    assert reader.select("T#a", 20_000, 40_000).physical_offsets == [4]


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, 999, False),
        (0, 1000, True),
        (0, 5000, True),  # begins before and ends with it
        (0, 9000, True),
        (1000, 1000, True),
        (3000, 4000, True),
        (5000, 9000, True),
        (5001, 9000, False),
    ],
)
def test_a_file_is_asked_when_its_times_touch_the_wanted_ones(begin: int, end: int, *, expected: bool) -> None:
    """IndexFile#isTimeMatched, both edges included."""
    reader = a_reader(a_file(("T#a", 1, 1000), ("T#a", 2, 5000)))

    assert reader.header.matches_time(begin, end) is expected


def test_files_are_asked_from_new_to_old_until_one_begins_before_the_wanted_time() -> None:
    old = a_reader(a_file(("T#a", 1, 1_000)))
    middle = a_reader(a_file(("T#a", 2, 10_000), ("T#a", 3, 19_000)))
    new = a_reader(a_file(("T#a", 4, 20_000), ("T#a", 5, 21_000)))

    assert select([new, middle, old], "T#a", *FOR_EVER).physical_offsets == [5, 4, 3, 2, 1]
    assert select([new, middle, old], "T#a", 1_000, 99_000).physical_offsets == [5, 4, 3, 2, 1]
    assert select([new, middle, old], "T#a", 10_001, 99_000).physical_offsets == [5, 4, 3]
    assert select([new, middle, old], "T#a", *FOR_EVER, 3).physical_offsets == [5, 4, 3]
    assert select([new, middle, old], "T#a", *FOR_EVER, 2).physical_offsets == [5, 4]


def test_a_file_that_begins_after_the_wanted_time_is_passed_over() -> None:
    old = a_reader(a_file(("T#a", 1, 1_000), ("T#a", 2, 5_000)))
    new = a_reader(a_file(("T#a", 3, 20_000), ("T#a", 4, 21_000)))

    assert select([new, old], "T#a", 2_000, 6_000).physical_offsets == [2]


def test_a_file_without_entries_or_with_a_slot_that_points_nowhere_holds_nothing() -> None:
    """A slot beyond the count, or any slot of a file whose count is 1, is not followed."""
    assert a_reader(a_file()).select("T#a", *FOR_EVER) == Selection([])
    assert a_reader(b"").select("T#a", *FOR_EVER) == Selection([])

    data = a_file(("T#a", 1, 1000))
    slot_at = GEOMETRY.slot_position(index_key_hash("T#a") % GEOMETRY.hash_slots)
    for pointer in (-1, 0, 3, (1 << 31) - 1):
        data[slot_at : slot_at + 4] = pointer.to_bytes(4, "big", signed=True)
        assert a_reader(data).select("T#a", *FOR_EVER) == Selection([])


def test_a_slot_that_points_at_entry_0_holds_nothing_even_where_bytes_look_like_an_entry() -> None:
    """Entry 0 is never used: a slot of zeros is an empty one, whatever the place of that entry holds."""
    data = a_file(("T#a", 1, 1000), ("T#a", 2, 1000))
    slot = index_key_hash("T#a") % GEOMETRY.hash_slots
    slot_at, first = GEOMETRY.slot_position(slot), GEOMETRY.entry_position(1)
    data[GEOMETRY.entry_position(0) : first] = data[first : GEOMETRY.entry_position(2)]
    data[slot_at : slot_at + 4] = bytes(4)

    assert list(a_reader(data).chain(slot)) == []


@pytest.mark.parametrize("count", [0, 1])
def test_a_chain_in_a_file_without_entries_is_not_followed(count: int) -> None:
    """A slot and an entry of a put that the header does not count yet: the broker sees an empty file."""
    data = a_file(("T#a", 1, 1000))
    data[HEADER.offset("index_count") : HEADER.size] = count.to_bytes(4, "big")
    slot = index_key_hash("T#a") % GEOMETRY.hash_slots

    assert a_reader(data).newest_entry(slot) == 1
    assert list(a_reader(data).chain(slot)) == []


@pytest.mark.parametrize(
    ("number", "change"),
    [*((3, {"prev_entry": previous}) for previous in (-1, 5, (1 << 31) - 1, 3)), (2, {"time_diff_s": -1})],
)
def test_a_chain_ends_where_an_entry_points_nowhere_or_at_itself_or_has_a_negative_time(
    number: int, change: dict[str, int]
) -> None:
    data = a_file(("T#a", 1, 1000), ("T#a", 2, 1000), ("T#a", 3, 1000))
    set_entry(data, number, **change)

    assert a_reader(data).select("T#a", *FOR_EVER) == Selection([3])


@pytest.mark.parametrize("back_to", [1, 2, 3, 7, 18])
def test_an_endless_chain_ends_with_what_was_found_and_a_word_about_it(back_to: int) -> None:
    """A broker would follow the circle for ever."""
    for bottom in range(2, 20):
        data = a_file(*(("T#a", number, 1000) for number in range(1, 20)))
        set_entry(data, bottom, prev_entry=max(bottom, min(bottom + back_to, 19)))
        reader = a_reader(data)
        selection = reader.select("T#a", *FOR_EVER)

        assert list(dict.fromkeys(selection.physical_offsets)) == list(range(19, bottom - 1, -1))
        if bottom < 19:
            assert "comes back" in selection.damage[0].reason
            assert selection.damage[0].file == "index/1"
            with pytest.raises(CorruptData, match="comes back"):
                list(reader.chain(index_key_hash("T#a") % GEOMETRY.hash_slots))
        assert len(selection.physical_offsets) <= 3 * GEOMETRY.index_num


def test_a_header_with_an_absurd_begin_is_read_as_java_reads_it() -> None:
    """The sum of begin and difference wraps at 64 bits."""
    data = a_file(("T#a", 1, 1000), ("T#a", 2, 9000))
    HEADER.struct.pack_into(data, 0, (1 << 63) - 1, 9000, 1, 2, 1, 3)

    assert a_reader(data).select("T#a", -(1 << 63), 0).physical_offsets == [2]


@pytest.mark.parametrize(
    ("unique_key", "expected"),
    [("7F00000140144E0E2F2A63834C620022", 0x297F), ("7F00000140144E0E2F2A638357C0003B", 0xC5BE)],
)
def test_a_unique_key_is_found_where_the_broker_told_the_producer(
    golden: StoreOf, unique_key: str, expected: int
) -> None:
    """Both ids are in what the producer got back: the offset id ends in the physical offset."""
    files = sorted((golden("b498-base") / "index").iterdir(), reverse=True)
    readers = [a_reader(path.read_bytes(), Geometry(100, 20)) for path in files]

    assert select(readers, key_text("T1", unique_key), *FOR_EVER) == Selection([expected])
