"""
The web server: prints one address, serves pages until Ctrl-C, and checks every request.

A page of another site can make a browser send requests here, and after DNS rebinding even read the answers. So a
request needs the cookie that only the printed address gives, this server's own name in `Host`, and no sign of another
origin. Cookies do not distinguish ports: `Sec-Fetch-Site` blocks pages of other servers on this machine.

A slow page is sent in two parts, so that its navigation and its search box can be used in the meantime. If the browser
leaves the page, its query is cancelled.
"""

import asyncio
import errno
import os
import secrets
import socket
import sys
import webbrowser
from contextlib import ExitStack, suppress
from functools import partial
from hmac import compare_digest
from html import escape
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar
from urllib.parse import urlencode

import uvicorn
from starlette.datastructures import MutableHeaders, QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from jobs.browse.rendering import SCRIPT, STYLE, Translator, choose_translator, render_page
from jobs.browse.requests import PageReply, PageRequest
from jobs.browse.workers import PageWorkers
from jobs.console.result import ExitCode
from jobs.launch.engine import SetupError
from jobs.query.target import open_stores
from jobs.requests.query import QueryTarget

HOST = "127.0.0.1"
_PATIENCE = 2  # seconds to finish open requests when the server stops
_BACKLOG = 64  # connections that may wait to be accepted
_MOST_WAITING = 100  # open connections without a request; some systems allow a process only 256 open files
_HEADERS = {
    # Because of `nosniff`, browsers run only our own script: all other responses, including bodies, have other types.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "interest-cohort=()",
}
# The response with this page sets the cookie, and the page then opens the start page. If an HTTP redirect did this
# after a link on another site, the browser would not send the cookie.
_ENTER = '<!doctype html><html lang="en"><title>rmq-lake</title><meta http-equiv="refresh" content="0;url=/"></html>'
_SOON = 0.3  # seconds within which most answers arrive: their pages are sent whole, with their own status
_SECONDS = 60.0  # time limit of one answer
_FILES = {"/style.css": (STYLE, "text/css"), "/bars.js": (SCRIPT, "text/javascript")}
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
    "/usage": "Disk usage",
    "/unfinished": "Unfinished",
}
_INTERVALS = ("5", "30")  # seconds between two refreshes of a page


def serve(target: QueryTarget, port: int, *, opens_browser: bool) -> ExitCode:
    """Serve the pages of a store or a lake until Ctrl-C or SIGTERM."""
    with open_stores(target):  # errors are raised before an address is printed
        pass
    with _open_socket(port) as listener, ExitStack() as stack:
        port = listener.getsockname()[1]
        token = secrets.token_urlsafe(32)
        address = f"http://{HOST}:{port}/?token={token}"
        workers = PageWorkers(target)
        stack.callback(workers.close)
        app = guard(partial(answer_request, workers), token, port)
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="off",
            ws="none",
            http=_Connection,
            loop="asyncio",
            backlog=_BACKLOG,
            timeout_graceful_shutdown=_PATIENCE,
        )
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        has_display = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
        if sys.platform == "darwin":
            has_display = "SSH_CONNECTION" not in os.environ
        if opens_browser and has_display:
            directory = stack.enter_context(TemporaryDirectory(prefix="rmq-lake-browse-"))
            with suppress(webbrowser.Error):  # no browser starts: the address is printed
                webbrowser.open(write_redirect_page(Path(directory), address).as_uri())
        with suppress(KeyboardInterrupt):  # the usual way to stop the server
            uvicorn.Server(config).run(sockets=[listener])
    return ExitCode.CLEAN


def write_redirect_page(directory: Path, address: str) -> Path:
    """
    Write a page, readable only by its owner, that redirects a browser to an address.

    Every user of this machine can read the arguments of a process. So the browser gets the name of this file, and not
    the address with the token.
    """
    path = directory / "open.html"
    path.touch(mode=0o600, exist_ok=False)
    leads = f'<meta http-equiv="refresh" content="0;url={escape(address)}">'
    path.write_text(f"<!doctype html><title>rmq-lake</title>{leads}\n", encoding="utf-8")
    return path


