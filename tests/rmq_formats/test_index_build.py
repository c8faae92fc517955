"""The compiled build against the scalar model: same keys, same files."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rmq_formats.commitlog.layout import MAGIC_V1, MAGIC_V2
from rmq_formats.commitlog.record import Host, MessageRecord, new_record
from rmq_formats.flags import TransactionType
from rmq_formats.hashing import index_key_hash
from rmq_formats.indexfile.build import KINDS, PACKED_KEY, FileBuilder, RuleTable, pack_keys
from rmq_formats.indexfile.columns import STORED_ENTRY, entry_batch, texts_of
from rmq_formats.indexfile.file import IndexFile
from rmq_formats.indexfile.keys import typed_index_keys
from rmq_formats.indexfile.layout import Geometry, IndexHeader
from rmq_formats.release import NEWEST, OLDEST, Release, Rules, release_at, rules_of
from tests.rmq_formats.builders import a_record, into, placed
from tests.rmq_formats.reference import IndexWriter, group_of

GEOMETRY = Geometry(hash_slots=13, index_num=12)
BASE = 1 << 40

# Texts that hurt: separators, duplicates, malformed UTF-8, surrogates, words of one byte and of four.
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
releases = st.sampled_from([Release.of(name) for name in ("4.2.0", "4.7.1", "4.9.8", "5.5.1")])


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
    blocks = [block.keys.copy() for block in pack_keys(group_of(records, BASE), RuleTable.of(rules), from_offset)]
    return np.concatenate([np.empty(0, PACKED_KEY), *blocks], dtype=PACKED_KEY, casting="equiv")


class Written(NamedTuple):
    """A log and who wrote it."""

    records: list[MessageRecord]
    rules: Rules


@st.composite
def written_logs(draw: st.DrawFn) -> Written:
    records = draw(logs())
    switch = draw(st.integers(0, len(records)))
    if not 0 < switch < len(records):
        return Written(records, rules_of((0, draw(releases))))
    return Written(records, rules_of((0, draw(releases)), (records[switch].physical_offset, draw(releases))))


@given(written_logs())
def test_packed_keys_are_those_of_the_scalar_model(log: Written) -> None:
    records, rules = log
    expected = [
        (index_key_hash(key.text), record.physical_offset, record.store_timestamp)
        for record in records
        for key in typed_index_keys(record, release_at(rules, record.physical_offset))
    ]

    assert [tuple(key) for key in packed(records, rules).tolist()] == expected


@given(logs(), releases)
def test_places_name_the_text_of_each_key(records: list[MessageRecord], release: Release) -> None:
    rules = rules_of((0, release))
    group = group_of(records, BASE)
    data = bytes(group.buffer)
    found = [
        (data[topic:topic_end].decode("latin-1"), data[key:key_end].decode("latin-1"), KINDS[kind])
        for block in pack_keys(group, RuleTable.of(rules), with_places=True)
        for topic, topic_end, key, key_end, kind in block.places.tolist()
    ]
    expected = [(key.topic, key.key, key.kind) for record in records for key in typed_index_keys(record, release)]

    assert [kind for _, _, kind in found] == [kind for _, _, kind in expected]
    assert [(topic, key) for topic, key, _ in found if (topic + key).isascii()] == [
        (topic, key) for topic, key, _ in expected if (topic + key).isascii()
    ]


def built(
    keys: NDArray[np.void], rules: Rules, cut: int, previous: IndexHeader | None, geometry: Geometry = GEOMETRY
) -> tuple[bytes, IndexHeader]:
    data = bytearray(geometry.file_size)

    builder = FileBuilder(geometry, RuleTable.of(rules), into(data), previous)
    for at in range(0, len(keys), cut):
        builder.add(keys[at : at + cut].copy())
    builder.finish()
    return bytes(data), builder.header


@given(written_logs(), st.integers(1, 12), times)
def test_built_files_are_those_of_the_scalar_model(log: Written, cut: int, end: int) -> None:
    records, rules = log
    previous: IndexHeader | None = IndexHeader(0, end, 0, BASE - 1, 0, 12)
    writer = IndexWriter(GEOMETRY, rules, None, previous)
    writer.dispatch_all(records)
    keys = packed(records, rules)
    for file in writer.files:
        part, keys = keys[: GEOMETRY.capacity], keys[GEOMETRY.capacity :]
        data, previous = built(part, rules, cut, previous)

        assert data == file.encode(1)

    assert not len(keys)


@pytest.mark.parametrize("cut", [511, 512, 513, 2_000])
def test_entries_whose_slots_are_loaded_together_are_chained_one_by_one(cut: int) -> None:
    """Slots that several of them share, and a release that counts slots otherwise from one of them on."""
    geometry, random = Geometry(hash_slots=97, index_num=2_001), np.random.default_rng(4711)
    rules = rules_of((0, Release.of("4.2.0")), (77_000, NEWEST))
    keys = np.empty(2_000, PACKED_KEY)
    keys["key_hash"] = random.integers(0, 1 << 31, keys.size)
    keys["physical_offset"] = 100 * np.arange(keys.size)
    keys["store_timestamp"] = 1_700_000_000_000 + random.integers(-9_000, 99_000, keys.size)
    scalar = IndexFile.created(geometry, None)
    for key_hash, offset, time in keys.tolist():
        scalar.put(key_hash, offset, time, release_at(rules, offset).hash_slot_count)

    assert built(keys, rules, cut, None, geometry)[0] == scalar.encode()


def test_the_difference_wraps_as_in_java() -> None:
    """A store time far below zero gives the largest difference, not the smallest."""
    times_in_order = ((1 << 63) - 1, -(1 << 63), -2, 1)
    records = placed((a_record(topic="T", store_timestamp=time) for time in times_in_order), BASE)
    rules = rules_of((0, NEWEST))
    scalar = IndexFile.created(GEOMETRY, IndexHeader(0, 5, 0, 0, 0, 12))
    for key_hash, offset, time in packed(records, rules).tolist():
        scalar.put(key_hash, offset, time, NEWEST.hash_slot_count)

    assert built(packed(records, rules), rules, 3, IndexHeader(0, 5, 0, 0, 0, 12))[0] == scalar.encode()


def test_keys_before_an_offset_are_left_out() -> None:
    records = [
        new_record(topic=b"T", magic_code=MAGIC_V1, properties=b"KEYS\x01k\x02", physical_offset=BASE + 99 * i)
        for i in range(5)
    ]

    assert packed(records, rules_of((0, OLDEST)), BASE + 99 * 3)["physical_offset"].tolist() == [
        BASE + 99 * 3,
        BASE + 99 * 4,
    ]


def test_a_message_of_more_keys_than_fit_a_block_is_packed_whole() -> None:
    record = a_record(topic="T", properties=b"KEYS\x01" + b" ".join([b"k"] * 16_000))
    records = placed([record] * 3, BASE)
    assert len(packed(records, rules_of((0, NEWEST)))) == 48_000


def test_more_keys_than_a_file_has_room_for_are_refused() -> None:
    with pytest.raises(ValueError, match="13 keys for 11 entries"):
        built(np.zeros(13, PACKED_KEY), rules_of((0, NEWEST)), 13, None)


def test_the_same_functions_run_uncompiled() -> None:
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        pytest.skip("this is that run")
    command = [*(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"), "-k", "scalar_model or adopted"]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([*command, __file__], env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


@given(logs(), st.integers(0, 12), releases)
def test_entries_that_are_adopted_and_keys_that_follow_make_the_same_file(
    records: list[MessageRecord], adopted: int, release: Release
) -> None:
    rules = rules_of((0, release))
    keys = packed(records, rules)[: GEOMETRY.capacity]
    whole, header = built(keys.copy(), rules, 12, None)
    adopted = min(adopted, len(keys))
    start, end = GEOMETRY.entry_position(1), GEOMETRY.entry_position(1 + adopted)
    begins = header._replace(end_timestamp=int(keys["store_timestamp"][adopted - 1]) if adopted else 0)
    data = bytearray(GEOMETRY.file_size)

    builder = FileBuilder(GEOMETRY, RuleTable.of(rules), into(data))
    builder.adopt(np.frombuffer(bytearray(whole[start:end]), np.uint8), begins)
    builder.add(keys[adopted:].copy())
    builder.finish()

    assert bytes(data) == whole


def test_entries_may_be_adopted_in_parts_and_each_follows_the_rule_of_its_release() -> None:
    """The second part leaves the file's begin alone; slots are counted as the release at the entry's offset counts."""
    rules = rules_of((0, Release.of("4.7.0")), (BASE + 4, Release.of("4.7.1")))
    scalar = IndexFile.created(GEOMETRY)
    for number in range(8):
        offset = BASE + number
        scalar.put(13 * number, offset, 5000 + 1000 * number, release_at(rules, offset).hash_slot_count)
    whole, header = scalar.encode(), scalar.header
    data = bytearray(GEOMETRY.file_size)

    builder = FileBuilder(GEOMETRY, RuleTable.of(rules), into(data))
    for first, stop in ((1, 3), (3, 9)):
        entries = bytearray(whole[GEOMETRY.entry_position(first) : GEOMETRY.entry_position(stop)])
        begin = header if first == 1 else header._replace(begin_timestamp=1, begin_physical_offset=1)
        builder.adopt(np.frombuffer(entries, np.uint8), begin)
    builder.finish()

    assert bytes(data) == whole
    assert header.hash_slot_count == 4


@given(written_logs(), st.integers(0, 12), times)
def test_a_builder_that_goes_on_with_slots_makes_the_same_entries(log: Written, cut: int, end: int) -> None:
    records, rules = log
    previous = IndexHeader(0, end, 0, BASE - 1, 0, 12)
    whole, parts = (packed(records, rules)[: GEOMETRY.capacity].copy() for _ in range(2))
    one, first, second = (FileBuilder(GEOMETRY, RuleTable.of(rules), None, previous) for _ in range(3))
    one.add(whole)
    first.add(parts[:cut])
    second.resume(first.slots, first.finish())
    second.add(parts[cut:])

    assert (whole.tobytes(), one.finish()) == (parts.tobytes(), second.finish())


def test_more_entries_than_a_file_has_room_for_are_not_adopted() -> None:
    builder = FileBuilder(GEOMETRY, RuleTable.of(rules_of((0, NEWEST))), lambda *_: None)
    with pytest.raises(ValueError, match="12 entries, room for 11"):
        builder.adopt(np.zeros(12 * 20, np.uint8), IndexHeader())


def test_a_negative_hash_in_a_damaged_entry_is_chained_as_zero() -> None:
    written: dict[int, bytes] = {}
    rules = RuleTable.of(rules_of((0, NEWEST)))
    builder = FileBuilder(GEOMETRY, rules, lambda position, block: written.update({position: bytes(block)}))
    builder.adopt(np.full(20, 255, np.uint8), IndexHeader())

    assert written[GEOMETRY.entry_position(1)][:4] == bytes(4)


def test_rows_of_entries_name_slot_and_key() -> None:
    record = new_record(topic=b"T", magic_code=MAGIC_V1, properties=b"KEYS\x01a\x02TAGS\x01t\x02", store_timestamp=7)
    (block,) = pack_keys(group_of([record], 0), RuleTable.of(rules_of((0, NEWEST))), with_places=True)
    entries = np.zeros(2, STORED_ENTRY)
    entries["key_hash"] = block.keys["key_hash"]
    times = block.keys["store_timestamp"].astype(np.int64)
    rows = entry_batch(3, 5, GEOMETRY, entries, times, texts_of(block.places, group_of([record], 0).buffer)).to_pylist()

    assert [(row["index_file"], row["entry"], row["topic"], row["key"], row["kind"]) for row in rows] == [
        (3, 5, "T", "a", "key"),
        (3, 6, "T", "t", "tag"),
    ]
    assert [row["slot"] for row in rows] == [index_key_hash(text) % 13 for text in ("T#a", "T#T#t")]
    assert {row["key"] for row in entry_batch(3, 5, GEOMETRY, entries).to_pylist()} == {None}
