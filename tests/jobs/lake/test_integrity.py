"""Lakes that have lost data or the record of their runs, or that are from an earlier release."""

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.console.result import OtherRunActiveError
from jobs.demo import extract
from jobs.lake.history import find_superseded_rows
from jobs.lake.integrity import find_lost_transactions, newest_run_by_table, restore_transactions
from jobs.lake.lake import Lake
from jobs.lake.runs import list_known_stores
from jobs.lake.tables import WRITTEN_BY_RUNS
from jobs.lake.upkeep import merge_small_files
from jobs.store.store import list_store
from tests.support.broker import Broker, some_records
from tests.support.commands import read_state
from tests.support.lakes import LakeOfBroker, ingest_store, raw_rows, rows_of, table_of
from tests.support.stores import read_files


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> LakeOfBroker:
    """Return the lake of a broker whose log has grown since the last of three runs."""
    made = LakeOfBroker(tmp_path_factory.mktemp("grown"))
    for _ in range(3):
        made.grow()
        made.run()
    made.grow()
    return made


@pytest.fixture
def grown(shared: LakeOfBroker, tmp_path: Path) -> LakeOfBroker:
    return shared.copied(tmp_path)


def test_a_newer_run_of_a_faster_process_in_a_table_is_accepted(grown: LakeOfBroker) -> None:
    (store,) = list_known_stores(grown.lake)
    grown.run()

    with pytest.raises(OtherRunActiveError):
        newest_run_by_table(grown.lake, store, is_done=True)


def copy_rows(grown: LakeOfBroker, *, without_newest_messages: bool = False) -> Path:
    """Copy the rows of each table of a lake, without transactions, as another engine does."""
    copy = grown.root / "copy"
    shutil.copytree(grown.path / "_manifests", copy / "_manifests")
    for table in (path.parent for path in grown.path.glob("*/_delta_log")):
        opened = DeltaTable(table)
        if without_newest_messages and table.name == "messages":
            opened.load_as_version(opened.version() - 1)
        write_deltalake(copy / table.name, opened.to_pyarrow_table())
    return copy


def test_a_copy_of_the_rows_gets_the_transactions_of_its_lake(grown: LakeOfBroker) -> None:
    """Each transaction equals that of the original lake; the next run then adds new rows once."""
    copy = copy_rows(grown)
    with pytest.raises(OSError, match=r"would be ingested twice(.|\n)*rmq-lake optimize --heal --dry-run"):
        ingest_store(grown.broker.root, copy, "b")
    files, lake = read_state(copy), Lake(str(copy))

    lost = find_lost_transactions(lake)

    assert files == read_state(copy)
    known = {(one.table, one.app): DeltaTable(grown.path / one.table).transaction_version(one.app) for one in lost}
    assert {(one.table, one.app): one.number for one in lost} == known
    assert {"messages", "consume_queue", "index_entries", "log_pieces", "runs"} <= {one.table for one in lost}
    restore_transactions(lake, lost)
    assert find_lost_transactions(lake) == []
    assert (ingest_store(grown.broker.root, copy, "b").messages, grown.run().messages) == (20, 20)
    assert raw_rows(copy) == raw_rows(grown.path)


def test_a_table_that_was_copied_before_the_newest_run_is_not_healed(grown: LakeOfBroker) -> None:
    """It lacks the rows of that run, and with the transaction the run would never be repeated."""
    copy = copy_rows(grown, without_newest_messages=True)
    files, lake = read_state(copy), Lake(str(copy))

    lost = find_lost_transactions(lake)

    assert [table.table for table in lost if table.doubt] == ["messages"]
    with pytest.raises(
        OSError,
        match=r"messages: run 3 of store \S+ added 20 rows \(offsets [\d,]+ to [\d,]+\), but the table has only 0",
    ):
        restore_transactions(lake, lost)
    assert files == read_state(copy)


def test_a_copy_without_the_newest_manifest_or_of_an_unfinished_run_is_not_healed(grown: LakeOfBroker) -> None:
    """It is unknown which tables have the rows of an unfinished run."""
    copy = copy_rows(grown)
    lake, rows = Lake(str(copy)), table_of(copy / "runs")
    done = [row["state"] != "done" or row["run"] != 3 for row in rows.to_pylist()]
    write_deltalake(copy / "runs", rows.filter(done), mode="overwrite")
    with pytest.raises(OSError, match=r"run 3 of store .* was interrupted"):
        restore_transactions(lake, find_lost_transactions(lake))

    shutil.rmtree(copy / "_manifests")
    with pytest.raises(OSError, match="this manifest of run 3 is missing"):
        find_lost_transactions(lake)


LAKES = Path(__file__).parents[2] / "lakes"
LATER = ("record_crc", "body_error", "body_inflated")  # columns that the versions of the archives lack


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


@pytest.mark.parametrize("commit", sorted(path.name.removesuffix(".tar.xz") for path in LAKES.glob("*.tar.xz")))
def test_a_lake_of_an_earlier_commit_is_continued(commit: str, tmp_path: Path) -> None:
    extract(LAKES / f"{commit}.tar.xz", tmp_path)
    store, lake = tmp_path / "store", tmp_path / "lake"
    broker = played(tmp_path / "again")
    assert read_files(store) == read_files(broker.root)
    before = {name: rows_before(lake, name) for name in ("messages", "consume_queue", "index_entries")}

    unchanged = ingest_store(broker.root, lake, "b")
    written = broker.append(some_records(50, seed=5))
    continued = ingest_store(broker.root, lake, "b")
    fresh = ingest_store(broker.root, tmp_path / "fresh", "b")

    assert (unchanged.run, unchanged.messages) == (None, 0)
    assert (continued.run, continued.messages, continued.units["matched"]) == (4, 50, 50)
    assert continued.index_entries == 3 * len(written)
    assert raw_rows(lake) == raw_rows(tmp_path / "fresh")
    assert fresh.messages == 60 + 20 + 40 + 60 + 50
    for name, rows in before.items():
        assert rows_before(lake, name, written[0].physical_offset) == rows

    of_lake = Lake(str(lake))
    for table in WRITTEN_BY_RUNS:
        merge_small_files(of_lake, table)
    known = list_known_stores(of_lake)[0]
    assert raw_rows(lake) == raw_rows(tmp_path / "fresh")
    assert find_superseded_rows(of_lake, known, list_store(str(broker.root))) is None
    assert newest_run_by_table(of_lake, known, is_done=True, unchecked_tables=frozenset())["messages"] == 4
