"""Commands that need a complete log, while retention deletes the beginning of the store."""

import errno
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from unittest.mock import patch

import pytest

from jobs.console.result import ExitCode
from jobs.products.index.explanation import explain_index_files
from jobs.products.index.survivors import list_index_files
from jobs.query.target import detect_likely_writers
from jobs.rebuild import index as rebuilding
from jobs.rebuild import queue_run as rebuild_consumequeue
from jobs.requests.rebuild import RebuildIndexRequest, RebuildQueuesRequest
from jobs.requests.verify import VerifyRequest
from jobs.store.queue_files import StoredQueue
from jobs.store.ranges import Range
from jobs.store.request import GivenSettings
from jobs.store.store import list_store, relist_store
from jobs.store.workers import SerialWorkers, Workers
from jobs.verify.rocksdb_queues import compare_double_write
from jobs.verify.run import verify
from jobs.verify.verdict import Verdict
from tests.golden import StoreOf
from tests.support.commands import Run
from tests.support.lakes import ingest_into_own_lake
from tests.support.meanwhile import DisturbedWorkers, call_after, call_before, refuse_to_open
from tests.support.stores import list_segments, read_store_records


@pytest.fixture
def store(newer_store: Path) -> Path:
    (newer_store / "abort").touch()
    return newer_store


def expire(store: Path, segments: int = 2, index_files: int = 3) -> None:
    if list_segments(store)[0].name == "0" * 20:
        for path in [*list_segments(store)[:segments], *sorted((store / "index").iterdir())[:index_files]]:
            path.unlink()
        for path in store.glob("consumequeue/*/*/*"):  # the last unit of a file decides
            if index_files and 0 < int.from_bytes(path.read_bytes()[-20:-12]) < segments * 16384:
                path.unlink()


def verify_store(store: Path, workers: Workers) -> Verdict:
    return verify(VerifyRequest(str(store)), workers)


@pytest.mark.parametrize("index_files", [0, 3])
@pytest.mark.parametrize("step", [None, "compare_queue_groups", "ranges_truncated_by_promotion", "IndexPlan"])
def test_segments_deleted_before_a_step_are_not_a_finding(store: Path, step: str | None, index_files: int) -> None:
    """Segments are deleted before the log is read, before queues are compared, or at a step of the index comparison."""
    delete = partial(expire, store, index_files=index_files)
    module = "queues.join" if step == "compare_queue_groups" else "index.explanation"
    name = f"jobs.products.{module}.{step or 'IndexPlan'}"
    with patch(name, call_before(resolve_name(name), delete) if step else resolve_name(name)):
        verdict = verify_store(store, SerialWorkers() if step else DisturbedWorkers(happens=delete))
    queues, index = verdict.parts["queues"].numbers, verdict.parts["index"].numbers

    assert verdict.findings == []
    assert list_segments(store)[0].name == f"{2 * 16384:020}"
    assert index["files"] == len(list((store / "index").iterdir()))
    assert step or (queues["expired"] > 0 and index["messages"] == queues["matched"])


def test_units_in_rocksdb_do_not_differ_from_those_of_a_deleted_file(situation: StoreOf, tmp_path: Path) -> None:
    store = Path(shutil.copytree(situation("b551-cqdouble") / "store", tmp_path / "store"))
    (store / "abort").touch()
    with patch("jobs.verify.queues.compare_double_write", call_before(compare_double_write, partial(expire, store, 1))):
        assert verify_store(store, SerialWorkers()).findings == []


