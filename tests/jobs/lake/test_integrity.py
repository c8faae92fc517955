"""Lakes that have lost data or the record of their runs, or that are from an earlier release."""

import os
from pathlib import Path

import pytest

from jobs.console.result import ExitCode, OtherRunActiveError
from jobs.demo.tour import extract
from jobs.lake.history import find_superseded_rows
from jobs.lake.integrity import find_newest_run_by_table
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import list_lake_stores
from jobs.lake.tables import WRITTEN_BY_RUNS
from jobs.lake.upkeep import merge_small_files
from jobs.store.store import list_store
from tests.golden import StoreOf
from tests.support.broker import Broker, some_records
from tests.support.commands import Run
from tests.support.lakes import LakeOfBroker, ingest_store, raw_rows, rows_of
from tests.support.query_stores import Sent, stored, write_store
from tests.support.stores import read_files


def test_a_newer_run_of_a_faster_process_in_a_table_is_accepted(tmp_path: Path) -> None:
    grown = LakeOfBroker(tmp_path)
    grown.grow()
    grown.run()
    (store,) = list_lake_stores(grown.lake)
    grown.grow()
    grown.run()

    with pytest.raises(OtherRunActiveError):
        find_newest_run_by_table(grown.lake, store, is_done=True)


LAKES = Path(__file__).parents[2] / "lakes"
LATER = (
    "record_crc",
    "run",
    "ingested_at",
    "body_error",
    "body_inflated",
)  # columns that the versions of the archives lack


def played(root: Path) -> Broker:
    broker = Broker(root, dispatches=True)
    broker.append(some_records(60))
    written = broker.append(some_records(30, seed=2))
    broker.truncate(written[20].physical_offset)
    broker.append(some_records(40, seed=3))
    broker.append(some_records(60, seed=4))
    return broker


def rows_before(lake: Path, table: str, end: int = 1 << 62) -> list[str]:
    rows = [row for row in rows_of(lake, table) if row["physical_offset"] < end]
    return sorted(repr({name: value for name, value in row.items() if name not in LATER}) for row in rows)


def test_a_lake_of_an_earlier_commit_is_continued(tmp_path: Path) -> None:
    extract(LAKES / "da301fd.tar.xz", tmp_path)
    store, lake = tmp_path / "store", tmp_path / "lake"
    broker = played(tmp_path / "again")

    assert read_files(store) == read_files(broker.root)
    before = {name: rows_before(lake, name) for name in ("messages", "consume_queue", "index_entries")}

    unchanged = ingest_store(broker.root, lake, "b")
    written = broker.append(some_records(50, seed=5))
    continued = ingest_store(broker.root, lake, "b")
    fresh = ingest_store(broker.root, tmp_path / "fresh", "b")

    assert unchanged.run is None
    assert unchanged.messages == 0
    assert continued.run == 4
    assert continued.messages == 50
    assert continued.units["matched"] == 50
    assert continued.index_entries == 3 * len(written)
    assert raw_rows(lake) == raw_rows(tmp_path / "fresh")
    assert fresh.messages == 60 + 20 + 40 + 60 + 50
    for name, rows in before.items():
        assert rows_before(lake, name, written[0].physical_offset) == rows

    of_lake = Lake(str(lake))
    for table in WRITTEN_BY_RUNS:
        merge_small_files(of_lake, table)
    lake_store = list_lake_stores(of_lake)[0]

    assert raw_rows(lake) == raw_rows(tmp_path / "fresh")
    assert find_superseded_rows(of_lake, lake_store, list_store(str(broker.root))) is None
    assert find_newest_run_by_table(of_lake, lake_store, is_done=True, unchecked_tables=frozenset())["messages"] == 4


def test_a_lake_with_a_tier_is_read_and_continues_for_its_other_stores(
    situation: StoreOf, tmp_path: Path, run: Run
) -> None:
    """Earlier versions also ingested tiered storage."""
    extract(LAKES / "5c741c89-tiered.tar.xz", tmp_path)
    store = situation("b550-tiered") / "store"
    lake = tmp_path / "lake"
    before = sorted(map(repr, rows_of(lake, "tiered")))

    unchanged = ingest_store(store, lake, "b0")
    other = ingest_store(write_store(tmp_path / "other", stored([Sent("T1")])), lake, "b1")
    counted = run(
        "query", "sql", "--lake", lake, "--output", "csv", "SELECT count(*) FROM tiered WHERE topic = 'Orders'"
    )
    optimized = run("optimize", lake)
    restored = run("restore", lake, "--broker", "b0", "--out", tmp_path / "restored")

    assert unchanged.run is None
    assert 0 == unchanged.messages
    assert 1 == other.run
    assert 1 == other.messages
    assert [str(sum("'topic': 'Orders'" in row for row in before))] == counted.out.split()[1:]
    assert ExitCode.CLEAN == optimized.code, optimized.err
    assert ExitCode.CLEAN == restored.code, restored.err
    assert before == sorted(map(repr, rows_of(lake, "tiered")))


@pytest.mark.parametrize(
    ("table", "command"),
    [
        ("messages", ("query", "sql", "SELECT count(*) FROM messages", "--lake")),
        ("messages", ("optimize",)),
        ("runs", ("optimize",)),
    ],
)
def test_a_pipe_in_place_of_a_data_file_does_not_hang_a_command(
    table: str, command: tuple[str, ...], tmp_path: Path, run: Run
) -> None:
    broker = Broker(tmp_path / "store")
    lake = tmp_path / "lake"
    for seed in range(2):
        broker.append(some_records(20, seed))
        ingest_store(tmp_path / "store", lake)
    for file in (lake / table).glob("*.parquet"):
        file.unlink()
        os.mkfifo(file)

    done = run(*command, lake)

    assert done.code is ExitCode.FAILED
    assert ".parquet" in done.err
    assert "not a regular file" in done.err
