"""Readers that are not ours find every row, whatever column they ask for."""

from pathlib import Path

import duckdb
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from jobs.lake.commit import STATISTICS, ensure_table
from jobs.lake.lake import Lake
from jobs.lake.tables import MESSAGES
from tests.golden import StoreOf
from tests.support.lakes import dataset_of, ingest_store, rows_of

RELEASE = "5.3.3"


@pytest.fixture
def lake(golden: StoreOf, tmp_path: Path) -> Path:
    ingest_store(golden("b533-base"), tmp_path / "lake", release=RELEASE)
    return tmp_path / "lake"


def test_a_column_without_limits_in_the_log_is_not_taken_for_empty(lake: Path) -> None:
    """`deltalake` compared with NULL where Delta's log has no limits: DuckDB and Arrow found no message by its tag."""
    rows = [row for row in rows_of(lake) if row["tags"] == "TagA"]
    messages = dataset_of(lake / "messages")

    assert rows
    assert len(rows) == messages.to_table(filter=pc.field("tags") == "TagA").num_rows
    assert [(len(rows),)] == duckdb.sql("SELECT count(*) FROM messages WHERE tags = 'TagA'").fetchall()


def test_a_table_of_an_earlier_version_gets_the_names_of_its_limits(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    DeltaTable.create(
        str(tmp_path / "messages"), MESSAGES.delta_schema, configuration={"delta.checkpointInterval": "50"}
    )

    table = ensure_table(lake, MESSAGES)

    configuration = table.metadata().configuration
    assert ("50", "broker,store_id,segment") == (
        configuration["delta.checkpointInterval"],
        configuration[STATISTICS][:23],
    )
    assert table.version() == ensure_table(lake, MESSAGES).version()
