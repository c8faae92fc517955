"""The views of a lake in Spark and in DuckDB, beside what the driver of each real broker wrote down."""

from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from deltalake import DeltaTable

from jobs.lake.lake import views
from tests.golden import StoreOf, release_of
from tests.support.lakes import ingest_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEWS = {view.name: view for view in views()}


def rows_of_duckdb(lake: Path, name: str) -> set[tuple[object, ...]]:
    with duckdb.connect() as engine:
        for table in VIEWS[name].tables:
            engine.register(table, DeltaTable(lake / table).to_pyarrow_dataset())
        return set(engine.execute(f"SELECT {_COLUMNS[name]} FROM ({VIEWS[name].sql}) shown").fetchall())


def rows_of_spark(spark: "SparkSession", lake: Path, name: str) -> set[tuple[object, ...]]:
    for table in VIEWS[name].tables:
        spark.read.format("delta").load(str(lake / table)).createOrReplaceTempView(table)
    return {tuple(row) for row in spark.sql(f"SELECT {_COLUMNS[name]} FROM ({VIEWS[name].sql}) shown").collect()}


_COLUMNS = {
    "dead_letters": "consumer_group, origin_topic, origin_message_id, reason",
    "not_consumed": "consumer_group, topic, queue_id, queue_offset",
    "timers_pending": "topic, physical_offset",
    "transactions": "physical_offset, state",
}
_GIVEN_UP = ("7F000001000051AF0000000000000000", "7F000001000051AF00000000000002BB", "7F000001000051AF0000000000000576")
# By the drivers' own notes: a consumer that gives three messages up, a timer of an hour, a commit, a rollback, a check.
EXPECTED: list[tuple[str, str, set[tuple[object, ...]]]] = [
    ("b470-retry", "dead_letters", {("cg", "T1", told, "not consumed after 2 tries") for told in _GIVEN_UP}),
    ("b551-retry", "not_consumed", set()),
    ("b551-timer", "timers_pending", {("T1", 1968)}),
    (
        "b551-base",
        "transactions",
        {(54171, "committed"), (54846, "rolled back"), (55207, "checked again"), (56675, "committed")},
    ),
    ("b420-base", "transactions", {(48644, "committed"), (49152, "rolled back"), (49551, "open")}),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_view_has_what_the_driver_wrote_down_in_both_engines(
    golden: StoreOf, tmp_path: Path, own_session: "SparkSession", case: tuple[str, str, set[tuple[object, ...]]]
) -> None:
    store, name, expected = case
    ingest_store(golden(store), tmp_path / "lake", release=release_of(store))
    assert expected == rows_of_duckdb(tmp_path / "lake", name)
    assert expected == rows_of_spark(own_session, tmp_path / "lake", name)
