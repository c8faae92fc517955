"""
`rebuild-consumequeue`: the queues of real brokers rebuilt from their logs, as files and as rows of RocksDB.

If the log has gaps, rebuilds of queues and index files report them, and keep the remaining entries at their positions.
A task that fails and is repeated, as by Spark, leaves no results of its first attempt.
"""

import errno
import fcntl
import os
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
from pyspark.sql import SparkSession

from jobs.console.result import ExitCode
from jobs.lake.lake import Lake
from jobs.rebuild import queue_database
from jobs.rebuild.index import rebuild_index
from jobs.rebuild.queue_run import MANIFEST_FILE, QueueRebuildSummary, rebuild_queues
from jobs.repair.run import repair
from jobs.requests.rebuild import FILES, ROCKSDB, RebuildIndexRequest, RebuildQueuesRequest
from jobs.requests.repair import RepairRequest
from jobs.requests.restore import RestoreRequest
from jobs.restore.run import restore
from jobs.storage import AnyStorage
from jobs.storage.local import LocalStorage
from jobs.storage.model import Reader
from jobs.storage.scratch import Scratch
from jobs.store.queue_files import list_queues
from jobs.store.queue_storage import rocksdb_queue_directory
from jobs.store.request import GivenSettings
from jobs.store.rocksdb import open_database
from jobs.store.spark_workers import SparkWorkers
from jobs.store.store import list_store
from jobs.store.units import read_stored_units
from jobs.store.workers import SerialWorkers, Workers
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName, UnitRules, expected_units
from rmq_formats.release import Release
from rmq_formats.rocksdb.layout import (
    BOUND_FAMILY,
    UNIT_FAMILY,
    UNIT_VALUE,
    decode_bound_row,
    encode_bound_key,
    encode_unit_key,
)
from tests.golden import GOLDEN, StoreOf, golden_stores, release_of, unpack_feature
from tests.rmq_formats.builders import make_record, make_segment, place_records
from tests.rmq_formats.reference import decode_unit_row
from tests.support.commands import Run, copy_store
from tests.support.lakes import ingest_store
from tests.support.meanwhile import DisturbedWorkers, fail_reads_of_first_segment
from tests.support.query_stores import write_segment
from tests.support.stores import flip, list_segments, log_folders, read_files, read_store_records

# Stores that were killed between append and dispatch, copied live, expired, or that have no queue files.
DIFFERENT = {"b533-crash-before", "b498-live", "b551-rockscq", *golden_stores("expired")}
DIRECTORIES = ("batchconsumequeue", "consumequeue_ext")


def request_for(store: Path, out: Path, name: str) -> RebuildQueuesRequest:
    return RebuildQueuesRequest(
        str(store), out, commitlog=log_folders(store), given_settings=GivenSettings(release=release_of(name))
    )


def read_rebuilt_files(out: Path) -> dict[str, bytes]:
    return {path: data for path, data in read_files(out).items() if path != MANIFEST_FILE}


def read_real_files(store: Path) -> dict[str, bytes]:
    found = read_files(store / "consumequeue")
    for directory in DIRECTORIES:
        found |= {f"{directory}/{path}": data for path, data in read_files(store / directory).items()}
    return found


@pytest.mark.sample(14)
@pytest.mark.parametrize("name", [name for name in GOLDEN if name not in DIFFERENT])
def test_rebuilt_queue_files_equal_the_brokers_files(golden: StoreOf, tmp_path: Path, name: str) -> None:
    store = golden(name)
    rebuild_queues(request_for(store, tmp_path / "out", name), SerialWorkers())

    assert read_real_files(store) == read_rebuilt_files(tmp_path / "out")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["b514-types", "b498-dledger-upgraded"])
