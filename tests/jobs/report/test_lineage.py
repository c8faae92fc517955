"""OpenLineage events of a run, as the client writes them into a file."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.command.cli import main
from jobs.console.exit_codes import ExitCode
from jobs.ingest.request import IngestRequest, Summary
from jobs.ingest.run import ingest
from jobs.launch.errors import SetupError
from jobs.report.lineage import Lineage
from jobs.store.workers import OneByOne
from tests.support.broker import Broker, some_records


@pytest.fixture(autouse=True)
def _no_settings_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what the client would find in variables, at home and in the working directory."""
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "events.ndjson"
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(path))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    return path


def sent(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def request_(tmp_path: Path) -> IngestRequest:
    broker = Broker(tmp_path / "store")
    broker.append(some_records(20))
    return IngestRequest(str(broker.root), str(tmp_path / "lake"), broker="b")


def test_a_run_starts_and_completes_with_what_it_read_and_wrote(
    request_: IngestRequest, events: Path, tmp_path: Path
) -> None:
    """One run's id; the store, every table of its commits, rows and columns."""
    lineage = Lineage(request_)
    with lineage.sent():
        summary = ingest(request_, OneByOne())
    lineage.completed(summary)

    started, completed = sent(events)
    assert ("START", "COMPLETE") == (started["eventType"], completed["eventType"])
    assert started["run"]["runId"] == completed["run"]["runId"]
    assert ("rocketmq-lake", "ingest") == (completed["job"]["namespace"], completed["job"]["name"])
    assert [("file", str(tmp_path / "store"))] == [(one["namespace"], one["name"]) for one in completed["inputs"]]
    outputs = {Path(one["name"]).name: one for one in completed["outputs"]}
    assert set(summary.versions) == set(outputs)
    messages = outputs["messages"]
    assert str(tmp_path / "lake" / "messages") == messages["name"]
    assert 20 == messages["outputFacets"]["outputStatistics"]["rowCount"]
    assert str(summary.versions["messages"]) == messages["facets"]["version"]["datasetVersion"]
    columns = {field["name"]: field for field in messages["facets"]["schema"]["fields"]}
    assert ("bigint", "of the record's first byte in the full log") == (
        columns["physical_offset"]["type"],
        columns["physical_offset"]["description"],
    )


@pytest.mark.parametrize(("error", "kind"), [(OSError("the disk is full"), "FAIL"), (KeyboardInterrupt(), "ABORT")])
def test_a_run_that_fails_says_with_what(
    error: BaseException, kind: str, request_: IngestRequest, events: Path
) -> None:
    with pytest.raises(type(error)), Lineage(request_).sent():
        raise error

    ended = sent(events)[-1]
    assert kind == ended["eventType"]
    assert (kind == "FAIL") == ("the disk is full" in json.dumps(ended["run"]["facets"]))


def test_another_run_at_work_is_no_failure(request_: IngestRequest, events: Path) -> None:
    Lineage(request_).completed(None)

    (ended,) = sent(events)
    assert ("ABORT", []) == (ended["eventType"], ended["outputs"])


def test_a_bucket_is_named_as_openlineage_names_it(events: Path) -> None:
    """s3a is Hadoop's name."""
    summary = Summary("s3a://stores/b", "s3a://lake/rocketmq", "b", versions={"messages": 3})

    Lineage(IngestRequest("s3a://stores/b", "s3a://lake/rocketmq")).completed(summary)

    (ended,) = sent(events)
    assert ("s3://stores", "b") == (ended["inputs"][0]["namespace"], ended["inputs"][0]["name"])
    assert ("s3://lake", "rocketmq/messages") == (ended["outputs"][0]["namespace"], ended["outputs"][0]["name"])


def test_an_event_that_cannot_be_sent_is_said_and_the_run_goes_on(
    request_: IngestRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"TYPE": "http", "URL": "http://127.0.0.1:9", "RETRY": '{"total": 0}'}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)

    with Lineage(request_).sent():
        pass

    assert "the START event was not sent to OpenLineage: " in capsys.readouterr().err


def test_without_the_client_it_says_what_to_install(request_: IngestRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)

    with pytest.raises(SetupError, match="pip install openlineage-python"):
        Lineage(request_)


@pytest.mark.parametrize("other", ["--follow", "--dry-run"])
def test_it_is_for_runs_that_end_and_write(other: str, request_: IngestRequest) -> None:
    assert ExitCode.USAGE == main(["ingest", request_.store, "--lake", request_.lake, "--lineage", other])
