"""A lake on an S3 server that fails requests, and a lake on S3 to which another engine writes."""

import http.client
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from itertools import count
from random import Random

import pytest
from pyspark.sql import SparkSession

from jobs.diagnosis.findings import Finding
from jobs.ingest import IngestRequest
from jobs.ingest.run import ingest
from jobs.lake.commit import ensure_table, open_table, read_rows
from jobs.lake.integrity import append_findings
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import read_rows_where
from jobs.lake.snapshots import UnsupportedTableError
from jobs.lake.tables import FINDINGS, RUNS
from jobs.lake.upkeep import optimize
from jobs.query.lake_tables import LakeTables
from jobs.store.workers import SerialWorkers
from tests.golden import StoreOf
from tests.sampling import mark_campaign_except
from tests.scale.servers import ADDRESS, S3Server, expected_rows
from tests.support.http_server import run_http_server
from tests.support.lakes import raw_rows
from tests.support.other_engine import WITH_VECTORS, shared_lake

pytestmark = pytest.mark.cluster

_SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
_ERROR = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>We encountered an error.</Message></Error>"
_SILENT_S = 4.0  # longer than the timeout of a client
KINDS = {"error": 20, "throttled": 20, "cut off": 10, "silent": 300}  # one of that many requests fails


@dataclass
class FlakyProxy:
    """Forwards requests to a local port, and fails some."""

    target: int
    fails: Callable[[int], bool]
    kind: str
    port: int = 0
    failed: int = 0
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = _read_body(request)
        if self.fails(next(self.numbers)):
            self.failed += 1
            self._fail(request, body)
        else:
            self._pass_on(request, body)

    def _fail(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        if self.kind == "error":
            _answer(request, 500, _ERROR)
        elif self.kind == "throttled":
            _answer(request, 503, _SLOW_DOWN)
        else:
            if self.kind == "silent":
                time.sleep(_SILENT_S)
            else:
                self._pass_on(request, body, is_cut=True)
            request.close_connection = True

    def _pass_on(self, request: BaseHTTPRequestHandler, body: bytes, *, is_cut: bool = False) -> None:
        """Forward a request to the real server; a cut response ends halfway, or within its headers."""
        connection = http.client.HTTPConnection(ADDRESS, self.target, timeout=60)
        connection.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            if name.lower() not in {"connection", "expect"}:
                connection.putheader(name, value)
        connection.endheaders()
        connection.send(body)
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


def _read_body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    raw = bytearray()
    size = 1
    while size:
        head = request.rfile.readline()
        size = int(head.split(b";")[0], 16)
        raw += head + request.rfile.read(size + 2)
    return bytes(raw)


def _answer(request: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    request.send_response(status)
    request.send_header("Content-Type", "application/xml")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


@contextmanager
def flaky_proxy(port: int, fails: Callable[[int], bool], kind: str) -> Iterator[FlakyProxy]:
    server = FlakyProxy(port, fails, kind)
    with run_http_server(server.answer, "HTTP/1.1") as address:
        server.port = int(address.rpartition(":")[2])
        yield server


STORE = "b533-base"
OFFSETS = "SELECT physical_offset FROM messages ORDER BY physical_offset"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", mark_campaign_except(KINDS, "error", "cut off"))
def test_an_unreliable_server_loses_no_messages(s3: S3Server, golden: StoreOf, kind: str) -> None:
    """All clients retry. If a run still fails, the next one completes it."""
    prefix = "flaky-" + kind.replace(" ", "-")
    shutil.copytree(golden(STORE), s3.path(prefix, "store"), ignore=shutil.ignore_patterns("EXPECT"))
    request = IngestRequest(s3.uri(prefix, "store"), s3.uri(prefix, "lake"))
    said = "nothing"
    # The numbers of failing requests are the same each time, but a repeated request has a different number.
    with flaky_proxy(s3.port, lambda number: Random(number).randrange(KINDS[kind]) == 0, kind) as server:
        try:
            ingest(request, SerialWorkers(S3Server(server.port, s3.folder).options))
        except OSError as error:
            said = str(error)
    ingest(request, SerialWorkers(s3.options))
    print(kind, next(server.numbers), server.failed, said[:200])

    assert server.failed > 0
    assert expected_rows(s3.path(prefix, "store")) == raw_rows(s3.path(prefix, "lake"))
    assert kind not in {"error", "throttled"} or said == "nothing"


@pytest.mark.timeout(600)
def test_a_table_is_created_once_if_any_response_is_cut_off(s3: S3Server) -> None:
    for number in count(1):  # until the run makes fewer requests
        lake = s3.uri(f"cut-answer-{number}")
        with flaky_proxy(s3.port, number.__eq__, "cut off") as server:
            table = ensure_table(Lake(lake, S3Server(server.port, s3.folder).options), RUNS)
        assert table.schema() == RUNS.delta_schema
        if not server.failed:
            break
    assert number > 10


@pytest.mark.timeout(600)
def test_a_commit_counts_once_if_any_response_is_cut_off(s3: S3Server) -> None:
    """This includes listings, which clients do not retry, and the response to the commit."""
    found = Finding("queues", "dangling", "consumequeue/T/0/00000000000000000000", 20, "physical_offset", "1", "2", "")
    ensure_table(Lake(s3.uri("cut-commit-0"), s3.options), FINDINGS)
    for number in count(1):
        name = f"cut-commit-{number}"
        shutil.copytree(s3.path("cut-commit-0"), s3.path(name))
        with flaky_proxy(s3.port, number.__eq__, "cut off") as server:
            append_findings(Lake(s3.uri(name), S3Server(server.port, s3.folder).options), None, "b", [found._asdict()])
        assert [(1,)] == read_rows(Lake(s3.uri(name), s3.options), FINDINGS.name, ("verification",))
        if not server.failed:
            break
    assert number > 10  # requests of a commit


class LakeOnS3:
    """A lake on the server, which runs access by its address, and another engine by the server's disk."""

    def __init__(self, s3: S3Server, spark: SparkSession, prefix: str) -> None:
        self.there = shared_lake(spark, s3.path(prefix))
        self.lake = Lake(s3.uri(prefix, "lake"), s3.options)

    def run(self) -> None:
        ingest(IngestRequest(str(self.there.broker.root), self.lake.location, "b"), SerialWorkers(self.lake.options))


@pytest.fixture
def lake_on_s3(s3: S3Server, spark: SparkSession, request: pytest.FixtureRequest) -> LakeOnS3:
    """Return a lake in which another engine has deleted every third message by deletion vectors."""
    made = LakeOnS3(s3, spark, request.node.name)
    made.there.sql(WITH_VECTORS, "DELETE FROM {messages} WHERE physical_offset % 3 = 0")
    return made


def test_rows_deleted_by_vectors_on_s3_stay_deleted(lake_on_s3: LakeOnS3) -> None:
    left, gone = lake_on_s3.there.offsets(), lake_on_s3.there.offsets("physical_offset % 3 = 0")
    assert left
    assert gone == []

    snapshot = open_table(lake_on_s3.lake, "messages")
    assert snapshot is not None
    assert sorted(read_rows_where(lake_on_s3.lake, snapshot, ["physical_offset"]).column(0).to_pylist()) == left
    deleted = read_rows_where(lake_on_s3.lake, snapshot, ["physical_offset"], only_deleted=True).column(0).to_pylist()
    assert deleted
    assert not any(offset % 3 for offset in deleted)
    queried = LakeTables(lake_on_s3.lake.location, lake_on_s3.lake.options).rows(OFFSETS)
    assert [row["physical_offset"] for row in queried] == left
    new = lake_on_s3.there.grow(7)
    lake_on_s3.run()
    optimize(lake_on_s3.lake.location, SerialWorkers(lake_on_s3.lake.options))

    assert lake_on_s3.there.offsets() == [*left, *new]


def test_a_rewritten_log_with_vectors_on_s3_is_refused_with_the_remedy(lake_on_s3: LakeOnS3) -> None:
    there = lake_on_s3.there
    cut = there.offsets()[5]
    left = [offset for offset in there.offsets() if offset < cut]
    there.broker.truncate(cut)
    there.grow(60)
    with pytest.raises(UnsupportedTableError, match=r"REORG TABLE .* APPLY \(PURGE\)"):
        lake_on_s3.run()
    assert there.offsets()[: len(left)] == left

    there.sql("REORG TABLE {messages} APPLY (PURGE)")
    lake_on_s3.run()

    assert there.offsets()[: len(left) + 1] == [*left, cut]
    assert len(there.offsets()) == len(left) + 60
