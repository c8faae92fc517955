"""Runs of a lake: the files that each leaves, their order, and concurrent runs."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from jobs.console.result import OtherRunActiveError
from jobs.lake import commit as commits
from jobs.lake import upkeep
from jobs.lake.commit import commit
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import LakeStore, list_lake_stores, register_store
from jobs.lake.lock import hold_lock
from jobs.lake.manifest import Manifest
from jobs.lake.runs import commit_prepared, delete_files_outside_manifest, find_unfinished_run, prepare_run
from jobs.lake.table_file import MERGED_MARK, AddedFile, FileNaming, TableFile
from jobs.lake.tables import QUARANTINE, Table
from jobs.lake.upkeep import MergeGroup, merge_here, merge_small_files, optimize
from jobs.store.record_places import Fingerprint
from jobs.store.workers import SerialWorkers
from tests.support.broker import Broker, some_records
from tests.support.lakes import LakeOfBroker, ingest_into_own_lake, ingest_store, list_leftovers, raw_rows, rows_of
from tests.support.meanwhile import DisturbedWorkers

FIRST = Fingerprint(0, 100, "00")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def store(lake: Lake) -> LakeStore:
    return register_store(lake, LakeStore("", "b", (FIRST,)), 0)


def a_file(lake: Lake, store_id: str, run: int, offset: int = 0) -> AddedFile:
    naming = FileNaming(store_id, run)
    constants = {"broker": "b", "store_id": store_id, "run": run}
    with TableFile(lake, QUARANTINE, naming.new_file_name(f"{offset:020d}"), constants) as file:
        row = {"segment": 0, "file": "f", "physical_offset": offset, "length": 1, "reason": "r", "sample": b""}
        file.write_rows([row])
        action = file.close()
    assert action is not None
    return action


def a_manifest(lake: Lake, store: LakeStore, run: int = 1) -> Manifest:
    tables = {QUARANTINE.name: (a_file(lake, store.store_id, run),)}
    return Manifest(store.store_id, store.broker, run, 0, 100, None, (FIRST,), tables)


def commit_eight(lake: Lake, store: LakeStore) -> None:
    for run in range(1, 9):
        actions = [a_file(lake, store.store_id, run, offset=run)]
        commit(lake, QUARANTINE, actions, (store.store_id, run), {})


@pytest.mark.parametrize("newest", [None, 0], ids=["looked up", "prepared meanwhile"])
def test_the_second_of_two_runs_with_the_same_number_is_refused_and_leaves_no_files(
    lake: Lake, store: LakeStore, newest: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    winner = a_manifest(lake, store)
    loser = a_manifest(lake, store)
    prepare_run(lake, winner)
    if newest is not None:  # the newest run when the loser looked it up
        monkeypatch.setattr("jobs.lake.runs.find_newest_transaction", lambda *_: newest)
    with pytest.raises(OtherRunActiveError, match=r"run 1 of this store was prepared by another process on .* UTC"):
        prepare_run(lake, loser)
    monkeypatch.undo()
    commit_prepared(lake, winner)

    assert len(rows_of(Path(lake.location), "quarantine")) == 1
    assert list_leftovers(Path(lake.location)) == []


def test_a_prepared_run_is_committed_once_from_its_manifest_alone(lake: Lake, store: LakeStore) -> None:
    prepare_run(lake, a_manifest(lake, store))
    (found,) = list_lake_stores(lake)
    leftover = find_unfinished_run(lake, found)

    assert leftover is not None
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: commit_prepared(lake, leftover), range(4)))

    assert len(rows_of(Path(lake.location), "quarantine")) == 1
    assert find_unfinished_run(lake, found) is None
    assert [row["state"] for row in rows_of(Path(lake.location), "runs", "time")] == ["registered", "prepared", "done"]


def test_a_lost_response_to_a_commit_is_not_treated_as_a_conflict(lake: Lake, store: LakeStore) -> None:
    """A client that repeats a successful put finds its own commit; the files of the run must not be deleted."""
    manifest = a_manifest(lake, store)
    original = commits._write  # noqa: SLF001
    lost: list[int] = []

    def write(*args: object, **kwargs: object) -> int:
        version = original(*args, **kwargs)  # type: ignore[arg-type]
        if not lost:
            lost.append(version)
            raise CommitFailedError("Concurrent transaction failed.")
        return version

    with patch.object(commits, "_write", write):
        prepare_run(lake, manifest)

    assert list_lake_stores(lake)[0].newest_manifest == manifest
    assert Path(lake.location, "quarantine", manifest.tables["quarantine"][0].path).exists()


def test_the_second_of_two_registrations_checks_the_lake_again(lake: Lake, store: LakeStore) -> None:
    with pytest.raises(OtherRunActiveError):
        register_store(lake, LakeStore("", "b", (FIRST,)), 0)

    assert [lake_store.store_id for lake_store in list_lake_stores(lake)] == [store.store_id]


def test_the_holder_of_the_lock_is_named(lake: Lake, store: LakeStore) -> None:
    with hold_lock(lake, store.store_id) as was_cut_off:
        assert not was_cut_off
        with (
            pytest.raises(OtherRunActiveError, match=r"another run is active: process \d+ on .*, since 20"),
            hold_lock(lake, store.store_id),
        ):
            pass


@pytest.mark.parametrize("is_local", [True, False])
def test_a_lock_whose_holder_died_does_not_block(lake: Lake, store: LakeStore, *, is_local: bool) -> None:
    """The lock file makes the next run look for leftovers. An object store has no locks."""
    with patch("jobs.lake.lock.is_local", return_value=is_local):
        with pytest.raises(KeyError), hold_lock(lake, store.store_id):
            raise KeyError
        for expected in (True, False):
            with hold_lock(lake, store.store_id) as was_cut_off:
                assert was_cut_off is expected


def test_two_concurrent_compactions_keep_every_row_once(lake: Lake, store: LakeStore) -> None:
    """Delta-rs lets two commits remove the same file; a common transaction prevents that."""
    commit_eight(lake, store)
    with ThreadPoolExecutor(4) as pool:
        saved = list(pool.map(lambda _: merge_small_files(lake, QUARANTINE), range(4)))

    assert sum(outcome.merged for outcome in saved) == 8
    assert [row["physical_offset"] for row in rows_of(Path(lake.location), "quarantine")] == list(range(1, 9))
    assert list_leftovers(Path(lake.location)) == []


def test_a_slow_merge_is_refused_after_its_files_were_deleted(lake: Lake, store: LakeStore) -> None:
    """An object store has no locks, so the commit must detect that another process has deleted its files."""
    commit_eight(lake, store)
    manifest = a_manifest(lake, store, 8)

    def merge(task: Callable[[MergeGroup], AddedFile | None], groups: Sequence[MergeGroup]) -> list[AddedFile | None]:
        merged = merge_here(task, groups)
        written = [Path(lake.locate(QUARANTINE.name, action.path)) for action in merged if action is not None]

        assert [True] == [path.exists() for path in written]
        delete_files_outside_manifest(lake, manifest)

        assert [False] == [path.exists() for path in written]
        return merged

    merge_small_files(lake, QUARANTINE, naming=FileNaming(store.store_id, 8), merge=merge)

    assert [row["physical_offset"] for row in rows_of(Path(lake.location), "quarantine")] == list(range(1, 9))


def test_a_merged_file_that_was_written_after_the_listing_is_kept(lake: Lake, store: LakeStore) -> None:
    """Only the commits of listed files are aborted, so the commit of another one may follow."""
    commit_eight(lake, store)
    late = Path(lake.locate(QUARANTINE.name, FileNaming(store.store_id, 8).new_file_name(MERGED_MARK)))

    def list_then_write(where: Lake, directory: str) -> Sequence[str]:
        found = [info.name for info in where.list_files(directory)]
        if directory == QUARANTINE.name:
            late.touch()
        return found

    with patch("jobs.lake.runs._file_names", list_then_write):
        delete_files_outside_manifest(lake, a_manifest(lake, store, 8))

    assert late.exists()


@pytest.fixture
def filled(tmp_path: Path) -> LakeOfBroker:
    return LakeOfBroker(tmp_path)


def run_often(filled: LakeOfBroker, runs: int) -> None:
    for _ in range(runs):
        filled.grow(3)
        assert filled.run().messages == 3


def test_runs_merge_small_files_without_losing_rows(filled: LakeOfBroker) -> None:
    lake = filled.path
    with patch.object(upkeep, "MAX_SMALL_FILES", 4):
        run_often(filled, 7)

    assert len(raw_rows(lake)) == 7 * 3
    assert len(DeltaTable(lake / "messages").file_uris()) < 4 + 2
    files = DeltaTable(lake / "runs").file_uris()

    assert len(files) < 2 * 4 + 4
    assert sum("-0-registered-" in file for file in files) == 1  # not merged, as every run reads it
    assert {row["state"] for row in rows_of(lake, "runs", "time")} == {"registered", "prepared", "done"}
    assert list_leftovers(lake) == []


def test_merges_are_limited_to_the_size_of_one_full_file(filled: LakeOfBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen runs of 100,000 messages were once merged in one step, which delayed new rows by six seconds."""
    merged: defaultdict[int, dict[str, int]] = defaultdict(dict)

    def note_merge(lake: Lake, table: Table, *, naming: FileNaming, **options: Any) -> None:  # noqa: ANN401 - arguments of `merge_small_files`
        saved = merge_small_files(lake, table, naming=naming, **options)
        if saved.merged:
            merged[naming.run][table.name] = saved.bytes_before

    small = 20_000  # bytes of some runs
    monkeypatch.setattr(upkeep, "merge_small_files", note_merge)
    monkeypatch.setattr(upkeep, "SMALL_FILE_BYTES", small)
    run_often(filled, 12)

    sizes = [of_run["messages"] for of_run in merged.values() if "messages" in of_run]

    assert len(sizes) >= 3
    assert max(sizes) < 2 * small
    assert all("index_entries" not in of_run for of_run in merged.values() if "messages" in of_run)


