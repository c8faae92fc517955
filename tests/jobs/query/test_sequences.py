"""
Sequences of questions: the answer to each is the answer of a new process, whatever was asked before.

A walk draws a store (with lost or damaged files, or as a lake) and questions. Seeds that once failed are kept.
"""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from random import Random
from urllib.parse import parse_qsl, quote, urlencode

import pytest

from jobs.browse.pages import Pages
from jobs.browse.requests import PageRequest
from jobs.library import Answer, Source, open_source
from jobs.query import lookups
from jobs.query import story as stories
from jobs.requests.query import QueryTarget
from jobs.store.selection import Selection
from rmq_formats.errors import FormatError
from tests.golden import StoreOf
from tests.support.commands import copy_store
from tests.support.lakes import ingest_store
from tests.support.query_stores import Sent, offsets, stored, write_store

STEPS = 12
GOLDEN = ("b551-base", "b551-rockscq", "b498-dledger-upgraded", "b533-base")
KINDS = ("written", *GOLDEN, "lake", "lake of a part")
_PARTS = frozenset({"commitlog", "consumequeue", "index", "config", "rocksdbstore"})
TOPICS = ("Orders", "Payments", "Audit", "T1")


def _write_store(root: Path, random: Random) -> Path:
    """Write a store of several segments, queue files and index files."""
    sent = [
        Sent(
            random.choice(TOPICS[:3]),
            tuple(random.choices(("k1", "k2", "4096", "a b"), k=random.randrange(3))),
            f"id{number}",
            random.choice((None, "t1", "t2")),
            random.randrange(2),
        )
        for number in range(60)
    ]
    return write_store(root, stored(sent))


def _damage(store: Path, random: Random) -> None:
    """Delete, cut or overwrite some files, or delete a directory with files of a queue."""
    for _ in range(random.randrange(1, 4)):
        files = sorted(path for path in store.rglob("*") if path.is_file() and path.stat().st_size)
        path = random.choice([one for one in files if one.relative_to(store).parts[0] in _PARTS])
        data = path.read_bytes()
        at = random.randrange(len(data))
        fault = random.choice(("lose", "lose all", "cut", "zero", "flip"))
        if fault.startswith("lose") and path.parent.name != "commitlog":
            others = sorted(other for other in path.parent.iterdir() if other.is_file())
            for lost in others if fault == "lose all" else [path]:
                lost.unlink()
        elif fault == "cut":
            path.write_bytes(data[:at])
        else:
            part = data[at : at + (1 if fault == "flip" else 4096)]
            wrong = bytes(part[0] ^ 1 if fault == "flip" else 0 for _ in part)
            path.write_bytes(data[:at] + wrong + data[at + len(wrong) :])


def _draw_place(kind: str, random: Random, golden: StoreOf, directory: Path) -> QueryTarget:
    store = _write_store(directory / "store", random) if kind not in GOLDEN else copy_store(golden(kind), directory)
    if kind.startswith("lake"):
        if random.random() < 0.5:
            _damage(store, random)
        selection = Selection((random.choice(TOPICS[:3]),)) if kind == "lake of a part" else Selection()
        ingest_store(store, directory / "lake", "b0", selection=selection)
        return QueryTarget(lake=str(directory / "lake"))
    _damage(store, random)
    return QueryTarget(store=str(store), scan_log=random.random() < 0.2)


def _draw_url(random: Random, seen: list[str]) -> str:
    """Return a link of an earlier page, or a form's address."""
    if seen and random.random() < 0.5:
        return random.choice(seen)
    fields = {
        "topic": random.choice(TOPICS),
        "key": random.choice(("k1", "k2", "id7", "nothing")),
        "tag": random.choice(("t1", "nothing")),
        "words": random.choice(("hello", "nothing")),
    }
    some = {name: value for name, value in fields.items() if random.random() < 0.4}
    forms = (
        f"/messages?{urlencode(some)}",
        f"/messages?{urlencode({'topic': fields['topic']})}",
        f"/messages.ndjson?{urlencode(some)}",
        f"/find?id={quote(random.choice(('k1', 'id7', '4096', '0', 'Orders/0/1', 'nothing')))}",
        *("/", "/topics", "/topics?system=1", "/groups", "/unfinished", "/tables/index_entries"),
    )
    return random.choice(forms)


