"""Queries of stores and lakes, with and without indexes, agree with a scan of all messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.library import by_any_id, by_key, by_offset, by_unique_key, open_source
from jobs.products import PRODUCT_NAMES
from jobs.query import Message, log_search, lookups
from jobs.query.log_search import WHOLE_LOG, OnLoss
from jobs.query.source import Answer, ReasonKind, do_nothing
from jobs.query.store_log import StoreLog
from jobs.query.store_reader import StoreReader
from jobs.query.store_source import StoreSource
from jobs.store.store import list_store
from rmq_formats.commitlog.layout import TransactionType
from rmq_formats.commitlog.record import MessageRecord, encode_record
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.indexfile.lookup import IndexReader
from tests.golden import StoreOf
from tests.rmq_formats.strategies import mutations
from tests.support.query_stores import (
    GEOMETRY,
    RELEASE,
    Sent,
    offsets,
    open_lake,
    opened,
    stored,
    write_lake,
    write_store,
)
from tests.support.stores import read_store_records

# "Aa" and "BB" have the same hash, and so have all texts made of them: every lookup finds other keys.
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
def open_three_ways(records: list[MessageRecord]) -> Iterator[list[StoreSource]]:
    """Open the same log with index and queues, without them, and with them but with `scan_log`."""
    with TemporaryDirectory() as directory:
        whole = write_store(Path(directory) / "whole", records)
        bare = write_store(Path(directory) / "bare", records, with_index=False, with_queues=False)
        with opened(whole) as by_files, opened(bare) as by_need, opened(whole, scan_log=True) as by_wish:
            yield [by_files, by_need, by_wish]


def expected_by_key(messages: list[Sent], records: list[MessageRecord], topic: str, key: str) -> list[int]:
    """Return the offsets of all messages of a topic with a key."""
    return [
        record.physical_offset
        for message, record in zip(messages, records, strict=True)
        if message.topic == topic and key in message.keys
    ]


@settings(max_examples=40)
@given(messages=MESSAGES, topic=st.sampled_from(TOPICS), key=KEYS, limit=st.none() | st.integers(1, 70))
def test_a_key_finds_exactly_the_messages_that_have_it(
    messages: list[Sent], topic: str, key: str, limit: int | None
) -> None:
    """The key may be a word of KEYS, the producer's id, or the whole TAGS, which the index contains since 5.4.0."""
    records = stored(messages)
    sent = [pair for pair in zip(messages, records, strict=True) if pair[0].topic == topic]
    under_key = expected_by_key(messages, records, topic, key)
    under_id = [record.physical_offset for message, record in sent if message.unique_key == key]
    times = {record.physical_offset: message.keys.count(key) + (message.unique_key == key) for message, record in sent}
    tagged = [record.physical_offset for message, record in sent if message.tags == key]
    with open_three_ways(records) as sources:
        for source in sources:
            answer = lookups.by_key(source, topic, key, limit=limit)
            by_id = lookups.by_unique_key(source, topic, key, show_all=True, limit=None)
            first = lookups.by_unique_key(source, topic, key, limit=None)
            by_tags = lookups.by_key(source, topic, key, kind=KeyKind.TAG, limit=None)

            assert under_key[-limit if limit else 0 :] == offsets(answer)
            assert bool(answer.reason) is not bool(under_key)
            assert under_id == offsets(by_id)
            assert under_id[:1] == offsets(first)
            assert tagged == offsets(by_tags)
            every = lookups.by_key(source, topic, key, limit=None, by_entry=True)

            assert [offset for offset in under_key for _ in range(times[offset])] == offsets(every)


