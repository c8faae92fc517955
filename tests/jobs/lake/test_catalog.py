"""Catalog statements for a lake's tables, views over them, recipes of the documentation, and optimize."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.command_line.cli import main
from jobs.console.result import ExitCode
from jobs.lake.catalog import catalog_statements
from jobs.lake.lake import Lake, list_views
from jobs.lake.tables import MESSAGES, TABLES
from tests.golden import SITUATIONS, StoreOf
from tests.support.broker import Broker, some_records
from tests.support.commands import ROOT
from tests.support.lakes import ingest_store
from tests.support.recipes import RECIPES, Recipe, make_recipe_data, show_tables

_FIRST = datetime(2026, 11, 18, 12, tzinfo=UTC)
_DAYS = [_FIRST + timedelta(days=number) for number in range(3)]


of_spark_sql = pytest.mark.slow  # each statement takes seconds


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("catalog")
    broker = Broker(root / "store")
    for number, day in enumerate(_DAYS):
        broker.append(some_records(20, seed=number, stored=int(day.timestamp() * 1000)))
        ingest_store(broker.root, root / "lake", "b")
    return root / "lake"


@pytest.fixture(scope="module")
def named(spark: SparkSession, lake: Path) -> Iterator[SparkSession]:
    with redirect_stdout(StringIO()) as printed:
        assert ExitCode.CLEAN == main(["catalog", str(lake), "--schema", "brokers"])
    for statement in printed.getvalue().split(";\n"):
        if statement:
            spark.sql(statement)
    yield spark
    spark.sql("DROP DATABASE brokers CASCADE")


@of_spark_sql
def test_spark_finds_every_table_by_its_name_with_comments(named: SparkSession, lake: Path) -> None:
    there = {table.name for table in TABLES if (lake / table.name).is_dir()}
    tables = {row.tableName for row in named.sql("SHOW TABLES IN brokers").collect()}
    comments = {row.col_name: row.comment for row in named.sql("DESCRIBE TABLE brokers.messages").collect()}

    assert there | {view.name for view in list_views() if there.issuperset(view.tables)} == tables
    assert set() == {tuple(row) for row in named.sql("SELECT * FROM brokers.transactions").collect()}
    for field in MESSAGES.schema:
        assert field.metadata[b"comment"].decode() == comments[field.name]

    assert 60 == named.sql("SELECT * FROM brokers.messages").count()


@of_spark_sql
def test_a_query_of_one_day_reads_only_the_files_of_that_day(named: SparkSession) -> None:
    day = _DAYS[1].date()
    end = day + timedelta(days=1)
    whole = named.sql("SELECT topic, body FROM brokers.messages")

    assert 60 == whole.count()
    assert 3 == len(whole.inputFiles())

    for column in ("store_date", "store_time"):
        where = f"{column} >= '{day}' AND {column} < '{end}'"
        chosen = named.sql(f"SELECT topic, body FROM brokers.messages WHERE {where}")

        assert 20 == chosen.count()
        assert 1 == len(chosen.inputFiles())


@of_spark_sql
def test_the_hive_statement_declares_all_columns_with_types_and_comments(lake: Path, spark: SparkSession) -> None:
    from pyspark.sql.types import StructType

    text = dict(catalog_statements(Lake(str(lake)), "hive", "brokers"))["messages"]
    columns = re.search(r"\(\n(.*?)\n\)\n", text, re.DOTALL)

    assert columns is not None
    known = spark.read.format("delta").load(str(lake / "messages")).schema

    assert known == StructType.fromDDL(columns[1])
    assert text.endswith(f"STORED BY 'io.delta.hive.DeltaStorageHandler'\nLOCATION 'file://{lake}/messages'")


_IN_BUCKET = {
    "unity": "CREATE TABLE IF NOT EXISTS `brokers`.`messages` USING delta LOCATION 's3://bucket/lake/messages/'",
    "glue": """CREATE EXTERNAL TABLE brokers.messages
