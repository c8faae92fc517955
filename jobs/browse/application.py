"""
The application: it sends the head of each page early, and the rest when a process has answered.

A page whose answer takes long is sent in two parts, so that its views and its search box can be used meanwhile. A
browser that leaves the page ends the question.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from jobs.browse.templates import SCRIPT, STYLE, Words, rendered, words_of
from jobs.browse.workers import LateError, Question, Reply, WorkerError, Workers

_SOON = 0.3  # seconds in which most answers are there: their pages are sent as a whole, with their own status
_SECONDS = 60.0  # for one answer
_FILES = {
    "/style.css": (STYLE, "text/css"),
    "/bars.js": (SCRIPT, "text/javascript"),
}
_DOWNLOADS = {
    "/messages.ndjson": ("messages.ndjson", "application/x-ndjson"),
    "/body": ("body.bin", "application/octet-stream"),
}
_TITLES = {
    "/": "Overview",
    "/messages": "Messages",
    "/message": "Message",
    "/find": "Find",
    "/topics": "Topics",
    "/groups": "Consumer groups",
    "/unfinished": "Unfinished",
}
_INTERVALS = ("5", "30")  # seconds between two looks at a place that changes
_Result = TypeVar("_Result")


class _GoneError(Exception):
    """The browser has closed the connection."""


class Application:
    """Serves the pages of one place."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, which only reads."""
        request = Request(scope, receive)
        path = request.url.path
        try:
            if path in _DOWNLOADS:
                await self._download(request, send)
            elif path in _FILES or path in {"/again", "/favicon.ico"}:
                await self._plain(path)(scope, receive, send)
            else:
                await self._page(request, send)
        except _GoneError:
            return

    def _plain(self, path: str) -> Response:
        if path in _FILES:
            content, media_type = _FILES[path]
            return Response(content, media_type=media_type)
        if path == "/again":
            self._workers.look_again()
            return RedirectResponse("/", HTTPStatus.SEE_OTHER)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def _page(self, request: Request, send: Send) -> None:
        words, every = words_of(request), request.query_params.get("every")
        if every in _INTERVALS:
            self._workers.look_again()
        head = self._head(request, words, every)
        answer = asyncio.ensure_future(self._answer(_question(request, words), words))
        # A page that may lead to another one is never begun before its answer: only a redirect leads on.
        may_lead_on = request.url.path == "/find" or "holds" in request.query_params
        is_soon = await _unless_gone(request.receive, answer, None if may_lead_on else _SOON)
        response = HTMLResponse(b"", HTTPStatus.OK)
        if "lang" in request.query_params:
            response.set_cookie("rmq_lake_lang", words.language, samesite="strict", path="/")
        if not is_soon:
            await _begin(send, response)
            waiting = rendered("waiting.html", words, {})
            await send({"type": "http.response.body", "body": f"{head}{waiting}".encode(), "more_body": True})
            await _unless_gone(request.receive, answer, None)
        reply = await answer
        if is_soon:
            if reply.location:
                await RedirectResponse(reply.location, reply.status)(request.scope, request.receive, send)
                return
            response.status_code = reply.status
            await _begin(send, response)
            await send({"type": "http.response.body", "body": head.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": reply.content, "more_body": False})

    def _head(self, request: Request, words: Words, every: str | None) -> str:
        query = [pair for pair in request.query_params.multi_items() if pair[0] not in {"lang", "every"}]
        path = request.url.path
        title = words(_TITLES.get(path, "")) or path.removeprefix("/tables/")
        shown = {
            "words": words,
            "place": self._workers.place,
            "path": path,
            "title": title,
            "every": every if every in _INTERVALS else "",
            "other_language": f"?{urlencode([*query, ('lang', words.other)])}",
            "intervals": [(one, f"?{urlencode([*query, ('every', one)])}") for one in _INTERVALS],
            "once": f"{path}?{urlencode(query)}",
        }
        return rendered("head.html", words, shown)

    async def _answer(self, question: Question, words: Words) -> Reply:
        try:
            return await self._workers.answer(question, _SECONDS)
        except LateError:
            problem = words("This question took longer than a minute and was stopped. A topic or times narrow it down.")
            status = HTTPStatus.GATEWAY_TIMEOUT
        except WorkerError:
            problem = words("The process that looked for this answer has ended: there may not be enough memory.")
            status = HTTPStatus.INTERNAL_SERVER_ERROR
        shown = {"words": words, "place": self._workers.place, "problem": problem, "status": int(status), "command": ""}
        return Reply(rendered("problem.html", words, shown).encode(), status)

    async def _download(self, request: Request, send: Send) -> None:
        words = words_of(request)
        question = _question(request, words)
        name, media_type = _DOWNLOADS[question.path]
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        is_begun = False
        async for reply in self._parts(request, question, words):
            if not is_begun:
                is_begun = True
                if reply.status != HTTPStatus.OK:
                    content = f"{self._head(request, words, None)}".encode() + reply.content
                    await HTMLResponse(content, reply.status)(request.scope, request.receive, send)
                    return
                await _begin(send, Response(b"", media_type=media_type, headers=headers))
            elif reply.status != HTTPStatus.OK:
                raise OSError(f"{question.path}: the download is not complete")  # the connection ends: clients notice
            await send({"type": "http.response.body", "body": reply.content, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _parts(self, request: Request, question: Question, words: Words) -> AsyncIterator[Reply]:
        while True:
            answer = asyncio.ensure_future(self._answer(question, words))
            await _unless_gone(request.receive, answer, None)
            reply = await answer
            yield reply
            if reply.next is None:
                return
            question = question._replace(before=reply.next)


def _question(request: Request, words: Words) -> Question:
    return Question(request.url.path, dict(request.query_params), words.language)


async def _begin(send: Send, response: Response) -> None:
    headers = [(name, value) for name, value in response.raw_headers if name != b"content-length"]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})


async def _unless_gone(receive: Receive, answer: "asyncio.Future[_Result]", seconds: float | None) -> bool:
    """Wait for an answer, and return whether it is there; `_GoneError` ends it where the browser has gone."""
    gone = asyncio.ensure_future(_gone(receive))
    waited_for: set[asyncio.Future[Any]] = {answer, gone}
    try:
        await asyncio.wait(waited_for, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not answer.done():
            answer.cancel()
            raise _GoneError
    except asyncio.CancelledError:  # the server ends
        answer.cancel()
        raise
    finally:
        gone.cancel()
    return answer.done()


async def _gone(receive: Callable[[], Awaitable[object]]) -> None:
    while True:
        message = await receive()
        if isinstance(message, dict) and message["type"] == "http.disconnect":
            return
