"""Statements that name a lake's tables in a catalog: Spark runs its own, and a day's query opens a day's files."""

import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from jobs.command.cli import main
from jobs.console.exit_codes import ExitCode
from jobs.lake.catalog import CatalogKind, NoSuchPlaceError, statements
from jobs.lake.lake import Lake, views
from jobs.lake.tables import MESSAGES, TABLES
from tests.support.broker import Broker, some_records
from tests.support.lakes import ingest_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIRST = datetime(2026, 11, 18, 12, tzinfo=UTC)
_DAYS = [_FIRST + timedelta(days=number) for number in range(3)]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("catalog")
    broker = Broker(root / "store")
    for number, day in enumerate(_DAYS):
        broker.append(some_records(20, seed=number, stored=int(day.timestamp() * 1000)))
        ingest_store(broker.root, root / "lake", "b")
    return root / "lake"


@pytest.fixture(scope="module")
def named(spark: "SparkSession", lake: Path) -> "Iterator[SparkSession]":
    with redirect_stdout(StringIO()) as printed:
        assert ExitCode.CLEAN == main(["catalog", str(lake), "--schema", "brokers"])
    for statement in printed.getvalue().split(";\n"):
        if statement:
            spark.sql(statement)
    yield spark
    spark.sql("DROP DATABASE brokers CASCADE")


def test_spark_knows_every_table_by_its_name_with_comments(named: "SparkSession", lake: Path) -> None:
    there = {table.name for table in TABLES if (lake / table.name).is_dir()}
    tables = {row.tableName for row in named.sql("SHOW TABLES IN brokers").collect()}
    comments = {row.col_name: row.comment for row in named.sql("DESCRIBE TABLE brokers.messages").collect()}

    assert there | {view.name for view in views() if there.issuperset(view.tables)} == tables
    assert set() == {tuple(row) for row in named.sql("SELECT * FROM brokers.transactions").collect()}
    for field in MESSAGES.schema:
        assert field.metadata[b"comment"].decode() == comments[field.name]
    assert 60 == named.sql("SELECT * FROM brokers.messages").count()


def test_tables_outlive_their_names(named: "SparkSession", lake: Path) -> None:
    named.sql("DROP TABLE brokers.messages")

    assert 60 == named.read.format("delta").load(str(lake / "messages")).count()
    named.sql(f"CREATE TABLE brokers.messages USING delta LOCATION '{lake}/messages'")


def test_a_days_query_reads_a_days_files(named: "SparkSession") -> None:
    day = _DAYS[1].date()
    end = day + timedelta(days=1)
    whole = named.sql("SELECT topic, body FROM brokers.messages")
    assert (60, 3) == (whole.count(), len(whole.inputFiles()))

    for column in ("store_date", "store_time"):
        where = f"{column} >= '{day}' AND {column} < '{end}'"
        chosen = named.sql(f"SELECT topic, body FROM brokers.messages WHERE {where}")
        assert (column, 20, 1) == (column, chosen.count(), len(chosen.inputFiles()))


def test_hives_statement_has_the_columns_with_their_types_and_comments(lake: Path, spark: "SparkSession") -> None:
    from pyspark.sql.types import StructType

    text = {one.table: one.text for one in statements(Lake(str(lake)), CatalogKind.HIVE, "brokers")}["messages"]
    columns = re.search(r"\(\n(.*?)\n\)\n", text, re.DOTALL)
    assert columns is not None
    known = spark.read.format("delta").load(str(lake / "messages")).schema

    assert known == StructType.fromDDL(columns[1])
    assert text.endswith(f"STORED BY 'io.delta.hive.DeltaStorageHandler'\nLOCATION 'file://{lake}/messages'")


@pytest.mark.parametrize("kind", [CatalogKind.GLUE, CatalogKind.UNITY])
def test_a_catalog_in_a_cloud_knows_no_path_of_this_machine(kind: CatalogKind, lake: Path) -> None:
    with pytest.raises(NoSuchPlaceError, match="s3a://"):
        list(statements(Lake(str(lake)), kind, "brokers"))


_IN_BUCKET = {
    CatalogKind.UNITY: "CREATE TABLE IF NOT EXISTS `brokers`.`messages` USING delta LOCATION 's3://bucket/lake/messages/'",
    CatalogKind.GLUE: """CREATE EXTERNAL TABLE brokers.messages
LOCATION 's3://bucket/lake/messages/'
TBLPROPERTIES ('table_type' = 'DELTA')""",
}


@pytest.mark.parametrize(("kind", "expected"), _IN_BUCKET.items())
def test_a_bucket_is_named_as_the_cloud_names_it(
    kind: CatalogKind, expected: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """s3a is Hadoop's name."""
    messages = DeltaTable(lake / "messages")
    monkeypatch.setattr("jobs.lake.catalog.open_table", lambda _, name: messages if name == "messages" else None)

    made = list(statements(Lake("s3a://bucket/lake"), kind, "brokers"))

    assert [None, "messages"] == [one.table for one in made if " VIEW " not in one.text]
    assert expected == made[1].text
