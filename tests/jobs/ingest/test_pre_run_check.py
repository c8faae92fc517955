"""The check before a run: it reports that nothing is new only if a run would find nothing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from deltalake import DeltaTable

from jobs.command.cli import main
from jobs.console.result import ExitCode
from jobs.ingest import IngestRequest, Summary
from jobs.ingest.pre_run_check import PreRunCheck
from jobs.ingest.run import ingest
from jobs.lake.lake import Lake
from jobs.lake.lock import hold_lock
from jobs.lake.runs import list_known_stores
from jobs.launch.cache import cache_directory
from jobs.store.selection import Selection
from jobs.store.workers import SerialWorkers
from rmq_formats.commitlog.record import MessageRecord
from tests.rmq_formats.builders import a_record
from tests.support.broker import SEGMENT_SIZE, Broker, some_records
from tests.support.commands import ROOT
from tests.support.lakes import rows_of
from tests.support.stores import flip, list_segments


class Taken:
    """A store that a running broker writes, all of it in a lake."""

    def __init__(self, folder: Path, broker: Broker, placed: list[MessageRecord]) -> None:
        self.broker = broker
        self.placed = placed
        self.lake = folder / "lake"
        self.request = IngestRequest(str(broker.root), str(self.lake), broker="b")


def check_and_run(request: IngestRequest) -> tuple[Summary | None, Summary]:
    """Return what a look before a run says, and the run, which leaves its note."""
    check = PreRunCheck(request)
    seen, summary = check.summary_if_nothing_new(), ingest(request, SerialWorkers())
    check.remember_nothing_new(summary)
    return seen, replace(summary, seconds=seen.seconds if seen else {})


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Taken:
    folder = tmp_path_factory.mktemp("taken")
    broker = Broker(folder / "store", dispatches=True)
    made = Taken(folder, broker, broker.append(some_records(120)))
    ingest(made.request, SerialWorkers())
    return made


@pytest.fixture
def taken(first: Taken, tmp_path: Path) -> Taken:
    """Give a copy in which there is nothing to do as long as nobody changes it."""
    shutil.copytree(first.lake, tmp_path / "lake")
    copied = Taken(tmp_path, first.broker.copied(tmp_path / "store"), first.placed)
    assert check_and_run(copied.request)[0] is None
    assert PreRunCheck(copied.request).summary_if_nothing_new() is not None
    return copied


def test_open_damage_is_reported_until_it_is_acknowledged(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    broker.append([a_record(b"body of a message that is damaged"), *some_records(3)])
    flip(list_segments(broker.root)[0], 90)
    request = IngestRequest(str(broker.root), str(tmp_path / "lake"), "b")
    ingest(request, SerialWorkers())
    check_and_run(request)
    seen, summary = check_and_run(request)

    assert seen == summary
    assert summary.open.quarantined == 1
    assert PreRunCheck(replace(request, acknowledge=True)).summary_if_nothing_new() is None


def _roll(taken: Taken) -> None:
    taken.broker.seal()
    taken.broker.append(some_records(1, seed=2))


def _write_over(taken: Taken) -> None:
    """Crash, recover in the middle, and write records there; what was the end still has its bytes."""
    taken.broker.truncate(taken.placed[100].physical_offset)
    taken.broker.append(some_records(3, seed=3))


def _add_a_queue(taken: Taken) -> None:
    folder = taken.broker.root / "consumequeue" / "Other" / "0"
    folder.mkdir(parents=True)
    (folder / "00000000000000000000").write_bytes(bytes(2000))


def _be_killed(taken: Taken) -> None:
    lake = Lake(str(taken.lake))
    with pytest.raises(KeyError), hold_lock(lake, list_known_stores(lake)[0].store_id):
        raise KeyError


def _leave_a_manifest(taken: Taken) -> None:
    (path,) = (taken.lake / "_manifests").iterdir()
    shutil.copy(path, path.with_name(path.name.replace("-1-", "-2-")))


def _put_a_table_back(taken: Taken) -> None:
    shutil.rmtree(taken.lake / "messages")
    DeltaTable.create(str(taken.lake / "messages"), DeltaTable(taken.lake / "runs").schema())


CHANGES: dict[str, Callable[[Taken], object]] = {
    "append": lambda taken: taken.broker.append(some_records(1, seed=2)),
    "half a record": lambda taken: taken.broker.append(some_records(1, seed=2), cut_at=40),
    "roll": _roll,
    "seal": lambda taken: taken.broker.seal(),
    "write over": _write_over,
    "cut back": lambda taken: taken.broker.truncate(taken.placed[10].physical_offset),
    "flip a bit": lambda taken: flip(list_segments(taken.broker.root)[-1], 30),
    "add a queue": _add_a_queue,
    "rebuild a queue in place": lambda taken: os.utime(next(taken.broker.root.glob("consumequeue/*/*/*")), (1, 1)),
    "be killed": _be_killed,
    "lose the lock": lambda taken: shutil.rmtree(taken.lake / "_locks"),
    "leave a manifest": _leave_a_manifest,
    "lose a table": lambda taken: shutil.rmtree(taken.lake / "index_files"),
    "put a table back": _put_a_table_back,
    "lose the runs": lambda taken: shutil.rmtree(taken.lake / "runs"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_requires_a_run(taken: Taken, change: str) -> None:
    CHANGES[change](taken)

    assert PreRunCheck(taken.request).summary_if_nothing_new() is None


def test_each_run_warns_of_a_label_that_the_lake_does_not_use(taken: Taken) -> None:
    request = replace(taken.request, broker="other")
    check_and_run(request)

    assert PreRunCheck(request).summary_if_nothing_new() is None


def test_another_run_that_commits_before_the_note_is_left_prevents_it(taken: Taken) -> None:
    request = replace(taken.request, settle_ms=1)
    check = PreRunCheck(request)
    assert check.summary_if_nothing_new() is None
    summary = ingest(request, SerialWorkers())
    _leave_a_manifest(taken)
    check.remember_nothing_new(summary)
    (added,) = (taken.lake / "_manifests").glob("*-2-*")
    added.unlink()

    assert PreRunCheck(request).summary_if_nothing_new() is None


@pytest.mark.parametrize(
    "asked",
    [
        {"dry_run": True},
        {"release": "no release"},
        {"acknowledge": True},
        {"tables": frozenset({"index"})},
        {"selection": Selection(topics=("Orders",))},
        {"selection": Selection(with_body=False)},
        {"store": "/no/such/store"},
        {"store": "s3a://bucket/store"},
        {"lake": "/no/such/lake"},
    ],
    ids=str,
)
def test_a_different_request_requires_a_run(taken: Taken, asked: dict[str, Any]) -> None:
    assert PreRunCheck(replace(taken.request, **asked)).summary_if_nothing_new() is None


def test_units_that_are_not_dispatched_yet_require_a_run(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    broker.append(some_records(10))
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    request = IngestRequest(str(broker.root), str(tmp_path / "lake"))
    ingest(request, SerialWorkers())
    check_and_run(request)

    assert PreRunCheck(request).summary_if_nothing_new() is None


def test_a_command_that_finds_nothing_new_starts_no_session(taken: Taken, capsys: pytest.CaptureFixture[str]) -> None:
    extra = ["--metrics", str(taken.lake / "figures"), "--report", str(taken.lake / "report.html")]
    with patch("jobs.launch.session.spark_session", side_effect=AssertionError("a session")):
        code = main(["ingest", str(taken.broker.root), "--lake", str(taken.lake), "--broker", "b", *extra])

    assert code is ExitCode.CLEAN
    assert f"ingest: done: nothing new after offset {taken.broker.offset:,} (" in capsys.readouterr().out
    assert "rmq_lake_ingest_exit_code" in (taken.lake / "figures").read_text()
    assert (taken.lake / "report.html").exists()


def test_the_size_of_the_new_part_is_known_before_a_run_unless_the_check_is_inconclusive(
    taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = replace(taken.request, lake=str(taken.lake.parent / "new"))
    sizes = [PreRunCheck(one).estimate_new_bytes() or 0 for one in (taken.request, new)]
    assert sizes[0] < SEGMENT_SIZE < sizes[1] <= 2 * taken.broker.offset

    elsewhere = [replace(taken.request, lake="s3a://bucket/lake"), replace(taken.request, store=str(taken.lake))]
    assert [None, None] == [PreRunCheck(one).estimate_new_bytes() for one in elsewhere]
    monkeypatch.setattr("jobs.ingest.pre_run_check._MOST_QUEUE_FILES", 1)
    assert PreRunCheck(taken.request).estimate_new_bytes() is None


def test_a_small_ingest_needs_no_java(taken: Taken, tmp_path: Path) -> None:
    environment = {"PATH": "", "JAVA_HOME": str(tmp_path / "none"), "RMQ_LAKE_CACHE": str(cache_directory())}
    command = [sys.executable, "-m", "jobs.main", "ingest", str(taken.broker.root), "--lake", str(tmp_path / "new")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)

    assert done.returncode == ExitCode.CLEAN
    assert len(rows_of(tmp_path / "new")) == len(rows_of(taken.lake)) > 0


def test_an_unreadable_or_unwritable_note_is_ignored(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_LAKE_CACHE", str(taken.lake.parent / "cache"))
    check_and_run(taken.request)
    (note,) = (cache_directory() / "nothing-new").iterdir()
    note.write_text("[" * 100_000)
    assert PreRunCheck(taken.request).summary_if_nothing_new() is None
    monkeypatch.setattr("pathlib.Path.replace", Mock(side_effect=OSError))
    check_and_run(taken.request)
    assert PreRunCheck(taken.request).summary_if_nothing_new() is None
