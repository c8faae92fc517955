"""Tables with features that other engines enable; see the table in docs/internals/guarantees.md."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, DeltaProtocolError
from pyspark.errors import AnalysisException, UnsupportedOperationException
from pyspark.sql import SparkSession

from jobs.lake import features
from jobs.lake.commit import LOG_RETENTION_PROPERTY, TransactionTakenError, commit, ensure_table
from jobs.lake.features import needs_spark
from jobs.lake.snapshot_files import SnapshotFile
from jobs.lake.snapshots import UnsupportedTableError
from jobs.lake.table_file import AddedFile
from jobs.lake.tables import MESSAGES
from jobs.lake.upkeep import optimize, shorten_file_retention
from jobs.query.lake_tables import LakeTables
from jobs.store.workers import SerialWorkers
from tests.support.broker import some_records
from tests.support.commands import run_campaign
from tests.support.killing import GATEWAY_VARIABLE
from tests.support.lakes import delta_extension, restore_log
from tests.support.other_engine import (
    FEATURES,
    WORKS,
    SharedLake,
    find_protocol_violations,
    read_documented_features,
    shared_lake,
)
from tests.support.stores import raw_records, tree_state

pytestmark = pytest.mark.slow  # a commit by Spark takes a second

REFUSALS = {
    "appendOnly": "delta.appendOnly",
    "checkConstraints": "the constraint few CHECK (queue_id < 100)",
    "invariants: a column NOT NULL": "NOT NULL for the column theirs",
    "allowColumnDefaults": "a column default: topic",
    "generatedColumns": "a generated column: theirs",
    "identityColumns": "an identity column: theirs",
    "typeWidening of one of our columns": "an unexpected type for the column queue_id",
    "columnMapping by name, a column renamed": "columnMapping",
    "columnMapping by name, a column dropped": "columnMapping",
    "columnMapping by id": "columnMapping",
    "icebergCompatV2": "icebergCompatV2",
    "variantType": "variantType",
    "partitions": "partitions by topic",
    "one of our columns with a different type": "an unexpected type for the column queue_id",
    "some of our columns are missing": "columns without topic",
    "setTransactionRetentionDuration": "delta.setTransactionRetentionDuration",
}
STRIDE = int(os.environ.get("STRIDE", "7"))
REFUSED, NOT_AVAILABLE = "refused", "not available"


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> SharedLake:
    return shared_lake(spark, tmp_path)


def enable_feature(lake: SharedLake, name: str) -> None:
    columns = ", ".join(f"`{column}` {type_}" for column, type_ in lake.spark.table(lake.name()).dtypes)
    path = str(lake.path / "messages")
    lake.sql(*(feature.replace("<columns>", columns).replace("<path>", path) for feature in FEATURES[name]))


def readers(lake: SharedLake) -> dict[str, Callable[[], list[int]]]:
    """Return the functions that read the offsets of the messages, by the name of the reader."""
    table = str(lake.path / "messages")

    def read_with_duckdb() -> list[int]:
        with duckdb.connect() as connection:
            connection.load_extension(str(delta_extension()))
            return [
                row[0] for row in connection.execute(f"SELECT physical_offset FROM delta_scan('{table}')").fetchall()
            ]

    def polars() -> list[int]:
        import polars as pl  # slow to load, and each test process collects this module

        return pl.scan_delta(table).select("physical_offset").collect().to_series().to_list()

    def query() -> list[int]:
        rows = LakeTables(str(lake.path), {}).rows("SELECT physical_offset FROM messages")
        return [row["physical_offset"] for row in rows]

    return {"Spark": lake.read_by_spark, "DuckDB": read_with_duckdb, "Polars": polars, "query": query}


def read_with_all(lake: SharedLake, expected: list[int]) -> str:
    """Read the rows with each reader; return the cell of the table of features."""
    from polars.exceptions import PolarsError

    refusing = []
    for name, offsets in readers(lake).items():
        try:
            found = offsets()
        except (OSError, duckdb.Error, DeltaError, DeltaProtocolError, PolarsError):
            refusing.append(name)
        else:
            assert sorted(found) == expected, name
    return f"{WORKS}, not in {', '.join(refusing)}" if refusing else WORKS


class FeatureResults:
    """The result of each step with a feature."""

    def __init__(self, lake: SharedLake) -> None:
        self.lake = lake
        self.seen: dict[str, str] = {}

    def perform(self, step: str, work: Callable[[], object]) -> bool:
        """Perform a step; if it is refused, nothing may be written."""
        before = tree_state(self.lake.path)
        try:
            work()
        except UnsupportedTableError:
            assert tree_state(self.lake.path) == before
            self.seen[step] = REFUSED
            return False
        self.seen[step] = WORKS
        return True


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_is_kept_or_refused_as_documented(lake: SharedLake, tmp_path: Path, name: str) -> None:
    """Spark enables the feature; after each step, every reader returns the rows of the log, or nothing is written."""
    assert read_documented_features().keys() == FEATURES.keys()
    offsets = lake.offsets()
    original = raw_records(lake.broker.root)
    try:
        enable_feature(lake, name)
    except (AnalysisException, UnsupportedOperationException):  # Delta does not let our columns have the feature
        assert read_documented_features()[name][:5] == (NOT_AVAILABLE,) * 5
        return
    cells = FeatureResults(lake)
    reading = cells.seen["read"] = read_with_all(lake, offsets)

    new = lake.grow(5)
    if cells.perform("append", lake.run):
        assert read_with_all(lake, [*offsets, *new]) == reading

    lake.broker.truncate(offsets[25])
    other = [record.physical_offset for record in lake.broker.append(some_records(9, seed=77))]
    left = [*offsets[:25], *other]
    if cells.perform("rewritten log", lake.run):
        assert read_with_all(lake, left) == reading
        assert lake.offsets(table="superseded_messages") == [*offsets[25:], *new]
        original = raw_records(lake.broker.root)

    if cells.perform("optimize", lambda: optimize(str(lake.path), SerialWorkers())):
        assert read_with_all(lake, left) == reading
        assert lake.files() == 1
    if cells.perform("restore", lambda: restore_log(lake.path, tmp_path / "out")):
        assert raw_records(tmp_path / "out") == original
    assert_protocol(lake, name)

    assert tuple(cells.seen.values()) == read_documented_features()[name][:5]
    if cells.seen["append"] == REFUSED:
        with pytest.raises(UnsupportedTableError) as refused:
            lake.run()

        assert str(refused.value).startswith(f"{lake.path}/messages: ")
        assert REFUSALS[name] in str(refused.value)
        lake.run_remedy(refused.value)
        lake.run()
        optimize(str(lake.path), SerialWorkers())

        assert read_with_all(lake, left) in {WORKS, reading}  # Delta in Spark keeps the feature


def assert_protocol(lake: SharedLake, name: str) -> None:
    """Check that each commit meets the requirements of the table's protocol."""
    assert find_protocol_violations(lake.path) == []
    if "rowTracking" in name:
        rows = lake.spark.sql(f"SELECT _metadata.row_id AS id FROM {lake.name()}").collect()
        assert len({row.id for row in rows} - {None}) == len(rows)
    if name == "clustering":
        assert lake.spark.sql(f"DESCRIBE DETAIL {lake.name()}").collect()[0].clusteringColumns == ["topic"]


