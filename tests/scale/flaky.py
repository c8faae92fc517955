"""A server before another one that fails some requests: an error, a request to slow down, or an answer that stops."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from random import Random

from tests.scale.servers import ADDRESS

_SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
_ERROR = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>We encountered an error.</Message></Error>"
_SILENT_S = 4.0  # longer than a client waits
KINDS = {"error": 20, "throttled": 20, "cut off": 10, "silent": 300}  # one request in so many fails


def one_in(many: int) -> Callable[[int], bool]:
    """Choose requests by their numbers, the same ones each time, but in no step with what asks again."""
    return lambda number: Random(number).randrange(many) == 0


class FlakyServer(ThreadingHTTPServer):
    """Passes requests on to a port of this machine, and fails some."""

    daemon_threads = True

    def __init__(self, target: int, fails: Callable[[int], bool], kind: str) -> None:
        super().__init__((ADDRESS, 0), _Handler)
        self.target = target
        self.fails = fails
        self.kind = kind
        self.numbers = count(1)
        self.requests = 0
        self.failed = 0
        self.over = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that hang up."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FlakyServer

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _any(self) -> None:
        body = self._body()
        self.server.requests = number = next(self.server.numbers)
        if self.server.fails(number):
            self.server.failed += 1
            self._fail(body)
        else:
            self._pass_on(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        raw = bytearray()
        size = 1
        while size:
            head = self.rfile.readline()
            size = int(head.split(b";")[0], 16)
            raw += head + self.rfile.read(size + 2)
        return bytes(raw)

    def _fail(self, body: bytes) -> None:
        kind = self.server.kind
        if kind == "error":
            self._answer(500, _ERROR)
        elif kind == "throttled":
            self._answer(503, _SLOW_DOWN)
        else:
            if kind == "silent":
                self.server.over.wait(_SILENT_S)
            else:
                self._pass_on(body, is_cut=True)
            self.close_connection = True

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _pass_on(self, body: bytes, *, is_cut: bool = False) -> None:
        """Ask the real server, which does what it is asked; a cut answer stops halfway, or before its headers do."""
        connection = http.client.HTTPConnection(ADDRESS, self.server.target, timeout=60)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in {"connection", "expect"}:
                connection.putheader(name, value)
        connection.endheaders()
        connection.send(body)
        answer = connection.getresponse()
        found = answer.read()
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(found)))
        if found or not is_cut:
            self.end_headers()
        else:
            self.flush_headers()
        self.wfile.write(found[: len(found) // 2] if is_cut else found)
        connection.close()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _any  # noqa: N815 - the names that http.server looks for


@contextmanager
def flaky(port: int, fails: Callable[[int], bool], kind: str) -> Iterator[FlakyServer]:
    with FlakyServer(port, fails, kind) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()
