"""A lake on an S3 server that fails requests, and a lake on S3 to which another engine writes."""

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
from jobs.ingest.run import ingest
from jobs.lake.commit import ensure_table, open_table, read_rows
from jobs.lake.integrity import append_findings
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import read_rows_where
from jobs.lake.snapshots import UnsupportedTableError
from jobs.lake.tables import FINDINGS
from jobs.lake.upkeep import optimize
from jobs.query.lake_tables import LakeTables
from jobs.requests.ingest import IngestRequest
from jobs.store.workers import SerialWorkers
from tests.golden import StoreOf
from tests.sampling import mark_campaign_except
from tests.scale.servers import S3Server, expected_rows
from tests.support.http_server import forward_request, read_body, run_http_server
from tests.support.lakes import raw_rows
from tests.support.other_engine import WITH_VECTORS, shared_lake

pytestmark = pytest.mark.cluster

_ANSWERS = {  # of a server that fails
    "error": (500, "InternalError", "We encountered an error."),
    "throttled": (503, "SlowDown", "Reduce your request rate."),
}
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
        body = read_body(request)
        if self.fails(next(self.numbers)):
            self.failed += 1
            self._fail(request, body)
        else:
            forward_request(request, self.target, body)

    def _fail(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        if self.kind in _ANSWERS:
            _refuse(request, *_ANSWERS[self.kind])
            return
        if self.kind == "silent":
            time.sleep(_SILENT_S)
        else:
            forward_request(request, self.target, body, is_cut=True)
        request.close_connection = True


def _refuse(request: BaseHTTPRequestHandler, status: int, code: str, text: str) -> None:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{text}</Message></Error>".encode()
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
            ingest(request, SerialWorkers(S3Server(server.port, s3.directory).options))
        except OSError as error:
            said = str(error)
    ingest(request, SerialWorkers(s3.options))
    print(kind, next(server.numbers), server.failed, said[:200])

    assert server.failed > 0
    assert expected_rows(s3.path(prefix, "store")) == raw_rows(s3.path(prefix, "lake"))
    assert kind not in {"error", "throttled"} or said == "nothing"


def test_a_table_and_a_commit_count_once_if_any_response_is_cut_off(s3: S3Server) -> None:
    """This includes listings, which clients do not retry, and the responses to the two commits."""
    found = Finding("queues", "dangling", "consumequeue/T/0/00000000000000000000", 20, "physical_offset", "1", "2", "")
    for number in count(1):  # until the commits make fewer requests
        name = f"cut-answer-{number}"
        with flaky_proxy(s3.port, number.__eq__, "cut off") as server:
            lake = Lake(s3.uri(name), S3Server(server.port, s3.directory).options)
            table = ensure_table(lake, FINDINGS)
            append_findings(lake, None, "b", [found._asdict()])

        assert table.schema() == FINDINGS.delta_schema
        assert [(1,)] == read_rows(Lake(s3.uri(name), s3.options), FINDINGS.name, ("verification",))
        if not server.failed:
            break

    assert number > 20  # requests


def test_rows_deleted_by_vectors_on_s3_stay_deleted_and_a_rewritten_log_is_refused(
    s3: S3Server, spark: SparkSession
) -> None:
    """Runs access the lake by its address, and another engine, which deletes by vectors, by the server's disk."""
    there = shared_lake(spark, s3.path("vectors"))
    lake = Lake(s3.uri("vectors", "lake"), s3.options)
    workers = SerialWorkers(s3.options)
    request = IngestRequest(str(there.broker.root), lake.location, "b")
    gone = there.offsets("physical_offset % 3 = 0")
    there.sql(WITH_VECTORS, "DELETE FROM {messages} WHERE physical_offset % 3 = 0")
    left = there.offsets()

    assert left
    assert set(gone).isdisjoint(left)

    snapshot = open_table(lake, "messages")

    assert snapshot is not None
    kept, deleted = (
        read_rows_where(lake, snapshot, ["physical_offset"], only_deleted=only_deleted).column(0).to_pylist()
        for only_deleted in (False, True)
    )

    assert left == sorted(kept)
    assert gone == sorted(deleted)
    queried = LakeTables(lake.location, lake.options).rows(OFFSETS)

    assert [row["physical_offset"] for row in queried] == left
    new = there.grow(7)
    ingest(request, workers)
    optimize(lake.location, workers)

    assert there.offsets() == [*left, *new]

    cut = left[5]
    there.broker.truncate(cut)
    there.grow(60)
    with pytest.raises(UnsupportedTableError, match=r"REORG TABLE .* APPLY \(PURGE\)"):
        ingest(request, workers)

    assert there.offsets()[:5] == left[:5]

    there.sql("REORG TABLE {messages} APPLY (PURGE)")
    ingest(request, workers)

    assert there.offsets()[:6] == left[:6]
    assert len(there.offsets()) == 5 + 60
