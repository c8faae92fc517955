"""Stores and lakes on S3: a real server, signed requests, credentials in one place."""

import hashlib
import json
import multiprocessing
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from jobs.console.exit_codes import ExitCode
from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.lake.runs import HeldByOtherError
from jobs.rebuild.index import RebuildIndexRequest, rebuild
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from rmq_formats.commitlog.record import encode_record, record_of_row
from tests.golden import StoreOf
from tests.scale.commands import expected_rows, rmq_lake
from tests.scale.servers import ACCESS_KEY, SECRET_KEY, S3Server
from tests.support.commands import Run, runner
from tests.support.lakes import table_of

pytestmark = pytest.mark.cluster

STORE = "b533-base"


class Uploaded:
    """A store on the server, and a place for its lake."""

    def __init__(self, server: S3Server, local: Path, prefix: str) -> None:
        self.local = server.path(prefix, "store")
        shutil.copytree(local, self.local, ignore=shutil.ignore_patterns("EXPECT"))
        self.server = server
        self.store = server.uri(prefix, "store")
        self.lake = server.uri(prefix, "lake")
        self.out = server.uri(prefix, "index")
        self.folder = server.path(prefix)
        self.options = server.hadoop_options

    def ingest(self) -> Any:  # noqa: ANN401 - a summary
        return ingest(IngestRequest(self.store, self.lake), OneByOne(self.options))

    def rows(self, broker: str = "default") -> list[tuple[int, bytes]]:
        """Return offset and bytes of each message of a broker, as files on the server's disk have them."""
        rows = table_of(self.folder / "lake" / "messages").sort_by("physical_offset").to_pylist()
        return [(row["physical_offset"], encode_record(record_of_row(row))) for row in rows if row["broker"] == broker]


@pytest.fixture
def uploaded(s3: S3Server, golden: StoreOf, request: pytest.FixtureRequest) -> Uploaded:
    return Uploaded(s3, golden(STORE), request.node.name.partition("[")[0])