def test_spark_tasks_build_the_same_files_from_small_ranges(
    spark: SparkSession, golden: StoreOf, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative directory refers to this process, but tasks run in the directory where their session was started."""
    monkeypatch.chdir(tmp_path)
    request = replace(request_for(golden(name), Path("out"), name), range_size=1024, group_count=3)
    rebuild_queues(request, SparkWorkers(spark))
    rebuild_index(RebuildIndexRequest(str(golden("b533-base")), "index", range_size=1024), SparkWorkers(spark))

    assert read_real_files(golden(name)) == read_rebuilt_files(tmp_path / "out")
    broker = read_files(golden("b533-base") / "index")  # a file is named later than its first message

    assert [*broker.values()] == [*read_rebuilt_files(tmp_path / "index").values()]


@pytest.mark.parametrize(("build", "lost"), [("queues", 300), ("queues", 1000), ("index", 1 << 20)])
def test_a_truncated_scratch_file_is_an_error(
    golden: StoreOf, tmp_path: Path, build: str, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index files lacked the keys of the rest of the file, and the exit code was 0."""
    opened = Scratch.open

    def truncating(self: Scratch, name: str) -> AbstractContextManager[Reader]:
        reader = opened(self, name)
        file = Path(self.location) / name
        os.truncate(file, max(file.stat().st_size - lost, 1))  # after its size was determined
        return reader

    monkeypatch.setattr(Scratch, "open", truncating)
    monkeypatch.setattr("jobs.products.queues.unit_files._SHORT_RANGE", -1)  # the units of every range are in a file
    with pytest.raises(OSError, match="this scratch file was truncated by another process"):
        _BUILDS[build](golden("b551-base"), tmp_path, tmp_path / "out", SerialWorkers())


DIED = "b498-base"
Build = Callable[[Path, Path, Path, Workers], object]


class _KilledError(BaseException):
    """Stands for a signal that kills a process."""


def _kill_once(kills: list[_KilledError], work: Callable[[], object], is_of_pass: bool) -> None:
    """Start a task, and kill it before it renames its result; nothing is cleaned up."""
    with (
        patch.object(Path, "rename", side_effect=_KilledError),
        patch.object(os, "link", side_effect=_KilledError),
        patch.object(Path, "unlink"),
        patch("jobs.rebuild.queues.rmtree"),
    ):
        try:
            if not is_of_pass:
                work()
        except _KilledError as kill:
            kills.append(kill)


_BUILDS: dict[str, Build] = {
    "index": lambda store, _, out, workers: rebuild_index(RebuildIndexRequest(str(store), str(out)), workers),
    "queues": lambda store, _, out, workers: rebuild_queues(RebuildQueuesRequest(str(store), out), workers),
    "store": lambda _, lake, out, workers: restore(RestoreRequest(Lake(str(lake)), out), workers),
    "segment": lambda store, lake, out, workers: repair(RepairRequest(str(store), out, Lake(str(lake))), workers),
}


@pytest.mark.parametrize("build", _BUILDS.values(), ids=_BUILDS)
def test_a_dead_attempt_leaves_no_incomplete_files(golden: StoreOf, tmp_path: Path, build: Build) -> None:
    damaged = copy_store(golden(DIED), tmp_path)
    ingest_store(damaged, tmp_path / "lake")
    flip(list_segments(damaged)[0], 2000)
    kills: list[_KilledError] = []
    for name, workers in (("once", SerialWorkers()), ("again", DisturbedWorkers(attempt=partial(_kill_once, kills)))):
        build(damaged, tmp_path / "lake", tmp_path / name, workers)

    assert kills
    whole, again = (
        sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*"))
        for name in ("once", "again")
    )

    assert whole == again


def test_a_rebuild_deletes_the_scratch_files_of_killed_runs_only(golden: StoreOf, tmp_path: Path) -> None:
    left, held = tmp_path / ".scratch-12345678", tmp_path / ".scratch-abcdefab"
    for directory in (left, held):
        directory.mkdir()
        (directory / "units").write_bytes(b"1")
    running = os.open(held, os.O_RDONLY)
    fcntl.flock(running, fcntl.LOCK_EX)
    rebuild_queues(RebuildQueuesRequest(str(golden(DIED)), tmp_path), SerialWorkers())
    os.close(running)

    assert [held] == list(tmp_path.glob(".scratch-*"))


Rows = dict[bytes, bytes]

_RELEASE = "5.5.1"
_COMPLETE = (
    "b533-cqdouble",
    "b540-cqcombine-rocksonly",
    "b551-cqdouble",
    "b551-lmq-rockscq",
    "b551-rockscq-clean",
    "b551-rockscq-separate",
)


def build(store: Path, out: Path, target: str = ROCKSDB) -> QueueRebuildSummary:
    return rebuild_queues(request(store, out, target), SerialWorkers())


def request(store: Path, out: Path, target: str = ROCKSDB) -> RebuildQueuesRequest:
    return RebuildQueuesRequest(str(store), out, given_settings=GivenSettings(release=_RELEASE), to=target)


def rows_in(directory: Path) -> dict[str, Rows]:
    with open_database(str(directory), AnyStorage()) as database:
        return {family: dict(database.items(family)) for family in database.families}


@pytest.mark.parametrize("name", _COMPLETE)
def test_rebuilt_rows_equal_those_of_the_broker(name: str, tmp_path: Path) -> None:
    """
    Compare each unit, the last unit of each queue, and the end of the dispatched log.

    Rows of first units may differ: a broker writes them on request, as (0, 0) if the queue is empty then.
    """
    root = unpack_feature(name, tmp_path).root
    directory = rocksdb_queue_directory(list_store(str(root))) or ""
    build(root, tmp_path / "out")
    broker = rows_in(root / directory)
    rebuilt = rows_in(tmp_path / "out" / directory)

    assert rebuilt.keys() == broker.keys()
    assert rebuilt[UNIT_FAMILY] == broker[UNIT_FAMILY]
    lasts = [{key: value for key, value in rows[BOUND_FAMILY].items() if _is_last(key)} for rows in (rebuilt, broker)]

    assert lasts[0] == lasts[1]
    firsts = {key: value for key, value in rebuilt[BOUND_FAMILY].items() if not _is_last(key)}

    assert all(broker[BOUND_FAMILY].get(key) in {None, value, bytes(16)} for key, value in firsts.items())


def _is_last(key: bytes) -> bool:
    return key[-8:-5] == b"max"


@pytest.mark.parametrize(
    "name", ["b420-base", "b498-types", "b533-dledger", "b551-direct", "b551-expired", "b551-types"]
)
def test_rows_built_from_files_equal_those_of_the_scalar_module(name: str, golden: StoreOf, tmp_path: Path) -> None:
    store = golden(name)
    build(store, tmp_path / "out")
    rules = UnitRules(((0, Release.from_version(_RELEASE)),), in_rocksdb=True)

    expected: Rows = {}
    for unit in (unit for record, _ in read_store_records(store) for unit in expected_units(record, rules)):
        key = encode_unit_key(unit.queue, unit.queue_offset)
        expected[key] = UNIT_VALUE.pack(unit.physical_offset, unit.size, unit.tags_code, unit.store_timestamp)

    assert rows_in(tmp_path / "out" / "consumequeue")[UNIT_FAMILY] == expected


@pytest.mark.parametrize("name", ["b533-base", "b551-types"])
def test_small_tables_contain_the_same_rows_as_one_table(
    name: str, golden: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, many = (request(golden(name), tmp_path / out) for out in ("one", "many"))
    rebuild_queues(replace(one, group_count=3, range_size=4096), SerialWorkers())
    monkeypatch.setattr(queue_database, "_UNITS_AT_ONCE", 7)
    monkeypatch.setattr(queue_database, "_ROWS_AT_ONCE", 2)
    rebuild_queues(replace(many, group_count=3, range_size=4096), SerialWorkers())

    assert rows_in(tmp_path / "many" / "consumequeue") == rows_in(tmp_path / "one" / "consumequeue")


def test_a_queue_without_messages_in_the_log_continues_at_its_end(newer_store: Path, tmp_path: Path) -> None:
    """Its consumers are at its end; without a row, a broker would assign queue offset 0 to the next message."""
    queue = next(queue for queue in list_queues(list_store(str(newer_store))) if queue.name.topic == "T1")
    shutil.copytree(newer_store / "consumequeue" / "T1" / "0", newer_store / "consumequeue" / "Quiet" / "3")
    (newer_store / "config" / "topics.json").unlink(missing_ok=True)
    summary = build(newer_store, tmp_path / "out")
    end = queue.find_written_end()
    place = int(read_stored_units(queue, end - 1, end)["physical_offset"][0])

    bounds = rows_in(tmp_path / "out" / "consumequeue")[BOUND_FAMILY]
    quiet = QueueName(QueueKind.PLAIN, "Quiet", 3)
    row = decode_bound_row(key := encode_bound_key(quiet, is_max=True), bounds[key])

    assert row == (quiet, True, (end - 1, place))
    assert any(note.startswith("queues without messages in the log: 1 (") for note in summary.notes)
    shutil.rmtree(newer_store / "consumequeue")
    (tmp_path / "out/consumequeue").rename(newer_store / "consumequeue")
    build(newer_store, tmp_path / "again")

    assert rows_in(tmp_path / "again" / "consumequeue")[BOUND_FAMILY] == bounds
    back = build(newer_store, tmp_path / "back", FILES)

    assert any(
        "1 (Quiet/3). No files are written for these queues, so the broker restarts them at queue offset 0" in note
        for note in back.notes
    )


def test_light_queues_with_invalid_directory_names_get_rows(tmp_path: Path) -> None:
    """As written by a broker; also for a long name, and one that is not UTF-8."""
    further = {"INNER_MULTI_DISPATCH": "%LMQ%$Lite$a/b,%LMQ%..", "INNER_MULTI_QUEUE_OFFSET": "7,8"}
    odd = make_record(topic="Odd", queue_offset=9)._replace(topic_raw=b"Od\xff")
    records = place_records([make_record(topic="Ä" * 60, queue_offset=5), make_record(properties=further), odd])
    store = write_segment(tmp_path / "store", records)
    build(store, tmp_path / "out")
    units = (decode_unit_row(*row) for row in rows_in(tmp_path / "out" / "consumequeue")[UNIT_FAMILY].items())

    expected = {("Orders", 0), ("%LMQ%$Lite$a/b", 7), ("%LMQ%..", 8), ("Ä" * 60, 5), ("Od\ufffd", 9)}

    assert expected == {(queue.topic, queue_offset) for queue, queue_offset, *_ in units}


def test_a_table_that_cannot_be_written_is_an_error_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "none" / "table.sst"

    with pytest.raises(OSError, match="No such file or directory") as raised:
        queue_database.write_table(str(path), [([b"k"], [b"v"])])

    assert raised.value.filename == str(path)


def test_a_missing_rocksdict_is_reported_with_what_to_install(
    golden: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    outcome = run("rebuild-consumequeue", golden("b551-base"), "--out", tmp_path / "out", "--to", "rocksdb")

    assert outcome.code == ExitCode.USAGE
    assert "pip install 'rocketmq-lake[rocksdb]'" in outcome.err


def test_a_segment_that_the_disk_cannot_read_is_named(golden: StoreOf, tmp_path: Path) -> None:
    with fail_reads_of_first_segment(errno.EIO, lambda at, length: at + length > 8192):
        summary = rebuild_queues(request_for(golden("b533-base"), tmp_path / "out", "b533-base"), SerialWorkers())

    (note,) = (note for note in summary.notes if note.startswith("damaged bytes"))

    assert re.search(r" \(commitlog/00000000000000000000 @\d+\)", note)


def test_a_failed_rebuild_leaves_nothing_of_its_own(
    golden: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queue files without a manifest look like a complete answer."""
    store = golden("b533-base")
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").touch()
    monkeypatch.setattr(LocalStorage, "create", Mock(side_effect=OSError(errno.ENOSPC, "disk full", "MANIFEST.json")))

    with pytest.raises(OSError, match="disk full"):
        rebuild_queues(request_for(store, out, "b533-base"), SerialWorkers())

    assert ["notes.txt"] == [path.name for path in out.iterdir()]


def _count_effects_of_one_lost_queue(directory: Path, queues: int) -> tuple[int, int]:
    """Return how many files were created, and how many were flushed, when one of *queues* queues is lost."""
    records = [
        make_record(b"x", topic="T", queue_id=number % queues, queue_offset=number // queues)
        for number in range(2 * queues)
    ]
    store = directory / "store"
    (store / "commitlog").mkdir(parents=True)
    (store / "commitlog" / f"{0:020}").write_bytes(make_segment(place_records(records), 1 << 17))
    rebuild_queues(
        RebuildQueuesRequest(str(store), store / "consumequeue", given_settings=GivenSettings(release="5.3.3")),
        SerialWorkers(),
    )
    (store / "consumequeue" / MANIFEST_FILE).unlink()
    lost = read_files(store / "consumequeue" / "T" / "1")
    shutil.rmtree(store / "consumequeue" / "T" / "1")
    created = list[str]()
    original = os.open

    def open_(path: str, flags: int, *more: int, **options: int) -> int:
        if flags & os.O_CREAT and re.search(r"/\d{20}$", os.fspath(path)):
            created.append(path)
        return original(path, flags, *more, **options)

    request = RebuildQueuesRequest(
        str(store), directory / "out", given_settings=GivenSettings(release="5.3.3"), lost_only=True
    )
    with patch("os.open", open_), patch("os.fsync", wraps=os.fsync) as flushed:
        summary = rebuild_queues(request, SerialWorkers())

    assert {f"T/1/{path}": data for path, data in lost.items()} == read_rebuilt_files(directory / "out")
    assert queues - 1 == summary.kept
    return len({*created}), flushed.call_count


def test_a_lost_queue_costs_the_same_writes_among_any_number_of_queues(tmp_path: Path) -> None:
    effects = [_count_effects_of_one_lost_queue(tmp_path / str(queues), queues) for queues in (20, 80, 240)]

    assert 1 == len({*effects})


@pytest.mark.parametrize("name", ["b551-base", "b498-base", "b533-base", "b498-cqext"])
@pytest.mark.parametrize("lost", ["file", "directory", "topic"])
def test_the_lost_files_alone_are_written(golden: StoreOf, tmp_path: Path, name: str, lost: str) -> None:
    store = copy_store(golden(name), tmp_path)
    file = max(read_files(store / "consumequeue"))
    target = {"file": file, "directory": str(Path(file).parent), "topic": file.partition("/")[0]}[lost]
    before = read_real_files(store)
    if (store / "consumequeue" / target).is_dir():
        shutil.rmtree(store / "consumequeue" / target)
    else:
        (store / "consumequeue" / target).unlink()
    missing = before.keys() - read_real_files(store).keys()

    rebuild_queues(replace(request_for(store, tmp_path / "out", name), lost_only=True), SerialWorkers())

    made = read_rebuilt_files(tmp_path / "out")

    assert missing <= made.keys()
    assert {path: before[path] for path in made} == made
