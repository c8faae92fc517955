"""Pages of a lake of several brokers: merged, with a column for the broker and a choice of one."""

import json
import re
from collections import Counter
from html import unescape
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from jobs.browse.pages import Pages
from jobs.browse.requests import PageRequest
from jobs.requests.query import QueryTarget
from rmq_formats.commitlog.record import MessageRecord
from tests.support.lakes import ingest_store
from tests.support.merged_brokers import BROKERS, COUNT, FORMS, Truth, list_truth, make_lake
from tests.support.pages import render_page
from tests.support.query_stores import Sent, stored, write_store


@pytest.fixture(scope="module")
def truth() -> Truth:
    return list_truth()


@pytest.fixture(scope="module")
def target(truth: Truth, tmp_path_factory: pytest.TempPathFactory) -> QueryTarget:
    return QueryTarget(lake=str(make_lake(truth, tmp_path_factory.mktemp("brokers"))))


def _text(target: QueryTarget, path: str) -> str:
    reply = render_page(target, path)

    assert reply.status == 200, reply.text
    return unescape(reply.text)


def _read_grid(text: str, *names: str) -> list[tuple[str, ...]]:
    """Return the cells of a table's columns."""
    rows = re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)
    cells = [dict(re.findall(r'<td[^>]*data-name="([^"]*)"[^>]*>(.*?)</td>', row, re.DOTALL)) for row in rows]
    return [tuple(re.sub("<[^>]*>", "", one[name]) for name in names) for one in cells if names[0] in one]


def _list_newest(truth: Truth, *brokers: str) -> list[tuple[str, MessageRecord]]:
    """Return the messages newest first; of equal times, those of the last broker come first."""
    own = [(broker, record) for broker, record in truth if not brokers or broker in brokers]
    return sorted(own, key=lambda one: (one[1].store_timestamp, one[0], one[1].physical_offset), reverse=True)


def test_messages_of_all_brokers_are_listed_page_by_page(target: QueryTarget, truth: Truth) -> None:
    """`browse` ended with "choose one" on a lake of several brokers."""
    shown: list[tuple[str, ...]] = []
    path = "/messages"
    while path:
        text = _text(target, path)
        shown += _read_grid(text, "broker", "topic", "id")
        following = re.search(r'rel="next" href="([^"]+)"', text)
        path = following[1] if following else ""
    expected = [(broker, record.topic, _unique_key(record)) for broker, record in _list_newest(truth)]

    assert expected == shown


def _unique_key(record: MessageRecord) -> str:
    return record.properties_raw.partition(b"UNIQ_KEY\1")[2].partition(b"\2")[0].decode()


