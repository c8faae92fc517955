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
from pyarrow.fs import LocalFileSystem

from jobs.command_line.cli import main
from jobs.console.result import ExitCode
from jobs.ingest import Summary
from jobs.ingest.pre_run_check import PreRunCheck
from jobs.ingest.run import ingest
from jobs.lake.lake_stores import list_lake_stores
from jobs.lake.lock import hold_lock
from jobs.lake.runs import delete_manifests_up_to
from jobs.lake.undo import undo_runs
from jobs.launch.cache import cache_directory
from jobs.requests.ingest import IngestRequest
from jobs.storage import storage_for
from jobs.storage.s3 import ObjectStorage
from jobs.store.selection import Selection
from jobs.store.workers import SerialWorkers
from tests.rmq_formats.builders import make_record
from tests.support.broker import Broker, some_records
from tests.support.lakes import LakeOfBroker
from tests.support.stores import flip, list_segments

S3 = "s3a://"


class IngestedStore(LakeOfBroker):
    """A store of a running broker, and a lake with all of its messages."""

    scheme = ""  # of the lake's location in requests

    def __init__(self, root: Path) -> None:
        super().__init__(root, dispatches=True)
        self.offsets = self.grow(120)
        self.run()

    @property
    def request(self) -> IngestRequest:
        return IngestRequest(str(self.broker.root), f"{self.scheme}{self.path}", broker="b")


def check_and_run(request: IngestRequest) -> tuple[Summary | None, Summary]:
    """Return the summary of the check (None if it requires a run) and that of a run, which is then remembered."""
    check = PreRunCheck(request)
    reported = check.summary_if_nothing_new()
    summary = ingest(replace(request, lake=request.lake.removeprefix(S3)), SerialWorkers())
    check.remember(summary)
    return reported, replace(summary, seconds=reported.seconds if reported else {})


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> IngestedStore:
    return IngestedStore(tmp_path_factory.mktemp("taken"))


