"""The pages of `browse`: content and access control, for any request and any names in a store."""

import json
import re
import shutil
import socket
import tempfile
import webbrowser
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from html import unescape
from pathlib import Path
from random import Random
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa
import pytest
import uvicorn
from deltalake import write_deltalake

from jobs.browse.server import serve
from jobs.console.result import Severity
from jobs.query import Message
from jobs.requests.query import QueryTarget
from rmq_formats.commitlog.layout import COMPRESSED
from rmq_formats.commitlog.record import encode_record
from rmq_formats.release import NEWEST
from tests.golden import StoreOf
from tests.rmq_formats.builders import make_record
from tests.support.broker import Broker
from tests.support.commands import ROOT, Run, copy_store, overwrite
from tests.support.pages import HOSTILE, Pages, render_page, serve_pages
from tests.support.stores import list_segments, read_store_records, tree_state

OWN_SCRIPT = '<script src="/bars.js" defer></script>'
VIEWS = ("/", "/messages", "/topics", "/groups", "/usage", "/unfinished", "/tables/runs", "/tables/transactions")


@pytest.fixture(scope="module")
def store(golden: StoreOf) -> Path:
    return golden("b551-base")


@pytest.fixture(scope="module")
def store_pages(store: Path) -> Iterator[Pages]:
    with serve_pages(store) as pages:
        yield pages


@pytest.fixture(scope="module")
def lake_pages(newer_lake: Path) -> Iterator[Pages]:
    with serve_pages(newer_lake) as pages:
        yield pages


def links(page: str, begin: str) -> list[str]:
    return [unescape(href) for href in re.findall(r'href="([^"]*)"', page) if unescape(href).startswith(begin)]


def messages_of(pages: Pages, path: str = "/messages") -> list[str]:
    found: list[str] = []
    while path:
        page = pages.get(path).text
        found += dict.fromkeys(links(page, "/message?"))
        path = next(iter(links(page, path.partition("?")[0] + "?")[-1:]), "") if 'rel="next"' in page else ""
        path = path if "before=" in path else ""
    return found


def test_findings_on_the_log_have_the_severity_that_verify_gives_them(store: Path, tmp_path: Path, run: Run) -> None:
    bad = copy_store(store, tmp_path)
    lake = tmp_path / "lake"
    overwrite(min((bad / "commitlog").iterdir()), 8, b"????")
    run("ingest", store, "--lake", lake)
    found = run("verify", bad, "--findings-lake", lake, "--json").document["findings"]

    assert [(one["kind"], one["severity"]) for one in found] == [("wrong_body_crc", "damage")]
    with serve_pages(lake) as pages:
        assert re.findall(r'title="(\w+)".*>wrong_body_crc<', pages.get("/").text) == ["damage"]


def test_the_first_address_sets_a_cookie_that_scripts_and_other_sites_cannot_read(store_pages: Pages) -> None:
    reply = store_pages.get(f"/?token={store_pages.token}", Cookie=None)

    assert 200 == reply.status
    assert 'http-equiv="refresh"' in reply.text
    cookie = reply.headers["set-cookie"]

    assert cookie.startswith(store_pages.cookie)
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "127.0.0.1" in store_pages.address
    assert len(store_pages.token) >= 32