def _open_socket(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port), backlog=_BACKLOG)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise OSError(error.errno, os.strerror(error.errno or errno.EIO), f"port {port} on {HOST}") from error
        reason = f"port {port} on {HOST} is in use: pass another --port, or omit it to use a free one"
        raise SetupError(reason) from error


class _Connection(H11Protocol):
    """A connection. If too many connections wait for a complete request, the oldest one of them is closed."""

    _waiting: ClassVar[dict[H11Protocol, None]] = {}  # the oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Wait for a request."""
        super().connection_made(transport)
        self._note_waiting()
        if len(self._waiting) > _MOST_WAITING:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Begin to answer a request, if it is complete."""
        super().data_received(data)
        self._note_waiting()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._note_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        self._waiting.pop(self, None)

    def _note_waiting(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr] # None at first
        if is_answering:
            self._waiting.pop(self, None)
        else:
            self._waiting.setdefault(self)


def guard(app: ASGIApp, token: str, port: int) -> ASGIApp:
    """Wrap *app* in checks: only read-only requests with the token, from this server's own pages, are accepted."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                del headers["server"]
            await send(message)

        await (_refusal(Request(scope), token, port) or app)(scope, receive, send_safely)

    return respond


def _refusal(request: Request, token: str, port: int) -> Response | None:
    """Return the response that refuses a request, or that sets the cookie; None if the request is allowed."""
    headers, cookie, hosts = request.headers, f"rmq_lake_{port}", (f"127.0.0.1:{port}", f"localhost:{port}")
    if headers.getlist("host") not in ([host] for host in hosts):
        sentence = f"Unexpected Host header. Open http://{hosts[0]}; a tunnel must use the same local port.\n"
        return PlainTextResponse(sentence, HTTPStatus.MISDIRECTED_REQUEST)
    if request.method not in {"GET", "HEAD"}:
        sentence = "Method not allowed: only GET and HEAD.\n"
        return PlainTextResponse(sentence, HTTPStatus.METHOD_NOT_ALLOWED)
    given = QueryParams(request.scope["query_string"]).get("token") if request.url.path == "/" else None
    is_first = given is not None and compare_digest(given.encode(), token.encode())
    is_own_origin = headers.get("origin") in {None, *(f"http://{host}" for host in hosts)}
    is_own_page = headers.get("sec-fetch-site", "none") in {"same-origin", "none"}
    # A request with the token may come from any page, such as a terminal in a browser.
    if not is_own_origin or not (is_own_page or is_first):
        return PlainTextResponse("Cross-origin request refused.\n", HTTPStatus.FORBIDDEN)
    if is_first:
        response = HTMLResponse(_ENTER)
        response.set_cookie(cookie, token, httponly=True, samesite="strict", path="/")
        return response
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(cookie)
    except CookieError:
        morsel = None
    if morsel is None or not compare_digest(morsel.value.encode(), token.encode()):
        sentence = "The token is missing or wrong. Open the address that `browse` printed.\n"
        return PlainTextResponse(sentence, HTTPStatus.UNAUTHORIZED)
    return None