@pytest.mark.parametrize("is_known", [True, False])
def test_files_of_a_task_that_died_and_was_repeated_are_deleted_at_the_end_of_the_run(
    broker: Broker, tmp_path: Path, is_known: bool
) -> None:
    broker.append(some_records(5))
    workers = DisturbedWorkers(has_repeated=is_known, attempt=lambda work, is_of_pass: is_of_pass and work())
    ingest_into_own_lake(broker.root, workers=workers)

    assert len(raw_rows(tmp_path / "lake")) == 5
    assert (list_leftovers(tmp_path / "lake") == []) == is_known


def test_files_of_a_dead_task_are_left_to_the_vacuum_for_the_retention_of_their_table(filled: LakeOfBroker) -> None:
    run_often(filled, 2)
    lake = filled.path
    kept_for = {"delta.deletedFileRetentionDuration": "interval 30 days"}
    DeltaTable(lake / "messages").alter.set_table_properties(kept_for)
    (store,) = list_lake_stores(filled.lake)
    rows = raw_rows(lake)
    naming = FileNaming(store.store_id, 2)
    left = []
    for days in (8, 31):
        left.append(lake / "messages" / naming.new_file_name(f"{days:020d}"))
        left[-1].write_bytes(b"PAR1 and no end")
        os.utime(left[-1], (time.time() - days * 86400,) * 2)
    run_often(filled, 1)

    assert [path.exists() for path in left] == [True, True]
    optimize(str(lake), SerialWorkers())

    assert [path.exists() for path in left] == [True, False]  # a younger file may belong to a running run
    assert raw_rows(lake)[: len(rows)] == rows