def test_a_download_has_the_messages_of_all_brokers(
    target: QueryTarget, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.browse.pages._DOWNLOADED", 7)
    pages = Pages(target)
    before = None
    lines = []
    while True:
        reply = pages.answer(0, PageRequest("/messages.ndjson", {}, "en", before))
        lines += [json.loads(line) for line in reply.content.splitlines()]
        before = reply.next_position
        if before is None:
            break
    expected = [(broker, record.physical_offset) for broker, record in _list_newest(truth)]

    assert expected == [(line["broker"], line["physical_offset"]) for line in lines]


@pytest.mark.parametrize("broker", BROKERS)
def test_a_broker_narrows_the_pages(broker: str, target: QueryTarget, truth: Truth) -> None:
    listed = _text(target, f"/messages?broker={broker}")
    topics = _text(target, f"/topics?broker={broker}")
    count = Counter(record.topic for owner, record in truth if owner == broker)

    assert [(_unique_key(record),) for _, record in _list_newest(truth, broker)] == _read_grid(listed, "id")
    assert sorted((topic, str(number)) for topic, number in count.items()) == _read_grid(topics, "topic", "messages")
    assert f"--broker {broker}" in listed
    assert f"<option selected>{broker}</option>" in listed


def test_topics_are_counted_for_each_broker(target: QueryTarget, truth: Truth) -> None:
    count = Counter((record.topic, broker) for broker, record in truth)
    expected = sorted((*named, str(number)) for named, number in count.items())

    assert expected == _read_grid(_text(target, "/topics"), "topic", "broker", "messages")


@pytest.mark.parametrize("filters", [{}, {"topic": "Orders"}, {"words": "broker-b"}, {"key": "k3"}])
def test_a_chart_counts_the_messages_of_all_brokers(filters: dict[str, str], target: QueryTarget, truth: Truth) -> None:
    wanted = [
        record
        for _, record in truth
        if record.topic == filters.get("topic", record.topic)
        and filters.get("words", "").encode() in record.body
        and (f" {filters.get('key', 'all')}" in f" {_keys(record)}" or "key" not in filters)
    ]
    text = _text(target, f"/messages?{urlencode(filters)}")

    assert f"{len(wanted)} messages; click a bar" in text


def _keys(record: MessageRecord) -> str:
    return record.properties_raw.partition(b"KEYS\1")[2].partition(b"\2")[0].decode()


def test_the_front_shows_all_stores(target: QueryTarget) -> None:
    text = _text(target, "/")

    assert f"{len(BROKERS) * COUNT} messages" in text
    assert all(broker in text for broker in BROKERS)


def test_each_message_of_a_list_leads_to_its_own_page(target: QueryTarget, truth: Truth) -> None:
    text = _text(target, "/messages")
    links = re.findall(r'<a href="(/message\?at=[^"]+)">', text)
    expected = [(broker, record) for broker, record in _list_newest(truth)]

    assert len(links) == 100
    for link, (broker, record) in list(zip(links, expected, strict=False))[::13]:
        page = _text(target, link)

        assert f"<dt>broker</dt><dd>{broker}</dd>" in page
        assert f"from offset {record.physical_offset:,}." in page
        assert f"--broker {broker}" in page


def test_an_id_is_found_on_its_broker(target: QueryTarget, truth: Truth) -> None:
    record = next(one for broker, one in truth if _unique_key(one) == "broker-b-7")
    found = render_page(target, "/find?id=broker-b-7")
    both = render_page(target, "/find?id=both")
    queue = render_page(target, "/find?id=Orders/1/3")
    nothing = render_page(target, "/find?id=nothing")

    assert found.headers["location"].startswith("/message?at=")
    assert found.headers["location"].endswith(f":{record.physical_offset}")
    assert "/messages?key=both" == both.headers["location"]
    assert list(BROKERS) == re.findall(r'<a href="/message[^"]*">(broker-.)</a>', queue.text)
    assert 404 == nothing.status


def test_the_page_of_a_message_shows_its_history_on_all_brokers(target: QueryTarget, truth: Truth) -> None:
    """A client sends to another broker after a failure; the page showed the copy on one broker only."""
    sent = {broker: record for broker, record in truth if _unique_key(record) == "both"}
    first, second = sorted(sent, key=lambda broker: sent[broker].store_timestamp)
    listed = _text(target, "/messages?key=both")
    at = dict(re.findall(r'<a href="/message\?at=([^"]+:(\d+))">', listed))
    own = next(reference for reference, offset in at.items() if offset == str(sent[second].physical_offset))
    other = next(reference for reference, offset in at.items() if offset == str(sent[first].physical_offset))
    page = _text(target, f"/message?at={own}")
    history = page.partition('class="story"')[2].partition("</ol>")[0]

    assert [f"{first}: sent by", f"{second}: sent again by"] == re.findall(r"broker-.: sent (?:again )?by", history)
    assert [quote(other)] == re.findall(r'<a href="/message\?at=([^"]+)">', history)
    assert "--broker" not in page.partition("query story both")[2].partition("<")[0]
    assert re.search(f"{second}.由 ", render_page(target, f"/message?at={own}", "zh").text)


def test_stores_that_follow_one_another_need_a_choice(tmp_path: Path) -> None:
    for name, count, broker in (("first", 8, "broker-a"), ("second", 9, "broker-a"), ("other", 4, "broker-b")):
        sent = [Sent(keys=("all",), unique_key=f"{name}{one}", body=bytes(count)) for one in range(count)]
        later = 3_600_000 if name == "second" else 0
        records = [one._replace(store_timestamp=one.store_timestamp + later) for one in stored(sent)]
        ingest_store(write_store(tmp_path / name, records), tmp_path / "lake", broker, **FORMS)
    target = QueryTarget(lake=str(tmp_path / "lake"))
    refused = _text(target, "/messages")
    ids = re.findall(r"<option>([0-9a-f-]{36})</option>", refused)
    chosen = [len(_read_grid(_text(target, f"/messages?broker={one}"), "id")) for one in ids]

    assert "several stores of one broker match" in refused
    assert [8, 9] == sorted(chosen)
    assert 4 == len(_read_grid(_text(target, "/messages?broker=broker-b"), "id"))
