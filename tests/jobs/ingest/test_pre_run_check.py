"""The check before a run: it reports that nothing is new only if a run would find nothing."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from deltalake import DeltaTable

from jobs.command_line.cli import main
from jobs.console.result import ExitCode
from jobs.ingest import Summary
from jobs.ingest.pre_run_check import PreRunCheck
from jobs.ingest.run import ingest
from jobs.lake.lake_stores import list_lake_stores
from jobs.lake.lock import hold_lock
from jobs.launch.cache import cache_directory
from jobs.requests.ingest import IngestRequest
from jobs.store.selection import Selection
from jobs.store.workers import SerialWorkers
from tests.rmq_formats.builders import make_record
from tests.support.broker import Broker, some_records
from tests.support.lakes import LakeOfBroker
from tests.support.stores import flip, list_segments


class IngestedStore(LakeOfBroker):
    """A store of a running broker, and a lake with all of its messages."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, dispatches=True)
        self.offsets = self.grow(120)
        self.run()

    @property
    def request(self) -> IngestRequest:
        return IngestRequest(str(self.broker.root), str(self.path), broker="b")


def check_and_run(request: IngestRequest) -> tuple[Summary | None, Summary]:
    """Return the summary of the check (None if it requires a run) and that of a run, which is then remembered."""
    check = PreRunCheck(request)
    reported = check.summary_if_nothing_new()
    summary = ingest(request, SerialWorkers())
    check.remember(summary)
    return reported, replace(summary, seconds=reported.seconds if reported else {})


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> IngestedStore:
    return IngestedStore(tmp_path_factory.mktemp("taken"))


