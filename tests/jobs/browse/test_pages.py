"""Pages of stores and lakes of a few messages: their numbers, charts, times, and the search box."""

import json
import re
import time
from collections import Counter
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest

from jobs.requests.query import QueryTarget
from jobs.store.selection import Selection
from tests.support.lakes import ingest_store
from tests.support.pages import render_page
from tests.support.query_stores import GEOMETRY, RELEASE, Sent, stored, write_store

FORMS = {"release": str(RELEASE), "hash_slots": GEOMETRY.hash_slots, "index_num": GEOMETRY.index_num}
BOTH = pytest.mark.parametrize("kind", ["store", "lake"])


def _places(directory: Path, sent: list[Sent]) -> dict[str, QueryTarget]:
    """Write a store and its lake."""
    store = write_store(directory / "store", stored(sent))
    ingest_store(store, directory / "lake", "broker-a", **FORMS)
    return {
        "store": QueryTarget(store=str(store), release=RELEASE, geometry=GEOMETRY),
        "lake": QueryTarget(lake=str(directory / "lake"), release=RELEASE),
    }


def _text(target: QueryTarget, path: str) -> str:
    reply = render_page(target, path)

    assert reply.status == 200, reply.text
    return unescape(reply.text)


@BOTH
def test_a_key_that_is_a_number_leads_to_its_message_and_not_to_the_offset(kind: str, tmp_path: Path) -> None:
    """Key 4096 led without a word to another message, which begins at offset 4096."""
    sent = [Sent("Orders", (str(number),)) for number in range(0, 8192, 64)]
    place = _places(tmp_path, sent)[kind]
    records = {record.physical_offset: key for record, key in zip(stored(sent), range(0, 8192, 64), strict=True)}
    offset = next(offset for offset, key in records.items() if offset and offset != key and offset % 64 == 0)
    owner = next(position for position, key in records.items() if key == offset)
    reply = render_page(place, f"/find?id={offset}")
    chosen = render_page(place, f"/find?id=@{offset}")

    assert reply.status == 200
    assert {f"/message?at={owner}", f"/message?at={offset}"} <= set(re.findall(r'href="([^"]+)"', reply.text))
    assert f"/message?at={offset}" == chosen.headers["location"]


@BOTH
def test_a_number_that_is_no_key_leads_to_the_offset(kind: str, tmp_path: Path) -> None:
    place = _places(tmp_path, [Sent(keys=("k",)), Sent(keys=("k",))])[kind]
    second = stored([Sent(keys=("k",)), Sent(keys=("k",))])[1].physical_offset

    assert f"/message?at={second}" == render_page(place, f"/find?id={second}").headers["location"]


@BOTH
def test_a_search_for_a_key_of_a_topic_keeps_the_topic(kind: str, tmp_path: Path) -> None:
    place = _places(tmp_path, [Sent(("Orders", "Bills")[number % 2], ("k",)) for number in range(6)])[kind]

    found = render_page(place, f"/find?{urlencode({'id': 'k', 'topic': 'Bills'})}")

    assert f"/messages?{urlencode({'key': 'k', 'topic': 'Bills'})}" == found.headers["location"]


@BOTH
@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"tag": "nothing"}, 0),
        ({"tag": "t1"}, 20),
        ({"key": "k1"}, 12),
        ({"words": "body7"}, 1),
        ({"topic": "Orders", "tag": "t1"}, 10),
        ({"topic": "Orders"}, 30),
    ],
)
def test_a_chart_counts_the_messages_of_the_list(
    kind: str, filters: dict[str, str], expected: int, tmp_path: Path
) -> None:
    """A list without messages stood below "60 messages; click a bar to see its messages"."""
    sent = [
        Sent(
            ("Orders", "Bills")[number % 2],
            (f"k{number % 5}",),
            tags=f"t{number % 3}",
            body=f"body{number:02}".replace("0", "").encode() if number < 10 else b"x",
        )
        for number in range(60)
    ]
    page = _text(_places(tmp_path, sent)[kind], f"/messages?{urlencode(filters)}")
    counts = [int(count) for count in re.findall(r"([\d,]+) messages?; click a bar", page)]

    assert ([expected] if expected else []) == counts
    assert expected == len(re.findall(r"<tr><td", page))


