"""A store and a lake of the same log: what one has and the other lacks is named, with its cause."""

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from jobs.console.severity import Severity
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


def rows_in(lake: Path, start: int, end: int) -> int:
    return sum(start <= row["physical_offset"] < end for row in rows_of(lake))


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


def test_what_retention_has_deleted_is_no_finding(store: Path) -> None:
    lake = taken(store)
    end = lose_first_segment_like_retention(store)

    summary = compared(store)

    (expired,) = summary.differences
    assert (0, "only in the lake", 0) == (summary.exit_code, expired.what, expired.start)
    assert "expired" in expired.cause
    assert expired.records == rows_in(lake, 0, end)


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


def test_a_lost_segment_of_the_store_is_a_gap(store: Path) -> None:
    lake = taken(store)
    victim, after = segments(store)[1:3]
    victim.unlink()

    (lost,) = compared(store).differences

    assert (Severity.GAP, rows_in(lake, int(victim.name), int(after.name))) == (lost.severity, lost.records)
    assert "no file of the store" in lost.cause


def test_a_byte_of_a_body_that_rotted_since_is_damage_of_the_store(store: Path) -> None:
    lake = taken(store)
    row = next(row for row in rows_of(lake) if row["body"])
    path = segments(store)[0]
    at = path.read_bytes().index(row["body"], row["physical_offset"])
    flip(path, at, 0xFF)

    summary = compared(store)

    (rotten,) = summary.differences
    assert (3, row["physical_offset"], 1) == (summary.exit_code, rotten.start, rotten.records)
    assert "damaged in the store since" in rotten.cause


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


def test_rows_that_another_engine_deleted_are_a_gap_of_the_lake(store: Path) -> None:
    lake = taken(store)
    first, *_, last = rows_of(lake)[10:13]
    start, end = first["physical_offset"], last["physical_offset"]
    DeltaTable(lake / "messages").delete(f"physical_offset >= {start} AND physical_offset <= {end}")

    summary = compared(store)

    (gap,) = summary.differences
    assert (3, "only in the store", start, 3) == (summary.exit_code, gap.what, gap.start, gap.records)
    assert gap.cause == "rows were deleted from the lake"


def test_a_row_that_another_engine_changed_is_not_blamed_on_the_store(store: Path) -> None:
    lake = taken(store)
    start = rows_of(lake)[10]["physical_offset"]
    DeltaTable(lake / "messages").update({"flag": "flag + 1"}, predicate=f"physical_offset = {start}")

    summary = compared(store)

    (changed,) = summary.differences
    assert (3, start, 1) == (summary.exit_code, changed.start, changed.records)
    assert changed.cause == "another engine has changed the row since a run wrote it"


def test_a_lost_file_of_the_lake_is_named(store: Path) -> None:
    lake = taken(store)
    victim = max((lake / "messages").glob("*.parquet"))
    victim.unlink()

    summary = compared(store)

    assert (3, [f"messages/{victim.name} is missing"]) == (summary.exit_code, summary.lost)
    assert {f"messages/{victim.name} is missing"} == {one.cause for one in summary.differences}


def test_topics_that_were_not_chosen_are_no_finding(store: Path) -> None:
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


def test_deleted_rows_of_a_topic_that_was_chosen_are_a_gap(store: Path) -> None:
    """They were called messages of topics that were not chosen, which is no finding."""
    lake = taken(store)
    topic = rows_of(lake)[0]["topic"]
    chosen = sum(row["topic"] == topic for row in rows_of(lake))
    others = len(rows_of(lake)) - chosen
    shutil.rmtree(lake)
    lake = taken(store, Selection(topics=(topic,)))
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
