"""A local HTTP server that answers requests with a function of the test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

Answer = Callable[[BaseHTTPRequestHandler], None]
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

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
