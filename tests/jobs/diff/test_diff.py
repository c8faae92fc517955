"""A store and a lake of the same log: what one has and the other lacks is named, with its cause."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from jobs.console.result import Severity
from jobs.diff import DiffRequest, DiffSummary, NotInLakeError, diff
from jobs.ingest.run import ingest
from jobs.lake.lake import Lake
from jobs.store.selection import Selection
from jobs.store.workers import OneByOne
from tests.golden import GOLDEN, StoreOf, release_of, unpack_situation
from tests.support.broker import Broker, some_records
from tests.support.lakes import cut_back_after_a_run, ingest_store, rows_of
from tests.support.stores import flip, log_folders, lose_first_segment_like_retention

RELEASE = "5.3.3"


def taken(store: Path, selection: Selection | None = None) -> Path:
    lake = store.parent / "lake"
    ingest_store(store, lake, release=RELEASE, selection=selection or Selection())
    return lake


def compared(store: Path) -> DiffSummary:
    return diff(DiffRequest(str(store), Lake(str(store.parent / "lake"))), OneByOne())


def segments(store: Path) -> list[Path]:
    return sorted(path for path in (store / "commitlog").iterdir())


QUICK = {"b498-dledger", "b498-multipath", "b420-crash-later"}


@pytest.mark.sample(2, always=sorted(QUICK))
@pytest.mark.parametrize("name", GOLDEN)
def test_every_brokers_store_equals_its_lake(name: str, golden: StoreOf, tmp_path: Path) -> None:
    root = golden(name)
    paths = log_folders(root)
    ingest_store(root, tmp_path / "lake", commitlog=paths, release=release_of(name))

    summary = diff(DiffRequest(str(root), Lake(str(tmp_path / "lake")), commitlog=paths), OneByOne())

    assert [] == [one for one in summary.differences if "damaged when it was read" not in one.cause]
    assert len(rows_of(tmp_path / "lake")) == summary.equal


Rows = list[dict[str, Any]]  # of the lake


def _expire(store: Path, rows: Rows) -> Rows:
    end = lose_first_segment_like_retention(store)
    return [row for row in rows if row["physical_offset"] < end]


def _lose_a_segment(store: Path, rows: Rows) -> Rows:
    victim, after = segments(store)[1:3]
    victim.unlink()
    return [row for row in rows if int(victim.name) <= row["physical_offset"] < int(after.name)]


def _rot_a_body(store: Path, rows: Rows) -> Rows:
    row = next(row for row in rows if row["body"])
    path = segments(store)[0]
    flip(path, path.read_bytes().index(row["body"], row["physical_offset"]), 0xFF)
    return [row]


def _delete_rows(store: Path, rows: Rows) -> Rows:
    start, end = rows[10]["physical_offset"], rows[12]["physical_offset"]
    DeltaTable(store.parent / "lake/messages").delete(f"physical_offset >= {start} AND physical_offset <= {end}")
    return rows[10:13]


def _change_a_row(store: Path, rows: Rows) -> Rows:
    predicate = f"physical_offset = {rows[10]['physical_offset']}"
    DeltaTable(store.parent / "lake/messages").update({"flag": "flag + 1"}, predicate=predicate)
    return rows[10:11]


@pytest.mark.parametrize(
    ("harm", "severity", "what", "cause"),
    [
        (_expire, Severity.HEALTHY, "only in the lake", "expired"),
        (_lose_a_segment, Severity.GAP, "only in the lake", "no file of the store"),
        (_rot_a_body, Severity.DAMAGE, "different", "damaged in the store since"),
        (_delete_rows, Severity.GAP, "only in the store", "rows were deleted from the lake"),
        (_change_a_row, Severity.DAMAGE, "changed in the lake", "another engine has changed the row since a run wrote"),
    ],
)
def test_what_one_side_has_lost_or_changed_since_is_named_with_its_cause(
    store: Path, harm: Callable[[Path, Rows], Rows], severity: Severity, what: str, cause: str
) -> None:
    harmed = harm(store, rows_of(taken(store)))

    summary = compared(store)

    (found,) = summary.differences
    assert (severity, what) == (found.severity, found.what)
    assert (harmed[0]["physical_offset"], len(harmed)) == (found.start, found.records)
    assert cause in found.cause
    assert (0 if severity is Severity.HEALTHY else 3) == summary.exit_code


def test_segments_that_retention_did_not_delete_are_a_gap(golden: StoreOf, tmp_path: Path) -> None:
    """Files outlived them that a broker deletes with them: `verify` says so of the same store."""
    store = Path(shutil.copytree(golden("b533-base"), tmp_path / "store"))
    taken(store)
    segments(store)[0].unlink()

    summary = compared(store)

    (lost,) = summary.differences
    assert (3, Severity.GAP, 0) == (summary.exit_code, lost.severity, lost.start)
    assert "a broker deletes such files with the segment" in lost.cause


def test_what_is_new_in_the_store_is_not_ingested_yet(broker: Broker, tmp_path: Path) -> None:
    broker.append(some_records(30))
    ingest_store(broker.root, tmp_path / "lake", "b", release=RELEASE)
    new = broker.append(some_records(7, seed=2))

    summary = compared(broker.root)

    assert (0, Severity.BEHIND) == (summary.exit_code, summary.severity)
    assert ("only in the store", "not ingested yet") == (summary.differences[0].what, summary.differences[0].cause)
    assert sum(one.records for one in summary.differences) == len(new)


def test_a_log_that_was_written_again_contradicts_the_lake(tmp_path: Path) -> None:
    broker, asked = cut_back_after_a_run(tmp_path, RELEASE)

    assert compared(broker.root).exit_code == 4
    ingest(asked, OneByOne())
    assert compared(broker.root).exit_code == 0


def test_a_store_that_ends_before_the_lake_lacks_its_end(broker: Broker, tmp_path: Path) -> None:
    broker.append(some_records(20))
    copy = Path(shutil.copytree(broker.root, tmp_path / "copy"))
    broker.append(some_records(5, seed=2))
    ingest_store(broker.root, tmp_path / "lake", "b", release=RELEASE)

    summary = diff(DiffRequest(str(copy), Lake(str(tmp_path / "lake"))), OneByOne())

    assert (3, 5) == (summary.exit_code, sum(one.records for one in summary.differences))
    assert all("ends before" in one.cause for one in summary.differences)


def test_after_a_failover_no_row_is_called_deleted(tmp_path: Path) -> None:
    """The old master's records that were taken back were never in the lake of the new one."""
    replicas = unpack_situation("b551-controller-failover", tmp_path)
    ingest_store(replicas / "new-master-end", tmp_path / "lake")

    summary = diff(DiffRequest(str(replicas / "old-master-killed"), Lake(str(tmp_path / "lake"))), OneByOne())

    only_in_store = [one for one in summary.differences if one.what == "only in the store"]
    assert [Severity.CONTRADICTION, Severity.BEHIND] == [one.severity for one in only_in_store]
    assert not any("deleted" in one.cause for one in summary.differences)


