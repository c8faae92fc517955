"""A lake whose transactions Delta's log has forgotten is healed from its rows and manifests, or not at all."""

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.lake.integrity import lost_transactions, put_back
from jobs.lake.lake import Lake
from tests.support.broker import Broker, some_records
from tests.support.commands import state_of
from tests.support.lakes import ingest_store, table_of


class Forgotten:
    """A lake of three runs, and a copy of it, table by table, as another engine would make it: rows, and no more."""

    def __init__(self, root: Path) -> None:
        self.broker, self.lake, self.copy = Broker(root / "store"), root / "lake", root / "copy"
        for seed in range(3):
            self.broker.append(some_records(10, seed=seed))
            self.run(self.lake)

    def run(self, lake: Path) -> int:
        return ingest_store(self.broker.root, lake, "b").messages

    def copied(self, *, as_of: dict[str, int] | None = None) -> Lake:
        shutil.copytree(self.lake / "_manifests", self.copy / "_manifests")
        for table in self.lake.iterdir():
            if (table / "_delta_log").is_dir():
                version = (as_of or {}).get(table.name)
                rows = DeltaTable(table, version=version).to_pyarrow_table() if version else table_of(table)
                write_deltalake(self.copy / table.name, rows)
        return Lake(str(self.copy))

    def offsets(self, lake: Path) -> list[int]:
        return sorted(table_of(lake / "messages").column("physical_offset").to_pylist())


@pytest.fixture
def forgotten(tmp_path: Path) -> Forgotten:
    return Forgotten(tmp_path)


def test_a_copy_of_rows_gets_the_transactions_of_its_lake(forgotten: Forgotten) -> None:
    """Each transaction is the one that the lake itself has; then the next run brings what is new, once."""
    lake = forgotten.copied()
    with pytest.raises(OSError, match=r"every message would come twice(.|\n)*rmq-lake optimize --heal --dry-run"):
        forgotten.run(forgotten.copy)
    files = state_of(forgotten.copy)

    lost = lost_transactions(lake)

    assert files == state_of(forgotten.copy)
    known = {(one.table, one.app): DeltaTable(forgotten.lake / one.table).transaction_version(one.app) for one in lost}
    assert {(one.table, one.app): one.number for one in lost} == known
    assert {"messages", "consume_queue", "index_entries", "log_pieces", "runs"} <= {one.table for one in lost}
    put_back(lake, lost)
    assert lost_transactions(lake) == []
    forgotten.broker.append(some_records(5, seed=9))
    assert (forgotten.run(forgotten.copy), forgotten.run(forgotten.lake)) == (5, 5)
    assert forgotten.offsets(forgotten.copy) == forgotten.offsets(forgotten.lake)


def test_a_sound_lake_has_nothing_to_heal(forgotten: Forgotten) -> None:
    assert lost_transactions(Lake(str(forgotten.lake))) == []


def test_a_table_that_was_copied_before_the_newest_run_is_not_healed(forgotten: Forgotten) -> None:
    """Its rows lack what that run brought: with the transaction they would never come."""
    before = DeltaTable(forgotten.lake / "messages").version() - 1
    lake = forgotten.copied(as_of={"messages": before})
    files = state_of(forgotten.copy)

    lost = lost_transactions(lake)

    assert [one.table for one in lost if one.doubt] == ["messages"]
    with pytest.raises(OSError, match=r"messages: has 0 of at least 10 rows where run 3"):
        put_back(lake, lost)
    assert files == state_of(forgotten.copy)


def test_without_its_manifest_a_lake_is_not_healed(forgotten: Forgotten) -> None:
    lake = forgotten.copied()
    shutil.rmtree(forgotten.copy / "_manifests")

    with pytest.raises(OSError, match="this manifest of run 3 is missing"):
        lost_transactions(lake)


def test_a_run_that_was_not_finished_leaves_it_undecided(forgotten: Forgotten) -> None:
    """Nothing says which tables have its rows."""
    lake = forgotten.copied()
    rows = table_of(forgotten.copy / "runs")
    done = [row["state"] != "done" or row["run"] != 3 for row in rows.to_pylist()]
    write_deltalake(forgotten.copy / "runs", rows.filter(done), mode="overwrite")

    with pytest.raises(OSError, match=r"run 3 of store .* was not finished"):
        put_back(lake, lost_transactions(lake))
