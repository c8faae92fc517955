"""The interface of queries: a store and its lake return the same messages as a walk over all records."""

import json
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.browse.lake_lists import LakeLists
from jobs.browse.pages import PageLists
from jobs.browse.rendering import MAX_CHAIN_ENTRIES_SHOWN, PageTable
from jobs.browse.store_lists import StoreLists
from jobs.lake.tables import TABLES
from jobs.query import MAX_TIME, ListConditions, Message
from jobs.query.lake_source import LakeSource
from jobs.query.lake_tables import TABLES_EXCEPT_MESSAGES, LakeTables
from jobs.query.lookups import by_key, parse_position, read_page
from jobs.query.source import Source
from jobs.query.store_source import StoreSource
from jobs.store.queue_files import StoredQueue
from rmq_formats.body import decode_body
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.properties import PropertyParser, parse_properties
from rmq_formats.release import Release
from tests.golden import StoreOf
from tests.support.commands import Run
from tests.support.lakes import ingest_store
from tests.support.query_stores import RELEASE, Sent, open_lake, opened, stored, write_store
from tests.support.stores import read_store_records


@pytest.fixture(scope="module")
def store(golden: StoreOf) -> Path:
    return golden("b551-base")


@pytest.fixture(scope="module")
def sources(store: Path, newer_lake: Path) -> Iterator[tuple[StoreSource, LakeSource]]:
    """Open a broker's store and its lake."""
    with opened(store, RELEASE, None) as of_store:
        yield of_store, open_lake(newer_lake, RELEASE)


@pytest.fixture(scope="module")
def records(store: Path) -> list[MessageRecord]:
    return [record for record, _ in read_store_records(store)]


@pytest.fixture(params=["store", "lake"])
def source(request: pytest.FixtureRequest, sources: tuple[StoreSource, LakeSource]) -> Source:
    return sources[0] if request.param == "store" else sources[1]


@pytest.fixture(scope="module")
def both(sources: tuple[StoreSource, LakeSource]) -> list[PageLists]:
    return [StoreLists(sources[0]), LakeLists(sources[1])]


def _properties(record: MessageRecord) -> dict[str, str]:
    return parse_properties(record.properties_raw, PropertyParser.SCAN)


def _offsets(messages: Sequence[Message | None]) -> list[int]:
    return [message.record.physical_offset for message in messages if message is not None]


def test_every_message_is_found_at_its_offset_only(source: Source, records: list[MessageRecord]) -> None:
    for record in records:
        message = source.by_offset(record.physical_offset)

        assert message is not None
        assert record == message.record
        assert source.by_offset(record.physical_offset + 1) is None
    covered = source.coverage()

    assert records[0].physical_offset == covered.first_offset
    assert records[-1].end_offset == covered.end_offset
    assert records[0].store_timestamp == covered.first_time


TIME = 1795160559580  # of a message
CASES: dict[str, tuple[ListConditions, Callable[[MessageRecord], bool]]] = {
    "all": (ListConditions(), lambda _: True),
    "topic": (ListConditions(topic="T1"), lambda one: one.topic == "T1"),
    "key": (ListConditions(key="k1"), lambda one: "k1" in _properties(one).get("KEYS", "").split(" ")),
    "topic and key": (
        ListConditions(topic="T1", key="k1"),
        lambda one: one.topic == "T1" and "k1" in _properties(one).get("KEYS", "").split(" "),
    ),
    "tag": (ListConditions(tag="TagA"), lambda one: _properties(one).get("TAGS") == "TagA"),
    "topic and tag": (
        ListConditions(topic="T1", tag="TagA"),
        lambda one: one.topic == "T1" and _properties(one).get("TAGS") == "TagA",
    ),
    "words": (ListConditions(body_text="body2"), lambda one: b"body2" in one.body),
    "words of two languages": (ListConditions(body_text="тело-正"), lambda one: "тело-正".encode() in one.body),
    "words, compressed": (
        ListConditions(body_text="\0" * 99),
        lambda one: bytes(99) in decode_body(one.body, one.sys_flag),
    ),
    "since": (ListConditions(begin=TIME), lambda one: one.store_timestamp >= TIME),
    "topic until": (
        ListConditions(topic="T1", end=TIME),
        lambda one: one.topic == "T1" and one.store_timestamp <= TIME,
    ),
    "queue": (ListConditions(topic="T1", queue_id=1), lambda one: (one.topic, one.queue_id) == ("T1", 1)),
    "unique key": (
        ListConditions(key="0A010203075F4E0E2F2A63805CCB0001"),
        lambda one: _properties(one).get("UNIQ_KEY") == "0A010203075F4E0E2F2A63805CCB0001",
    ),
    "quote": (ListConditions(topic="T1' OR '1'='1"), lambda _: False),
}


