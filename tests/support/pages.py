"""Serve the pages of `browse` in another process, or render them in this one."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from jobs.browse.pages import Pages as RenderedPages
from jobs.browse.requests import PageRequest
from jobs.requests.query import QueryTarget
from tests.support.commands import ROOT

HOSTILE = "<script>alert('x')</script>&\"' OR 1=1 --\u202e"
HOSTILE_DIRECTORY = HOSTILE.replace("</script>", "<img src=x onerror=alert(1)>")  # a directory's name has no slash


class PageReply(NamedTuple):
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Pages:
    """A client of a server, with the address that it printed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.port = urlsplit(address).port or 0
        self.base, _, self.token = address.partition("/?token=")
        self.cookie = f"rmq_lake_{self.port}={self.token}"

    def get(self, path: str, method: str = "GET", **headers: str | None) -> PageReply:
        """Send a request with the headers of a page of this server; a header that is None is left out."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie, **named}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=240)
        connection.putrequest(method, path, skip_host=True)
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        reply = PageReply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        connection.close()
        # A page that is sent before its result is known states the final status in its content.
        late = (
            re.search(rb'<main id="main" data-status="(\d+)"', reply.body) if b'class="waiting"' in reply.body else None
        )
        return reply if late is None else reply._replace(status=int(late[1]))


def render_page(target: QueryTarget, path: str, language: str = "en") -> PageReply:
    """Render a page without its head, or a file, as a process of the server does."""
    route, _, query = path.partition("?")
    answer = RenderedPages(target).answer(0, PageRequest(route, dict(parse_qsl(query)), language))
    return PageReply(answer.status, {"location": answer.location}, answer.content)


@contextmanager
def serve_pages(place: Path) -> Iterator[Pages]:
    command = [sys.executable, "-m", "jobs.main", "browse", "--no-open", str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield Pages(process.stdout.readline().strip())
        finally:
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=240)
    assert (rest, process.returncode) == ("", 0)