def test_optimize_keeps_files_that_a_reader_or_a_writer_may_still_need(filled: LakeOfBroker) -> None:
    """A reader has opened an earlier version; a writer of another lake's store commits its files days later at most."""
    run_often(filled, 3)
    reader = DeltaTable(filled.path / "messages")
    rows = reader.to_pyarrow_table().num_rows
    unreferenced = {days: filled.path / "messages" / f"{days}-days.parquet" for days in (0, 6, 8)}
    for days, path in unreferenced.items():
        path.write_bytes(b"PAR1 and no end")
        os.utime(path, (time.time() - days * 86400,) * 2)

    optimize(str(filled.path), SerialWorkers())

    assert {0: True, 6: True, 8: False} == {days: path.exists() for days, path in unreferenced.items()}
    assert rows == reader.to_pyarrow_table().num_rows
    assert len(DeltaTable(filled.path / "messages").file_uris()) < len(reader.file_uris())


def test_all_stores_of_a_lake_are_read_from_one_snapshot(tmp_path: Path) -> None:
    """Snapshots are not shared on an object store: with fifty brokers, each run loaded Delta's log a hundred times."""
    for number in range(4):
        broker = Broker(tmp_path / f"store-{number}")
        broker.append(some_records(3, seed=number))
        ingest_store(broker.root, tmp_path / "lake", f"broker-{number}")
    opened = commits.open_table
    with (
        patch("jobs.lake.commit.open_table", side_effect=opened) as opening,
        patch("jobs.lake.runs.open_table", opening),
    ):
        stores = list_lake_stores(Lake(str(tmp_path / "lake")))

    assert [f"broker-{number}" for number in range(4)] == [store.broker for store in stores]
    assert [1] * 4 == [store.newest_manifest.run for store in stores if store.newest_manifest is not None]
    assert 1 == opening.call_count