def keep_objects_in_files(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Let an object store have its objects in local files; return a mock that its methods call."""
    calls = Mock(wraps=ObjectStorage(LocalFileSystem()))
    monkeypatch.setattr(
        "jobs.lake.lake.storage_for", lambda place, _: calls if place.startswith(S3) else storage_for(place)
    )
    monkeypatch.setattr("jobs.ingest.pre_run_check.file_system_options", dict)
    return calls


def use_another_machine(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Use the cache directory of another machine, which has no note."""
    monkeypatch.setenv("RMQ_LAKE_CACHE", str(directory / "another-machine"))


@pytest.fixture
def on_s3(shared_store: IngestedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IngestedStore:
    """Copy the store, and the lake to an object store; a run has ended on this machine."""
    keep_objects_in_files(monkeypatch)
    copied = shared_store.copied(tmp_path)
    copied.scheme = S3
    assert check_and_run(copied.request)[0] is None
    return copied


@pytest.fixture(params=["changed just now", "settled", "on an object store"])
def ingested(
    request: pytest.FixtureRequest, shared_store: IngestedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> IngestedStore:
    """Copy the store and the lake, which the check reports as unchanged; queue directories may have settled before."""
    if request.param == "settled":
        monkeypatch.setattr("jobs.ingest.queue_file_listing._SETTLED_NS", -(10**12))
    copied = shared_store.copied(tmp_path)
    if request.param == "on an object store":
        keep_objects_in_files(monkeypatch)
        copied.scheme = S3
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
    (path,) = (ingested.path / "_manifests").glob("*.json")
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
    "undo the run": lambda ingested: undo_runs(ingested.lake, list_lake_stores(ingested.lake)[0], 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_requires_a_run(ingested: IngestedStore, change: str) -> None:
    CHANGES[change](ingested)

    assert PreRunCheck(ingested.request).summary_if_nothing_new() is None


def test_an_idle_run_on_another_machine_opens_one_object_of_the_lake(
    shared_store: IngestedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the cache of the machine of the previous run, it took a thousand requests."""
    calls = keep_objects_in_files(monkeypatch)
    copied = shared_store.copied(tmp_path)
    copied.scheme = S3
    ended = check_and_run(copied.request)[1]
    use_another_machine(monkeypatch, tmp_path)
    calls.reset_mock()

    with patch("jobs.lake.snapshots.open_delta", side_effect=AssertionError("requests for a table")):
        reported = PreRunCheck(copied.request).summary_if_nothing_new()

    assert reported is not None
    assert (ended.store_id, ended.to_offset) == (reported.store_id, reported.to_offset)
    assert calls.list_files.call_count <= 14
    assert 1 == calls.open.call_count
    assert not calls.create.called


def _commit_by_another_engine(ingested: IngestedStore) -> None:
    DeltaTable(ingested.path / "messages").alter.set_table_properties({"delta.checkpointInterval": "7"})


def _ingest_by_an_older_version(ingested: IngestedStore) -> None:
    """Commit a run that does not know of notes; the log of the broker is then back at its former end."""
    end = ingested.broker.offset
    ingested.grow(3)
    times = {path: path.stat().st_mtime_ns for path in list_segments(ingested.broker.root)}
    ingested.run()
    ingested.broker.truncate(end)
    for path, time in times.items():
        os.utime(path, ns=(time, time))


def _restore_older_lake(ingested: IngestedStore) -> None:
    """Restore the tables that the lake had before its last run, and leave the newer objects next to them."""
    older = ingested.root / "older"
    shutil.copytree(ingested.path, older)
    ingested.grow(3)
    check_and_run(ingested.request)
    for table in ("messages", "runs"):
        shutil.rmtree(ingested.path / table)
        shutil.copytree(older / table, ingested.path / table)


def _restore_same_lake(ingested: IngestedStore) -> None:
    """Replace every object by a copy with the same name and bytes."""
    for path in ingested.path.rglob("*"):
        if path.is_file():
            os.utime(path, (1, 1))


def _put_a_copy_of_the_store_in_its_place(ingested: IngestedStore) -> None:
    root = ingested.broker.root
    shutil.copytree(root, root.with_name("copy"))
    shutil.rmtree(root)
    root.with_name("copy").rename(root)


def _put_another_store_in_its_place(ingested: IngestedStore) -> None:
    shutil.rmtree(ingested.broker.root)
    Broker(ingested.broker.root, dispatches=True).append(some_records(120, seed=77))


def _delete_a_commit(ingested: IngestedStore) -> None:
    (ingested.path / "index_entries" / "_delta_log" / f"{1:020d}.json").unlink()


def _delete_a_file_of_the_runs(ingested: IngestedStore) -> None:
    next((ingested.path / "runs").glob("*.parquet")).unlink()


def _edit_the_note(ingested: IngestedStore) -> None:
    (note,) = (ingested.path / "_manifests").glob("*.nothing-new")
    note.write_text(note.read_text().replace('"summary"', '"Summary"'))


@pytest.mark.parametrize(
    "change",
    [
        _commit_by_another_engine,
        _ingest_by_an_older_version,
        _restore_older_lake,
        _restore_same_lake,
        _put_a_copy_of_the_store_in_its_place,
        _put_another_store_in_its_place,
        _delete_a_commit,
        _delete_a_file_of_the_runs,
        _edit_the_note,
    ],
)
def test_a_note_in_the_lake_counts_only_for_the_same_lake_and_store(
    on_s3: IngestedStore, change: Callable[[IngestedStore], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_another_machine(monkeypatch, tmp_path)
    assert PreRunCheck(on_s3.request).summary_if_nothing_new() is not None

    change(on_s3)

    assert PreRunCheck(on_s3.request).summary_if_nothing_new() is None


def test_a_lake_has_one_note_for_each_request(on_s3: IngestedStore) -> None:
    for _ in range(3):
        on_s3.grow(3)
        check_and_run(on_s3.request)
    names = [path.name for path in (on_s3.path / "_manifests").glob("*.nothing-new")]

    assert ["-4-"] == [name[36:39] for name in names]


def test_notes_are_deleted_with_the_manifests_of_their_runs(on_s3: IngestedStore) -> None:
    """Also by earlier versions, and those of requests that are not repeated."""
    (store,) = list_lake_stores(on_s3.lake)

    delete_manifests_up_to(on_s3.lake, store.store_id, 1)

    assert not [*(on_s3.path / "_manifests").iterdir()]


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
    summary = ingest(replace(request, lake=str(ingested.path)), SerialWorkers())
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


@pytest.mark.parametrize("ingested", ["settled"], indirect=True)
def test_an_unreadable_or_unwritable_note_is_ignored(ingested: IngestedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_LAKE_CACHE", str(ingested.path.parent / "cache"))
    check_and_run(ingested.request)
    (note,) = (cache_directory() / "nothing-new").iterdir()
    note.write_text("[" * 100_000)

    assert PreRunCheck(ingested.request).summary_if_nothing_new() is None
    monkeypatch.setattr("pathlib.Path.replace", Mock(side_effect=OSError))
    check_and_run(ingested.request)

    assert PreRunCheck(ingested.request).summary_if_nothing_new() is None