def test_a_row_keeps_its_id_when_files_are_merged(lake: SharedLake) -> None:
    lake.sql(*FEATURES["rowTracking"])
    query = f"SELECT physical_offset, _metadata.row_id AS id FROM {lake.name()}"
    before = {row.physical_offset: row.id for row in lake.spark.sql(query).collect()}
    optimize(str(lake.path), SerialWorkers())

    assert lake.files() == 1
    assert {row.physical_offset: row.id for row in lake.spark.sql(query).collect()} == before


def test_spark_adds_new_columns_and_properties(lake: SharedLake) -> None:
    """A lake of an older version lacks columns, and `--follow` shortens the retention of its tables."""
    lake.sql(*FEATURES["clustering"])
    offsets = lake.offsets()
    where = lake.lake
    new = (
        pa.field("later", pa.map_(pa.string(), pa.int64()), metadata={"comment": "it's \\ new"}),
        pa.field("last", pa.timestamp("us", "UTC")),
    )

    ensure_table(where, replace(MESSAGES, columns=(*MESSAGES.columns, *new)))
    lake.sql(FEATURES["clustering"][1])
    lake.sql("ALTER TABLE {consume_queue} SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 2 days')")
    shorten_file_retention(where, 5)

    snapshot = DeltaTable(lake.path / "messages")

    assert [str(field.name) for field in snapshot.schema().fields][-2:] == ["later", "last"]
    assert snapshot.metadata().configuration[LOG_RETENTION_PROPERTY] == "interval 300 minutes"
    assert read_with_all(lake, offsets) == WORKS


