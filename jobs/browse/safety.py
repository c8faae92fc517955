"""
The door of the pages: who may ask, and what a browser may do with an answer.

A page of another site can make a browser send requests here, and after DNS rebinding even read the answers. So a
request needs the cookie that only the printed address gives, this server's own name in `Host`, and no sign of another
origin. Cookies do not tell ports apart: `Sec-Fetch-Site` keeps pages of other servers on this machine out.
"""

from hmac import compare_digest
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import MutableHeaders, QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
