"""The pages in a real browser: no requests to other servers, and usable controls."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from jobs.store.selection import Selection
from tests.golden import unpack
from tests.support.browser import Browser, browser, needs_chromium
from tests.support.lakes import ingest_store
from tests.support.pages import Pages, serve_pages
from tests.support.published import axe
from tests.support.query_stores import Sent, stored, write_store
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, needs_chromium]
VIEWS = ("/", "/messages", "/messages?topic=T1", "/topics", "/topics?system=1", "/groups", "/usage", "/unfinished")
# Tables that are wider than their container, so that they need scrolling.
_CUT = """[...document.querySelectorAll('.wide')].filter(one => one.scrollWidth > one.clientWidth)
    .map(one => one.textContent.slice(0, 60))"""
# Links and controls, except in sentences and charts, that are too small for a finger (WCAG 2.2, 2.5.8).
_SMALL = """[...document.querySelectorAll('a, button, input, select')].filter(one => {
    const {width, height} = one.getBoundingClientRect()
    return width && !one.closest('svg, main p:not(:has(.button)), .skip') && Math.min(width, height) < 24
}).map(one => one.outerHTML)"""
# Names and bodies of unusual length or script.
_LONG = "OrderSettlement_CrossBorder_PaymentConfirmation_Retry-Queue_EU-WEST-1_production-".ljust(120, "x")
_UNUSUAL = [
    Sent(_LONG, ("K" * 150,), tags="标签" * 20, body="订单已支付正在等待仓库发货。".encode() * 40),
    Sent("订单_topic", ("订单号-38",), body='{"客户": "张伟", "备注": "🎉👨‍👩‍👧‍👦"}'.encode()),
    Sent("T1", ("k",), body=b"x" * 2000),
    Sent("T1", ("k",), body=b'{"' + b"z" * 200 + b'": {"a": 1}}'),
    Sent("T1", ("k",), body="🎉".encode() * 300),
]
_OF_WEIGHT = "document, {resultTypes: ['violations']}"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    store = unpack("b551-base", tmp_path_factory.mktemp("places") / "store")
    (sorted((store / "index").iterdir())[2]).unlink()
    lake = store.parent / "lake"
    ingest_store(store, lake, "broker-a", hash_slots=100, index_num=20)
    return {"store": store, "lake": lake}


@pytest.fixture(scope="module", params=["store", "lake"])
def opened(request: pytest.FixtureRequest, places: dict[str, Path]) -> Iterator[tuple[Pages, Browser]]:
    with serve_pages(places[request.param]) as pages, browser() as page:
        _open_start_address(pages, page)
        yield pages, page


def _open_start_address(pages: Pages, page: Browser) -> None:
    """Open the printed address, and wait until it has redirected, which it does after its load event."""
    page.open(pages.address)
    wait_until(lambda: page.location == f"{pages.base}/complete", lambda: page.location)


def test_the_address_opens_pages_whose_links_work(opened: tuple[Pages, Browser]) -> None:
    pages, page = opened
    _open_start_address(pages, page)
    gaps = page.value("[...document.querySelectorAll('rect.gap')].map(one => one.textContent)")

    assert [True] * len(gaps) == ["no index file contains the keys" in gap for gap in gaps]
    assert (len(gaps) > 0) is ("to scale" in page.value("document.body.innerText"))

    page.open(f"{pages.base}/messages")
    page.follow("svg a")

    assert "since=" in page.value("location.search")
    assert page.value("document.querySelectorAll('tbody tr').length") > 0
    page.follow("tbody a")

    assert "/message" == page.value("location.pathname")
    assert "points to this message" in page.value("document.body.innerText")
    page.open(f"{pages.base}/messages")
    page.value("document.querySelector('input[name=topic]').value = 'T2'")
    page.follow("form.fields button")

    assert 3 == page.value("document.querySelectorAll('tbody tr').length")


# The positions of the first and the last of some bars, their numbers of messages, and their links.
_SOME_BARS = """
(bars => [bars[0], bars.at(-1)].map(bar => bar.getBoundingClientRect()).map(box => [box.x + 2, box.bottom - 1])
    .concat([bars.reduce((sum, bar) => sum + Number(bar.textContent.split(': ')[1]), 0)])
    .concat([[bars[0], bars.at(-1)].map(bar => bar.parentElement.getAttribute('href'))])
)([...document.querySelectorAll('svg[data-step] rect')].slice(1, 6))"""


def _select_by_dragging(page: Browser, begin: tuple[float, float], end: tuple[float, float]) -> bool:
    """Drag, and return whether a range is selected: a page may miss events during its layout."""
    page.drag(begin, end)
    return bool(page.value("document.querySelectorAll('rect.chosen').length == 1"))


def test_a_drag_over_bars_shows_the_messages_of_their_time(opened: tuple[Pages, Browser]) -> None:
    pages, page = opened
    page.resize(1280)
    for forward in (True, False):
        page.open(f"{pages.base}/messages?topic=T1")
        low, high, messages, links = page.value(_SOME_BARS)
        begin, end = (low, high) if forward else (high, low)
        wait_until(partial(_select_by_dragging, page, begin, end), lambda: "a drag chooses nothing")
        page.drop(*end)

        asked = dict(parse_qsl(page.value("location.search")[1:]))
        first, last = (dict(parse_qsl(link.partition("?")[2])) for link in links)

        assert {"topic": "T1", "since": first["since"], "until": last["until"]} == asked
        assert messages == page.value("document.querySelectorAll('tbody tr').length") > 5

    page.open(f"{pages.base}/messages?topic=T1")
    low, high, _, links = page.value(_SOME_BARS)
    page.drag(low, high)
    page.value("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")

    assert 0 == page.value("document.querySelectorAll('rect.chosen').length")
    page.release(*high)

    assert "?topic=T1" == page.value("location.search")
    page.drag(low)  # a press without a move is a click, which follows the link
    page.drop(*low)

    assert links[0] == page.value("location.pathname + location.search")


def test_only_our_own_script_runs(opened: tuple[Pages, Browser]) -> None:
    pages, page = opened
    message = pages.get("/messages?topic=T1").text.partition('href="/message?')[2].partition('"')[0]
    page.open(f"{pages.base}/messages")
    for path, outcome in (("/bars.js", "load"), (f"/body?{message}", "error"), ("/messages.ndjson", "error")):
        page.value("script = document.createElement('script'), 0")
        page.value("ends = new Promise(end => script.onload = script.onerror = event => end(event.type)), 0")
        page.value(f"script.src = {json.dumps(path)}, document.head.append(script), 0")

        assert outcome == page.value("ends"), path
    page.value("script = document.createElement('script'), script.text = 'ran = 1', document.head.append(script), 0")
    page.value("document.body.insertAdjacentHTML('beforeend', '<button id=it onclick=\"ran = 1\">'), it.click(), 0")

    assert "undefined" == page.value("typeof ran")


def test_every_page_fits_every_width_and_loads_nothing_from_other_servers(opened: tuple[Pages, Browser]) -> None:
    pages, page = opened
    message = pages.get("/messages?topic=T1").text.partition('href="/message?')[2].partition('"')[0]
    page.requests.clear()
    page.errors.clear()
    of_lake = [f"/tables/{name}" for name in ("runs", "consume_queue", "broker_config")]
    of_message = [f"/message?{message}", f"/message?{message}&body=hex&chains=1"]
    for view in (*VIEWS, *of_message, *(of_lake if "/tables/runs" in pages.get("/").text else ())):
        for width, dark in ((1280, False), (768, False), (390, False), (1280, True)):
            page.resize(width, dark=dark)
            page.open(f"{pages.base}{view}")

            assert page.value("document.documentElement.scrollWidth") <= width, (view, width)
            assert page.value(_CUT) == [], (view, width)
            assert page.value(_SMALL) == [], (view, width)
            if (width, dark) in {(768, False), (1280, False)}:
                continue  # axe takes most of the time, so it runs only on the narrow light page and the wide dark one
            page.value(axe())
            found = page.value(f"axe.run({_OF_WEIGHT}).then(answer => JSON.stringify(answer.violations))")
            rules = [(rule["id"], rule["impact"], rule["nodes"][0]["html"]) for rule in json.loads(found)]

            assert rules == [], (view, width, dark)

    assert {pages.base} == {"/".join(request.split("/")[:3]) for request in page.requests}
    assert [] == page.errors


@pytest.mark.parametrize("with_body", [True, False])
def test_unusual_names_and_bodies_fit_every_width(tmp_path: Path, *, with_body: bool) -> None:
    records = stored(_UNUSUAL)
    store = write_store(tmp_path / "store", records)
    ingest_store(
        store, tmp_path / "lake", "broker-" * 12, hash_slots=7, index_num=9, selection=Selection(with_body=with_body)
    )
    messages = [f"/message?at={record.physical_offset}" for record in records]
    with serve_pages(tmp_path / "lake") as pages, browser() as page:
        page.open(pages.address)
        for view in (*VIEWS, *messages):
            for width in (1280, 390):
                page.resize(width)
                page.open(f"{pages.base}{view}")

                assert page.value("document.documentElement.scrollWidth") <= width, (view, width)
                assert page.value(_CUT) == [], (view, width)
                assert page.value(_SMALL) == [], (view, width)


@pytest.mark.parametrize("kind", ["store", "lake"])
def test_names_with_html_run_and_load_nothing(hostile: Path, kind: str) -> None:
    """The content security policy would report a blocked script on the console; there must be none."""
    with serve_pages(hostile / kind) as pages, browser() as page:
        page.open(pages.address)
        page.open(f"{pages.base}/messages")
        messages = page.value("[...document.querySelectorAll('tbody a[href^=\"/message?\"]')].map(one => one.href)")

        assert 6 == len(messages)
        for address in (*(f"{pages.base}{view}" for view in VIEWS), *messages):
            page.open(address)

            assert "<script>alert(" in page.value("document.querySelector('main').innerText"), address
            assert 0 == page.value("document.querySelectorAll('main script:not([src]), img').length")

        assert {pages.base} == {"/".join(request.split("/")[:3]) for request in page.requests}
        assert [] == page.errors
