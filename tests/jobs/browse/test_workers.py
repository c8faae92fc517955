"""Questions of pages: none holds up another, and none goes on that is too late or that no browser waits for."""

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest

from jobs.browse.application import Application
from jobs.browse.workers import LateError, Question, Reply, WorkerError, Workers
from jobs.query.place import Place

PLACE = Place("/store")
ENDLESS, DYING, SHORT = (Question(path, {}, "en") for path in ("/endless", "/dying", "/short"))


def work(connection: Connection, _place: Place) -> None:
    """Answer each question but one that never ends, as a long query does, and one that is the end of the process."""
    while True:
        snapshot, question = connection.recv()
        if question == DYING:
            return
        if question != ENDLESS:
            connection.send(Reply(f"{question.path} {snapshot}".encode()))


@contextmanager
def started() -> Iterator[Workers]:
    workers = Workers(PLACE, work)
    try:
        yield workers
    finally:
        workers.close()
    assert [] == multiprocessing.active_children()


def test_a_question_is_answered_while_others_never_end() -> None:
    async def asked(workers: Workers) -> None:
        endless = [asyncio.ensure_future(workers.answer(ENDLESS, 240)) for _ in range(7)]
        assert b"/short 0" == (await workers.answer(SHORT, 240)).content
        workers.look_again()
        assert b"/short 1" == (await workers.answer(SHORT, 240)).content
        for one in endless:
            one.cancel()
        await asyncio.wait(endless)

    with started() as workers:
        asyncio.run(asked(workers))


def test_a_question_ends_with_its_deadline_or_its_process() -> None:
    async def asked(workers: Workers) -> None:
        with pytest.raises(LateError):
            await workers.answer(ENDLESS, 0.01)
        with pytest.raises(WorkerError):
            await workers.answer(DYING, 240)
        assert b"/short 0" == (await workers.answer(SHORT, 240)).content

    with started() as workers:
        asyncio.run(asked(workers))


def test_a_browser_that_leaves_a_page_ends_its_question() -> None:
    """Before the head of the page is sent, and after."""

    async def left(workers: Workers, parts: int) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        is_time = asyncio.Event()
        if not parts:
            is_time.set()

        async def receive() -> dict[str, Any]:
            await is_time.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:  # noqa: ANN401 - of ASGI
            sent.append(message)
            if len(sent) == parts:
                is_time.set()

        scope = {"type": "http", "method": "GET", "path": "/endless", "query_string": b"", "headers": []}
        await Application(workers)(scope, receive, send)
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*waiting, return_exceptions=True)
        return sent

    with started() as workers:
        assert [] == asyncio.run(left(workers, 0))
    with started() as workers:
        begun = asyncio.run(left(workers, 2))
    assert ["http.response.start", "http.response.body"] == [message["type"] for message in begun]
    assert "This answer takes longer" in begun[1]["body"].decode()
