"""`optimize` as a user calls it."""

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from jobs.console.amounts import size_text
from jobs.console.exit_codes import ExitCode
from tests.support.broker import Broker, some_records
from tests.support.commands import Run, state_of
from tests.support.lakes import ingest_store, raw_rows


def _planned(tables: list[dict[str, Any]]) -> list[tuple[str, int, int, int]]:
    return [(table["table"], table["merged"], table["written"], table["bytes_before"]) for table in tables]


def test_optimize_says_what_it_saved(spark: SparkSession, broker: Broker, tmp_path: Path, run: Run) -> None:
    del spark
    for number in range(3):
        broker.append(some_records(5, seed=number))
        ingest_store(broker.root, tmp_path / "lake", "b")
    rows = raw_rows(tmp_path / "lake")
    files = state_of(tmp_path / "lake")

    estimated = run("optimize", tmp_path / "lake", "--dry-run", "--json", "--engine", "here").document
    said = run("optimize", tmp_path / "lake", "--dry-run", "--engine", "here").out.splitlines()
    assert files == state_of(tmp_path / "lake")
    assert {table["bytes_after"] for table in estimated} == {None}
    (line,) = (line for line in said if line.startswith("  messages: "))
    size = size_text(sum(path.stat().st_size for path in (tmp_path / "lake" / "messages").glob("*.parquet")))
    assert line == (
        f"  messages: 3 files of {size} would become 1, size not known yet; 0 obsolete files would be deleted"
    )
    assert said[-1].startswith("optimize: dry run: ")

    outcome = run("optimize", tmp_path / "lake", "--json")
    assert _planned(estimated) == _planned(outcome.document)

    saved = {table["table"]: table for table in outcome.document}
    assert outcome.code is ExitCode.CLEAN
    assert (saved["messages"]["merged"], saved["messages"]["written"]) == (3, 1)
    assert 0 < saved["messages"]["bytes_after"] < saved["messages"]["bytes_before"]
    assert rows == raw_rows(tmp_path / "lake")