def _requests(port: int) -> dict[str, tuple[str, dict[str, str | None], int]]:
    other = f"127.0.0.1:{port + 1}"
    return {
        "no cookie": ("GET", {"Cookie": None}, 401),
        "another cookie": ("GET", {"Cookie": f"rmq_lake_{port}=x"}, 401),
        "a cookie of letters beyond ASCII": ("GET", {"Cookie": f"rmq_lake_{port}=\xe9"}, 401),
        "another server's cookie": ("GET", {"Cookie": f"rmq_lake_{port + 1}=x"}, 401),
        "another host": ("GET", {"Host": "example.com"}, 421),
        "a host that is rebound": ("GET", {"Host": f"127.0.0.1.example.com:{port}"}, 421),
        "another port": ("GET", {"Host": other}, 421),
        "no host": ("GET", {"Host": ""}, 421),
        "another origin": ("GET", {"Origin": "http://example.com"}, 403),
        "no origin": ("GET", {"Origin": "null"}, 403),
        "another server of this machine": ("GET", {"Origin": f"http://{other}"}, 403),
        "a page of another site": ("GET", {"Sec_Fetch_Site": "cross-site"}, 403),
        "a page of another port": ("GET", {"Sec_Fetch_Site": "same-site"}, 403),
        **{method: (method, {}, 405) for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE")},
    }


@pytest.mark.parametrize("case", _requests(1))
def test_unauthorised_requests_get_nothing(store_pages: Pages, case: str) -> None:
    method, headers, status = _requests(store_pages.port)[case]
    for path in (
        *VIEWS,
        "/style.css",
        "/bars.js",
        "/messages.ndjson",
        "/body?at=0",
        "/?token=x",
        "/find?id=x",
        "/nothing",
    ):
        reply = store_pages.get(path, method, **headers)

        assert status == reply.status
        assert len(reply.body) < 100
        assert "T1" not in reply.text
        assert (status == 421) is (f"Unexpected Host header. Open {store_pages.base}" in reply.text)


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/messages?token={right}", "GET", {}, 401),
        ("/?token={part}", "GET", {}, 401),
        ("/?token=", "GET", {}, 401),
        ("/?token=%C3%A9", "GET", {}, 401),
        ("/?token={right}&token=x", "GET", {}, 401),
        ("//?token={right}", "GET", {}, 401),
        ("{base}/messages", "GET", {}, 401),
        ("/?token={right}", "POST", {}, 405),
        ("/?token={right}", "GET", {"Host": "example.com"}, 421),
        ("http://example.com/?token={right}", "GET", {"Host": "example.com"}, 421),
        ("/?token={right}", "GET", {"Origin": "http://example.com"}, 403),
    ],
)
def test_the_token_is_accepted_only_at_the_first_address(
    store_pages: Pages, path: str, method: str, headers: dict[str, str], status: int
) -> None:
    path = path.format(base=store_pages.base, right=store_pages.token, part=store_pages.token[:-1])

    reply = store_pages.get(path, method, Cookie=None, **headers)

    assert status == reply.status
    assert "set-cookie" not in reply.headers
    assert store_pages.token not in reply.text


def test_the_server_listens_only_on_the_loopback_address(store_pages: Pages) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store_pages.port), timeout=10).close()


@pytest.mark.parametrize("path", [*VIEWS, "/style.css", "/nothing", "/message?at=0", "/body?at=0"])
def test_a_browser_may_only_display_a_page(lake_pages: Pages, path: str) -> None:
    reply = lake_pages.get(path)
    policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))

    assert "'none'" == policy["default-src"]
    assert policy.keys().isdisjoint({"connect-src", "object-src", "frame-src"})
    assert {"'self'"} == {policy[name] for name in ("script-src", "style-src", "img-src", "form-action")}
    assert "'none'" == policy["base-uri"]
    assert "'none'" == policy["frame-ancestors"]
    named = ("x-content-type-options", "referrer-policy", "cross-origin-resource-policy")

    assert ["nosniff", "no-referrer", "same-origin"] == [reply.headers[name] for name in named]
    assert "server" not in reply.headers
    assert "no-store" == reply.headers["cache-control"]
    assert "javascript" not in reply.headers["content-type"]
    page = reply.text.replace(OWN_SCRIPT, "", 1)

    assert not re.search(r'(src|href)="(https?:)?//|url\(|@import|style="|<script| on\w+=', page)


def test_pages_link_to_every_message(store: Path, store_pages: Pages, lake_pages: Pages) -> None:
    records = [record for record, _ in read_store_records(store)]
    of_t1 = [record for record in records if record.topic == "T1"]

    assert [f"/message?at={record.physical_offset}" for record in reversed(records)] == messages_of(store_pages)
    assert len(records) == len(set(messages_of(lake_pages)))
    for pages in (store_pages, lake_pages):
        rows = [json.loads(line) for line in pages.get("/messages.ndjson?topic=T1").text.splitlines()]

        assert [message.physical_offset for message in reversed(of_t1)] == [row["physical_offset"] for row in rows]
        assert f"<h2>Newest first</h2>\n{'<p' if not of_t1 else '<div'}" in pages.get("/messages?topic=T1").text


def test_one_message_is_shown_with_its_bytes_story_and_chains(
    store: Path, store_pages: Pages, lake_pages: Pages
) -> None:
    record, raw = next((one, raw) for one, raw in read_store_records(store) if one.topic == "T2" and one.sys_flag)
    for pages in (store_pages, lake_pages):
        at = next(one for one in messages_of(pages, "/messages?topic=T2") if f"{record.physical_offset}" in one)
        page = pages.get(f"{at}&chains=1").text
        digits = "".join(re.findall(r"\b(?:[0-9a-f]{2}(?: |\b)){1,16}", page))

        assert raw[:4].hex(" ") in page
        assert raw[20:28].hex(" ") in digits
        assert f"offset {record.physical_offset:,}" in page
        assert "points to this message" in page
        assert "this message" in page
        assert bytes(3000) == pages.get(at.replace("/message?", "/body?")).body
        assert "0000002f" not in pages.get(f"{at}&body=hex").text


