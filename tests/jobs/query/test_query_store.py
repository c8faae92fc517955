"""Queries on stores with index and queue files, without them, and a plain look at every message agree."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.query import lookups, store_log
from jobs.query.lookups import TimeWindow
from jobs.query.source import silent
from jobs.query.store_reader import StoreReader
from jobs.query.store_source import StoreSource
from jobs.store.store import list_store
from rmq_formats.commitlog.layout import TransactionType
from rmq_formats.commitlog.record import MessageRecord, encode_record
from rmq_formats.indexfile.file import KeyKind
from rmq_formats.indexfile.layout import ENTRY
from rmq_formats.properties import index_key_hash
from tests.golden import StoreOf
from tests.rmq_formats.builders import STORED
from tests.rmq_formats.stores import stored_records
from tests.rmq_formats.strategies import mutations
from tests.support.commands import overwrite
from tests.support.query_stores import GEOMETRY, Sent, offsets, opened, stored, write_store

# "Aa" and "BB" have one hash, and so have all texts made of them: every lookup meets other keys.
COLLIDING = ("AaAa", "AaBB", "BBAa", "BBBB")
TOPICS = ("Orders", "Bills")

KEYS = st.sampled_from(COLLIDING)
MESSAGES = st.lists(
    st.builds(
        Sent,
        topic=st.sampled_from(TOPICS),
        keys=st.lists(KEYS, max_size=3).map(tuple),
        unique_key=st.none() | KEYS,
        tags=st.none() | KEYS,
        queue_id=st.integers(0, 1),
        body=st.binary(max_size=300),
        properties=st.just(()),
        sys_flag=st.sampled_from((TransactionType.NONE, TransactionType.COMMIT)),
    ),
    min_size=1,
    max_size=60,
)


@contextmanager
def three_ways(records: list[MessageRecord]) -> Iterator[list[StoreSource]]:
    """Open the same log with all files, without index and queues, and with all files but asked to look into the log."""
    with TemporaryDirectory() as folder:
        whole = write_store(Path(folder) / "whole", records)
        bare = write_store(Path(folder) / "bare", records, with_index=False, with_queues=False)
        with opened(whole) as by_files, opened(bare) as by_need, opened(whole, through_log=True) as by_wish:
            yield [by_files, by_need, by_wish]


def expected_by_key(messages: list[Sent], records: list[MessageRecord], topic: str, key: str) -> list[int]:
    """Return the places of all hits, as the index counts them: each word of KEYS, and an equal unique key once more."""
    return [
        record.physical_offset
        for message, record in zip(messages, records, strict=True)
        if message.topic == topic and key in message.keys
        for _ in range(message.keys.count(key) + (message.unique_key == key))
    ]


@settings(max_examples=40)
@given(messages=MESSAGES, topic=st.sampled_from(TOPICS), key=KEYS, limit=st.none() | st.integers(1, 70))
def test_a_key_finds_the_messages_that_really_have_it(
    messages: list[Sent], topic: str, key: str, limit: int | None
) -> None:
    """Of KEYS, as an id of the producer, or as the whole TAGS, which the index has from 5.4.0 on and the log always."""
    records = stored(messages)
    sent = [pair for pair in zip(messages, records, strict=True) if pair[0].topic == topic]
    under_key = expected_by_key(messages, records, topic, key)
    under_id = [
        record.physical_offset
        for message, record in sent
        if message.unique_key == key
        for _ in range(1 + message.keys.count(key))
    ]
    tagged = [record.physical_offset for message, record in sent if message.tags == key]
    with three_ways(records) as sources:
        for source in sources:
            answer = lookups.by_key(source, topic, key, limit=limit)
            by_id = lookups.by_unique_key(source, topic, key, show_all=True, limit=None)
            first = lookups.by_unique_key(source, topic, key, limit=None)
            by_tags = lookups.by_key(source, topic, key, kind=KeyKind.TAG, limit=None)

            assert under_key[-limit if limit else 0 :] == offsets(answer)
            assert bool(answer.reason) is not bool(under_key)
            assert (under_id, under_id[:1]) == (offsets(by_id), offsets(first))
            assert tagged == offsets(by_tags)


@settings(max_examples=40)
@given(
    messages=MESSAGES,
    topic=st.sampled_from(TOPICS),
    queue_id=st.integers(0, 2),
    number=st.integers(-1, 40),
    which=st.integers(0),
)
def test_a_place_in_a_queue_or_in_the_log_leads_to_its_message_and_to_no_other(
    messages: list[Sent], topic: str, queue_id: int, number: int, which: int
) -> None:
    """The id printed for a message leads back to it; one byte further nothing begins."""
    records = stored(messages)
    queue = [record for record in records if (record.topic, record.queue_id) == (topic, queue_id)]
    expected = [queue[number].physical_offset] if 0 <= number < len(queue) else []
    record = records[which % len(records)]
    with three_ways(records) as sources:
        for source in sources:
            answer = lookups.by_offset(source, topic, queue_id, number)
            assert expected == offsets(answer)
            assert not expected or answer.offsets == (0, len(queue))
            message = source.by_offset(record.physical_offset)
            assert message is not None
            assert [record.physical_offset] == offsets(lookups.by_offset_id(source, message.offset_id))
            assert source.by_offset(record.physical_offset + 1) is None


@pytest.mark.parametrize(("begin", "end"), [(0, 1000), (1000, 2000), (3000, 9000)])
def test_a_window_holds_whole_seconds(tmp_path: Path, begin: int, end: int) -> None:
    """An index entry knows its message's second only: the window's begin takes up to 999 ms more."""
    messages = [Sent(keys=("k",)) for _ in range(60)]
    records = stored(messages)
    with opened(write_store(tmp_path / "store", records, geometry=GEOMETRY)) as source:
        answer = lookups.by_key(source, "Orders", "k", window=TimeWindow(STORED + begin, STORED + end), limit=None)
    times = [message.record.store_timestamp - STORED for message in answer.messages]

    assert all(begin <= time <= end + 999 for time in times)
    assert {time for time in range(begin + 1000, end, 100) if time < len(messages) * 100} <= set(times)


@settings(max_examples=60)
@given(data=st.data())
def test_damaged_index_files_never_hang_and_never_invent_a_message(data: st.DataObject) -> None:
    messages = [Sent(keys=(COLLIDING[n % 4],), unique_key=COLLIDING[n % 3]) for n in range(30)]
    records = stored(messages)
    expected = expected_by_key(messages, records, "Orders", COLLIDING[0])
    with TemporaryDirectory() as folder:
        store = write_store(Path(folder) / "store", records)
        for file in sorted((store / "index").iterdir()):
            file.write_bytes(data.draw(mutations(file.read_bytes())))
        with opened(store) as source:
            answer = lookups.by_key(source, "Orders", COLLIDING[0], limit=1000)

        assert set(offsets(answer)) <= set(expected)


@pytest.mark.parametrize("name", ["b498-dledger-upgraded", "b551-base", "b420-crash-later"])
def test_both_ways_to_search_a_log_find_the_same_records(
    name: str, golden: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StoreReader(list_store(str(golden(name)))) as reader:
        everything = [stored.record for stored in stored_records(golden(name))]
        seen: list[tuple[int, int]] = []
        for compiled_from in (0, 1 << 40):
            monkeypatch.setattr(store_log, "COMPILED_FROM", compiled_from)
            seen.clear()

            found = list(store_log.search(reader, store_log.holding(""), lambda *place: seen.append(place)))
            chosen = [record for record in everything if b"k1" in encode_record(record)]

            assert everything == found
            assert chosen == list(store_log.search(reader, store_log.holding("k1"), silent))
            assert seen == sorted(seen)


def test_a_chain_that_runs_in_a_circle_ends_and_is_told(tmp_path: Path) -> None:
    messages = [Sent(keys=(COLLIDING[0],)) for _ in range(6)]
    records = stored(messages)
    store = write_store(tmp_path / "store", records)
    (file,) = (store / "index").iterdir()
    slot = GEOMETRY.slot_of(index_key_hash(f"Orders#{COLLIDING[0]}"))
    newest = file.read_bytes()[GEOMETRY.slot_position(slot) :][:4]
    overwrite(file, GEOMETRY.entry_position(1) + ENTRY.offset("prev_entry"), newest)
    with opened(store) as source:
        answer = lookups.by_key(source, "Orders", COLLIDING[0], limit=None)

        assert {record.physical_offset for record in records} == set(offsets(answer))
        assert any("comes back" in note for note in source.notes)