@settings(max_examples=40)
@given(
    messages=MESSAGES,
    topic=st.sampled_from(TOPICS),
    queue_id=st.integers(0, 2),
    number=st.integers(-1, 40),
    target=st.integers(0),
)
def test_an_offset_in_a_queue_or_the_log_finds_exactly_its_message(
    messages: list[Sent], topic: str, queue_id: int, number: int, target: int
) -> None:
    """The id printed for a message finds it; no message begins at the next byte."""
    records = stored(messages)
    queue = [record for record in records if (record.topic, record.queue_id) == (topic, queue_id)]
    expected = [queue[number].physical_offset] if 0 <= number < len(queue) else []
    record = records[target % len(records)]
    with open_three_ways(records) as sources:
        for source in sources:
            answer = lookups.by_offset(source, topic, queue_id, number)

            assert expected == offsets(answer)
            assert not expected or answer.offsets == (0, len(queue))
            message = source.by_offset(record.physical_offset)

            assert message is not None
            assert [record.physical_offset] == offsets(lookups.by_offset_id(source, message.offset_id))
            assert source.by_offset(record.physical_offset + 1) is None


@settings(max_examples=60)
@given(data=st.data())
def test_damaged_index_files_never_hang_and_never_invent_a_message(data: st.DataObject) -> None:
    messages = [Sent(keys=(COLLIDING[n % 4],), unique_key=COLLIDING[n % 3]) for n in range(30)]
    records = stored(messages)
    expected = expected_by_key(messages, records, "Orders", COLLIDING[0])
    with TemporaryDirectory() as directory:
        store = write_store(Path(directory) / "store", records)
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
        everything = [stored.record for stored in read_store_records(golden(name))]
        seen: list[tuple[int, int]] = []
        for compiled_from in (0, 1 << 40):
            monkeypatch.setattr(log_search, "COMPILED_SCAN_MIN_BYTES", compiled_from)
            seen.clear()

            found = list(log_search.search_records(reader, "", lambda *place: seen.append(place)))
            chosen = [record for record in everything if b"k1" in encode_record(record)]

            assert everything == found
            assert chosen == list(log_search.search_records(reader, "k1", do_nothing))
            assert seen == sorted(seen)
            total = seen.pop()[1]
            seen.clear()
            for _ in log_search.search_records(reader, "", lambda *place: seen.append(place)):
                break

            assert (total, total) == seen[-1]  # clears the progress line


@pytest.mark.parametrize("limit", [1, 3])
def test_the_chain_of_a_popular_key_is_read_only_as_far_as_messages_are_printed(limit: int, tmp_path: Path) -> None:
    """Reading the whole chain took 10 s and 11 MiB for 300,000 messages with one key."""
    geometry = Geometry(7, 500)
    records = stored([Sent(keys=("popular",)) for _ in range(400)])
    store = write_store(tmp_path / "store", records, geometry=geometry)
    with (
        opened(store, geometry=geometry) as source,
        patch.object(IndexReader, "entry", autospec=True, side_effect=IndexReader.entry) as entries,
    ):
        answer = lookups.by_key(source, "Orders", "popular", limit=limit)

    assert [record.physical_offset for record in records[-limit:]] == offsets(answer)
    assert entries.call_count < 20


@settings(max_examples=10)
@given(
    messages=MESSAGES,
    topic=st.sampled_from(TOPICS),
    key=KEYS,
    kind=st.sampled_from(KeyKind),
    limit=st.none() | st.integers(1, 10),
    place=st.tuples(st.integers(0, 2), st.integers(-1, 30)),
)
def test_a_lake_and_its_store_return_the_same_answers(  # noqa: PLR0913, PLR0917 - parts of the query
    messages: list[Sent], topic: str, key: str, kind: KeyKind, limit: int | None, place: tuple[int, int]
) -> None:
    """Queue offsets are also in the messages, so a lake needs no units."""
    with TemporaryDirectory() as directory:
        store = write_store(Path(directory) / "store", stored(messages))
        lakes = [
            open_lake(write_lake(store, Path(directory) / str(len(tables)), tables=tables), RELEASE)
            for tables in (PRODUCT_NAMES, PRODUCT_NAMES - {"index"})
        ]
        for ask in (
            partial(lookups.by_key, topic=topic, key=key, kind=kind, limit=limit),
            partial(lookups.by_offset, topic=topic, queue_id=place[0], queue_offset=place[1]),
        ):
            with opened(store) as of_store:
                answers = [ask(source) for source in (of_store, *lakes)]
            facts = [
                (
                    list(map(encode_record, (message.record for message in answer.messages))),
                    answer.offsets,
                    answer.reason and answer.reason.kind,
                )
                for answer in answers
            ]

            assert [facts[0]] * 3 == facts