def test_a_page_shows_all_times_in_one_time_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The titles of bars were in UTC, and the axis below them in local time."""
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        places = _places(tmp_path, [Sent(), Sent()])
        front = _text(places["lake"], "/")
        titles = set(re.findall(r"<title>(\d{4}-\d\d-\d\d \d\d):\d\d:\d\d[^:<]*: \d</title>", front))
        spans = set(re.findall(r'class="unit span"><span>(\d{4}-\d\d-\d\d \d\d)', front))
    finally:
        monkeypatch.undo()
        time.tzset()

    assert {"2025-11-20 08"} == spans
    assert spans == titles
    assert not re.search(r"\d\dZ", front)


def test_the_pages_of_one_broker_count_only_its_messages(tmp_path: Path) -> None:
    """`browse --broker broker-a` was headed "70 messages"; it has 30."""
    for name, number in (("broker-a", 30), ("broker-b", 40)):
        sent = [Sent(keys=(name,), unique_key=f"{name}{one}", body=bytes(number)) for one in range(number)]
        ingest_store(write_store(tmp_path / name, stored(sent)), tmp_path / "lake", name, **FORMS)
    place = QueryTarget(lake=str(tmp_path / "lake"), broker="broker-a", release=RELEASE)
    front = _text(place, "/")
    entries = _text(place, "/tables/index_entries?key=broker")

    assert "<h1>30 messages</h1>" in front
    assert "broker-b" not in front
    assert Counter({"broker-a": 30}) == Counter(re.findall(r"<dt>key</dt><dd>(broker-\w)</dd>", entries))


@BOTH
def test_disk_usage_states_the_bytes_of_each_topic(kind: str, tmp_path: Path) -> None:
    sent = [Sent("Large", body=bytes(500)), Sent("Small"), Sent("%RETRY%pay")]
    sizes = {record.topic: f"{record.total_size:,}" for record in stored(sent)}
    page = _text(_places(tmp_path, sent)[kind], "/usage")
    cells = re.sub(r"<[^>]+>", " ", page).split()

    assert "<h1>Disk usage</h1>" in page
    assert set(sizes.values()) <= set(cells)
    assert cells.index("Large") < cells.index("Small")
    assert ("not attributed to a topic" in page) is (kind == "store")


def test_numbers_and_keys_of_a_body_are_shown_as_they_were_sent(tmp_path: Path) -> None:
    """12345678901234567.89 was shown as 1.2345678901234568e+16, 10.00 as 10.0, and of two equal keys only one."""
    body = b'{"sum": 12345678901234567.89, "price": 10.00, "huge": 1e400, "a": 1, "a": 2, "list": [-0, 1E2]}'
    page = _text(_places(tmp_path, [Sent(body=body)])["store"], "/message?at=0&body=json")
    tree = page[page.index('<ul class="tree">') :].partition("</section>")[0]
    shown = re.findall(r"<li><b>(\w+)</b> <span>([^<]*)</span>", tree)

    assert [
        ("sum", "12345678901234567.89"),
        ("price", "10.00"),
        ("huge", "1e400"),
        ("a", "1"),
        ("a", "2"),
        ("0", "-0"),
        ("1", "1E2"),
    ] == shown


def test_the_pages_of_a_table_have_each_row_once(tmp_path: Path) -> None:
    """Of 4,500 entries with few different times, pages had 4,486; which ones were missing varied."""
    sent = [Sent(keys=tuple(f"k{number}-{one}" for one in range(15))) for number in range(300)]
    store = write_store(tmp_path / "store", stored(sent), with_index=False, with_queues=False)
    ingest_store(store, tmp_path / "lake", "b", **FORMS)
    place = QueryTarget(lake=str(tmp_path / "lake"), release=RELEASE)
    path = "/tables/index_entries"
    shown = list[str]()
    while path:
        page = _text(place, path)
        shown += re.findall(r"<dt>key</dt><dd>(k[\d-]+)</dd>", page)
        following = re.findall(r'rel="next" href="([^"]+)"', page)
        path = following[0] if following else ""

    assert {f"k{number}-{one}": 1 for number in range(300) for one in range(15)} == Counter(shown)


def test_json_of_any_depth_and_kind_is_shown(tmp_path: Path) -> None:
    body = json.dumps({"deep": [[[{"x": None, "y": True, "z": "a\nb"}]]], "empty": {}, "none": []}).encode()
    page = _text(_places(tmp_path, [Sent(body=body)])["store"], "/message?at=0&body=json")

    for part in ("<b>x</b> <span>null</span>", "<b>y</b> <span>true</span>", '<b>z</b> <span>"a\\nb"</span>'):
        assert part in page

    assert "<b>empty</b> <span>{}</span>" in page
    assert "<b>none</b> <span>[]</span>" in page


def test_a_message_without_a_body_in_the_lake_is_not_called_damaged(tmp_path: Path) -> None:
    """Its CRC cannot be compared, but every page of a lake of `ingest --no-body` had a damaged body."""
    store = write_store(tmp_path / "store", stored([Sent("Orders", ("k",))]))
    ingest_store(store, tmp_path / "lake", "broker-a", selection=Selection(with_body=False), **FORMS)
    lake = QueryTarget(lake=str(tmp_path / "lake"), release=RELEASE)

    listed, message = _text(lake, "/messages"), _text(lake, "/message?at=0")

    assert "damage" not in f"{listed}{message}"
    assert "no message bodies" in message


def test_one_message_is_a_message_and_an_empty_log_has_no_times(tmp_path: Path) -> None:
    place = _places(tmp_path, [Sent("Orders", ("k",))])["store"]
    empty = QueryTarget(store=str(write_store(tmp_path / "empty", [])), release=RELEASE, geometry=GEOMETRY)

    front, messages, front_of_empty = _text(place, "/"), _text(place, "/messages"), _text(empty, "/")

    assert "<dd>1, 1 message</dd>" in front
    assert "1 message;" in messages
    assert "<dd>1 segment</dd>" in front_of_empty
