"""Tables with features that only Spark's Delta writes: docs/guarantees.md has the table."""

import json
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError
from pyspark.sql import SparkSession

from jobs.lake import features
from jobs.lake.commit import LOG_KEPT, TransactionTakenError, commit, ensure_table
from jobs.lake.features import UnsupportedTableError, needs_spark
from jobs.lake.lake import Lake
from jobs.lake.optimization import optimize
from jobs.lake.runs import WRITERS, known_stores
from jobs.lake.tables import MESSAGES
from jobs.lake.upkeep import expect_many_commits
from jobs.lake.writers import Rewrite
from jobs.query.lake_tables import LakeTables
from jobs.restore.run import RestoreRequest, restore
from jobs.store.workers import OneByOne
from tests.support.broker import some_records
from tests.support.commands import state_of
from tests.support.killing import GATEWAY
from tests.support.lakes import DELTA_EXTENSION
from tests.support.other_engine import SharedLake
from tests.support.recorded import result_of
from tests.support.stores import records_of, segments_of

pytestmark = pytest.mark.slow  # a commit of Spark's takes a second

SET = "ALTER TABLE {messages} SET TBLPROPERTIES ('delta.%s' = '%s')"
THEIRS = "ALTER TABLE {messages} ADD COLUMNS (theirs INT)"
FEATURES = {
    "clustering": ("ALTER TABLE {messages} CLUSTER BY (topic)", "ALTER TABLE {consume_queue} CLUSTER BY (topic)"),
    "clustering that was taken back": (
        "ALTER TABLE {messages} CLUSTER BY (topic)",
        "ALTER TABLE {messages} CLUSTER BY NONE",
    ),
    "rowTracking": (SET % ("enableRowTracking", "true"),),
    "inCommitTimestamp": (SET % ("enableInCommitTimestamps", "true"),),
    "inCommitTimestamp of runs": ((SET % ("enableInCommitTimestamps", "true")).replace("messages", "runs"),),
    "typeWidening": (
        SET % ("enableTypeWidening", "true"),
        THEIRS,
        "UPDATE {messages} SET theirs = queue_id WHERE physical_offset % 3 = 0",
        "ALTER TABLE {messages} CHANGE COLUMN theirs TYPE BIGINT",
    ),
    "allowColumnDefaults": (
        SET % ("feature.allowColumnDefaults", "supported"),
        THEIRS,
        "ALTER TABLE {messages} ALTER COLUMN theirs SET DEFAULT 5",
        "ALTER TABLE {messages} ALTER COLUMN theirs DROP DEFAULT",
    ),
    "checkpointProtection": (
        SET % ("columnMapping.mode", "name"),
        SET % ("columnMapping.mode", "none"),
        "ALTER TABLE {messages} DROP FEATURE columnMapping",
    ),
    "vacuumProtocolCheck": (SET % ("feature.vacuumProtocolCheck", "supported"),),
    "row tracking, clustering, vectors and times at once": (
        SET % ("enableRowTracking", "true"),
        SET % ("enableInCommitTimestamps", "true"),
        SET % ("enableDeletionVectors", "true"),
        "ALTER TABLE {messages} CLUSTER BY (store_time)",
    ),
}
UNREAD = {"typeWidening", "vacuumProtocolCheck"}  # by Polars 2.1, and by `query`


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> SharedLake:
    return SharedLake(spark, tmp_path)


def seen(lake: SharedLake) -> list[int]:
    """Return the offsets that Spark, DuckDB and Polars read, which are the same."""
    table = lake.path / "messages"
    with duckdb.connect() as connection:
        connection.load_extension(str(DELTA_EXTENSION))
        duck = [row[0] for row in connection.execute(f"SELECT physical_offset FROM delta_scan('{table}')").fetchall()]
    found = lake.seen_by_spark()
    assert sorted(duck) == found
    unread = UNREAD & {*(DeltaTable(table).protocol().reader_features or ())}
    with pytest.raises(DeltaProtocolError, match="polars does not support") if unread else nullcontext():
        polars = pl.scan_delta(str(table)).select("physical_offset").collect().to_series().to_list()
        assert sorted(polars) == found
    if unread:
        with pytest.raises(OSError, match=r"messages: queries cannot read this table: .*(Widening|Vacuum).*Spark SQL"):
            LakeTables(str(lake.path), {})
    else:
        rows = LakeTables(str(lake.path), {}).rows("SELECT physical_offset FROM messages")
        assert sorted(row["physical_offset"] for row in rows) == found
    return found


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FEATURES)
def test_runs_merges_and_restores_go_on(lake: SharedLake, tmp_path: Path, name: str) -> None:
    """What the feature demands is there after each commit, and rows are the log's in every reader."""
    offsets = lake.offsets()
    lake.sql(*FEATURES[name])
    table = "runs" if name.endswith("runs") else "messages"
    start = DeltaTable(lake.path / table).version()

    new = lake.grow(5)
    summary = lake.run()
    assert summary.messages == 5
    assert seen(lake) == [*offsets, *new]
    newest = known_stores(Lake(str(lake.path)))[0].newest
    assert newest is not None
    assert table == "runs" or newest.state[WRITERS][table] == "spark"

    cut = offsets[25]
    lake.broker.truncate(cut)
    other = [record.physical_offset for record in lake.broker.append(some_records(9, seed=77))]
    assert lake.run().superseded is not None
    left = [*offsets[:25], *other]
    assert seen(lake) == left
    assert lake.offsets(table="superseded_messages") == [*offsets[25:], *new]

    optimize(str(lake.path), OneByOne())
    assert (seen(lake), lake.files()) == (left, 1)
    request = RestoreRequest(Lake(str(lake.path)), tmp_path / "out", with_queues=False, with_index=False)
    restore(request, OneByOne())
    assert [raw for _, raw in records_of(segments_of(tmp_path / "out"))] == [
        raw for _, raw in records_of(segments_of(lake.broker.root))
    ]
    assert_kept(lake, table, start, name)


