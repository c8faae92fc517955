"""The session that every Spark verb and every Spark test gets."""

import os
from pathlib import Path

import chispa
import pytest
from pyspark.sql import SparkSession

from jobs import session


def test_the_session_writes_and_reads_delta_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Delta is configured by conf/ alone, with the JARs that the launcher fetched."""
    expected = spark.createDataFrame([(1, "a"), (2, "b")], "number int, letter string")

    expected.coalesce(1).write.format("delta").save(str(tmp_path / "table"))

    chispa.assert_df_equality(spark.read.format("delta").load(str(tmp_path / "table")), expected, ignore_row_order=True)


def test_what_the_jvm_always_says_is_left_out_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    """One line on every start would be one line too many; an error must come through."""
    reading, writing = os.pipe()
    os.write(writing, b"WARNING: Using incubator modules: jdk.incubator.vector\n12:00 ERROR DAGScheduler: no space\n")
    os.close(writing)

    session.pass_on(reading)

    assert "12:00 ERROR DAGScheduler: no space\n" == capfd.readouterr().err