async def answer_request(workers: PageWorkers, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a read-only request. If the browser disconnects or the server stops, cancel the query."""

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    answer = asyncio.ensure_future(_respond(workers, Request(scope), send))
    disconnect = asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait({answer, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            await answer
    finally:
        answer.cancel()
        disconnect.cancel()


async def _respond(workers: PageWorkers, request: Request, send: Send) -> None:
    path, response = request.url.path, None
    if path in _FILES:
        content, media_type = _FILES[path]
        response = Response(content, media_type=media_type)
    elif path == "/again":
        workers.reopen_target()
        response = RedirectResponse("/", HTTPStatus.SEE_OTHER)
    elif path == "/favicon.ico":
        response = Response(status_code=HTTPStatus.NO_CONTENT)
    if response is not None:
        await response(request.scope, request.receive, send)
    elif path in _DOWNLOADS:
        await _download(workers, request, send)
    else:
        await _page(workers, request, send)


async def _page(workers: PageWorkers, request: Request, send: Send) -> None:
    words, every = choose_translator(request), request.query_params.get("every")
    if every in _INTERVALS:
        workers.reopen_target()
    head = _render_head(workers, request, words, every)
    question = PageRequest(request.url.path, dict(request.query_params), words.language)
    # The head of a page that may redirect is not sent in advance: a redirect must be the complete response.
    may_lead_on = request.url.path == "/find" or "holds" in request.query_params
    response = HTMLResponse(b"", HTTPStatus.OK)
    if "lang" in request.query_params:
        response.set_cookie("rmq_lake_lang", words.language, samesite="strict", path="/")
    async with asyncio.TaskGroup() as group:  # cancels the query with this request
        answer = group.create_task(_answer(workers, question, words))
        await asyncio.wait({answer}, timeout=None if may_lead_on else _SOON)
        is_soon = answer.done()
        if not is_soon:
            await _begin_response(send, response)
            waiting = render_page("waiting.html", words, {})
            await send({"type": "http.response.body", "body": f"{head}{waiting}".encode(), "more_body": True})
    reply = answer.result()
    if is_soon:
        if reply.location:
            await RedirectResponse(reply.location, reply.status)(request.scope, request.receive, send)
            return
        response.status_code = reply.status
        await _begin_response(send, response)
        await send({"type": "http.response.body", "body": head.encode(), "more_body": True})
    await send({"type": "http.response.body", "body": reply.content, "more_body": False})


def _render_head(workers: PageWorkers, request: Request, words: Translator, every: str | None) -> str:
    query = [pair for pair in request.query_params.multi_items() if pair[0] not in {"lang", "every"}]
    path = request.url.path
    title = words(_TITLES.get(path, "")) or path.removeprefix("/tables/")
    shown = {
        "words": words,
        "target": workers.target,
        "path": path,
        "title": title,
        "every": every if every in _INTERVALS else "",
        "other_language": f"?{urlencode([*query, ('lang', words.other)])}",
        "intervals": [(one, f"?{urlencode([*query, ('every', one)])}") for one in _INTERVALS],
        "once": f"{path}?{urlencode(query)}",
    }
    return render_page("head.html", words, shown)


async def _answer(workers: PageWorkers, question: PageRequest, words: Translator) -> PageReply:
    try:
        return await workers.answer(question, _SECONDS)
    except TimeoutError:
        problem = words("This query took longer than a minute and was stopped. Choose a topic or a time range.")
        status = HTTPStatus.GATEWAY_TIMEOUT
    except ConnectionError:
        problem = words("The worker process of this query ended unexpectedly; the machine may be out of memory.")
        status = HTTPStatus.INTERNAL_SERVER_ERROR
    shown = {"words": words, "target": workers.target, "problem": problem, "status": int(status), "command": ""}
    return PageReply(render_page("problem.html", words, shown).encode(), status)


async def _download(workers: PageWorkers, request: Request, send: Send) -> None:
    words = choose_translator(request)
    question = PageRequest(request.url.path, dict(request.query_params), words.language)
    name, media_type = _DOWNLOADS[question.path]
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    following: str | None = ""
    while following is not None:
        reply = await _answer(workers, question, words)
        is_first = question.before is None
        if reply.status != HTTPStatus.OK and is_first:
            content = _render_head(workers, request, words, None).encode() + reply.content
            await HTMLResponse(content, reply.status)(request.scope, request.receive, send)
            return
        if reply.status != HTTPStatus.OK:
            raise OSError(
                f"{question.path}: an error interrupted the download; the saved file is incomplete"
            )  # ends the connection early
        if is_first:
            await _begin_response(send, Response(b"", media_type=media_type, headers=headers))
        await send({"type": "http.response.body", "body": reply.content, "more_body": True})
        following = reply.next_position
        question = question._replace(before=following)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _begin_response(send: Send, response: Response) -> None:
    headers = [(name, value) for name, value in response.raw_headers if name != b"content-length"]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