PAGES = ((7, 60, inf), (7, 60, 900), (7, 0, inf))  # messages, seconds and bytes of a page; each case uses one of them


@pytest.mark.parametrize("case", CASES)
def test_a_list_has_exactly_the_messages_that_match(source: Source, records: list[MessageRecord], case: str) -> None:
    """The next page begins at the end of the previous one, even if a limit ends a page early."""
    conditions, is_wanted = CASES[case]
    expected = [record.physical_offset for record in reversed(records) if is_wanted(record)]

    assert (case == "quote") == (not expected)

    for most, seconds, max_bytes in ((len(records), 60, inf), PAGES[[*CASES].index(case) % len(PAGES)]):
        found: list[int] = []
        before = None
        while True:
            page = read_page(source, conditions, before, most, seconds, max_bytes)

            assert len(page.messages) <= most
            assert sum(message.record.total_size for message in page.messages[:-1]) < max_bytes
            found += _offsets(page.messages)
            before = page.next_before_offset
            if before is None:
                break

        assert expected == found, (most, seconds, max_bytes)

    narrow = conditions._replace(key=None, tag=None, body_text=None)
    everything = [message for _, message in source.read_before(narrow, MAX_TIME, 1000) if message is not None]

    assert sum(map(narrow.matches_except_topic, everything)) == source.count(narrow)


