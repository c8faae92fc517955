"""
`rebuild-consumequeue`: the queues of real brokers, rebuilt from their logs.

Over a log that has lost something, rebuilds of queues and of index files name the gap, and what is left is at its own
place. A task that dies and is done again, as Spark does, leaves nothing of its first attempt among the results.
"""

import fcntl
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from jobs.lake.lake import Lake
from jobs.rebuild import index
from jobs.rebuild.queue_run import MANIFEST_FILE, RebuildQueuesRequest, rebuild_queues
from jobs.repair.run import RepairRequest, repair
from jobs.restore.run import RestoreRequest, restore
from jobs.storage.model import Reader
from jobs.storage.scratch import Scratch
from jobs.store.spark_workers import SparkWorkers
from jobs.store.workers import SerialWorkers, Workers
from rmq_formats.broker_conf import BrokerConf
from tests.golden import GOLDEN, StoreOf, golden_stores, release_of
from tests.rmq_formats.builders import a_record, a_segment
from tests.support.lakes import ingest_store
from tests.support.meanwhile import Meanwhile
from tests.support.stores import files_in, flip, log_folders, segments_of

# Halted between append and dispatch, copied while being written, deleted in part, without queue files.
DIFFERENT = {"b533-crash-before", "b498-live", "b551-rockscq", *golden_stores("expired")}
FOLDERS = ("batchconsumequeue", "consumequeue_ext")


def request_for(store: Path, out: Path, name: str) -> RebuildQueuesRequest:
    return RebuildQueuesRequest(str(store), out, commitlog=log_folders(store), release=release_of(name))


def made_files(out: Path) -> dict[str, bytes]:
    return {path: data for path, data in files_in(out).items() if path != MANIFEST_FILE}


def real_files(store: Path) -> dict[str, bytes]:
    found = files_in(store / "consumequeue")
    for folder in FOLDERS:
        found |= {f"{folder}/{path}": data for path, data in files_in(store / folder).items()}
    return found


@pytest.mark.sample(14)
@pytest.mark.parametrize("name", [name for name in GOLDEN if name not in DIFFERENT])
def test_rebuilt_queue_files_equal_the_brokers_files(golden: StoreOf, tmp_path: Path, name: str) -> None:
    store = golden(name)
    rebuild_queues(request_for(store, tmp_path / "out", name), SerialWorkers())

    assert real_files(store) == made_files(tmp_path / "out")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["b514-types", "b498-dledger-upgraded"])
def test_the_division_into_ranges_and_groups_does_not_change_the_files(
    spark: SparkSession, golden: StoreOf, tmp_path: Path, name: str
) -> None:
    store = golden(name)
    request = replace(request_for(store, tmp_path / "out", name), range_size=1024, groups=3)
    rebuild_queues(request, SparkWorkers(spark))

    assert real_files(store) == made_files(tmp_path / "out")


@pytest.mark.parametrize("lost", [300, 1000])
def test_a_truncated_scratch_file_of_units_is_an_error(
    golden: StoreOf, tmp_path: Path, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Scratch.open

    def truncating(self: Scratch, name: str) -> AbstractContextManager[Reader]:
        file = Path(self.location) / name
        os.truncate(file, max(file.stat().st_size - lost, 0))
        return opened(self, name)

    monkeypatch.setattr(Scratch, "open", truncating)
    with pytest.raises(OSError, match="this scratch file was truncated by another process"):
        rebuild_queues(request_for(golden("b551-base"), tmp_path / "out", "b551-base"), SerialWorkers())


def test_a_topic_that_is_not_a_valid_folder_name_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    log = a_segment([a_record(topic="../../evil"), a_record(topic="good")])
    (tmp_path / "store" / "commitlog" / "00000000000000000000").write_bytes(log)
    conf = BrokerConf(consume_queue_size=200)
    summary = rebuild_queues(RebuildQueuesRequest(str(tmp_path / "store"), tmp_path / "out", conf), SerialWorkers())

    assert list(made_files(tmp_path / "out")) == ["good/0/00000000000000000000"]
    why = "The name of their topic is not a valid folder name"
    assert summary.notes == [f"queues that are not written: 1 (../../evil/0). {why}"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]


DIED = "b498-base"


class _Killed(BaseException):
    """Stands for a signal that ends a process at once."""


def _kill_once(kills: list[_Killed], work: Callable[[], object], is_of_pass: bool) -> None:
    """Begin a task, and be killed as it would give its work a name; nothing is cleaned up then."""
    with (
        patch.object(Path, "rename", side_effect=_Killed),
        patch.object(os, "link", side_effect=_Killed),
        patch.object(Path, "unlink"),
        patch("jobs.rebuild.queues.rmtree"),
    ):
        try:
            if not is_of_pass:
                work()
        except _Killed as kill:
            kills.append(kill)


def index_files(store: Path, out: Path, workers: Workers) -> None:
    index.rebuild_index(index.RebuildIndexRequest(str(store), str(out)), workers)


def queue_files(store: Path, out: Path, workers: Workers) -> None:
    rebuild_queues(RebuildQueuesRequest(str(store), out), workers)


def lake_of(store: Path, out: Path) -> Lake:
    lake = out.with_name("lake")
    if not lake.exists():
        ingest_store(store, lake)
    return Lake(str(lake))


def whole_store(store: Path, out: Path, workers: Workers) -> None:
    restore(RestoreRequest(lake_of(store, out), out), workers)


def segment(store: Path, out: Path, workers: Workers) -> None:
    lake, damaged = lake_of(store, out), Path(shutil.copytree(store, out.with_name(f"{out.name}-store")))
    flip(segments_of(damaged)[0], 2000)
    assert repair(RepairRequest(str(damaged), out, lake), workers).files


@pytest.mark.parametrize("made", [index_files, queue_files, whole_store, segment])
def test_a_dead_attempt_leaves_no_incomplete_files(
    golden: StoreOf, tmp_path: Path, made: Callable[[Path, Path, Workers], None]
) -> None:
    kills: list[_Killed] = []
    for name, workers in (("once", SerialWorkers()), ("again", Meanwhile(attempt=partial(_kill_once, kills)))):
        made(golden(DIED), tmp_path / name, workers)

    assert kills

    whole, again = (
        sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*"))
        for name in ("once", "again")
    )
    assert whole == again


def test_a_rebuild_deletes_the_scratch_files_of_killed_runs_only(golden: StoreOf, tmp_path: Path) -> None:
    left, held = tmp_path / ".scratch-12345678", tmp_path / ".scratch-abcdefab"
    for folder in (left, held):
        folder.mkdir()
        (folder / "units").write_bytes(b"1")
    running = os.open(held, os.O_RDONLY)
    fcntl.flock(running, fcntl.LOCK_EX)
    rebuild_queues(RebuildQueuesRequest(str(golden(DIED)), tmp_path), SerialWorkers())
    os.close(running)

    assert [held] == list(tmp_path.glob(".scratch-*"))