SENT = [Sent("Orders", ("4711", "it's"), f"ID{number}", body=b"%d" % number) for number in range(3)]


def test_a_store_and_a_lake_are_queried_by_the_same_functions(tmp_path: Path) -> None:
    records = stored(SENT)
    store = write_store(tmp_path / "store", records)
    lake = tmp_path / "lake"
    write_lake(store, lake)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"maxHashSlotNum={GEOMETRY.hash_slots}\nmaxIndexNum={GEOMETRY.index_num}\n")

    with (
        open_source(store=str(store), broker_conf=conf, release=str(RELEASE)) as of_store,
        open_source(lake=str(lake), release=str(RELEASE)) as of_lake,
    ):
        for source in (of_store, of_lake):
            assert bodies(by_key(source, "Orders", "4711")) == [b"0", b"1", b"2"]
            assert bodies(by_key(source, "Orders", "it's")) == [b"0", b"1", b"2"]
            assert bodies(by_key(source, "Orders", "' OR '1'='1")) == []
            assert bodies(by_any_id(source, "ID1", "Orders")) == [b"1"]
            assert bodies(by_offset(source, "Orders", 0, 2)) == [b"2"]
            nothing = by_key(source, "Orders", "none").reason

            assert nothing is not None
            assert nothing.kind is ReasonKind.NOT_ON_DISK
            for wrong in ({"limit": 0}, {"kind": "banana"}):
                with pytest.raises(ValueError, match=r"limit is 0|banana"):
                    by_key(source, "Orders", "4711", **wrong)
            with pytest.raises(ValueError, match="limit is 0"):
                by_unique_key(source, "Orders", "ID1", limit=0)
            (message,) = by_offset(source, "Orders", 0, 2).messages

            assert repr(message).startswith("<Message of Orders, queue 0 offset 2, at ")
    for name in (None, "a"):
        with pytest.raises(ValueError, match="pass exactly one of store and lake"), open_source(store=name, lake=name):
            pass


def bodies(answer: Answer) -> list[bytes | None]:
    return [message.body for message in answer.messages]


@pytest.mark.parametrize("index_files_left", [0, 1])
def test_the_log_is_searched_once_for_all_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index_files_left: int
) -> None:
    """A store without an index may have a thousand topics."""
    monkeypatch.setattr(log_search, "_FEW", 1)
    store = write_store(tmp_path / "store", stored([Sent(f"T{number % 5}", (f"key{number}",)) for number in range(20)]))
    files = sorted((store / "index").iterdir())
    for file in files[: len(files) - index_files_left]:
        file.unlink()
    searched: list[str] = []
    search = StoreLog.search

    def note_search(
        self: StoreLog, text: str, span: range = WHOLE_LOG, on_loss: OnLoss | None = None
    ) -> Iterator[Message]:
        searched.append(text)
        return search(self, text, span, on_loss)

    monkeypatch.setattr(StoreLog, "search", note_search)
    with opened(store) as source:
        assert lookups.by_any_id(source, "key", None).reason is not None
        assert searched.count("key") <= 3  # in both parts without an index, and to explain the answer
        assert [message.keys for message in lookups.by_key(source, "T2", "key7").messages] == [["key7"]]
        assert not lookups.by_key(source, "T1", "key7").messages
