"""How a broker puts keys into index files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.flags import TransactionType
from rmq_formats.indexfile.file import IndexFile, time_diff_s
from rmq_formats.indexfile.keys import index_keys
from rmq_formats.indexfile.layout import ENTRY, HEADER, Geometry, IndexEntry, IndexHeader, decode_entry, decode_header
from rmq_formats.release import NEWEST, OLDEST, HashSlotCount, Release, rules_of
from tests.rmq_formats.builders import a_record
from tests.rmq_formats.reference import IndexWriter

TINY = Geometry(hash_slots=100, index_num=20)


def a_message(offset: int = 0, time: int = 1000, sys_flag: int = 0, **properties: str) -> MessageRecord:
    record = a_record(topic="T", properties=properties, sys_flag=sys_flag)
    return record._replace(physical_offset=offset, store_timestamp=time)


def entries_of(file: IndexFile) -> list[IndexEntry]:
    data = file.encode()
    header = decode_header(data)
    return [decode_entry(data, file.geometry.entry_position(i)) for i in range(1, header.index_count)]


def test_hashes_landing_in_slots_16_29_29_8_16_16_chain_as_in_every_article_about_the_format() -> None:
    file = IndexFile.created(Geometry(hash_slots=32, index_num=20))
    for slot in (16, 29, 29, 8, 16, 16):
        file.put(slot, 0, 1000, HashSlotCount.EMPTY_SLOT)

    assert [entry[3] for entry in entries_of(file)] == [0, 0, 2, 0, 1, 5]
    assert file.header.hash_slot_count == 3


def test_a_file_takes_one_entry_less_than_its_index_num() -> None:
    file = IndexFile.created(TINY)

    assert [file.put(i, i, 1000, HashSlotCount.EMPTY_SLOT) for i in range(20)] == [True] * 19 + [False]
    assert file.header.index_count == 20
    assert file.encode()[TINY.entry_position(0) : TINY.entry_position(1)] == bytes(ENTRY.size)


def test_the_first_entry_of_a_later_file_counts_from_the_end_of_the_file_before() -> None:
    """The seconds are taken before the header's begin moves to the first message."""
    file = IndexFile.created(TINY, IndexHeader(0, 1_000_000, 0, 77, 5, 20))

    assert tuple(file.header) == (1_000_000, 1_000_000, 77, 77, 0, 1)
    file.put(1, 100, 1_005_500, HashSlotCount.EMPTY_SLOT)
    file.put(2, 200, 1_006_500, HashSlotCount.EMPTY_SLOT)

    assert [entry[2] for entry in entries_of(file)] == [5, 1]
    assert tuple(file.header) == (1_005_500, 1_006_500, 100, 200, 2, 3)


def test_an_end_that_is_not_positive_is_not_handed_on() -> None:
    assert tuple(IndexFile.created(TINY, IndexHeader(5, -7, 5, 0, 5, 20)).header) == (0, 0, 0, 0, 0, 1)


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
def test_seconds_are_java_integers(begin: int, time: int, expected: int) -> None:
    """Wrapped at 64 bits, truncated toward zero, clamped to 0 and 2^31 - 1."""
    assert time_diff_s(begin, time) == expected


@pytest.mark.parametrize(("counting", "expected"), [(HashSlotCount.EVERY_PUT, 3), (HashSlotCount.EMPTY_SLOT, 2)])
def test_hash_slot_count_grows_by_the_rule_of_the_release(counting: HashSlotCount, expected: int) -> None:
    """Up to 4.7.0 with every put, later with every slot that was empty."""
    file = IndexFile.created(TINY)
    for key_hash in (5, 105, 6):
        file.put(key_hash, 0, 1000, counting)

    assert file.header.hash_slot_count == expected


