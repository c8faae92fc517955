"""Other engines write to the lake during our runs and merges; see the table in docs/internals/guarantees.md."""

import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.export import LakeItem
from jobs.lake.commit import open_table
from jobs.lake.integrity import find_newest_run_by_table
from jobs.lake.lake_stores import list_lake_stores
from jobs.lake.manifest import TABLES_BEFORE_KEY
from jobs.lake.runs import find_unfinished_run, prepare_run
from jobs.lake.snapshot_files import list_snapshot_files
from jobs.lake.snapshots import UnsupportedTableError
from jobs.lake.tables import MESSAGES
from jobs.lake.upkeep import merge_here, merge_small_files, optimize
from jobs.restore import plan_log
from jobs.store.workers import SerialWorkers
from tests.jobs.lake.test_runs import a_manifest
from tests.rmq_formats.builders import make_record
from tests.support.broker import Broker, some_records
from tests.support.lakes import compare_with_lake, ingest_store, restore_log, rows_of
from tests.support.meanwhile import call_after, call_before
from tests.support.other_engine import FEATURES, NO_SHORT_RETENTION_CHECK, WITH_VECTORS, SharedLake, shared_lake
from tests.support.query_stores import open_lake
from tests.support.stores import read_store_records

pytestmark = pytest.mark.slow  # each statement of Spark SQL takes seconds

THIRD = "physical_offset % 3 = 0"
OTHERS = "physical_offset % 3 != 0"


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> SharedLake:
    return shared_lake(spark, tmp_path)


def test_a_file_whose_rows_are_all_deleted_is_merged_away(lake: SharedLake) -> None:
    lake.sql(WITH_VECTORS, "DELETE FROM {messages} WHERE physical_offset >= 0 AND queue_id >= 0")

    assert lake.offsets() == []

    optimize(str(lake.path), SerialWorkers())

    assert lake.offsets() == []
    assert lake.files() == 0
    new = lake.grow(4)
    lake.run()

    assert lake.offsets() == new


def test_the_open_index_file_is_continued_after_entries_that_vectors_deleted(lake: SharedLake) -> None:
    unharmed = shared_lake(lake.spark, lake.root / "unharmed")
    lake.sql(WITH_VECTORS.replace("messages", "index_entries"))
    lake.sql(f"DELETE FROM {{index_entries}} WHERE {THIRD}")
    old_end = lake.broker.offset
    for grown in (lake, unharmed):
        grown.grow(6)
        grown.run()

    columns = "physical_offset, entry, slot, key_hash, prev_entry, time_diff_s, topic, key"
    found, whole = (
        sorted(one.rows(columns, table="index_entries"), key=lambda row: int(row["entry"])) for one in (lake, unharmed)
    )
    left = [row for row in whole if row["physical_offset"] % 3 or row["physical_offset"] >= old_end]

    assert found == left
    assert len(left) < len(whole)


def test_a_restore_leaves_out_deleted_rows(lake: SharedLake, tmp_path: Path) -> None:
    lake.grow(10)
    lake.run()
    left = lake.offsets(OTHERS)
    lake.sql(WITH_VECTORS, f"DELETE FROM {{messages}} WHERE {THIRD}")
    lake.sql(WITH_VECTORS.replace("messages", "log_pieces"), "DELETE FROM {log_pieces} WHERE kind = 'file'")

    restored = restore_log(lake.path, tmp_path / "out")

    assert restored.messages == len(left)
    assert [record.physical_offset for record, _ in read_store_records(tmp_path / "out")] == left
    assert plan_log(lake.lake, list_lake_stores(lake.lake)[0]).size.origin != "detected"


def test_a_column_of_another_engine_keeps_its_values(lake: SharedLake) -> None:
    """`optimize` and superseding once replaced the values of such a column, which an UPDATE had filled, with NULL."""
    lake.sql("ALTER TABLE {messages} ADD COLUMNS (note STRING, place STRUCT<row: INT>)")
    lake.sql("UPDATE {messages} SET note = concat('n', physical_offset), place = named_struct('row', queue_id)")
    notes = lake.values("note")
    places = lake.values("place['row']")
    new = lake.grow(5)
    lake.run()
    optimize(str(lake.path), SerialWorkers())

    assert lake.values("note") == {**notes, **dict.fromkeys(new)}
    assert lake.values("place['row']") == {**places, **dict.fromkeys(new)}
    cut = lake.offsets()[15]
    lake.broker.truncate(cut)
    lake.broker.append(some_records(3, seed=78))

    assert lake.run().superseded is not None

    kept = {offset: note for offset, note in notes.items() if offset < cut}
    moved = {offset: note for offset, note in {**notes, **dict.fromkeys(new)}.items() if offset >= cut}

    assert {offset: note for offset, note in lake.values("note").items() if offset < cut} == kept
    assert lake.values("note", "superseded_messages") == moved