def test_a_lost_file_of_the_lake_is_named(store: Path) -> None:
    lake = taken(store)
    victim = max((lake / "messages").glob("*.parquet"))
    victim.unlink()

    summary = compared(store)

    assert (3, [f"messages/{victim.name} is missing"]) == (summary.exit_code, summary.lost)
    assert {f"messages/{victim.name} is missing"} == {one.cause for one in summary.differences}


def test_topics_that_were_not_chosen_are_no_finding_and_deleted_rows_of_a_chosen_one_are(store: Path) -> None:
    """The latter were called messages of topics that were not chosen, which is no finding."""
    lake = taken(store)
    topic = rows_of(lake)[0]["topic"]
    chosen = sum(row["topic"] == topic for row in rows_of(lake))
    others = len(rows_of(lake)) - chosen
    shutil.rmtree(lake)
    taken(store, Selection(topics=(topic,)))

    summary = compared(store)

    assert (0, chosen) == (summary.exit_code, summary.equal)
    assert sum(one.records for one in summary.differences) == others
    assert all("not chosen" in one.cause for one in summary.differences)

    DeltaTable(lake / "messages").delete("queue_id = 0")
    left = len(rows_of(lake))
    summary = compared(store)

    found = {severity: [one for one in summary.differences if one.severity is severity] for severity in Severity}
    assert (3, left) == (summary.exit_code, summary.equal)
    assert chosen - left == sum(one.records for one in found[Severity.GAP]) > 0
    assert {"rows were deleted from the lake"} == {one.cause for one in found[Severity.GAP]}
    assert others == sum(one.records for one in found[Severity.NOT_VERIFIED])


def test_bodies_that_were_left_out_cannot_be_compared(store: Path) -> None:
    lake = taken(store, Selection(with_body=False))

    summary = compared(store)

    with_body = sum(row["body_length"] > 0 for row in rows_of(lake))
    assert (0, Severity.NOT_VERIFIED, []) == (summary.exit_code, summary.severity, summary.differences)
    assert with_body == summary.incomplete


def test_a_lake_of_another_broker_is_refused(store: Path, golden: StoreOf) -> None:
    taken(store)

    with pytest.raises(NotInLakeError, match="has no run of the store"):
        diff(DiffRequest(str(golden("b498-base")), Lake(str(store.parent / "lake"))), OneByOne())
