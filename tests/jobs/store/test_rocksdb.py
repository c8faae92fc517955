"""Reading the databases of a broker consistently, without writing into their directories."""

import errno
import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from rocksdict import Options, Rdict

from jobs.diagnosis.kinds import ORPHANED_TIMER_ROW
from jobs.inspect.inspection import inspect_state
from jobs.inspect.report import Problems
from jobs.requests.verify import VerifyRequest
from jobs.storage import AnyStorage
from jobs.store import rocksdb
from jobs.store.pending_messages import open_rocksdb_store, read_timers
from jobs.store.queue_ends import probe_queue_ends
from jobs.store.queue_files import list_queues
from jobs.store.rocksdb import open_database
from jobs.store.rocksdb_queues import find_queue_database
from jobs.store.store import list_store
from jobs.store.workers import SerialWorkers
from jobs.verify.report import PartReport
from jobs.verify.rocksdb_queues import verify_waiting_messages
from jobs.verify.run import verify
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.errors import FormatError
from rmq_formats.properties import MAX_LONG
from rmq_formats.rocksdb.layout import (
    TIMER_FAMILY,
    TIMER_VALUE,
    UNIT_FAMILY,
    UNIT_VALUE,
    UnitOffsets,
    encode_bound_key,
    encode_bound_value,
    encode_unit_key,
)
from rmq_formats.store import file_name_of_offset
from tests.golden import unpack_feature
from tests.support.commands import Run, measure_peak
from tests.support.lakes import ingest_store