@pytest.fixture
def run(s3: S3Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("RMQ_LAKE_SPARK_OPTIONS", "")
    return partial(runner(capfd), *s3.spark_options)


def test_every_message_of_a_store_on_s3_is_in_the_lake_on_s3_once(uploaded: Uploaded) -> None:
    first = uploaded.ingest()
    files = sorted(uploaded.folder.joinpath("lake").rglob("*.parquet"))
    second = uploaded.ingest()

    assert expected_rows(uploaded.local) == uploaded.rows()
    assert (ExitCode.CLEAN, 1) == (first.exit_code, first.run)
    assert (0, None) == (second.messages, second.run)
    assert files == sorted(uploaded.folder.joinpath("lake").rglob("*.parquet"))


def test_the_launcher_ingests_and_nothing_shows_the_keys(uploaded: Uploaded, tmp_path: Path) -> None:
    report = tmp_path / "report"
    ended = rmq_lake(
        *uploaded.server.spark_options, "ingest", uploaded.store, "--lake", uploaded.lake, "--report", str(report)
    )

    assert 0 == ended.code, ended.err
    assert expected_rows(uploaded.local) == uploaded.rows()
    said = ended.out + ended.err
    written = [path for root in (report, uploaded.folder / "lake") for path in root.rglob("*") if path.is_file()]
    assert (report / "report.json") in written
    for secret in (SECRET_KEY, ACCESS_KEY):
        assert secret not in said
        assert [] == [path.name for path in written if secret.encode() in path.read_bytes()]
        for table in ("messages", "runs"):
            rows = table_of(uploaded.folder / "lake" / table)
            assert secret not in str(rows.to_pylist())


def test_queries_answer_from_s3_as_from_the_local_store(uploaded: Uploaded, run: Run) -> None:
    uploaded.ingest()
    asked = ("query", "by-key", "-t", "T1", "-k", "k1", "--json", "--release", "5.3.3")
    expected = run(*asked, "--store", str(uploaded.local))
    assert ExitCode.CLEAN is expected[0]

    assert expected[:2] == run(*asked, "--store", uploaded.store)[:2]
    assert json.loads(expected[1].splitlines()[0]) == json.loads(
        run(*asked, "--lake", uploaded.lake)[1].splitlines()[0]
    )


def test_index_files_rebuilt_onto_s3_are_the_brokers_own(uploaded: Uploaded) -> None:
    result = rebuild(RebuildIndexRequest(uploaded.store, uploaded.out), OneByOne(uploaded.options))
    made = {path.name: path.read_bytes() for path in (uploaded.folder / "index").rglob("*") if path.is_file()}
    manifest = json.loads(made.pop("MANIFEST.json"))

    assert [path.read_bytes() for path in sorted((uploaded.local / "index").iterdir())] == [
        data for _, data in sorted(made.items())
    ]
    assert {name: hashlib.sha256(data).hexdigest() for name, data in made.items()} == {
        file["name"]: file["sha256"] for file in manifest["files"]
    }
    assert ExitCode.CLEAN is result.exit_code


def test_a_sound_store_on_s3_verifies(uploaded: Uploaded) -> None:
    request = VerifyRequest(uploaded.store, scratch=uploaded.server.uri("scratch"))
    verdict = verify(request, OneByOne(uploaded.options))

    assert [] == verdict.findings
    assert [] == [path for path in uploaded.server.path("scratch").rglob("*") if path.is_file()]


class OvertakenBy(OneByOne):
    """Workers that let another run of the same store come to its end while theirs is reading."""

    def map(self, items: Sequence[Any], task: Any, label: str = "", sizes: Sequence[int] = ()) -> list[Any]:  # noqa: ANN401
        results = super().map(items, task, label, sizes)
        if sizes:
            OVERTAKING.pop()()
        return results


OVERTAKING: list[Callable[[], object]] = []


@pytest.fixture
def overtaken(uploaded: Uploaded, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Let `ingest` meet a faster run; give the summaries of that one."""
    summaries: list[Any] = []
    OVERTAKING.append(lambda: summaries.append(uploaded.ingest()))
    workers = OvertakenBy(uploaded.options)
    monkeypatch.setattr("jobs.launch.session.begin_session", lambda *_, **__: None)
    monkeypatch.setattr("jobs.ingest.run.ingest", lambda request, _: ingest(request, workers))
    yield summaries
    OVERTAKING.clear()


def test_of_two_runs_at_once_one_wins_and_the_other_says_so(uploaded: Uploaded, overtaken: list[Any], run: Run) -> None:
    code, _, said = run("ingest", uploaded.store, "--lake", uploaded.lake, "--quiet")

    assert [ExitCode.CLEAN] == [summary.exit_code for summary in overtaken]
    assert (ExitCode.HELD, 1) == (code, len(said.strip().splitlines())), said
    assert expected_rows(uploaded.local) == uploaded.rows()


class Together(OneByOne):
    """Workers that wait until as many other runs have read their log: what follows, all do at once."""

    def map(self, items: Sequence[Any], task: Any, label: str = "", sizes: Sequence[int] = ()) -> list[Any]:  # noqa: ANN401
        results = super().map(items, task, label, sizes)
        if sizes:
            ALL_HAVE_READ[-1].wait(_SECONDS)
        return results


_SECONDS = 240  # of a busy machine
ALL_HAVE_READ: list[Any] = []


def run_together(request: IngestRequest, options: dict[str, str], barrier: Any, answers: Any) -> None:  # noqa: ANN401
    ALL_HAVE_READ.append(barrier)
    try:
        answers.put(int(ingest(request, Together(options)).exit_code))
    except HeldByOtherError:
        answers.put(int(ExitCode.HELD))


def exit_codes(requests: Sequence[IngestRequest], options: dict[str, str]) -> list[int]:
    """Run each request in a process of its own, all at once; give their exit codes in ascending order."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(len(requests)), context.Queue()
    processes = [
        context.Process(target=run_together, args=(request, options, barrier, answers)) for request in requests
    ]
    for process in processes:
        process.start()
    codes = sorted(answers.get(timeout=2 * _SECONDS) for _ in processes)
    for process in processes:
        process.join()
    return codes


def files_of(uploaded: Uploaded, table: str = "messages") -> tuple[set[str], set[str]]:
    folder = uploaded.folder / "lake" / table
    return {path.name for path in folder.glob("*.parquet")}, {
        uri.rpartition("/")[2] for uri in DeltaTable(folder).file_uris()
    }


def test_brokers_that_are_ingested_into_one_lake_at_once_do_not_lose_to_each_other(
    uploaded: Uploaded, golden: StoreOf
) -> None:
    names = {"a": STORE, "b": "b498-base", "c": "b420-base"}
    for broker, name in names.items():
        shutil.copytree(golden(name), uploaded.folder / broker, ignore=shutil.ignore_patterns("EXPECT"))
    root = uploaded.store.removesuffix("/store")
    requests = [IngestRequest(f"{root}/{broker}", uploaded.lake, broker=broker) for broker in names]

    assert [0, 0, 0] == exit_codes(requests, uploaded.options)
    for broker in names:
        assert expected_rows(uploaded.folder / broker) == uploaded.rows(broker)
    lying, named = files_of(uploaded)
    assert lying == named
