"""A store and a lake of the same log: data that only one side has is reported with its cause."""

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from jobs.console.result import Severity
from jobs.diff import DiffRequest, DiffSummary, diff
from jobs.ingest.run import ingest
from jobs.lake.lake import Lake
from jobs.restore.plan import NothingToRestoreError
from jobs.store.selection import Selection
from jobs.store.workers import SerialWorkers
from tests.golden import GOLDEN, StoreOf, release_of, unpack_situation
from tests.support.lakes import cut_back_after_a_run, ingest_store, rows_of
from tests.support.stores import log_folders

RELEASE = "5.3.3"


def taken(store: Path, selection: Selection | None = None) -> Path:
    lake = store.parent / "lake"
    ingest_store(store, lake, release=RELEASE, selection=selection or Selection())
    return lake


def compared(store: Path) -> DiffSummary:
    return diff(DiffRequest(str(store), Lake(str(store.parent / "lake"))), SerialWorkers())


QUICK = {"b498-dledger", "b498-multipath", "b420-crash-later"}


@pytest.mark.sample(2, always=sorted(QUICK))
@pytest.mark.parametrize("name", GOLDEN)
def test_the_store_of_every_broker_equals_its_lake(name: str, golden: StoreOf, tmp_path: Path) -> None:
    root = golden(name)
    paths = log_folders(root)
    ingest_store(root, tmp_path / "lake", commitlog=paths, release=release_of(name))

    summary = diff(DiffRequest(str(root), Lake(str(tmp_path / "lake")), commitlog=paths), SerialWorkers())

    assert [] == [one for one in summary.differences if "damaged when it was read" not in one.cause]
    assert len(rows_of(tmp_path / "lake")) == summary.equal


@pytest.mark.parametrize("harm", ["delete", "update"])
def test_rows_that_another_engine_deletes_or_changes_are_reported(store: Path, harm: str) -> None:
    rows = rows_of(taken(store))[10:13]
    start, end = rows[0]["physical_offset"], rows[-1]["physical_offset"]
    table, where = DeltaTable(store.parent / "lake/messages"), f"physical_offset BETWEEN {start} AND {end}"
    table.delete(where) if harm == "delete" else table.update({"flag": "flag + 1"}, predicate=where)

    summary = compared(store)

    found = [(one.severity, one.what, one.start, one.records, one.cause) for one in summary.differences]
    assert found == [
        (Severity.GAP, "only in the store", start, 3, "rows were deleted from the lake")
        if harm == "delete"
        else (
            Severity.DAMAGE,
            "changed in the lake",
            start,
            3,
            "another engine has changed the row since a run wrote it",
        )
    ]
    assert summary.exit_code == 3


def test_a_rewritten_log_contradicts_the_lake(tmp_path: Path) -> None:
    broker, asked = cut_back_after_a_run(tmp_path, RELEASE)

    assert compared(broker.root).exit_code == 4
    ingest(asked, SerialWorkers())
    assert compared(broker.root).exit_code == 0


def test_after_a_failover_no_row_is_reported_as_deleted(tmp_path: Path) -> None:
    """The old master's truncated records were never in the lake of the new master."""
    replicas = unpack_situation("b551-controller-failover", tmp_path)
    ingest_store(replicas / "new-master-end", tmp_path / "lake")

    summary = diff(DiffRequest(str(replicas / "old-master-killed"), Lake(str(tmp_path / "lake"))), SerialWorkers())

    only_in_store = [one for one in summary.differences if one.what == "only in the store"]
    assert [Severity.CONTRADICTION, Severity.BEHIND] == [one.severity for one in only_in_store]
    assert not any("deleted" in one.cause for one in summary.differences)


def test_deleted_rows_of_a_selected_topic_are_a_finding(store: Path) -> None:
    """They were reported as messages of topics that were not selected, which are not a finding."""
    lake = taken(store)
    topic = rows_of(lake)[0]["topic"]
    chosen = sum(row["topic"] == topic for row in rows_of(lake))
    others = len(rows_of(lake)) - chosen
    shutil.rmtree(lake)
    taken(store, Selection(topics=(topic,)))

    DeltaTable(lake / "messages").delete("queue_id = 0")
    left = len(rows_of(lake))
    summary = compared(store)

    found = {severity: [one for one in summary.differences if one.severity is severity] for severity in Severity}
    assert (3, left) == (summary.exit_code, summary.equal)
    assert chosen - left == sum(one.records for one in found[Severity.GAP]) > 0
    assert {"rows were deleted from the lake"} == {one.cause for one in found[Severity.GAP]}
    assert others == sum(one.records for one in found[Severity.NOT_VERIFIED])


def test_a_lake_of_another_broker_is_refused(store: Path, golden: StoreOf) -> None:
    taken(store)

    with pytest.raises(NothingToRestoreError, match="no run has ingested the store"):
        diff(DiffRequest(str(golden("b498-base")), Lake(str(store.parent / "lake"))), SerialWorkers())