_SEPARATE = "consumequeue_rocksdb"
_RAW = Options(raw_mode=True)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_queue_is_one_file_however_its_rows_are_cut(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unpack_feature("b551-lmq-rockscq", tmp_path).root
    monkeypatch.setattr(rocksdb.Database.rows, "__defaults__", (b"", size))
    queues = list_queues(list_store(str(root)))

    assert len(queues) == 10
    assert sum(queue.capacity_end - queue.first_unit_number for queue in queues) == 200


def test_a_database_whose_tables_are_merged_during_the_copy_is_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running broker may delete files while they are linked."""
    directory = unpack_feature("b551-rockscq-clean", tmp_path).root / "consumequeue"
    copy, calls = rocksdb._copy, []  # noqa: SLF001

    def interrupt_copy(location: str, storage: AnyStorage, target: Path) -> None:
        copy(location, storage, target)
        calls.append(target)
        if len(calls) < 3:
            next(target.glob("*.sst")).unlink()

    monkeypatch.setattr(rocksdb, "_copy", interrupt_copy)
    with open_database(str(directory), AnyStorage()) as database:
        rows = sum(len(keys) for keys, _ in database.rows(UNIT_FAMILY))

    assert rows == 149
    assert len(calls) == 3


@pytest.mark.parametrize("is_local", [True, False])
def test_a_database_is_copied_from_any_storage_and_no_temporary_directory_is_left(
    is_local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb, "is_local", lambda _: is_local)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    directory = unpack_feature("b551-rockscq-separate", tmp_path).root / _SEPARATE
    with open_database(str(directory), AnyStorage()) as database:
        assert set(database.families) == {"default", "offset"}
        assert len(list(database.items("none"))) == 0
        assert len(list(database.items(UNIT_FAMILY))) == 138
    with pytest.raises(FormatError), open_database(str(tmp_path), AnyStorage()):
        pass

    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_database_is_not_damaged_because_its_copy_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When `/tmp` was full, `verify` recommended to set the files of an intact database aside."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    directory = unpack_feature("b551-rockscq-clean", tmp_path).root / "consumequeue"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised, open_database(str(directory), AnyStorage()):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert raised.value.errno == errno.EFBIG
    assert str(raised.value.filename).startswith(str(tmp_path / "rmq-lake-rocksdb-"))
    assert list(tmp_path.glob("rmq-lake-rocksdb-*")) == []


@pytest.mark.parametrize("message", ["Permission denied", "Too many open files", "No space left on device"])
def test_a_database_is_not_damaged_because_this_process_may_not_open_it(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = unpack_feature("b551-rockscq-clean", tmp_path).root / "consumequeue"
    error = Mock(side_effect=Exception(f"IO error: While open a file for random read: 000010.sst: {message}"))
    monkeypatch.setattr("rocksdict.Rdict.list_cf", error)
    with pytest.raises(OSError, match=message), open_database(str(directory), AnyStorage()):
        pass


@pytest.mark.parametrize(("directory", "family"), [("consumequeue", "offset"), ("config/topics", "kvDataVersion")])
def test_a_row_that_no_broker_writes_is_damage_of_its_database(directory: str, family: str, tmp_path: Path) -> None:
    root = unpack_feature("b551-rockscq-clean", tmp_path).root
    database = Rdict(str(root / directory), _RAW, {"default": _RAW, family: _RAW})
    rows = database.get_column_family(family)
    rows[next(rows.keys())] = b"["
    del rows
    database.close()

    assert [finding.file for finding in verify(VerifyRequest(str(root)), SerialWorkers()).findings] == [directory]
    assert ingest_store(root, tmp_path / "lake").messages == 149


def test_a_queue_whose_units_were_all_deleted_has_its_end(tmp_path: Path, run: Run) -> None:
    root = unpack_feature("b551-rockscq-clean", tmp_path).root
    database = Rdict(str(root / "consumequeue"), _RAW, {"default": _RAW, "offset": _RAW})
    key = encode_bound_key(QueueName(QueueKind.PLAIN, "Gone", 0), is_max=True)
    database.get_column_family("offset")[key] = encode_bound_value(UnitOffsets(11, 900))
    database.close()

    assert (
        "0     12                    12 " in run("query", "mqadmin", "--store", root, "topicStatus", "-t", "Gone").out
    )


def make_queue(root: Path, units: int) -> None:
    """Create a database with one queue of messages of 100 bytes."""
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / file_name_of_offset(0)).write_bytes(bytes(units * 100))
    database = Rdict(str(root / "consumequeue"), _RAW)
    queue = QueueName(QueueKind.PLAIN, "T", 0)
    for number in range(units):
        database[encode_unit_key(queue, number)] = UNIT_VALUE.pack(number * 100, 100, 7, number)
    database.close()


def test_following_keeps_no_copy_of_the_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker changes its database before each step of `--follow`, so cached copies would never be used again."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    make_queue(tmp_path / "store", 5000)
    table = next((tmp_path / "store" / "consumequeue").glob("*.sst"))
    for step in range(5):
        os.utime(table, (step, step))
        seen = probe_queue_ends(SerialWorkers(), list_store(str(tmp_path / "store")))

        assert [end.end for _, end in seen.probed_queues if end] == [5000]
        del seen

    opened = [path.resolve() for path in Path("/proc/self/fd").iterdir()]

    assert list(temporary.iterdir()) == []
    assert opened.count(table) == 1


def test_probing_queues_in_rocksdb_reads_only_new_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_queue(tmp_path, 5000)
    read = 0
    rows = rocksdb.Database.rows

    def count_reads(
        self: rocksdb.Database, family: str, start: bytes = b"", at_once: int = 1000
    ) -> Iterator[rocksdb.Rows]:
        nonlocal read
        for some in rows(self, family, start, at_once):
            read += len(some[0])
            yield some

    monkeypatch.setattr(rocksdb.Database, "rows", count_reads)
    name = QueueName(QueueKind.PLAIN, "T", 0)
    seen = probe_queue_ends(SerialWorkers(), list_store(str(tmp_path)), {name: 4990}, 4990 * 100)

    assert [(end.processed_end, end.end) for _, end in seen.probed_queues if end] == [(4990, 5000)]
    assert read < 100


def test_rows_are_read_as_a_file_of_units(tmp_path: Path) -> None:
    """Queue offsets without a row are zeros, like holes in a queue file."""
    make_queue(tmp_path, 64)
    (queue,) = list_queues(list_store(str(tmp_path)))
    expected = [UNIT.pack(at * 100, 100, 7) if at < 64 else bytes(UNIT.size) for at in range(70)]

    for start, stop in ((0, 10), (3, 5), (9, 40), (60, 64), (64, 70), (5, 5)):
        assert queue.read(start, stop) == b"".join(expected[start:stop])

    assert queue.first_unit_number == 0
    assert queue.capacity_end == 64
    assert queue.find_written_end() == 64


@pytest.mark.parametrize("units_a_task", [1, 7, 1000])
def test_every_row_of_a_queue_is_checked_once_in_parts_of_equal_size(units_a_task: int, tmp_path: Path) -> None:
    store = list_store(str(unpack_feature("b551-lmq-rockscq", tmp_path).root))
    database = find_queue_database(store)
    assert database is not None

    parts = database.plan_row_checks(units_a_task)

    counts = [sum(stop - start for _, start, stop in part) for part in parts]
    assert counts == [units_a_task] * (200 // units_a_task) + [200 % units_a_task] * (200 % units_a_task > 0)
    assert sum(map(database.check_rows, parts)) == 200


def test_timer_messages_are_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = list_store(str(unpack_feature("b551-timerrocks", tmp_path).root))
    with open_rocksdb_store(store) as database:
        assert database is not None
        pending = len(list(read_timers(database)))
    items = rocksdb.Database.items

    def add_rows(self: rocksdb.Database, family: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        yield from items(self, family, start)
        if family == TIMER_FAMILY and not start:
            delivered, never = ((number.to_bytes(8, "big") + b"id") for number in (1, MAX_LONG))
            for number in range(20_000):
                yield delivered, TIMER_VALUE.pack(1, number)
                yield never, TIMER_VALUE.pack(1, MAX_LONG - number)

    monkeypatch.setattr(rocksdb.Database, "items", add_rows)
    part = PartReport()
    _, verify_peak = measure_peak(lambda: verify_waiting_messages(part, store))
    state, inspect_peak = measure_peak(lambda: inspect_state(store, [], Problems()))

    assert state.rocksdb is not None
    assert state.rocksdb.waiting_timers == pending + 20_000
    assert [(finding.kind, finding.times) for finding in part.findings] == [(ORPHANED_TIMER_ROW, 20_000)]
    assert max(verify_peak, inspect_peak) < 7 << 19