@pytest.fixture(autouse=True)
def _without_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search to the end on a slow machine: where a search stops after some seconds, two answers may differ."""
    monkeypatch.setattr("jobs.browse.pages._SECONDS", 600)
    monkeypatch.setattr("jobs.browse.matches.SECONDS_OF_HISTOGRAM", 600)
    monkeypatch.setattr("jobs.browse.store_lists.SECONDS_OF_HISTOGRAM", 600)
    monkeypatch.setattr("jobs.browse.store_lists._SECONDS_OF_HALVES", 600)


def _request(url: str) -> PageRequest:
    path, _, query = url.partition("?")
    return PageRequest(path, dict(parse_qsl(query)), "en")


@pytest.mark.sample(len(KINDS), always=[f"{kind}-0" for kind in KINDS])
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_the_same_after_other_pages(kind: str, seed: int, golden: StoreOf, tmp_path: Path) -> None:
    random = Random(f"pages {kind} {seed}")
    place = _draw_place(kind, random, golden, tmp_path)
    pages = Pages(place)
    seen = list[str]()
    for step in range(STEPS):
        url = _draw_url(random, seen)
        expected = Pages(place).answer(0, _request(url))
        reply = pages.answer(0, _request(url))

        assert expected == reply, (step, url)
        hrefs = re.findall(r'href="(/[^"]*)"', reply.content.decode("utf-8", "replace"))
        seen += [reply.location] if reply.location else [unescape(href) for href in hrefs[:200]]


def test_the_page_of_a_complete_topic_says_nothing_about_a_topic_viewed_before(tmp_path: Path) -> None:
    """The remarks of one request stayed in the worker: a complete topic showed "gap" after another one was viewed."""
    store = write_store(tmp_path / "store", stored([Sent(("T1", "T2")[number % 2]) for number in range(60)]))
    ingest_store(store, tmp_path / "lake", "b0", selection=Selection(("T1",)))
    pages = Pages(QueryTarget(lake=str(tmp_path / "lake")))
    urls = ("/messages?topic=T1", "/messages?topic=T2", "/messages?topic=T1")
    first, other, again = (pages.answer(0, _request(url)).content.decode() for url in urls)

    assert ["gap" in one for one in (first, other, again)] == [False, True, False]
    assert first == again


def _draw_questions(random: Random) -> Iterator[tuple[str, tuple[object, ...]]]:
    for _ in range(STEPS):
        topic = random.choice(TOPICS)
        key = random.choice(("k1", "id7", "nothing"))
        yield random.choice(
            (
                ("by_key", (topic, key)),
                ("by_unique_key", (topic, "id7")),
                ("by_any_id", (random.choice(("id7", "id8", "nothing")), None)),
                ("by_offset", (topic, random.randrange(3), random.randrange(40))),
                ("find_copies_by_id", (key, None)),
                ("find_copies_by_key", (topic, key)),
            )
        )


def _ask(source: Source, name: str, arguments: tuple[object, ...]) -> tuple[object, ...]:
    ask = getattr(stories if name.startswith("find") else lookups, name)
    try:
        answer: Answer = ask(source, *arguments)
    except FormatError as error:
        return (str(error),)
    return offsets(answer), answer.reason, answer.notes, answer.warnings


@pytest.mark.sample(len(KINDS), always=[f"{kind}-0" for kind in KINDS])
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", KINDS)
def test_a_function_returns_the_same_after_other_calls(kind: str, seed: int, golden: StoreOf, tmp_path: Path) -> None:
    random = Random(f"functions {kind} {seed}")
    place = _draw_place(kind, random, golden, tmp_path)
    options = {"store": place.store, "lake": place.lake, "scan_log": place.scan_log}
    with open_source(**options) as source:  # type: ignore[arg-type] # the fields of the place
        for name, arguments in _draw_questions(random):
            with open_source(**options) as fresh:  # type: ignore[arg-type]
                expected = _ask(fresh, name, arguments)

            assert expected == _ask(source, name, arguments), (name, arguments)
