"""A local HTTP server that answers requests with a function of the test, which may forward them to another server."""

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

Answer = Callable[[BaseHTTPRequestHandler], None]
_ADDRESS = "127.0.0.1"
_POLL_S = 0.01  # the shutdown waits for the next poll


@contextmanager
def run_http_server(answer: Answer, protocol: str = "HTTP/1.0") -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = protocol
        disable_nagle_algorithm = True  # else the body waits 40 ms for the acknowledgement of the headers

        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_arguments: object) -> None:
            pass

        do_PUT = do_POST = do_HEAD = do_DELETE = do_GET  # noqa: N815 - the names that http.server looks for

    with ThreadingHTTPServer((_ADDRESS, 0), Handler) as server:
        Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True).start()
        yield f"{_ADDRESS}:{server.server_address[1]}"
        server.shutdown()


def read_body(request: BaseHTTPRequestHandler) -> bytes:
    """Return the body of a request as it was sent, with the sizes of chunks."""
    if request.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    raw = bytearray()
    size = 1
    while size:
        head = request.rfile.readline()
        size = int(head.split(b";")[0], 16)
        raw += head + request.rfile.read(size + 2)
    return bytes(raw)


def forward_request(request: BaseHTTPRequestHandler, port: int, body: bytes, *, is_cut: bool = False) -> None:
    """Forward a request to a local port, and its answer to the client. A cut one ends halfway, or in its headers."""
    connection = http.client.HTTPConnection(_ADDRESS, port, timeout=60)
    passed = {name: value for name, value in request.headers.items() if name.lower() not in {"connection", "expect"}}
    connection.request(request.command, request.path, body, passed)
    answer = connection.getresponse()
    found = answer.read()
    request.send_response_only(answer.status, answer.reason)
    for name, value in answer.getheaders():
        if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
            request.send_header(name, value)
    length = answer.getheader("Content-Length") if request.command == "HEAD" else None
    request.send_header("Content-Length", length or str(len(found)))
    if found or not is_cut:
        request.end_headers()
    else:
        request.flush_headers()
    request.wfile.write(found[: len(found) // 2] if is_cut else found)
    connection.close()
