"""`optimize` as a user calls it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.exit_codes import ExitCode
from jobs.ingest import Request, ingest
from jobs.source.workers import OneByOne
from tests.jobs.commands import runner
from tests.pipeline.broker import Broker, some_records
from tests.pipeline.lakes import raw_rows


def test_optimize_says_what_it_saved(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One document on standard output: files and bytes before and after, by table; the rows are the same."""
    del spark
    broker = Broker(tmp_path / "store")
    for number in range(3):
        broker.append(some_records(5, seed=number))
        ingest(Request(str(broker.root), str(tmp_path / "lake"), broker="b"), OneByOne())
    rows = raw_rows(tmp_path / "lake")

    outcome = runner(capfd)("optimize", tmp_path / "lake", "--json")

    saved = {table["table"]: table for table in outcome.document}
    assert outcome.code is ExitCode.CLEAN
    assert (saved["messages"]["merged"], saved["messages"]["written"]) == (3, 1)
    assert rows == raw_rows(tmp_path / "lake")