def test_a_slot_that_points_beyond_the_count_is_taken_for_empty_but_not_one_that_points_at_it() -> None:
    """The broker is off by one, which only a damaged file shows."""
    data = bytearray(IndexFile.created(TINY).encode())
    HEADER.struct.pack_into(data, 0, 1000, 1000, 0, 0, 0, 4)
    for slot, newest in ((1, 5), (2, 4), (3, -1)):
        data[TINY.slot_position(slot) : TINY.slot_position(slot) + 4] = newest.to_bytes(4, "big", signed=True)
    file = IndexFile.loaded(TINY, bytes(data))
    file.put(2, 9, 1000, HashSlotCount.EMPTY_SLOT)
    file.put(1, 9, 1000, HashSlotCount.EMPTY_SLOT)
    file.put(3, 9, 1000, HashSlotCount.EMPTY_SLOT)

    # entry 4 in slot 2; then slot 1, whose 5 has just become the count; then slot 3
    assert [entry[3] for entry in entries_of(file)][3:] == [4, 5, 0]


def test_the_end_is_the_last_written_time_not_the_largest() -> None:
    """A clock that goes back takes the header with it; entries count 0 seconds."""
    writer = IndexWriter(TINY, rules_of((0, NEWEST)))
    writer.dispatch_all([a_message(0, 9000, UNIQ_KEY="a"), a_message(100, 5000, UNIQ_KEY="b")])
    (file,) = writer.files

    assert (file.header.begin_timestamp, file.header.end_timestamp) == (9000, 5000)
    assert [entry[2] for entry in entries_of(file)] == [0, 0]


def test_only_a_rollback_is_not_indexed() -> None:
    indexed = [bool(index_keys(a_message(sys_flag=kind, UNIQ_KEY="u"), NEWEST)) for kind in TransactionType]

    assert dict(zip(TransactionType, indexed, strict=True)) == {
        TransactionType.NONE: True,
        TransactionType.PREPARED: True,
        TransactionType.COMMIT: True,
        TransactionType.ROLLBACK: False,
    }


def test_keys_are_the_unique_key_then_every_word_then_the_tags() -> None:
    """Duplicates stay, empty words go; tags from 5.4.0 on, under a text of their own."""
    record = a_message(KEYS=" dup  dup x ", TAGS="a||b", UNIQ_KEY="U")

    assert index_keys(record, Release.of("5.3.3")) == ["T#U", "T#dup", "T#dup", "T#x"]
    assert index_keys(record, Release.of("5.4.0")) == ["T#U", "T#dup", "T#dup", "T#x", "T#T#a||b"]
    assert index_keys(a_message(), NEWEST) == []


def test_a_short_file_is_loaded_as_if_zeros_followed() -> None:
    """The broker maps it at its own size; a count of 0 becomes 1."""
    file = IndexFile.loaded(TINY, bytes(HEADER.size))

    assert file.header.index_count == 1
    assert len(file.encode()) == TINY.file_size


def test_a_file_never_put_to_shows_the_count_of_the_release_after_a_clean_stop() -> None:
    """Only a flush writes it: 1 from 5.0.0 on, which flushes at shutdown; 0 before."""
    file = IndexFile.created(TINY)

    assert decode_header(file.encode()).index_count == 0
    assert [decode_header(file.encode(release.empty_index_count)).index_count for release in (OLDEST, NEWEST)] == [0, 1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 500), st.booleans()), max_size=60))
def test_every_entry_points_at_the_newest_older_entry_of_its_slot(puts: list[tuple[int, int, bool]]) -> None:
    file = IndexFile.created(Geometry(7, 100))
    for key_hash, offset, _ in puts:
        file.put(key_hash * 5, offset, 1000, HashSlotCount.EMPTY_SLOT)
    slots = [key_hash * 5 % 7 for key_hash, _, _ in puts]
    expected = [next((j + 1 for j in range(i - 1, -1, -1) if slots[j] == slots[i]), 0) for i in range(len(slots))]

    assert [entry[3] for entry in entries_of(file)] == expected
    assert file.header.hash_slot_count == len(set(slots))
