"""Lists of messages: a store and its lake give the same pages, and both what a walk over every record gives."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.lake.tables import TABLES
from jobs.query.listing.model import Deadline, Listing, Rows, Wanted
from jobs.query.listing.of_lake import LISTED, LakeListing
from jobs.query.listing.of_store import StoreListing
from rmq_formats.body import decode_body
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.properties import PropertyParser, parse_properties
from rmq_formats.release import Release
from tests.golden import StoreOf
from tests.support.lakes import ingest_store
from tests.support.query_lakes import open_lake
from tests.support.query_stores import RELEASE, Sent, opened, stored, write_store
from tests.support.stores import records_of, segments_of

Listings = tuple[list[MessageRecord], list[Listing]]


@pytest.fixture(scope="module")
def listings(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listings]:
    store, lake = golden("b551-base"), tmp_path_factory.mktemp("listing") / "lake"
    ingest_store(store, lake, "b", hash_slots=100, index_num=20)
    records = [record for record, _ in records_of(segments_of(store))]
    with opened(store, geometry=None) as source:
        yield records, [StoreListing(source), LakeListing(open_lake(lake, RELEASE))]


def _properties(record: MessageRecord) -> dict[str, str]:
    return parse_properties(record.properties_raw, PropertyParser.SCAN)


TIME = 1795160559700
CASES: dict[str, tuple[Wanted, Callable[[MessageRecord], bool]]] = {
    "all": (Wanted(), lambda _: True),
    "topic": (Wanted(topic="T1"), lambda one: one.topic == "T1"),
    "key": (Wanted(key="k1"), lambda one: "k1" in _properties(one).get("KEYS", "").split(" ")),
    "topic and key": (
        Wanted(topic="T1", key="k1"),
        lambda one: one.topic == "T1" and "k1" in _properties(one).get("KEYS", "").split(" "),
    ),
    "tag": (Wanted(tag="TagA"), lambda one: _properties(one).get("TAGS") == "TagA"),
    "words": (Wanted(words="body2"), lambda one: b"body2" in one.body),
    "words of two languages": (Wanted(words="тело-正"), lambda one: "тело-正".encode() in one.body),
    "words, compressed": (Wanted(words="\0" * 99), lambda one: bytes(99) in decode_body(one.body, one.sys_flag)),
    "since": (Wanted(begin=TIME), lambda one: one.store_timestamp >= TIME),
    "topic until": (Wanted(topic="T1", end=TIME), lambda one: one.topic == "T1" and one.store_timestamp <= TIME),
    "quote": (Wanted(topic="T1' OR '1'='1"), lambda _: False),
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("seconds", [0.0, 60.0])
@pytest.mark.parametrize("case", CASES)
def test_pages_hold_every_message_once(listings: Listings, case: str, seconds: float) -> None:
    """However early a page is cut short, the next one begins where it ended."""
    records, both = listings
    wanted, is_wanted = CASES[case]
    expected = [one.physical_offset for one in reversed(records) if is_wanted(one)]

    for listing in both:
        found, before = [], None
        while True:
            page = listing.page(wanted, before, 7, Deadline(seconds))
            assert len(page.messages) <= 7
            found += [one.message.record.physical_offset for one in page.messages]
            before = page.next
            if before is None:
                break
        assert expected == found
    assert case == "quote" or expected


def test_a_histogram_counts_what_was_stored_when(listings: Listings) -> None:
    records, both = listings
    for topic in (None, "T1"):
        times = [one.store_timestamp for one in records if topic in {None, one.topic}]
        for listing in both:
            found = listing.histogram(Wanted(topic=topic), 60, Deadline(60))
            assert found is not None
            counted = [0] * len(found.counts)
            for time in times:
                counted[(time - found.start) // found.step] += 1
            assert counted == list(found.counts)


def test_topics_and_groups_are_those_of_the_log(listings: Listings) -> None:
    records, both = listings
    expected = {topic: sum(one.topic == topic for one in records) for topic in {one.topic for one in records}}
    groups = [listing.groups().rows for listing in both]

    for listing in both:
        rows = listing.topics()
        at = rows.columns.index("messages")
        assert expected == {row[0]: row[at] for row in rows.rows if row[at]}
    assert groups[0] == groups[1]
    assert groups[0]


def test_a_position_leads_to_its_message(listings: Listings) -> None:
    shown: list[set[tuple[object, ...]]] = []
    for listing in listings[1]:
        shown.append(set())
        for found in listing.page(Wanted(), None, 20, Deadline(60)).messages:
            again = listing.at(found.position)
            assert found.position == listing.position(found.message)
            assert again is not None
            assert found.message.record == again.record
            chains = list(listing.chains(found.message))
            assert chains
            assert all(chain.is_longer or any(link.leads_here for link in chain.links) for chain in chains)
            at = found.message.record.physical_offset
            shown[-1] |= {(at, chain.key, chain.slot, tuple(chain.links)) for chain in chains}
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    "position", ["", "x", "-1", "1.2", "1.2.'; --", "9" * 30, "1.2.3.4", "²", f"{'9' * 30}.1.a", "../../x"]
)
def test_what_is_no_position_is_refused(listings: Listings, position: str) -> None:
    for listing in listings[1]:
        with pytest.raises(UnsupportedFormat, match="is no position"):
            listing.at(position)
        with pytest.raises(UnsupportedFormat, match="is no position"):
            listing.page(Wanted(), position, 5, Deadline(1))


@pytest.mark.parametrize("most_sorted", [0, 1_000_000])
def test_a_page_of_a_table_has_its_newest_rows_or_says_that_they_are_not_sorted(
    listings: Listings, monkeypatch: pytest.MonkeyPatch, most_sorted: int
) -> None:
    """The rows of the queues are one for each record that has a unit: the last ones are those of the last records."""
    monkeypatch.setattr("jobs.query.listing.of_lake._MOST_SORTED", most_sorted)
    records, (_, lake) = listings
    table = lake.table("consume_queue", {}, 2, 7)
    of_queue = lake.table("consume_queue", {"queue_id": "1", "topic": "T1"}, 0, 1000)

    at = table.columns.index("physical_offset")
    newest = [one.physical_offset for one in reversed(records)][2:9]
    assert (most_sorted > 0) is ([row[at] for row in table.rows] == newest)
    assert (most_sorted == 0) is ("too many to be sorted" in table.note)
    of_t1 = [one.physical_offset for one in records if (one.topic, one.queue_id) == ("T1", 1)]
    assert of_t1 == sorted(int(row[at] or 0) for row in of_queue.rows) != []


def test_every_table_of_a_lake_is_listed() -> None:
    assert {table.name for table in TABLES} == {*LISTED, "messages", "dead_letters"}


def _unfinished(store: Path, lake: Path, release: str = "5.5.1") -> list[dict[str, Rows]]:
    ingest_store(store, lake, "b", release=release, hash_slots=100, index_num=20)
    with opened(store, Release.of(release), None) as source:
        of_store = dict(StoreListing(source).unfinished())
    return [of_store, dict(LakeListing(open_lake(lake, Release.of(release))).unfinished())]


@pytest.mark.parametrize(("name", "expected"), [("b420-base", 1), ("b551-base", 0), ("b551-transrocks/store", 4)])
def test_transactions_without_an_end_are_those_that_the_broker_waits_for(
    golden: StoreOf, tmp_path: Path, name: str, expected: int
) -> None:
    tables = [
        tables["transactions without an end"]
        for tables in _unfinished(
            golden(name.partition("/")[0]) / name.partition("/")[2], tmp_path, "4.2.0" if "b420" in name else "5.5.1"
        )
    ]
    ids = [{row[table.columns.index("id")] for row in table.rows} if table.rows else set() for table in tables]

    assert ids[0] == ids[1]
    assert expected == len(ids[0])


def test_dead_letters_are_counted_by_group_and_origin(tmp_path: Path) -> None:
    origins = ("A", "A", "B", "A")
    sent = [Sent(f"%DLQ%g{number % 2}", properties=(("RETRY_TOPIC", one),)) for number, one in enumerate(origins)]
    write_store(tmp_path / "store", stored([Sent("T"), *sent]))

    for tables in _unfinished(tmp_path / "store", tmp_path / "lake"):
        assert [
            ("g0", "given up without a retry", "A", 1, "%DLQ%g0"),
            ("g0", "given up without a retry", "B", 1, "%DLQ%g0"),
            ("g1", "given up without a retry", "A", 2, "%DLQ%g1"),
        ] == list(tables["dead letters"].rows)