def test_rows_of_another_engine_without_our_columns_survive_a_merge_and_register_no_store(lake: SharedLake) -> None:
    lake.sql("INSERT INTO {messages} (physical_offset, topic) VALUES (-1, 'theirs')")
    lake.sql("INSERT INTO {runs} (broker, run) VALUES ('a note', 0)")
    offsets = lake.offsets()
    new = lake.grow(5)

    lake.run()
    optimize(str(lake.path), SerialWorkers())

    assert lake.offsets() == [*offsets, *new]
    assert lake.values("topic")[-1] == "theirs"


def test_files_without_statistics_of_a_column_hold_no_nulls(lake: SharedLake) -> None:
    """With statistics for fewer columns, rows of `runs` were not found, and a rewritten log was not recognized."""
    offsets = lake.offsets()
    for table in ("runs", "messages", "index_entries", "consume_queue"):
        before = DeltaTable(lake.path / table).metadata().configuration["delta.dataSkippingStatsColumns"]
        for columns in ("broker", before):
            properties = f"'delta.dataSkippingStatsColumns' = '{columns}'"
            lake.sql(f"ALTER TABLE {{{table}}} SET TBLPROPERTIES ({properties})", f"OPTIMIZE {{{table}}}")
    lake.broker.truncate(offsets[25])
    new = [record.physical_offset for record in lake.broker.append(some_records(12, seed=77))]

    assert lake.run().superseded is not None
    assert lake.offsets() == [*offsets[:25], *new]


def test_a_registration_that_another_engine_deleted_can_be_restored(lake: SharedLake) -> None:
    other = Broker(lake.root / "other")
    other.append(some_records(4, seed=80))
    ingest_store(other.root, lake.path, "other")
    offsets = lake.offsets()
    version = DeltaTable(lake.path / "runs").version()
    lake.sql("DELETE FROM {runs} WHERE state = 'registered' AND broker = 'b'")
    new = lake.grow(5)

    with pytest.raises(OSError, match="2 stores were registered, but only the rows of 1 are left") as refused:
        lake.run()
    statement = str(refused.value).partition("run in Spark SQL: ")[2]
    lake.sql(re.sub("<.*>", str(version), statement))

    assert lake.run().messages == 5
    assert lake.offsets() == sorted([*offsets, *new])


def test_times_rewritten_by_spark_keep_their_values(lake: SharedLake) -> None:
    """UPDATE writes times as INT96, which Arrow reads as nanoseconds, so `optimize` failed for the year 3000."""
    far = [253402300799999, 32503680000000, -62135596800000]  # the years 9999, 3000 and 1
    placed = [lake.broker.append([make_record(born_timestamp=time)])[0].physical_offset for time in far]
    lake.run()
    lake.sql("UPDATE {messages} SET flag = flag")

    optimize(str(lake.path), SerialWorkers())

    assert lake.files() == 1
    born = lake.values("CAST(CAST(born_time AS BIGINT) / 1000 AS BIGINT)")

    assert [born[at] for at in placed] == far


def test_readers_refuse_a_table_of_another_tables_files(lake: SharedLake, tmp_path: Path) -> None:
    """`restore` wrote wrong bytes with exit code 0. The features include other tables whose files lack their rows."""
    offsets = lake.offsets()
    backup = tmp_path / "backup" / "messages"
    shutil.copytree(lake.path / "messages", backup)
    lake.sql("DELETE FROM {messages}", f"CREATE OR REPLACE TABLE {{messages}} SHALLOW CLONE delta.`{backup}`")
    (store,) = list_lake_stores(lake.lake)

    with pytest.raises(UnsupportedTableError, match=r"messages: .*cannot read: files of another table") as refused:
        plan_log(lake.lake, store)
    lake.run_remedy(refused.value)

    assert plan_log(lake.lake, store).lost_files == {}
    new = lake.grow(5)
    lake.run()
    optimize(str(lake.path), SerialWorkers())

    assert lake.read_by_spark() == [*offsets, *new]