@pytest.mark.parametrize("words", ["by-offset -t T1 -i 0 -o 20", "mqadmin topicStatus -t T1"])
def test_a_query_is_answered_while_a_broker_deletes_files_and_appends_units(store: Path, run: Run, words: str) -> None:
    def append() -> None:
        path = max(store.glob("consumequeue/T1/0/*"))
        units = path.read_bytes().rstrip(b"\0")
        path.write_bytes((units.ljust(-(-len(units) // 20) * 20, b"\0") + units[:20]).ljust(200, b"\0"))

    writers = call_before(detect_likely_writers, partial(expire, store))
    ends = call_after(StoredQueue.find_written_end, append)
    with patch("jobs.query.target.detect_likely_writers", writers), patch.object(StoredQueue, "find_written_end", ends):
        command, *rest = words.split()

        assert run("query", command, "--store", store, *rest).code is ExitCode.CLEAN


def test_messages_in_a_segment_that_is_newer_than_the_list_of_files_are_not_missing(store: Path, run: Run) -> None:
    listed = list_store(str(store))
    with patch("jobs.query.target.list_store", return_value=replace(listed, segments=listed.segments[:1])):
        assert "may be missing" not in run("query", "by-key", "--store", store, "-t", "T1", "-k", "nn").err


def test_a_first_run_continues_without_index_files_that_are_deleted_meanwhile(store: Path) -> None:
    listed = list_store(str(store))
    summary = ingest_into_own_lake(store, workers=DisturbedWorkers(happens=partial(expire, store, 0)))

    assert summary.messages == 65
    assert len(list_index_files(listed)) == len(listed.index_files) - 3


def test_index_rows_in_rocksdb_of_deleted_messages_are_not_wrong(situation: StoreOf, tmp_path: Path) -> None:
    store = Path(shutil.copytree(situation("b551-indexrocks") / "store", tmp_path / "store"))
    (store / "abort").touch()
    (segment,), start = list_segments(store), list(read_store_records(store))[9].record.physical_offset

    def delete() -> None:
        segment.rename(segment.with_name(f"{start:020}")).write_bytes(segment_bytes[start:])

    segment_bytes = segment.read_bytes()
    with patch("jobs.verify.rocksdb_index.relist_store", call_before(relist_store, delete)):
        assert verify_store(store, SerialWorkers()).findings == []


def test_a_newest_segment_that_disappears_is_an_error(store: Path) -> None:
    newest = list_segments(store)[-1]
    with pytest.raises(FileNotFoundError, match="retention did not delete it") as caught:
        verify_store(store, DisturbedWorkers(happens=partial(newest.unlink, missing_ok=True)))

    assert caught.value.filename == str(newest)


def content(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and path.name.isdigit())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def _rebuild_index(store: Path, out: Path, workers: Workers) -> None:
    request = RebuildIndexRequest(str(store), str(out), range_size=4096)
    assert rebuilding.rebuild_index(request, workers).exit_code is ExitCode.CLEAN


def test_an_index_file_that_is_deleted_before_it_is_compared_with_a_built_one(store: Path, tmp_path: Path) -> None:
    with patch("jobs.rebuild.index.ThreadPoolExecutor", call_before(ThreadPoolExecutor, partial(expire, store))):
        _rebuild_index(store, tmp_path / "out", SerialWorkers())


def _rebuild_queues(store: Path, out: Path, workers: Workers) -> None:
    request = RebuildQueuesRequest(str(store), out, given_settings=GivenSettings(release="5.5.1"))
    assert rebuild_consumequeue.rebuild_queues(request, workers).from_offset == 2 * 16384


@pytest.mark.parametrize(
    ("rebuild", "offset"), [(_rebuild_index, 0), (_rebuild_index, 8192), (_rebuild_index, 16384), (_rebuild_queues, 0)]
)
def test_files_are_built_from_the_remaining_log(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rebuild: Callable[..., None], offset: int
) -> None:
    """This also holds if an index file already has keys of a deleted segment."""
    monkeypatch.setattr("jobs.launch.engine.count_cores", lambda: 1)

    def happens(range_: Range) -> None:
        if range_.start_offset >= offset:
            expire(store)

    rebuild(store, tmp_path / "meanwhile", DisturbedWorkers(before_range=happens))
    rebuild(store, tmp_path / "before", SerialWorkers())

    assert content(tmp_path / "meanwhile") == content(tmp_path / "before")
    assert content(tmp_path / "before")


def test_a_file_that_the_disk_cannot_read_stays_left_out_after_retention_deletes_others(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was listed again with this file, whose error then ended the command."""
    *others, newest = sorted((store / "index").iterdir())
    refuse_to_open(str(newest), errno.EIO, monkeypatch)

    def delete() -> None:
        for path in others:
            path.unlink(missing_ok=True)

    with patch("jobs.verify.index.explain_index_files", call_before(explain_index_files, delete)):
        verdict = verify_store(store, SerialWorkers())

    assert {f"index/{newest.name}"} == {one.file for one in verdict.findings if one.kind == "unreadable_range"}
