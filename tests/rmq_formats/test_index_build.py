"""The compiled builder compared with the scalar model; broken chains, and comparing two files."""

from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rmq_formats import arrays as chains
from rmq_formats.arrays import find_broken_links
from rmq_formats.commitlog.layout import MAGIC_V1, MAGIC_V2, TransactionType
from rmq_formats.commitlog.record import Host, MessageRecord, new_record
from rmq_formats.indexfile import build
from rmq_formats.indexfile.build import PACKED_KEY, BlockComparison, FileBuilder, IndexFilePart, RuleTable, pack_keys
from rmq_formats.indexfile.columns import key_texts
from rmq_formats.indexfile.keys import typed_index_keys
from rmq_formats.indexfile.layout import Geometry, IndexHeader
from rmq_formats.layout import Buffer
from rmq_formats.properties import index_key_hash
from rmq_formats.release import NEWEST, OLDEST, Release, Rules, make_rules, release_at
from tests.rmq_formats.builders import make_reader, make_record, make_writer, place_records
from tests.rmq_formats.reference import IndexFile, IndexWriter, group_of, index_file_of

GEOMETRY = Geometry(hash_slots=13, index_num=12)
BASE = 1 << 40

# Texts with edge cases: separators, duplicates, malformed UTF-8, surrogates, words of one byte and of four.
fragments = st.sampled_from(
    (
        *(b"KEYS", b"TAGS", b"UNIQ_KEY", b"KEYZ", b"\x01", b"\x02", b" ", b"a", b"bb", b"polygenelubricants"),
        *(b"\xed\xa0\x80", b"\xc3\xa9", b"\xff", b"\xf0\x9f\x98", b"\xf0\x9f\x98\x80"),
        *(b"TAGS\x01t\x02", b"KEYS\x01k1 k2\x02", b"UNIQ_KEY\x01u\x02", b"dup dup"),
    )
)
texts = st.lists(fragments, max_size=9).map(b"".join)
times = st.one_of(
    st.integers(-5, 5), st.integers(1_700_000_000_000, 1_700_000_100_000), st.integers(-(1 << 63), (1 << 63) - 1)
)
hosts = st.sampled_from([Host(bytes(4), 0), Host(bytes(16), 0)])
releases = st.sampled_from([Release.from_version(name) for name in ("4.2.0", "4.7.1", "4.9.8", "5.5.1")])


@st.composite
def logs(draw: st.DrawFn) -> list[MessageRecord]:
    records: list[MessageRecord] = []
    offset = BASE
    for _ in range(draw(st.integers(0, 12))):
        record = new_record(
            topic=draw(texts)[:100],
            magic_code=draw(st.sampled_from([MAGIC_V1, MAGIC_V2])),
            body=draw(st.binary(max_size=5)),
            properties=draw(texts),
            physical_offset=offset,
            sys_flag=draw(st.sampled_from([*TransactionType])),
            born_host=draw(hosts),
            store_host=draw(hosts),
            store_timestamp=draw(times),
        )
        records.append(record)
        offset = record.end_offset
    return records


def packed(records: Sequence[MessageRecord], rules: Rules, from_offset: int = 0) -> NDArray[np.void]:
    blocks = [keys.copy() for keys, _ in pack_keys(group_of(records), RuleTable.from_rules(rules), from_offset)]
    return np.concatenate([np.empty(0, PACKED_KEY), *blocks], dtype=PACKED_KEY, casting="equiv")


WrittenLog = tuple[list[MessageRecord], Rules]  # a log, and the releases that wrote it


@st.composite
def written_logs(draw: st.DrawFn) -> WrittenLog:
    records = draw(logs())
    switch = draw(st.integers(0, len(records)))
    if not 0 < switch < len(records):
        return records, make_rules((0, draw(releases)))
    return records, make_rules((0, draw(releases)), (records[switch].physical_offset, draw(releases)))


@given(written_logs())
def test_packed_keys_equal_those_of_the_scalar_model(log: WrittenLog) -> None:
    records, rules = log
    expected = [
        (index_key_hash(key.text), record.physical_offset, record.store_timestamp)
        for record in records
        for key in typed_index_keys(record, release_at(rules, record.physical_offset))
    ]

    assert [tuple(key) for key in packed(records, rules).tolist()] == expected


ONE_KEY_EACH = [
    new_record(topic=topic, magic_code=MAGIC_V1, properties=b"KEYS\x01k\x02")
    for topic in (b"\xfe", b"\xff", b"a", b"b")
]


@given(logs(), releases, st.sampled_from((0, 128)))
@example(ONE_KEY_EACH, NEWEST, 0)
@example(ONE_KEY_EACH, NEWEST, 128)
def test_texts_of_keys_are_those_of_the_scalar_model(records: list[MessageRecord], release: Release, size: int) -> None:
    """Blocks have room for two topics; malformed topics may be the same text, which is then in there once."""
    table = RuleTable.from_rules(make_rules((0, release)))
    with patch.multiple(build, _TOPIC_SLOTS=4, _USUAL_TEXT=size):
        blocks = [key_texts(texts, len(keys)) for keys, texts in pack_keys(group_of(records), table, with_texts=True)]
    found = [row for texts in blocks for row in texts.to_pylist()]
    distinct = [texts["topic"].dictionary.to_pylist() for texts in blocks]
    keys = [key for record in records for key in typed_index_keys(record, release)]

    assert [(row["topic"], row["key"], row["kind"]) for row in found] == [
        (as_stored(key.topic), as_stored(key.key), key.kind.value) for key in keys
    ]
    assert all(len(texts) == len(set(texts)) for texts in distinct)


