"""
The server: one address on standard output, pages until Ctrl-C; who may ask, and what a browser may do with an answer.

A page of another site can make a browser send requests here, and after DNS rebinding even read the answers. So a
request needs the cookie that only the printed address gives, this server's own name in `Host`, and no sign of another
origin. Cookies do not tell ports apart: `Sec-Fetch-Site` keeps pages of other servers on this machine out.
"""

import errno
import os
import secrets
import socket
import sys
import webbrowser
from contextlib import ExitStack, suppress
from hmac import compare_digest
from html import escape
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn
from starlette.datastructures import MutableHeaders, QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobs.browse.application import Application
from jobs.browse.workers import Workers
from jobs.console.exit_codes import ExitCode
from jobs.launch.engine import SetupError
from jobs.query.place import Place, open_place

HOST = "127.0.0.1"
_PATIENCE = 2  # seconds that open answers get at the end
_LINES = 128  # of waiting connections
_HEADERS = {
    # `nosniff` is part of this: of all that this server sends, bodies too, only its own script is one by its type.
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
# The page that sets the cookie leads to the pages itself: a redirect that another site began would not send it.
_ENTER = '<!doctype html><html lang="en"><title>rmq-lake</title><meta http-equiv="refresh" content="0;url=/"></html>'


def serve(place: Place, port: int, *, opens: bool) -> ExitCode:
    """Serve the pages of a place until Ctrl-C or SIGTERM."""
    with open_place(place):  # errors of the place are raised before an address is printed
        pass
    with _listening(port) as listener, ExitStack() as stack:
        port = listener.getsockname()[1]
        token = secrets.token_urlsafe(32)
        address = f"http://{HOST}:{port}/?token={token}"
        workers = Workers(place)
        stack.callback(workers.close)
        app = Door(Application(workers), token, port)
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="off",
            ws="none",
            http="h11",
            loop="asyncio",
            timeout_graceful_shutdown=_PATIENCE,
        )
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        if opens and _has_display():
            folder = stack.enter_context(TemporaryDirectory(prefix="rmq-lake-browse-"))
            with suppress(webbrowser.Error):  # no browser starts: the address is printed
                webbrowser.open(redirect_file(Path(folder), address).as_uri())
        with suppress(KeyboardInterrupt):  # the way in which these pages end
            uvicorn.Server(config).run(sockets=[listener])
    return ExitCode.CLEAN


def redirect_file(folder: Path, address: str) -> Path:
    """
    Write a page that leads a browser to an address, readable by its owner alone.

    Every user of this machine can read the arguments of a process. So the browser gets the name of this file, and not
    the address with the token.
    """
    path = folder / "open.html"
    path.touch(mode=0o600, exist_ok=False)
    leads = f'<meta http-equiv="refresh" content="0;url={escape(address)}">'
    path.write_text(f"<!doctype html><title>rmq-lake</title>{leads}\n", encoding="utf-8")
    return path


def _listening(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(_LINES)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise SetupError(f"port {port} of {HOST} is in use: give another --port, or none for a free one") from error
        raise OSError(error.errno, error.strerror, f"port {port} of {HOST}") from error
    return listener


def _has_display() -> bool:
    """Return whether a browser would have a screen to open a page on."""
    is_remote = "SSH_CONNECTION" in os.environ
    if sys.platform == "darwin":
        return not is_remote
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


class Door:
    """Lets in requests that have the token and come from this server's own pages, and only to read."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        """Guard *app*, which listens on *port*."""
        self._app = app
        self._token = token
        self._cookie = f"rmq_lake_{port}"
        self._own = f"http://127.0.0.1:{port}"
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self._refusal(request)

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                del headers["server"]
            await send(message)

        await (refusal or self._app)(scope, receive, send_safely)

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer in place of a page; None where the page may be given."""
        headers = request.headers
        if headers.getlist("host") not in ([host] for host in self._hosts):
            return _refused(HTTPStatus.MISDIRECTED_REQUEST, f"Wrong Host. Tunnels need the same port: {self._own}")
        if request.method not in {"GET", "HEAD"}:
            return _refused(HTTPStatus.METHOD_NOT_ALLOWED, "Method not allowed: only GET and HEAD.")
        given = _token_of(request)
        is_first = given is not None and self._is_right(given)
        is_own_origin = headers.get("origin") in {None, *(f"http://{host}" for host in self._hosts)}
        is_own_page = headers.get("sec-fetch-site", "none") in {"same-origin", "none"}
        # Who has the token may come from anywhere: from a terminal in a web page, for one.
        if not is_own_origin or not (is_own_page or is_first):
            return _refused(HTTPStatus.FORBIDDEN, "Cross-origin request refused.")
        if is_first:
            response = HTMLResponse(_ENTER)
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
            return response
        if not self._is_right(self._cookie_of(request)):
            return _refused(HTTPStatus.UNAUTHORIZED, "Open the address that `browse` printed: it has the token.")
        return None

    def _is_right(self, given: str) -> bool:
        return compare_digest(given.encode(), self._token.encode())

    def _cookie_of(self, request: Request) -> str:
        try:
            morsel = SimpleCookie(request.headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return "" if morsel is None else morsel.value


def _token_of(request: Request) -> str | None:
    if request.url.path != "/":
        return None
    return QueryParams(request.scope["query_string"]).get("token")


def _refused(status: HTTPStatus, sentence: str) -> Response:
    return PlainTextResponse(f"{sentence}\n", status)