def test_a_page_of_a_topic_in_a_large_log_reads_few_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All units of the topic were once read into memory before the first message was found."""
    monkeypatch.setattr("jobs.query.store_log.MAX_LOG_SEARCHED_BY_DEFAULT", 0)
    records = stored([Sent(queue_id=number % 2) for number in range(1000)])
    expected = [record.physical_offset for record in reversed(records)]
    with (
        opened(write_store(tmp_path / "store", records, with_index=False)) as source,
        patch.object(StoredQueue, "read_unit", autospec=True, side_effect=StoredQueue.read_unit) as read,
    ):
        newest = read_page(source, ListConditions("Orders"), None, 5, 60)

        assert expected[:5] == _offsets(newest.messages)
        assert read.call_count < 200
        assert expected[5:] == _offsets(
            read_page(source, ListConditions("Orders"), newest.next_before_offset, 1000, 60).messages
        )
        narrow = ListConditions("Orders", begin=records[300].store_timestamp, end=records[310].store_timestamp)

        assert expected[-311:-300] == _offsets(read_page(source, narrow, None, 1000, 60).messages)


@pytest.mark.parametrize("position", ["", "x", "-1", "1.2", "1.2.'; --", "9" * 30, "1.2.3.4", "²", "../../x"])
def test_a_text_that_is_not_a_position_is_refused(position: str) -> None:
    with pytest.raises(UnsupportedFormat, match="is not a valid message position"):
        parse_position(position)


def test_a_lake_reads_few_of_the_offsets_under_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_store(tmp_path / "store", stored([Sent(keys=("k",))] * 300))
    ingest_store(store, tmp_path / "lake", release="5.5.1", hash_slots=7, index_num=9)
    read_integers = LakeTables.read_integers
    counts = list[int]()

    def count_rows(self: LakeTables, sql: str) -> list[int]:
        found = read_integers(self, sql)
        counts.append(len(found))
        return found

    monkeypatch.setattr(LakeTables, "read_integers", count_rows)
    answer = by_key(open_lake(tmp_path / "lake"), "Orders", "k", limit=3)

    assert len(answer.messages) == 3
    assert max(counts) < 100


def test_a_histogram_counts_messages_by_store_time(
    both: list[PageLists], records: list[MessageRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.browse.store_lists.SECONDS_OF_HISTOGRAM", 60)
    for topic in (None, "T1"):
        times = [record.store_timestamp for record in records if topic in {None, record.topic}]
        for lists in both:
            found = lists.histogram(ListConditions(topic=topic))

            assert found is not None
            counted = [0] * len(found.counts)
            for time in times:
                counted[(time - found.start) // found.step] += 1

            assert counted == list(found.counts)


def test_topics_and_groups_are_those_of_the_log(both: list[PageLists], records: list[MessageRecord]) -> None:
    expected = {topic: sum(one.topic == topic for one in records) for topic in {one.topic for one in records}}
    groups = [lists.groups().rows for lists in both]

    for lists in both:
        rows = lists.topics()
        at = rows.columns.index("messages")

        assert expected == {row[0]: row[at] for row in rows.rows if row[at]}

    assert groups[0] == groups[1]
    assert groups[0]


def test_index_chains_point_to_their_message(both: list[PageLists]) -> None:
    shown: list[set[tuple[object, ...]]] = []
    for lists in both:
        shown.append(set())
        for message in read_page(lists.source, ListConditions(), None, 20, 60).messages:
            chains = list(lists.index_chains(message))

            assert chains
            at, most = message.record.physical_offset, MAX_CHAIN_ENTRIES_SHOWN

            assert all(len(chain.entries) > most or at in {entry[1] for entry in chain.entries} for chain in chains)
            shown[-1] |= {(at, chain.key, chain.slot, str(chain.entries[:most])) for chain in chains}

    assert shown[0] == shown[1]


@pytest.mark.parametrize("most_sorted", [0, 1_000_000])
def test_a_page_of_a_table_has_its_newest_rows_or_says_that_they_are_not_sorted(
    both: list[PageLists], records: list[MessageRecord], monkeypatch: pytest.MonkeyPatch, most_sorted: int
) -> None:
    """The queues have one row for each record with a unit, so the last rows are those of the last records."""
    monkeypatch.setattr("jobs.browse.lake_lists._MOST_SORTED", most_sorted)
    of_lake = both[1]

    assert isinstance(of_lake, LakeLists)
    table = of_lake.table("consume_queue", {}, 2, 7)
    of_queue = of_lake.table("consume_queue", {"queue_id": "1", "topic": "T1"}, 0, 1000)

    at = table.columns.index("physical_offset")
    newest = [record.physical_offset for record in reversed(records)][2:9]

    assert (most_sorted > 0) is ([row[at] for row in table.rows] == newest)
    assert (most_sorted == 0) is ("too many rows to sort" in table.note)
    of_t1 = [record.physical_offset for record in records if (record.topic, record.queue_id) == ("T1", 1)]

    assert of_t1 == sorted(int(row[at] or 0) for row in of_queue.rows) != []


def test_every_table_of_a_lake_is_listed() -> None:
    assert {table.name for table in TABLES} == {*TABLES_EXCEPT_MESSAGES, "messages", "dead_letters"}


def _unfinished(store: Path, lake: Path, release: str = "5.5.1") -> list[dict[str, PageTable]]:
    ingest_store(store, lake, "b", release=release, hash_slots=100, index_num=20)
    with opened(store, Release.from_version(release), None) as source:
        of_store = dict(StoreLists(source).unfinished_messages())
    return [of_store, dict(LakeLists(open_lake(lake, Release.from_version(release))).unfinished_messages())]


@pytest.mark.parametrize(("name", "expected"), [("b420-base", 1), ("b551-base", 0), ("b551-transrocks/store", 4)])
def test_pending_transactions_are_those_that_the_broker_waits_for(
    golden: StoreOf, tmp_path: Path, name: str, expected: int
) -> None:
    root, _, below = name.partition("/")
    tables = _unfinished(golden(root) / below, tmp_path, "4.2.0" if "b420" in name else "5.5.1")
    named = [table["pending transactions"] for table in tables]
    ids = [{row[table.columns.index("id")] for row in table.rows} if table.rows else set() for table in named]

    assert ids[0] == ids[1]
    assert expected == len(ids[0])


def test_a_delayed_message_is_pending_until_it_is_delivered(store: Path, both: list[PageLists]) -> None:
    """The message with level 1 was delivered, the one with level 16 is not due yet."""
    sent = (store / "EXPECT" / "sent.txt").read_text()
    (waits,) = (line.split() for line in sent.splitlines() if line.startswith("SENT delay16 "))

    table = dict(both[0].unfinished_messages())["pending delayed messages"]

    assert ("due", "topic", "level", "id") == table.columns
    assert [("T2", 16, waits[3].removeprefix("msgId="))] == [row[1:] for row in table.rows]


def test_dead_letters_are_counted_by_group_and_origin(tmp_path: Path) -> None:
    origins = ("A", "A", "B", "A")
    sent = [Sent(f"%DLQ%g{number % 2}", properties=(("RETRY_TOPIC", one),)) for number, one in enumerate(origins)]
    write_store(tmp_path / "store", stored([Sent("T"), *sent]))

    for tables in _unfinished(tmp_path / "store", tmp_path / "lake"):
        assert [
            ("g0", "moved to the dead-letter queue without a retry", "A", 1, "%DLQ%g0"),
            ("g0", "moved to the dead-letter queue without a retry", "B", 1, "%DLQ%g0"),
            ("g1", "moved to the dead-letter queue without a retry", "A", 2, "%DLQ%g1"),
        ] == list(tables["dead letters"].rows)


def test_the_lag_of_a_group_is_the_same_in_mqadmin_a_store_and_a_lake(tmp_path: Path, run: Run) -> None:
    """98, 98 and 46: messages that retention has deleted, and queues without a position, were counted differently."""
    store = write_store(tmp_path / "store", stored([Sent(queue_id=number % 2) for number in range(60)]))
    first, *_ = sorted((store / "commitlog").iterdir())
    first.unlink()
    config = store / "config"
    config.mkdir()
    settings = {"topicName": "Orders", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
    retry = settings | {"topicName": "%RETRY%g", "readQueueNums": 1, "writeQueueNums": 1}
    topics = {"topicConfigTable": {"Orders": settings, "%RETRY%g": retry}}
    (config / "topics.json").write_text(json.dumps(topics))
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": {"Orders@g": {"0": 1}}}))
    ingest_store(store, tmp_path / "lake", "b", release="5.5.1", hash_slots=7, index_num=9)
    options = ("--release", "5.5.1", "--hash-slots", "7", "--index-num", "9", "--json")
    rows = run("query", "mqadmin", "--store", store, *options, "consumerProgress", "-g", "g").lines
    with opened(store) as source:
        of_store = StoreLists(source).groups().rows
    of_lake = LakeLists(open_lake(tmp_path / "lake")).groups().rows

    assert [29, 30, 0] == [row["lag"] for row in rows]  # offsets 1 to 29, 0 to 29, and an empty queue
    assert [[("g", "Orders", 3, 59, 30)]] * 2 == [of_store, of_lake]


def test_blank_units_at_the_beginning_of_a_queue_are_not_counted_as_messages(tmp_path: Path) -> None:
    """A page counted them, with the time of another topic's message, to which their offset 0 points."""
    of_other_topic, *records = stored([Sent("T1"), Sent("T2"), Sent("T2")])
    records = [record._replace(queue_offset=record.queue_offset + 3) for record in records]
    store = write_store(tmp_path / "store", [of_other_topic, *records])
    times = [record.store_timestamp for record in records]

    with opened(store, RELEASE, None) as source:
        lists = StoreLists(source)
        rows = {row[0]: row for row in lists.topics().rows}
        chart = lists.histogram(ListConditions(topic="T2"))
        found = source.read_before(ListConditions(topic="T2"), 1 << 20, 10)
        listed = [message.record.queue_offset for _, message in found if message is not None]

    assert chart is not None
    assert ("T2", 1, 2) == rows["T2"][:3]
    assert times == list(rows["T2"][4:])
    assert 2 == sum(chart.counts)
    assert [4, 3] == listed
