"""`export --out -`: the messages go to standard output as they are read, for `jq` and its like."""

import csv
import json
from io import StringIO
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from tests.support.commands import Run, without_spark
from tests.support.query_stores import SEGMENT_SIZE, Sent, stored, write_store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    without_spark(monkeypatch)
    monkeypatch.setattr("jobs.export.export._AT_ONCE", 2)
    records = stored([Sent(keys=(f"k{n}",), body=f"body {n}".encode()) for n in range(200)])
    assert records[-1].physical_offset > 4 * SEGMENT_SIZE
    return write_store(tmp_path / "store", records)


@pytest.mark.parametrize("kind", ["ndjson", "csv"])
def test_standard_output_has_the_bytes_of_the_file(run: Run, store: Path, tmp_path: Path, kind: str) -> None:
    asked = ("export", "--store", store, "--format", kind, "--engine", "here")
    file = run(*asked, "--out", tmp_path / "file")
    streamed = run(*asked, "--out", "-")

    assert (file.code, streamed.code) == (ExitCode.CLEAN, ExitCode.CLEAN)
    assert (tmp_path / "file").read_text() == streamed.out
    rows = list(csv.DictReader(StringIO(streamed.out))) if kind == "csv" else streamed.lines
    assert [f"k{n}" for n in range(200)] == [
        key for row in rows for key in (json.loads(row["keys"]) if kind == "csv" else row["keys"])
    ]
    assert "200 messages" in streamed.err


@pytest.mark.parametrize("more", [("--format", "json"), ("--format", "parquet"), ("--json",)])
def test_a_format_that_is_one_document_needs_a_file(run: Run, store: Path, more: tuple[str, ...]) -> None:
    refused = run("export", "--store", store, "--out", "-", *more)

    assert (refused.code, refused.out) == (ExitCode.USAGE, "")
    assert "--out - writes ndjson or csv to standard output" in refused.err


def test_an_empty_stream_says_why(run: Run, store: Path) -> None:
    empty = run("export", "--store", store, "-t", "Nothing", "--out", "-", "--engine", "here")

    assert (empty.code, empty.out) == (ExitCode.NOT_FOUND, "")
    assert "no topic Nothing was ever seen there" in empty.err