def as_stored(text: str) -> str:
    """Return a text without lone surrogates, which Java reads in place of malformed bytes."""
    return text.encode("utf-8", "replace").decode()


def built(
    keys: NDArray[np.void], rules: Rules, cut: int, previous: IndexHeader | None, geometry: Geometry = GEOMETRY
) -> tuple[bytes, IndexHeader]:
    data = bytearray(geometry.file_size)

    builder = FileBuilder(geometry, RuleTable.from_rules(rules), make_writer(data), previous)
    for at in range(0, len(keys), cut):
        builder.add(keys[at : at + cut].copy())
    builder.finish()
    return bytes(data), builder.header


@given(written_logs(), st.integers(1, 12), times)
def test_built_files_equal_those_of_the_scalar_model(log: WrittenLog, cut: int, end: int) -> None:
    records, rules = log
    previous: IndexHeader | None = IndexHeader(0, end, 0, BASE - 1, 0, 12)
    writer = IndexWriter(GEOMETRY, rules, previous)
    writer.dispatch_all(records)
    keys = packed(records, rules)
    for file in writer.files:
        part, keys = keys[: GEOMETRY.capacity], keys[GEOMETRY.capacity :]
        data, previous = built(part, rules, cut, previous)

        assert data == file.encode(1)

    assert not len(keys)


@pytest.mark.parametrize("cut", [511, 512, 513, 2_000])
def test_entries_that_are_added_in_one_batch_are_chained_in_order(cut: int) -> None:
    """Some share slots, and from one entry on, a release uses another rule for counting slots."""
    geometry = Geometry(hash_slots=97, index_num=2_001)
    random = np.random.default_rng(4711)
    rules = make_rules((0, Release.from_version("4.2.0")), (77_000, NEWEST))
    keys = np.empty(2_000, PACKED_KEY)
    keys["key_hash"] = random.integers(0, 1 << 31, keys.size)
    keys["physical_offset"] = 100 * np.arange(keys.size)
    keys["store_timestamp"] = 1_700_000_000_000 + random.integers(-9_000, 99_000, keys.size)
    scalar = IndexFile.created(geometry, None)
    for key_hash, offset, time in keys.tolist():
        scalar.put(key_hash, offset, time, release_at(rules, offset).hash_slot_count)

    assert built(keys, rules, cut, None, geometry)[0] == scalar.encode()


def test_keys_before_the_start_offset_are_skipped() -> None:
    records = place_records([make_record(topic="T")] * 5, BASE)
    offsets = [record.physical_offset for record in records]

    assert packed(records, make_rules((0, OLDEST)), offsets[3])["physical_offset"].tolist() == offsets[3:]


def test_a_message_with_more_keys_than_a_block_is_packed_completely() -> None:
    record = make_record(topic="T", properties=b"KEYS\x01" + b" ".join([b"k"] * 16_000))
    records = place_records([record] * 3, BASE)

    assert len(packed(records, make_rules((0, NEWEST)))) == 48_000


def test_long_keys_fit_into_their_blocks() -> None:
    records = place_records([make_record(topic="T", properties=b"KEYS\x01" + b"k" * 32_000)] * 8, BASE)
    blocks = pack_keys(group_of(records), RuleTable.from_rules(make_rules((0, NEWEST))), with_texts=True)

    assert [key for keys, texts in blocks for key in key_texts(texts, len(keys))["key"].to_pylist()] == [
        "k" * 32_000
    ] * 8


@given(written_logs(), st.tuples(st.integers(0, 12), st.integers(0, 12)))
def test_entries_copied_in_parts_and_further_keys_give_the_same_file(log: WrittenLog, cuts: tuple[int, int]) -> None:
    """A later part keeps the file's begin; the release at an entry's offset decides how slots are counted."""
    records, rules = log
    keys = packed(records, rules)[: GEOMETRY.capacity]
    whole, header = built(keys.copy(), rules, 12, None)
    data = bytearray(GEOMETRY.file_size)

    builder = FileBuilder(GEOMETRY, RuleTable.from_rules(rules), make_writer(data))
    copied = 0
    for stop in sorted(min(cut, len(keys)) for cut in cuts):
        entries = whole[GEOMETRY.entry_position(1 + copied) : GEOMETRY.entry_position(1 + stop)]
        part = header._replace(end_timestamp=int(keys["store_timestamp"][stop - 1]) if stop else 0)
        if copied:
            part = part._replace(begin_timestamp=1, begin_physical_offset=1)
        builder.add_entries(np.frombuffer(bytearray(entries), np.uint8), part)
        copied = stop
    builder.add(keys[copied:].copy())
    builder.finish()

    assert bytes(data) == whole


