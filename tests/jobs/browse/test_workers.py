"""Requests do not block each other, and end with their browser; the Chinese sentences of histories."""

import ast
import asyncio
import json
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from string import Formatter
from typing import Any

import pytest

from jobs.browse.rendering import Translator
from jobs.browse.requests import PageReply, PageRequest
from jobs.browse.server import answer_request
from jobs.browse.workers import PageWorkers
from jobs.query.source import Sentence
from jobs.requests.query import QueryTarget
from tests.support.commands import ROOT

PLACE = QueryTarget("/store")
ENDLESS, DYING, SHORT = (PageRequest(path, {}, "en") for path in ("/endless", "/dying", "/short"))


def work(connection: Connection, _place: QueryTarget) -> None:
    """Answer each request, except one that never ends, like a long query, and one that ends the process."""
    while True:
        snapshot, question = connection.recv()
        if question == DYING:
            return
        if question != ENDLESS:
            connection.send(PageReply(f"{question.path} {snapshot}".encode()))


@contextmanager
def started() -> Iterator[PageWorkers]:
    workers = PageWorkers(PLACE, work)
    try:
        yield workers
    finally:
        workers.close()
    assert [] == multiprocessing.active_children()


def test_a_request_is_answered_while_others_never_end() -> None:
    async def asked(workers: PageWorkers) -> None:
        endless = [asyncio.ensure_future(workers.answer(ENDLESS, 240)) for _ in range(7)]

        assert b"/short 0" == (await workers.answer(SHORT, 240)).content
        workers.reopen_target()

        assert b"/short 1" == (await workers.answer(SHORT, 240)).content
        for request in endless:
            request.cancel()
        await asyncio.wait(endless)

    with started() as workers:
        asyncio.run(asked(workers))


def test_a_request_ends_at_its_deadline_or_with_its_process() -> None:
    async def asked(workers: PageWorkers) -> None:
        with pytest.raises(TimeoutError):
            await workers.answer(ENDLESS, 0.01)
        with pytest.raises(ConnectionError):
            await workers.answer(DYING, 240)

        assert b"/short 0" == (await workers.answer(SHORT, 240)).content

    with started() as workers:
        asyncio.run(asked(workers))


def test_a_browser_that_leaves_a_page_cancels_its_request() -> None:
    """The browser leaves before or after the head of the page is sent."""

    async def left(workers: PageWorkers, parts: int) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        is_time = asyncio.Event()
        if not parts:
            is_time.set()

        async def receive() -> dict[str, Any]:
            await is_time.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:  # noqa: ANN401 - an ASGI message
            sent.append(message)
            if len(sent) == parts:
                is_time.set()

        scope = {"type": "http", "method": "GET", "path": "/endless", "query_string": b"", "headers": []}
        await answer_request(workers, scope, receive, send)
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*waiting, return_exceptions=True)
        return sent

    with started() as workers:
        assert [] == asyncio.run(left(workers, 0))
    with started() as workers:
        begun = asyncio.run(left(workers, 2))

    assert ["http.response.start", "http.response.body"] == [message["type"] for message in begun]
    assert "This is taking a while" in begun[1]["body"].decode()


# sentences of histories; test_story covers those of real brokers

CHINESE = json.loads((ROOT / "jobs/browse/templates/sentences.zh.json").read_text(encoding="utf-8"))


def _fields(template: str) -> set[tuple[str | None, str | None]]:
    return {(name, form) for _, name, form, _ in Formatter().parse(template) if name is not None}


def test_each_template_has_a_translation_with_the_same_values() -> None:
    """Templates that are literals in calls; test_story covers the others."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "jobs/query").glob("**/*.py"))]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    templates = [call.args[0] for call in calls if getattr(call.func, "id", "") == "Sentence"]
    constants = (part.value for node in templates for part in ast.walk(node) if isinstance(part, ast.Constant))
    texts = {str(text) for text in constants if len(str(text)) > 1}  # a letter stands for a replaced value

    assert texts != set()
    assert texts <= {*CHINESE}
    assert [] == [english for english, chinese in CHINESE.items() if _fields(english) != _fields(chinese)]


@pytest.mark.parametrize("value", ["sent", "{0} {x}", "{topic.__class__}", " queue " * 5000])
def test_a_value_is_never_translated(value: str) -> None:
    text = Sentence("delivered to {topic} queue {queue}, offset {number:,}", topic=value, queue=0, number=1000)

    assert f"delivered to {value} queue 0, offset 1,000" == text == Translator("en").translate(text)
    assert f"已投递到 {value} 队列 0\uff0c位点 1,000" == Translator("zh").translate(text)


def test_a_nested_sentence_is_translated() -> None:
    text = Sentence("{state}, consumed by {groups}", state=Sentence("sent"), groups="sent")

    assert "已发送\uff0csent 已消费" == Translator("zh").translate(text)