def test_every_page_shows_the_command_with_the_same_answer(store: Path, store_pages: Pages, run: Run) -> None:
    page = store_pages.get("/messages?topic=T1&tag=TagA").text
    (line,) = re.findall(r'<pre class="command">([^<]*)</pre>', page)
    words = unescape(line).split()

    assert ["python", "-m", "jobs.main", "query", "list"] == words[:5]

    answer = run(*words[3:], "--json")

    assert len(answer.lines) == len(messages_of(store_pages, "/messages?topic=T1&tag=TagA")) > 0
    assert str(store) in line


def test_a_search_for_an_id_a_key_or_an_offset_finds_its_message(
    store: Path, store_pages: Pages, lake_pages: Pages
) -> None:
    """A key of several messages leads to a list."""
    records = [record for record, _ in read_store_records(store)]
    one = next(record for record in records if record.topic == "T1" and record.queue_offset == 3)
    keys = Counter(key for record in records for key in Message(record, NEWEST).keys)
    single, several = (next(key for key in keys if (keys[key] == 1) is is_single) for is_single in (True, False))
    for pages in (store_pages, lake_pages):
        unique = re.findall(r'<td class="id"[^>]*>([0-9A-F]{32})<', pages.get("/messages?topic=T1").text)[0]
        found = pages.get(f"/find?id={unique}")

        assert 303 == found.status
        assert found.headers["location"].startswith("/message?at=")
        assert unique in pages.get(found.headers["location"]).text
        missing = pages.get("/find?id=nothing")

        assert 404 == missing.status
        assert "No message has the id, key or offset" in missing.text
        for text in (str(one.physical_offset), f"T1/{one.queue_id}/3"):
            found = pages.get(f"/find?{urlencode({'id': text})}")

            assert 303 == found.status
            assert f"bytes from offset {one.physical_offset:,}" in pages.get(found.headers["location"]).text
        led = pages.get(f"/find?{urlencode({'id': single})}").headers["location"]

        assert f">{single}</a>" in pages.get(led).text
        led = pages.get(f"/find?{urlencode({'id': several})}").headers["location"]

        assert led == f"/messages?{urlencode({'key': several})}"
        assert keys[several] == len(messages_of(pages, led))


