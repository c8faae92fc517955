"""Queues in `verify`, in files and RocksDB: no findings for real brokers, and exactly the planted faults."""

import gc
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from jobs.diagnosis.findings import Finding
from jobs.diagnosis.kinds import ORPHANED_INDEX_ROWS, OUT_OF_SEQUENCE
from jobs.products.index.key_sequence import KeySequence, RangeKeys
from jobs.products.queues.settings import determine_unit_rules
from jobs.requests.verify import VerifyRequest
from jobs.storage import AnyStorage
from jobs.storage.scratch import Scratch
from jobs.store.queue_files import list_queues
from jobs.store.release import determine_writers
from jobs.store.rocksdb import KeyRange, Rows, open_database
from jobs.store.store import list_store
from jobs.store.workers import SerialWorkers
from jobs.verify import rocksdb_index
from jobs.verify.queues import LogPass, _is_stored, verify_queues
from jobs.verify.run import verify
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.layout import HEAD
from rmq_formats.commitlog.record import encode_record
from rmq_formats.consumequeue.dispatch import UnitRules, walk_units
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.indexfile.build import PACKED_KEY
from rmq_formats.properties import MAX_LONG
from rmq_formats.rocksdb.build import hash_index_rows
from rmq_formats.store import file_name_of_offset
from tests.golden import GOLDEN, StoreOf, golden_stores, release_of
from tests.rmq_formats.builders import make_record
from tests.support.commands import measure_peak, overwrite
from tests.support.stores import compare_queues, kill_after_dispatch, list_segments, read_store_records

_RAW = Options(raw_mode=True)
T1 = "consumequeue/T1/0"  # 26 units in three files


UNDISPATCHED = ("b533-crash-before", "b498-live")  # the broker had not dispatched the newest record


@pytest.mark.sample(12, always=[*UNDISPATCHED, *golden_stores("expired")])
@pytest.mark.parametrize("name", GOLDEN)
def test_files_of_a_real_broker_have_no_findings(golden: StoreOf, name: str) -> None:
    report = compare_queues(golden(name), release_of(name))
    *_, (newest, _) = read_store_records(golden(name))

    assert report.findings == []
    assert report.numbers["matched"] == report.numbers["expected"] > 0
    assert report.numbers["behind"] == (newest.total_size if name in UNDISPATCHED else 0)
    assert report.numbers["expired"] == (16 if name in golden_stores("expired") else 0)