def test_the_second_of_two_writers_of_one_run_is_refused(lake: SharedLake) -> None:
    """The second writer has read the table before the first one committed."""
    lake.sql(*FEATURES["clustering"])
    where, transaction = lake.lake, ("another application", 7)

    def other(snapshot: DeltaTable) -> tuple[list[SnapshotFile], list[AddedFile]]:
        with suppress(StopIteration):
            next(first)
            commit(where, MESSAGES, (), transaction, {})

        assert snapshot.transaction_version("another application") is None
        return [], []

    first = iter([None])
    with pytest.raises(TransactionTakenError):
        commit(where, MESSAGES, (), transaction, {}, other)

    assert DeltaTable(lake.path / "messages").transaction_version("another application") == 7


@pytest.mark.parametrize("name", ["rowTracking", "clustering"])
def test_without_java_such_a_table_is_refused_until_the_feature_is_dropped(lake: SharedLake, name: str) -> None:
    """Delta cannot drop `clustering`, and RESTORE would also remove the rows that runs have added since."""
    lake.sql(*FEATURES[name])
    new = lake.grow(5)
    files = tree_state(lake.path)
    is_droppable = name == "rowTracking"
    with (
        patch.multiple(features, has_session=lambda: False, why_spark_cannot_start=lambda: "Java 17 is missing."),
        pytest.raises(UnsupportedTableError, match=f"{name}.*nothing was written.*Java 17 is missing") as refused,
    ):
        lake.run()

    assert files == tree_state(lake.path)
    assert is_droppable == ("Spark SQL: " in str(refused.value))
    if is_droppable:
        lake.run_remedy(refused.value)

    assert lake.run().messages == len(new)
    assert needs_spark(DeltaTable(lake.path / "messages")) is not is_droppable


@pytest.fixture
def gateway(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes commit in the JVM of these tests."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - pyspark has no public attribute
    assert gateway is not None
    parameters = gateway.gateway_parameters
    monkeypatch.setenv(GATEWAY_VARIABLE, f"{parameters.port}:{parameters.auth_token}")


@pytest.mark.usefixtures("gateway")
@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.campaign), 31])
def test_a_run_killed_after_its_effects_is_finished_by_the_next(tmp_path: Path, stride: int) -> None:
    """The kills include moments before, during and after each commit by Spark."""
    result = run_campaign("tests.support.killed_commands", "tracked", tmp_path, stride)

    assert result["reached"] > 0
    assert result["bad"] == []


@pytest.mark.campaign
@pytest.mark.usefixtures("gateway")
@pytest.mark.timeout(14400)
def test_commands_killed_during_a_commit_by_spark_lose_nothing(tmp_path: Path) -> None:
    result = run_campaign("tests.support.killed_commands", "commits", tmp_path, STRIDE)

    assert result["reached"] > 30
    assert result["bad"] == []