def test_system_topics_are_shown_on_request(store_pages: Pages) -> None:
    hidden = store_pages.get("/topics").text
    shown = store_pages.get("/topics?system=1").text

    assert ["/topics?system=1"] == links(hidden, "/topics?")
    choices = store_pages.get("/messages").text.partition("<datalist")[2].partition("</data")[0]
    for topic in ("SCHEDULE_TOPIC_XXXX", "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "b0"):
        assert [False, True, False] == [
            f'topic={topic}"' in page or f'"{topic}"' in page for page in (hidden, shown, choices)
        ]


def test_a_page_of_a_live_store_refreshes_itself_on_request(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.append([make_record(b"1")])
    with serve_pages(tmp_path) as pages:
        page = pages.get("/messages").text
        every = next("/messages" + link for link in links(page, "?") if "every=" in link)
        broker.append([make_record(b"2")])
        again = pages.get(every).text

        assert 2 == len(set(links(again, "/message?")))
        assert '<meta http-equiv="refresh" content="5">' in again
        assert "http-equiv" not in page


def test_pages_of_a_store_that_must_not_be_started_begin_with_the_warning(golden: StoreOf, tmp_path: Path) -> None:
    damaged = copy_store(golden("b533-base"), tmp_path)
    overwrite(list_segments(damaged)[1], 5000, bytes(50))
    (damaged / "abort").touch()
    (damaged / "checkpoint").unlink()
    page = unescape(render_page(QueryTarget(str(damaged)), "/").text)
    warning = "do not start the broker on this store: RocketMQ 5.3.3 would truncate the log at offset 20,127"

    assert 0 < page.index(warning) < page.index("Store layout (to scale)")


def test_the_token_is_not_passed_as_an_argument_to_the_browser(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All users of the machine can read arguments; only the owner can read the file that redirects to the pages."""
    opened: list[tuple[str, int, str]] = []

    def open_(address: str) -> bool:
        path = Path(urlsplit(address).path)
        opened.append((address, path.stat().st_mode & 0o777, path.read_text()))
        return True

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.setattr(webbrowser, "open", open_)
    monkeypatch.setattr(uvicorn.Server, "run", lambda _server, **_given: None)

    serve(QueryTarget(str(store)), 0, opens_browser=True)

    printed = capsys.readouterr().out.strip()
    token = printed.partition("token=")[2]
    [(address, mode, content)] = opened

    assert 0o600 == mode
    assert "file://" == address[:7]
    assert token not in address
    assert printed in unescape(content)
    assert [] == list(tmp_path.iterdir())


VALUES = (
    HOSTILE,
    "'; DROP TABLE messages; --",
    "T1' OR '1'='1",
    "../../../etc/passwd",
    "../consumequeue/T1",
    "%_%",
    "\0",
    "9" * 400,
    "-1",
    "%s%s%n",
    "x" * 5000,
    "0x10",
    "1e999",
)


_CHOOSING = {"topic", "key", "tag", "words", "before", "state", "broker", "run"}  # of messages or of rows


def test_hostile_requests_return_nothing_and_run_nothing(
    newer_lake: Path, store_pages: Pages, lake_pages: Pages
) -> None:
    before = tree_state(newer_lake)
    fields = {
        "/messages": ("topic", "key", "tag", "words", "since", "until", "before"),
        "/messages.ndjson": ("topic", "key", "tag", "words", "since", "until"),
        "/message": ("at", "body"),
        "/body": ("at",),
        "/find": ("id", "topic"),
        "/tables/runs": ("skip", "state", "broker", "run", "column", "holds"),
        "/": ("lang", "token"),
    }
    for pages in (store_pages, lake_pages):
        for path, names in fields.items():
            for name in names:
                for value in {HOSTILE, *Random(f"{path} {name}").sample(VALUES, 3)}:
                    reply = pages.get(f"{path}?{urlencode({name: value})}")

                    assert reply.status in {200, 303, 400, 404}, (path, name, value)
                    assert "<script" not in reply.text.replace(OWN_SCRIPT, "", 1)
                    assert "Traceback" not in reply.text
                    is_in_bodies = (name, value) == ("words", "\0")
                    if name in _CHOOSING and not is_in_bodies:
                        assert not re.search(r'<tbody>|class="cards"|^{"', reply.text), (path, name, value)
        for value in VALUES:
            for path in (
                f"/tables/{quote(value, safe='')}",
                f"/{quote(value)}",
                f"/tables/../{quote(value)}",
                f"/tables/runs?{urlencode({value: 'x'})}",
            ):
                assert pages.get(path).status in {400, 404}
            led = pages.get(f"/tables/{quote(value, safe='')}?column=a&holds=b").headers.get("location", "/tables/")

            assert led.startswith("/tables/")
    for path in ("/../../../../etc/passwd", "/style.css/../../page.css", "//example.com/", "/tables/..%2f..%2fruns"):
        assert lake_pages.get(path).status in {400, 404}

    assert before == tree_state(newer_lake)


def test_incomplete_or_oversized_requests_do_not_block_other_clients(lake_pages: Pages) -> None:
    """The oldest connections without a request are closed before the server runs out of files."""
    with ExitStack() as slow:

        def connect() -> socket.socket:
            return slow.enter_context(socket.create_connection(("127.0.0.1", lake_pages.port), timeout=240))

        begun = [connect() for _ in range(200)]
        for connection in begun:
            connection.sendall(b"GET / HTTP/1.1\r\nHo")
        with suppress(ConnectionResetError):
            assert begun[0].recv(1) == b""
        endless = connect()
        with suppress(ConnectionError):  # the server may close the connection early
            endless.sendall(b"GET /messages?topic=" + b"x" * (1 << 18))

        assert endless.recv(12) == b"HTTP/1.1 400"
        assert lake_pages.get("/topics").status == 200
        begun[-1].sendall(b"st: elsewhere\r\n\r\n")

        assert begun[-1].recv(12) == b"HTTP/1.1 421"


@pytest.mark.parametrize("kind", ["store", "lake"])
def test_names_and_bodies_of_a_store_are_escaped(hostile: Path, kind: str) -> None:
    with serve_pages(hostile / kind) as pages:
        shown = messages_of(pages)

        assert len(shown) == 6
        in_a_topic = f"/messages?{urlencode({'topic': HOSTILE})}"
        paths = [*VIEWS, in_a_topic, *links(pages.get("/").text, "/tables/"), *shown]
        paths += [
            f"{page}&chains=1&body={form}"
            for page in shown[:: 1 if kind == "lake" else 6]
            for form in ("text", "json", "hex")
        ]
        for path in paths:
            page = pages.get(path).text.replace(OWN_SCRIPT, "", 1)

            assert not re.search(r"<script|<img|\son\w+=\"", page)
            assert all(character.isprintable() for character in page.replace("\n", ""))
            assert page.count("&lt;script&gt;") >= (4 if path in VIEWS[1:5] else 2), path

        assert 3 == len(links(pages.get(in_a_topic).text, "/message?"))


def test_typed_tables_are_listed_and_shown(newer_lake: Path, tmp_path: Path) -> None:
    place = shutil.copytree(newer_lake, tmp_path / "lake")
    write_deltalake(place / "typed" / "Orders-1", pa.table({"id": ["7"], "time": ["noon"], "items": [[{"sku": "x"}]]}))

    at = QueryTarget(lake=str(place))
    (path,) = links(render_page(at, "/").text, "/tables/typed")
    page = render_page(at, f"{path}?id=7").text

    assert "noon" in page
    assert "struct and map columns are omitted" in page


def test_a_body_too_large_to_decompress_is_downloaded_compressed(tmp_path: Path) -> None:
    bomb = zlib.compress(bytes((64 << 20) + 1), 1)
    record = make_record(bomb, topic="T1", sys_flag=COMPRESSED)
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(encode_record(record).ljust(1 << 20, b"\0"))

    assert bomb == render_page(QueryTarget(str(tmp_path)), "/body?at=0").body


def test_a_failure_to_start_the_server_is_reported_in_one_line(
    store: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        in_use = run("browse", "--no-open", "--port", str(port), store)
    monkeypatch.setattr("jobs.commands.viewers.find_spec", lambda _: None)
    lacking = run("browse", "--no-open", store)

    advice = "pass another --port, or omit it to use a free one"

    assert (1, "", f"rmq-lake: port {port} on 127.0.0.1 is in use: {advice}\n") == in_use
    assert 1 == lacking.code
    assert "" == lacking.out
    assert 1 == lacking.err.count("\n")
    assert lacking.err.endswith("pip install 'rocketmq-lake[browse]'\n")


def test_every_text_of_the_pages_has_a_chinese_translation() -> None:
    directory = ROOT / "jobs" / "browse" / "templates"
    chinese = json.loads((directory / "zh.json").read_text(encoding="utf-8"))
    said = {
        word for page in directory.glob("*.html") for word in re.findall(r"""\bt\(['"](.+?)['"]\)""", page.read_text())
    }

    steps = (ROOT / "jobs" / "inspect" / "__init__.py").read_text()
    said |= {severity.value for severity in Severity} | set(re.findall(r'steps\.append\(\(.+, "(.+)"\)\)', steps))

    assert set() == said - chinese.keys()
    assert len(said) > 70


@pytest.mark.parametrize("view", ["/messages", "/topics", "/groups"])
@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json"])
def test_a_page_names_each_configuration_file_that_it_could_not_read(
    view: str, name: str, store: Path, tmp_path: Path
) -> None:
    damaged = copy_store(store, tmp_path)
    intact = render_page(QueryTarget(str(damaged)), view, "en").text
    for file in ("topics.json", "consumerOffset.json"):
        (damaged / "config" / file).write_text("{not JSON")

    page = render_page(QueryTarget(str(damaged)), view, "en").text

    assert f"configuration can be read: config/{name}: " in unescape(page)
    assert "configuration can be read" not in unescape(intact)


def test_problems_of_a_store_are_in_chinese_except_for_texts_of_inspect(store: Path, tmp_path: Path) -> None:
    damaged = copy_store(store, tmp_path)
    sorted((damaged / "index").iterdir())[2].unlink()
    chinese, english = (render_page(QueryTarget(str(damaged)), "/", language).text for language in ("zh", "en"))

    assert "缺口" == re.findall(r'<h1><span class="severity gap">(.+)</span>', chinese)[0]
    assert "没有索引" not in chinese
    assert "发现的问题按 inspect 的输出以英文显示" in chinese
    assert "as `inspect` prints them" not in english
    assert ["load the messages into tables"] == re.findall(r'<p class="single">(load.+)</p>', english)
    assert '<p class="single">把消息导入表中</p>' in chinese


@pytest.mark.parametrize(
    ("headers", "query", "language"),
    [
        ({}, "", "en"),
        ({"Accept_Language": "de,zh-CN;q=0.8,en;q=0.5"}, "", "zh-CN"),
        ({"Accept_Language": "zh-TW"}, "?lang=en", "en"),
        ({}, "?lang=zh", "zh-CN"),
        ({}, "?lang=<script>", "en"),
    ],
)
def test_the_language_is_chosen_by_the_user_or_the_browser(
    store_pages: Pages, headers: dict[str, str], query: str, language: str
) -> None:
    reply = store_pages.get(f"/topics{query}", **headers)

    assert f'<html lang="{language}">' in reply.text
    assert ("主题" in reply.text) is (language == "zh-CN")
