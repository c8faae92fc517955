"""The session that every Spark verb and every Spark test gets."""

from pathlib import Path

import chispa
from pyspark.sql import SparkSession


def test_the_session_writes_and_reads_delta_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Delta is configured by conf/ alone, with the JARs that the launcher fetched."""
    expected = spark.createDataFrame([(1, "a"), (2, "b")], "number int, letter string")

    expected.coalesce(1).write.format("delta").save(str(tmp_path / "table"))

    chispa.assert_df_equality(spark.read.format("delta").load(str(tmp_path / "table")), expected, ignore_row_order=True)