def test_readers_leave_out_rows_of_another_engine(lake: SharedLake, tmp_path: Path) -> None:
    (store,) = list_lake_stores(lake.lake)
    columns = "broker, store_id, topic, queue_id, queue_offset, transaction_type"
    lake.sql(f"INSERT INTO {{messages}} ({columns}) VALUES ('b', '{store.store_id}', 'theirs', 0, 7, 'none')")
    source = open_lake(lake.path)
    snapshot = open_table(lake.lake, "messages")

    assert snapshot is not None

    compared = compare_with_lake(lake.broker.root, lake.path)
    exported = [
        batch for file in list_snapshot_files(lake.lake, snapshot) for batch in LakeItem(lake.lake, file).read()
    ]

    assert restore_log(lake.path, tmp_path / "out").messages == compared.equal == 30
    assert sum(len(batch) for batch in exported if isinstance(batch, pa.RecordBatch)) == 30
    assert "theirs" not in source.topics()
    assert source.queue_offsets("theirs", 0) is None
    assert source.by_offset(0) is not None


def test_the_change_feed_has_the_rows_of_runs_and_nothing_for_merges(lake: SharedLake) -> None:
    """For a rewritten log it has the deleted and added rows; unchanged rows cancel out."""
    lake.sql("ALTER TABLE {messages} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    start = DeltaTable(lake.path / "messages").version()
    before = lake.offsets()
    new = lake.grow(6)
    lake.run()

    assert lake.changes(start) == ([], new)
    optimize(str(lake.path), SerialWorkers())

    assert lake.changes(start) == ([], new)

    merged = DeltaTable(lake.path / "messages").version() + 1
    cut = before[20]
    lake.broker.truncate(cut)
    other = [record.physical_offset for record in lake.broker.append(some_records(30, seed=79))]
    lake.run()

    gone = [offset for offset in [*before, *new] if offset >= cut]

    assert lake.changes(merged) == (sorted({*gone} - {*other}), sorted({*other} - {*gone}))
    assert lake.offsets() == sorted([*before[:20], *other])


def test_a_prepared_run_is_completed_after_the_feature_is_dropped(lake: SharedLake) -> None:
    (store,) = list_lake_stores(lake.lake)

    assert store.newest_manifest is not None
    tables = a_manifest(lake.lake, store, store.next_run).tables
    state = {**store.newest_manifest.state, TABLES_BEFORE_KEY: find_newest_run_by_table(lake.lake, store, is_done=True)}
    prepare_run(lake.lake, replace(store.newest_manifest, run=store.next_run, tables=tables, state=state))
    lake.sql(*FEATURES["appendOnly"])
    lake.grow(5)
    with pytest.raises(UnsupportedTableError) as refused:
        lake.run()
    lake.run_remedy(refused.value)

    summary = lake.run()

    assert summary.recovered == store.next_run
    assert summary.messages == 5
    assert find_unfinished_run(lake.lake, list_lake_stores(lake.lake)[0]) is None
    assert len(rows_of(lake.path, "quarantine")) == 1


def test_a_merge_is_abandoned_if_another_engine_has_deleted_its_files(lake: SharedLake) -> None:
    statements = "OPTIMIZE {messages}", NO_SHORT_RETENTION_CHECK, "VACUUM {messages} RETAIN 0 HOURS"
    merge = call_before(merge_here, lambda: lake.sql(*statements))
    expected = lake.offsets()

    assert merge_small_files(lake.lake, MESSAGES, merge=merge).merged == 0
    assert lake.offsets() == expected


def test_a_merge_continues_after_a_commit_that_only_adds_files(lake: SharedLake) -> None:
    lake.sql(WITH_VECTORS, f"DELETE FROM {{messages}} WHERE {THIRD}")
    expected = lake.offsets()
    insert = "INSERT INTO {messages} (physical_offset, topic) VALUES (-1, 'theirs')"
    merge = call_after(merge_here, lambda: lake.sql(insert))

    assert merge_small_files(lake.lake, MESSAGES, merge=merge).merged == 3
    assert lake.offsets() == [-1, *expected]


def test_the_vacuum_leaves_the_vectors_that_a_table_needs(lake: SharedLake) -> None:
    """`deltalake` treats old deletion vector files as unreferenced."""
    left = lake.offsets(OTHERS)
    lake.sql(WITH_VECTORS, f"DELETE FROM {{messages}} WHERE {THIRD}")
    obsolete = lake.path / "messages" / "nobody-names-this.parquet"
    obsolete.write_bytes(b"PAR1")
    for path in (lake.path / "messages").glob("*.*"):
        os.utime(path, (time.time() - 8 * 86400,) * 2)
    vectors = sorted((lake.path / "messages").glob("deletion_vector_*.bin"))

    assert vectors

    optimize(str(lake.path), SerialWorkers())

    assert not obsolete.exists()
    assert sorted((lake.path / "messages").glob("deletion_vector_*.bin")) == vectors
    assert lake.offsets() == left