@pytest.fixture(params=["changed just now", "settled"])
def ingested(
    request: pytest.FixtureRequest, shared_store: IngestedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> IngestedStore:
    """Copy the store and the lake, which the check reports as unchanged; queue directories may have settled before."""
    if request.param == "settled":
        monkeypatch.setattr("jobs.ingest.queue_file_listing._SETTLED_NS", -(10**12))
    copied = shared_store.copied(tmp_path)
    assert check_and_run(copied.request)[0] is None
    assert PreRunCheck(copied.request).summary_if_nothing_new() is not None
    return copied


def _rewrite_end(ingested: IngestedStore) -> None:
    """Truncate the log after a crash, and write other records; the bytes of the former end remain."""
    ingested.broker.truncate(ingested.offsets[100])
    ingested.broker.append(some_records(3, seed=3))


def _leave_abort_file(ingested: IngestedStore) -> None:
    with pytest.raises(KeyError), hold_lock(ingested.lake, list_lake_stores(ingested.lake)[0].store_id):
        raise KeyError


def _leave_a_manifest(ingested: IngestedStore) -> None:
    (path,) = (ingested.path / "_manifests").iterdir()
    shutil.copy(path, path.with_name(path.name.replace("-1-", "-2-")))


def _restore_old_table(ingested: IngestedStore) -> None:
    shutil.rmtree(ingested.path / "messages")
    DeltaTable.create(str(ingested.path / "messages"), DeltaTable(ingested.path / "runs").schema())


def _lose_end(ingested: IngestedStore) -> None:
    """Replace the last record by zeros, as a power failure does; the time of the file is that of an earlier write."""
    path = list_segments(ingested.broker.root)[-1]
    time = path.stat().st_mtime_ns
    data = path.read_bytes()
    kept = ingested.offsets[-1] - int(path.name)
    path.write_bytes(data[:kept] + bytes(len(data) - kept))
    os.utime(path, ns=(time, time))


CHANGES: dict[str, Callable[[IngestedStore], object]] = {
    "append": lambda ingested: ingested.broker.append(some_records(1, seed=2)),
    "half a record": lambda ingested: ingested.broker.append(some_records(1, seed=2), cut_at=40),
    "seal": lambda ingested: ingested.broker.seal(),
    "write over": _rewrite_end,
    "cut back": lambda ingested: ingested.broker.truncate(ingested.offsets[10]),
    "flip a bit": lambda ingested: flip(list_segments(ingested.broker.root)[-1], 30),
    "lose the end": _lose_end,
    "add a queue": lambda ingested: shutil.copytree(
        ingested.broker.root / "consumequeue/Orders", ingested.broker.root / "consumequeue/Other"
    ),
    "add a file to a queue": lambda ingested: (
        ingested.broker.root / "consumequeue/Orders/0/00000000000000002000"
    ).touch(),
    "lose a queue": lambda ingested: shutil.rmtree(ingested.broker.root / "consumequeue/Orders/1"),
    "lose a file of a queue": lambda ingested: next(ingested.broker.root.glob("consumequeue/*/*/*")).unlink(),
    "truncate a queue": lambda ingested: os.truncate(next(ingested.broker.root.glob("consumequeue/*/*/*")), 40),
    "rebuild a queue in place": lambda ingested: os.utime(
        next(ingested.broker.root.glob("consumequeue/*/*/*")), (1, 1)
    ),
    "be killed": _leave_abort_file,
    "lose the lock": lambda ingested: shutil.rmtree(ingested.path / "_locks"),
    "leave a manifest": _leave_a_manifest,
    "lose a table": lambda ingested: shutil.rmtree(ingested.path / "index_files"),
    "put a table back": _restore_old_table,
    "lose the runs": lambda ingested: shutil.rmtree(ingested.path / "runs"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_requires_a_run(ingested: IngestedStore, change: str) -> None:
    CHANGES[change](ingested)

    assert PreRunCheck(ingested.request).summary_if_nothing_new() is None


def test_the_run_that_ingests_the_last_message_leaves_the_note(tmp_path: Path) -> None:
    made = LakeOfBroker(tmp_path, dispatches=True)
    made.grow(120)
    request = IngestRequest(str(made.broker.root), str(made.path), broker="b")
    ingested = check_and_run(request)[1]

    reported = PreRunCheck(request).summary_if_nothing_new()
    again = ingest(request, SerialWorkers())

    assert 1 == ingested.run
    assert 120 == ingested.messages
    assert reported is not None
    assert reported == replace(again, seconds=reported.seconds, release=ingested.release)


def test_settled_queue_directories_are_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each size of a store, the number of listed directories is the same."""
    monkeypatch.setattr("jobs.ingest.queue_file_listing._SETTLED_NS", -(10**12))
    listed = []
    for count in (20, 80, 240):
        made = LakeOfBroker(tmp_path / str(count), dispatches=True)
        made.broker.append(make_record(topic=f"T{number}", properties={"TAGS": "TagA"}) for number in range(count))
        request = IngestRequest(str(made.broker.root), str(made.path), broker="b")
        check_and_run(request)
        with patch("os.scandir", side_effect=os.scandir) as scandir:
            assert PreRunCheck(request).summary_if_nothing_new() is not None
        listed.append(sum("consumequeue" in str(call.args[0]) for call in scandir.call_args_list))

    assert [0, 0, 0] == listed


def test_another_run_that_commits_before_the_note_is_left_prevents_it(ingested: IngestedStore) -> None:
    request = replace(ingested.request, min_age_ms=1)
    check = PreRunCheck(request)

    assert check.summary_if_nothing_new() is None
    summary = ingest(request, SerialWorkers())
    _leave_a_manifest(ingested)
    check.remember(summary)
    (added,) = (ingested.path / "_manifests").glob("*-2-*")
    added.unlink()

    assert PreRunCheck(request).summary_if_nothing_new() is None


@pytest.mark.parametrize(
    "changes",
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
def test_a_different_request_requires_a_run(ingested: IngestedStore, changes: dict[str, Any]) -> None:
    assert PreRunCheck(replace(ingested.request, **changes)).summary_if_nothing_new() is None


def test_units_that_are_not_dispatched_yet_require_a_run(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    broker.append(some_records(10))
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    request = IngestRequest(str(broker.root), str(tmp_path / "lake"))
    ingest(request, SerialWorkers())
    check_and_run(request)

    assert PreRunCheck(request).summary_if_nothing_new() is None


def test_a_command_that_finds_nothing_new_starts_no_session_and_shows_the_time_that_it_took(
    ingested: IngestedStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.command_line.result_printer.ResultPrinter.seconds", 754.0)
    extra = ["--metrics", str(ingested.path / "figures")]
    with patch("jobs.launch.session.spark_context", side_effect=AssertionError("a context")):
        code = main(["ingest", str(ingested.broker.root), "--lake", str(ingested.path), "--broker", "b", *extra])

    assert code is ExitCode.CLEAN
    line = f"ingest: done: nothing new after offset {ingested.broker.offset:,} (12 min 34 s)"

    assert line in capsys.readouterr().out
    assert "rmq_lake_ingest_exit_code" in (ingested.path / "figures").read_text()


def test_an_unreadable_or_unwritable_note_is_ignored(ingested: IngestedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_LAKE_CACHE", str(ingested.path.parent / "cache"))
    check_and_run(ingested.request)
    (note,) = (cache_directory() / "nothing-new").iterdir()
    note.write_text("[" * 100_000)

    assert PreRunCheck(ingested.request).summary_if_nothing_new() is None
    monkeypatch.setattr("pathlib.Path.replace", Mock(side_effect=OSError))
    check_and_run(ingested.request)

    assert PreRunCheck(ingested.request).summary_if_nothing_new() is None