@pytest.mark.sample(12, always=["b498-types", "b551-types-crc", "b514-expired", "b420-retry"])
@pytest.mark.parametrize("name", [name for name in GOLDEN if "rockscq" not in name])
def test_records_that_continue_their_queues_are_not_reported(golden: StoreOf, tmp_path: Path, name: str) -> None:
    """Delayed, retried and light messages, transactions: a broker counts each of them in its queue."""
    root = Path(shutil.copytree(golden(name), tmp_path / name))
    units = [unit for path in root.glob("consumequeue/*/*/*") for unit in walk_units(path.read_bytes())]
    start = min((int(path.name) for path in list_segments(root)), default=0)
    offsets = sorted(unit.physical_offset for unit in units if unit.physical_offset >= start)
    for at in (offsets[len(offsets) // 4], offsets[len(offsets) // 2]):
        kill_after_dispatch(fresh_copy(golden(name), root), at)

        assert OUT_OF_SEQUENCE not in {finding.kind for finding in compare_queues(root, release_of(name)).findings}


def test_a_unit_written_during_verification_breaks_no_sequence(newer_store: Path) -> None:
    """Also if it is the first remaining unit of the queue; earlier units are in no file."""
    (newer_store / T1 / file_name_of_offset(0)).unlink()
    (queue,) = (queue for queue in list_queues(list_store(str(newer_store))) if queue.name.path == T1)
    first, last = 6904, 56303  # the physical offsets of units 10 and 25

    assert queue.first_unit_number == 10
    assert queue.capacity_end == 30
    assert _is_stored(queue, 10, first)
    assert _is_stored(queue, 25, last)
    assert not any(_is_stored(queue, position, first) for position in (9, 11, 30))


NAMES = ("b551-types", "b498-cqext", "b533-expired", "b420-direct", "b498-live")


def fresh_copy(store: Path, root: Path) -> Path:
    shutil.rmtree(root, ignore_errors=True)
    return Path(shutil.copytree(store, root))


def damage(data: st.DataObject, path: Path) -> None:
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    change = data.draw(st.sampled_from(("bytes", "word", "copy", "zeros", "cut", "lengthen", "delete")))
    if change == "bytes":
        content[at : at + 8] = data.draw(st.binary(min_size=1, max_size=8))
    elif change == "word":
        word = data.draw(st.sampled_from((0, 1, -1, (1 << 63) - 1, -(1 << 63), 0x7FFFFFFF, 200)))
        content[at // 20 * 20 : at // 20 * 20 + 8] = word.to_bytes(8, "big", signed=True)
    elif change == "copy":
        content[at : at + 40] = content[:40]
    elif change == "zeros":
        content[at : at + 40] = bytes(40)
    elif change == "cut":
        del content[at:]
    elif change == "lengthen":
        content += bytes(at)
    path.write_bytes(bytes(content))
    if change == "delete":
        path.unlink()


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_verify_reports_any_content_of_a_queue_and_never_fails(
    golden: StoreOf, tmp_path: Path, name: str, data: st.DataObject
) -> None:
    root = fresh_copy(golden(name), tmp_path / "store")
    for path in data.draw(
        st.lists(st.sampled_from(sorted(root.glob("*consumequeue*/*/*/*"))), max_size=3, unique=True)
    ):
        damage(data, path)
    store = list_store(str(root))
    rules = determine_unit_rules(store, determine_writers(store, None).value.rules, BrokerConf())
    report, *_ = verify_queues(SerialWorkers(), store, rules)
    _, joined, *_ = verify_queues(SerialWorkers(), store, rules, LogPass(4096))

    # In a store that was not closed, missing units at the end of all queues may not have been written yet.
    if store.has_clean_shutdown:
        assert report.findings or report.numbers["matched"] == report.numbers["expected"]

    assert bool(report.findings) or not joined.differences
    assert joined.figures.matched <= joined.figures.expected


COUNT = 60_000
A_FILE = 6_000  # units
TAG_A = 65  # Java's hash of "A"
T = "consumequeue/T/0"


@pytest.fixture
def store_of_one_queue(tmp_path: Path) -> Path:
    record = np.frombuffer(
        encode_record(make_record(b"body", topic="T", properties={"TAGS": "A"}, queue_id=0)), np.uint8
    )
    numbers = np.arange(COUNT)
    log = np.tile(record, COUNT).reshape(COUNT, -1)
    for name, values in (("queue_offset", numbers), ("physical_offset", numbers * record.size)):
        at = HEAD.offset(name)
        log[:, at : at + 8] = values.astype(">i8").view(np.uint8).reshape(COUNT, 8)
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / file_name_of_offset(0)).write_bytes(log.tobytes())
    (tmp_path / T).mkdir(parents=True)
    for first in range(0, COUNT, A_FILE):
        units = (UNIT.pack(number * record.size, record.size, TAG_A) for number in range(first, first + A_FILE))
        (tmp_path / T / file_name_of_offset(first * UNIT.size)).write_bytes(b"".join(units))
    return tmp_path


def findings(store_of_one_queue: Path) -> list[Finding]:
    report, *_ = verify_queues(SerialWorkers(), list_store(str(store_of_one_queue)), UnitRules(), LogPass(2 << 20))
    return report.findings


def test_lost_files_take_no_more_memory_than_existing_files(store_of_one_queue: Path) -> None:
    """A lost file once took some hundred bytes for each of its units."""
    peaks = []
    for lost in (range(0), range(8)):
        for number in lost:
            (store_of_one_queue / T / file_name_of_offset(number * A_FILE * UNIT.size)).unlink()
        findings(store_of_one_queue)  # loads kernels, and fills caches
        gc.collect()
        found, peak = measure_peak(lambda: findings(store_of_one_queue))
        peaks.append(peak)

        assert [(finding.kind, finding.times) for finding in found] == [("missing_file", 8 * A_FILE)] * bool(lost)

    assert peaks[1] < peaks[0] + (1 << 20)


def test_an_index_in_rocksdb_is_compared_range_by_range_of_the_log(
    situation: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The findings do not depend on how many keys are compared at once."""
    store = Path(shutil.copytree(situation("b551-indexrocks") / "store", tmp_path / "store"))
    segment = store / "commitlog" / f"{0:020d}"
    for text in (b"k3 ", b"k9 "):
        overwrite(segment, segment.read_bytes().index(text), b"k?")
    expected = verify(VerifyRequest(str(store)), SerialWorkers()).parts["index"]
    monkeypatch.setattr(rocksdb_index, "ROWS_PER_TASK", 6)
    monkeypatch.setattr(rocksdb_index, "ROWS_PER_SAMPLE", 2)

    assert verify(VerifyRequest(str(store)), SerialWorkers()).parts["index"] == expected
    assert [finding.times for finding in expected.findings] == [2, 2]


def test_rows_after_the_last_key_of_the_log_are_findings(situation: StoreOf, tmp_path: Path) -> None:
    """Each of these rows counts, even if several are of the same message and key."""
    store = Path(shutil.copytree(situation("b551-indexrocks") / "store", tmp_path / "store"))
    database = Rdict(str(store / "rocksdbstore"), _RAW, dict.fromkeys(("default", "timer", "trans"), _RAW))
    for hour, offset in ((1, 1 << 40), (2, 1 << 40), (1, MAX_LONG)):
        database[hour.to_bytes(8, "big") + b"@T@U@id@" + offset.to_bytes(8, "big")] = bytes(8)
    database.close()
    (finding,) = verify(VerifyRequest(str(store)), SerialWorkers()).parts["index"].findings

    assert (finding.kind, finding.times, finding.log_offset) == (ORPHANED_INDEX_ROWS, 3, 1 << 40)


@pytest.mark.parametrize(("rows_per_range", "ranges"), [(1, 4), (10, 4), (11, 2), (1000, 1)])
def test_ranges_of_keys_contain_every_row_once(rows_per_range: int, ranges: int, tmp_path: Path) -> None:
    rows = Rdict(str(tmp_path), _RAW)
    for number in range(40):
        rows[number.to_bytes(8, "big")] = b""
        if number % 10 == 9:
            rows.flush()
    rows.close()
    with open_database(str(tmp_path), AnyStorage()) as database:
        planned = database.plan_key_ranges("default", rows_per_range)
        keys = [key for some, _ in database.rows("default") for key in some]

    assert len(planned) == ranges
    assert [key for start, end in planned for key in keys if start <= key and (end is None or key < end)] == keys


class _Rows:
    """A database with that many rows of an index, in the order of topics."""

    def __init__(self, count: int) -> None:
        self._count = count

    @property
    def database(self) -> Self:
        return self

    def plan_key_ranges(self, _family: str, _rows: int) -> list[KeyRange]:
        """As of a database with one table file."""
        return [(b"", None)]

    def rows(self, _family: str, _start: bytes = b"", at_once: int = 4096) -> Iterator[Rows]:
        for first in range(0, self._count, at_once):
            numbers = [number * 7919 % self._count for number in range(first, min(first + at_once, self._count))]
            keys = [b"%08d@T@U@%d@%s" % (0, number, (number * 100).to_bytes(8)) for number in numbers]
            yield keys, [bytes(8)] * len(keys)


def _peak_of_comparison(count: int, directory: Path) -> int:
    """Return the peak memory of a comparison of *count* rows with as many keys, which all differ."""
    directory.mkdir()
    scratch = Scratch(str(directory))
    keys = np.zeros(count, PACKED_KEY)
    keys["physical_offset"] = np.arange(count) * 100
    keys["key_hash"] = -1
    (directory / "all.keys").write_bytes(keys.tobytes())
    span = RangeKeys("all.keys", count, (count - 1) * 100, (count - 1) * 100)
    del keys
    sequence, workers = KeySequence(scratch, (span,), 0), SerialWorkers()

    def compare() -> tuple[int, rocksdb_index.RowDifferences]:
        rows = rocksdb_index.sort_rows(workers, _Rows(count), scratch)  # type: ignore[arg-type]
        return rocksdb_index.compare_rows(workers, rows, sequence, scratch)

    (_, differences), peak = measure_peak(compare)
    assert [number for number, _ in differences.values()] == [count, count]
    return peak


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows_of_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows and keys were once held in memory: 7.3 GB for 50 million."""
    monkeypatch.setattr(rocksdb_index, "ROWS_PER_TASK", 1 << 12)
    monkeypatch.setattr(rocksdb_index, "ROWS_PER_SAMPLE", 1 << 6)
    hash_index_rows(*next(_Rows(1).rows("")))  # loads compiled code, which is slow while memory is traced
    smaller, larger = (_peak_of_comparison(count, tmp_path / str(count)) for count in (20_000, 40_000))

    assert larger < 1.2 * smaller