LOCATION 's3://bucket/lake/messages/'
TBLPROPERTIES ('table_type' = 'DELTA')""",
}


@pytest.mark.parametrize(("kind", "expected"), _IN_BUCKET.items())
def test_catalog_statements_use_the_s3_scheme_for_a_bucket(
    kind: str, expected: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = DeltaTable(lake / "messages")
    monkeypatch.setattr("jobs.lake.catalog.open_table", lambda _, name: messages if name == "messages" else None)

    made = list(catalog_statements(Lake("s3a://bucket/lake"), kind, "brokers"))

    assert [None, "messages"] == [table for table, text in made if " VIEW " not in text]
    assert expected == made[1][1]


def show(session: SparkSession, lake: Path, table: str = "messages") -> None:
    session.read.format("delta").load(str(lake / table)).createOrReplaceTempView(table)


def recipe_with(text: str) -> Recipe:
    (recipe,) = (recipe for recipe in RECIPES if text in recipe.text)
    return recipe


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_recipe_data(tmp_path_factory.mktemp("recipes"))


@of_spark_sql
@pytest.mark.sample(6)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("number", range(len(RECIPES)))
def test_every_recipe_returns_rows(number: int, data: Path, own_session: SparkSession) -> None:
    show_tables(own_session, data)

    assert RECIPES[number].rows(own_session, data) > 0


BY_CUSTOMER = [number for number, recipe in enumerate(RECIPES) if "'c3'" in recipe.text or '"c3"' in recipe.text]


@of_spark_sql
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("number", BY_CUSTOMER)
def test_the_text_of_a_body_is_the_same_in_every_engine(number: int, data: Path, own_session: SparkSession) -> None:
    show_tables(own_session, data)

    assert len(BY_CUSTOMER) == 3  # one row for each engine
    assert sorted(RECIPES[number].answer(own_session, data)) == [("Orders", 0, 7, "6"), ("Orders", 0, 8, "7")]


@of_spark_sql
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["b551-timerwheel", "b551-timerrocks"])
def test_pending_timer_messages_match_the_brokers_answers(
    situation: StoreOf, name: str, tmp_path: Path, own_session: SparkSession
) -> None:
    """One broker counted 21 pending messages, the other has 21 rows in RocksDB; ten of them were rolled."""
    ingest_store(situation(name) / "store", tmp_path / "lake", "b")
    show(own_session, tmp_path / "lake")
    states = Counter(row[-1] for row in recipe_with("'cancelled'").answer(own_session, tmp_path))

    assert states == {"waiting": 21, "delivered": 6, "cancelled": 1}


@of_spark_sql
def test_compaction_keeps_the_newest_message_of_each_key(
    situation: StoreOf, tmp_path: Path, own_session: SparkSession
) -> None:
    """The broker has compacted the log up to 161 of 169."""
    ingest_store(situation("b551-compaction") / "store", tmp_path / "lake", "b")
    messages = own_session.read.format("delta").load(str(tmp_path / "lake/messages")).where("topic = 'Comp'")
    messages = messages.replace("Comp", "Orders", ["topic"])
    newest = []
    for end in (162, 170):
        messages.where(f"queue_offset < {end}").createOrReplaceTempView("messages")
        newest.append(sorted(row[3] for row in recipe_with("compacted topic").answer(own_session, tmp_path)))

    assert newest == [[*range(155, 162)], [*range(163, 170)]]


@of_spark_sql
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["b551-types", "b514-types"])
def test_no_queue_offset_of_a_healthy_store_is_missing(
    golden: StoreOf, name: str, tmp_path: Path, own_session: SparkSession
) -> None:
    """A record that is a batch has several queue offsets."""
    ingest_store(golden(name), tmp_path / "lake")
    show(own_session, tmp_path / "lake")

    assert recipe_with("AS missing").answer(own_session, tmp_path) == []


@of_spark_sql
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["b551-transrocks", "b551-base"])
def test_transactions_that_were_never_committed_are_those_of_the_view(
    situation: StoreOf, golden: StoreOf, name: str, tmp_path: Path, own_session: SparkSession
) -> None:
    ingest_store(situation(name) / "store" if name in SITUATIONS else golden(name), tmp_path / "lake")
    show(own_session, tmp_path / "lake")
    view = (ROOT / "jobs/lake/views/transactions.sql").read_text(encoding="utf-8")
    states = own_session.sql(view).where("state IN ('open', 'rolled back')")

    found = {row.uniq_key for row in own_session.sql(recipe_with("never committed").text).collect()}

    assert found
    assert found == {row.uniq_key for row in states.collect()}