def assert_kept(lake: SharedLake, table: str, start: int, name: str) -> None:
    """Look at what the protocol of a table demands of each commit since a version."""
    snapshot = DeltaTable(lake.path / table)
    log = lake.path / table / "_delta_log"
    lines = [
        json.loads(line)
        for version in range(start + 1, snapshot.version() + 1)
        for line in (log / f"{version:020d}.json").read_text().splitlines()
    ]
    assert needs_spark(snapshot)
    if "inCommitTimestamp" in name or "times" in name:
        times = [line["commitInfo"]["inCommitTimestamp"] for line in lines if "commitInfo" in line]
        assert times == sorted(set(times))
    if "row" in name:
        assert all("baseRowId" in line["add"] for line in lines if "add" in line)
        rows = lake.spark.sql(f"SELECT _metadata.row_id AS id FROM {lake.name()}").collect()
        assert len({row.id for row in rows} - {None}) == len(rows)
    if name == "clustering":
        assert lake.spark.sql(f"DESCRIBE DETAIL {lake.name()}").collect()[0].clusteringColumns == ["topic"]


def test_a_row_keeps_its_id_when_files_are_merged(lake: SharedLake) -> None:
    lake.sql(*FEATURES["rowTracking"])
    query = f"SELECT physical_offset, _metadata.row_id AS id FROM {lake.name()}"
    before = {row.physical_offset: row.id for row in lake.spark.sql(query).collect()}

    optimize(str(lake.path), OneByOne())

    assert lake.files() == 1
    assert {row.physical_offset: row.id for row in lake.spark.sql(query).collect()} == before


def test_new_columns_and_properties_come_by_spark_too(lake: SharedLake) -> None:
    """A lake of an older version lacks columns, and a process that follows shortens what its tables keep."""
    lake.sql(*FEATURES["clustering"])
    offsets, where = lake.offsets(), Lake(str(lake.path))
    new = (
        pa.field("later", pa.map_(pa.string(), pa.int64()), metadata={"comment": "it's \\ new"}),
        pa.field("last", pa.timestamp("us", "UTC")),
    )

    ensure_table(where, replace(MESSAGES, columns=(*MESSAGES.columns, *new)))
    expect_many_commits(where, 5)

    snapshot = DeltaTable(lake.path / "messages")
    assert [str(field.name) for field in snapshot.schema().fields][-2:] == ["later", "last"]
    assert snapshot.metadata().configuration[LOG_KEPT] == "interval 5 hours"
    assert seen(lake) == offsets


def test_of_two_writers_of_one_run_one_is_refused(lake: SharedLake) -> None:
    """The second one has asked the table before the first one committed."""
    lake.sql(*FEATURES["clustering"])
    where = Lake(str(lake.path))
    transaction = "somebody", 7

    def other(snapshot: DeltaTable) -> Rewrite:
        with suppress(StopIteration):
            next(first)
            commit(where, MESSAGES, (), transaction, {})
        assert snapshot.transaction_version("somebody") is None
        return Rewrite((), ())

    first = iter([None])
    with pytest.raises(TransactionTakenError):
        commit(where, MESSAGES, (), transaction, {}, other)
    assert DeltaTable(lake.path / "messages").transaction_version("somebody") == 7


def test_without_java_such_a_table_is_refused_until_that_is_taken_back(lake: SharedLake) -> None:
    lake.sql(*FEATURES["rowTracking"])
    new, files = lake.grow(5), state_of(lake.path)

    with (
        patch.multiple(features, has_session=lambda: False, lacking_spark=lambda: "Java 17 is missing."),
        pytest.raises(UnsupportedTableError, match=r"rowTracking.*nothing was written.*Java 17 is missing") as refused,
    ):
        lake.run()
    assert files == state_of(lake.path)
    lake.sql(*str(refused.value).partition("run in Spark SQL: ")[2].split("; "))

    assert lake.run().messages == len(new)
    assert not needs_spark(DeltaTable(lake.path / "messages"))


@pytest.mark.parametrize("feature", ["catalogManaged", "catalogOwned-preview"])
def test_a_table_whose_commits_are_its_catalogs_is_refused(lake: SharedLake, feature: str) -> None:
    """Delta 4.4 lets no path have the feature: its line is written by hand."""
    snapshot = DeltaTable(lake.path / "messages")
    line = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [feature], "writerFeatures": [feature]}
    log = lake.path / "messages" / "_delta_log"
    (log / f"{snapshot.version() + 1:020d}.json").write_text(json.dumps({"protocol": line}))
    lake.grow(5)
    files = state_of(lake.path)

    with pytest.raises(OSError, match=r"messages: .*catalogManaged.*nothing was written.*CREATE TABLE"):
        lake.run()
    assert files == state_of(lake.path)


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.campaign), 29])
def test_a_run_killed_after_its_effects_is_finished_by_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    """Before and after each commit of Spark's, too, and between its beginning and its end."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - pyspark has no other way
    assert gateway is not None
    parameters = gateway.gateway_parameters
    monkeypatch.setenv(GATEWAY, f"{parameters.port}:{parameters.auth_token}")

    result = result_of("tests.support.killing", "featured", tmp_path, stride)

    assert result["reached"] > 0
    assert result["bad"] == []