@given(written_logs(), st.integers(0, 12), times)
def test_a_builder_resumed_from_slots_builds_the_same_entries(log: WrittenLog, cut: int, end: int) -> None:
    records, rules = log
    previous = IndexHeader(0, end, 0, BASE - 1, 0, 12)
    whole, parts = (packed(records, rules)[: GEOMETRY.capacity].copy() for _ in range(2))
    one, first, second = (FileBuilder(GEOMETRY, RuleTable.from_rules(rules), None, previous) for _ in range(3))
    one.add(whole)
    first.add(parts[:cut])
    second.resume_file(first.slots, first.finish())
    second.add(parts[cut:])

    assert whole.tobytes() == parts.tobytes()
    assert one.finish() == second.finish()


def test_too_many_keys_or_entries_for_a_file_are_rejected() -> None:
    with pytest.raises(ValueError, match="13 keys for 11 entries"):
        built(np.zeros(13, PACKED_KEY), make_rules((0, NEWEST)), 13, None)
    builder = FileBuilder(GEOMETRY, RuleTable.from_rules(make_rules((0, NEWEST))), lambda *_: None)
    with pytest.raises(ValueError, match="12 entries, room for 11"):
        builder.add_entries(np.zeros(12 * 20, np.uint8), IndexHeader())


def test_a_negative_hash_in_a_damaged_entry_is_chained_as_zero() -> None:
    written: dict[int, bytes] = {}
    rules = RuleTable.from_rules(make_rules((0, NEWEST)))
    builder = FileBuilder(GEOMETRY, rules, lambda position, block: written.update({position: bytes(block)}))
    builder.add_entries(np.full(20, 255, np.uint8), IndexHeader())

    assert written[GEOMETRY.entry_position(1)][:4] == bytes(4)


@given(st.lists(st.integers(0, 40), max_size=19), st.integers(1, 7))
def test_intact_chains_have_no_broken_links_for_any_block_size(hashes: list[int], block: int) -> None:
    geometry = Geometry(hash_slots=8, index_num=20)
    file = index_file_of(((key_hash, 0, 1000) for key_hash in hashes), geometry)
    with patch.object(chains, "ITEMS_PER_BLOCK", block):
        assert list(find_broken_links(make_reader(file), geometry)) == []


COMPARED = Geometry(hash_slots=8, index_num=12)


def small_file(count: int = 9) -> bytes:
    puts = ((7 * number + 1, 1000 + number, 1_700_000_000_000 + 5000 * number) for number in range(count))
    return bytes(index_file_of(puts, COMPARED))


def compare(actual: Buffer, expected: bytes, entries_a_block: int = 4) -> BlockComparison:
    comparison = BlockComparison(COMPARED, make_reader(actual))
    for number in range(1, 10, entries_a_block):
        start = COMPARED.entry_position(number)
        end = COMPARED.entry_position(min(number + entries_a_block, 10))
        comparison.compare_block(start, expected[start:end])
    comparison.compare_block(40, expected[40 : COMPARED.entries_position])
    comparison.compare_block(0, expected[:40])
    return comparison


def change(position: int, value: int) -> bytearray:
    data = bytearray(small_file())
    data[position] = value
    return data


@pytest.mark.parametrize("size", [1, 4, 9])
def test_differences_are_reported_with_number_and_field(size: int) -> None:
    """All differences of the header, the first one of the slots, and the first one of the entries."""
    slot = COMPARED.slot_position(3) + 3
    entry = COMPARED.entry_position(6) + 15
    data = change(entry, 200)
    data[15], data[39], data[slot], data[entry + 20] = 1, 77, 99, 1
    comparison = compare(data, small_file(), size)

    assert [str(difference) for difference in comparison.differences] == [
        "header end_timestamp: 1700000039937, expected 1700000040000, at position 8",
        "header index_count: 77, expected 10, at position 36",
        f"slot 3 newest_entry: 99, expected 7, at position {slot - 3}",
        f"entry 6 time_diff_s: 200, expected 25, at position {entry - 3}",
    ]
    assert comparison.counts == {IndexFilePart.HEADER: 2, IndexFilePart.SLOT: 1, IndexFilePart.ENTRY: 2}
    pairs = zip(data, small_file(), strict=True)

    assert comparison.differing_bits == sum((found ^ expected).bit_count() for found, expected in pairs)


@given(st.integers(0, COMPARED.entry_position(10) - 1), st.integers(0, 255), st.integers(1, 9))
def test_any_changed_byte_is_reported_once(position: int, value: int, size: int) -> None:
    expected = small_file()
    comparison = compare(change(position, value), expected, size)
    is_entry_0 = COMPARED.entry_position(0) <= position < COMPARED.entry_position(1)
    if value == expected[position] or is_entry_0:
        assert comparison.is_equal
        return
    (difference,) = comparison.differences

    assert difference.position <= position < difference.position + 8
    assert sum(comparison.counts.values()) == 1
