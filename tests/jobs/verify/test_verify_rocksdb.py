"""Queues in RocksDB, alone and beside files, compared with the log and with each other."""

import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jobs.console.result import ExitCode, Severity
from jobs.products.index.key_row import KeyRow, RangeKeys
from jobs.products.queues.settings import known_releases, queue_rules
from jobs.rebuild.queue_run import RebuildQueuesRequest, rebuild
from jobs.rebuild.queues import ROCKSDB
from jobs.storage.scratch import Scratch
from jobs.store.rocksdb import Rows
from jobs.store.store import list_store
from jobs.store.workers import OneByOne
from jobs.verify import rocksdb_index
from jobs.verify.findings import PartReport
from jobs.verify.queues import compare_queues
from jobs.verify.run import VerifyRequest, verify
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.indexfile.build import PACKED_KEY
from tests.golden import StoreOf, kill_with_database, unpack_feature
from tests.support.commands import overwrite
from tests.support.stores import flip, records_of

_QUEUES = "queues of RocksDBConsumeQueueStore"


def verified(root: Path) -> PartReport:
    store = list_store(str(root))
    rules = queue_rules(store, known_releases(store, "5.5.1").value.rules, BrokerConf())
    return compare_queues(OneByOne(), store, rules).report


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("b540-cqcombine-rocksonly", 138),
        ("b551-lmq-rockscq", 200),
        ("b551-rockscq-clean", 149),
        ("b551-rockscq-separate", 138),
    ],
)
def test_a_healthy_store_has_every_unit_in_rocksdb(name: str, units: int, tmp_path: Path) -> None:
    report = verified(unpack_feature(name, tmp_path).root)

    assert report.findings == []
    assert report.notes == []
    assert report.numbers["matched"] == report.numbers["expected"] == units


def test_after_a_kill_the_whole_log_is_still_to_be_dispatched(tmp_path: Path) -> None:
    """No queue is missing, none was deleted."""
    unpacked = unpack_feature("b551-rockscq-killed", tmp_path)
    report = verified(unpacked.root)

    assert report.findings == []
    assert report.numbers["behind"] == unpacked.before_stop["maxPhyOffset"]
    assert any("the next start makes every unit" in note for note in report.notes)


def test_double_write_that_was_switched_on_late_lacks_the_first_units(tmp_path: Path) -> None:
    """The broker's own answer from RocksDB begins later than that from files."""
    unpacked = unpack_feature("b551-cqdouble-later", tmp_path)
    answers = unpacked.before_stop
    units = {kind: sum(len(queue["units"]) for queue in answers[kind].values()) for kind in ("queues", _QUEUES)}
    (note,) = verified(unpacked.root).notes

    assert units == {"queues": 126, _QUEUES: 125}
    assert note == (
        "double write: files hold 126 units, RocksDB 125; RocksDB lacks 1 unit before offset 317, which no start makes"
        ": do not switch before the log begins at 317 or later"
    )


def test_double_write_that_was_off_for_a_while_lacks_the_last_units(tmp_path: Path) -> None:
    """A start with both makes them: the broker's last run answered the same from either."""
    unpacked = unpack_feature("b551-cqdouble-later-gap", tmp_path)
    report = verified(unpacked.root)
    before, last = unpacked.expected["runs"][1:3]
    added = sum(queue["max"] - before["queues"][name]["max"] for name, queue in last["queues"].items())

    assert report.findings == []
    assert (
        f"RocksDB lacks {added} units from offset {before['maxPhyOffset']} on, which a start makes" in report.notes[0]
    )


def test_units_that_differ_between_files_and_rocksdb_are_a_finding(tmp_path: Path) -> None:
    root = unpack_feature("b551-cqdouble", tmp_path).root
    flip(root / "consumequeue" / "Orders" / "0" / ("0" * 20), 19)
    report = verified(root)

    assert [finding.kind for finding in report.findings] == ["wrong_tags_code", "double_write_differs"]
    assert report.findings[1].found == "1 units"
    assert "do not switch" in report.notes[0]


def test_a_queue_that_only_rocksdb_has_is_missing_for_a_broker_that_reads_files(tmp_path: Path) -> None:
    unpacked = unpack_feature("b551-cqdouble", tmp_path)
    shutil.rmtree(unpacked.root / "consumequeue" / "Orders" / "0")
    report = verified(unpacked.root)
    units = len(unpacked.before_stop["queues"]["Orders/0"]["units"])

    assert [(finding.kind, finding.file) for finding in report.findings] == [("missing_queue", "consumequeue/Orders/0")]
    assert report.findings[0].expected == f"{units} units, which RocksDB has"
    assert f"files lack {units} units that RocksDB has" in report.notes[0]


def test_light_queues_that_selective_double_write_leaves_out_are_no_damage(tmp_path: Path) -> None:
    unpacked = unpack_feature("b551-lmq-selective", tmp_path)
    report = verified(unpacked.root)

    assert report.findings == []
    assert report.numbers["expected"] - report.numbers["matched"] == 80
    assert report.notes[0].endswith("(rocksdbCQSelectiveDoubleWriteEnable); do not switch")
    assert report.notes[1].startswith("80 units of 5 light queues are in no queue")


def test_light_queues_that_a_killed_broker_had_in_memory_are_not_said_to_be_deleted(tmp_path: Path) -> None:
    """They were `missing_queue`, exit 4; with double write RocksDB alone keeps them, and the next start makes them."""
    unpacked = unpack_feature("b551-lmq-selective", tmp_path / "selective")
    killed = unpack_feature("b551-rockscq-killed", tmp_path / "killed")
    kill_with_database(unpacked.root, killed.root / "consumequeue")
    report = verified(unpacked.root)
    light = [name for name in unpacked.before_stop["queues"] if name.startswith("%LMQ%")]

    assert light
    assert report.findings == []
    assert report.severity is Severity.BEHIND
    assert report.numbers["queues"] == len(unpacked.before_stop["queues"]) - len(light)
    assert report.numbers["behind"] == unpacked.before_stop["maxPhyOffset"]
    assert "light queues were not in RocksDB yet" in report.notes[0]


def test_what_rocksdb_has_of_light_queues_is_compared_up_to_where_it_ends(tmp_path: Path) -> None:
    """A killed broker had written a part: what is missing in it was lost, what follows it is still to come."""
    root = unpack_feature("b551-lmq-selective", tmp_path).root
    part = shutil.copytree(root, tmp_path / "part")
    first, last = sorted((part / "commitlog").iterdir())
    last.unlink()
    records = [record for record, _ in records_of([first])]
    log = first.read_bytes()
    first.write_bytes(log[: records[len(records) // 4].physical_offset].ljust(len(log), b"\0"))
    request = RebuildQueuesRequest(str(part), tmp_path / "out", release="5.5.1", to=ROCKSDB)
    summary = rebuild(request, OneByOne())
    kill_with_database(root, tmp_path / "out" / summary.folder)
    report = verified(root)

    assert report.findings == []
    assert report.numbers["matched"] == report.numbers["expected"]
    assert "light queues were not in RocksDB yet" in report.notes[0]


def test_an_index_in_rocksdb_is_compared_with_the_log(situation: StoreOf) -> None:
    """167 rows, of which two are progress: it was 'there are no index files', not verified."""
    part = verify(VerifyRequest(str(situation("b551-indexrocks") / "store")), OneByOne()).parts["index"]

    assert part.severity is Severity.HEALTHY
    assert (part.numbers["rows"], part.numbers["keys"]) == (165, 165)


def test_an_index_in_rocksdb_is_compared_range_by_range_of_the_log(
    situation: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The findings do not depend on how many keys are compared at once."""
    store = Path(shutil.copytree(situation("b551-indexrocks") / "store", tmp_path / "store"))
    segment = store / "commitlog" / f"{0:020d}"
    for text in (b"k3 ", b"k9 "):
        overwrite(segment, segment.read_bytes().index(text), b"k?")
    at_once = verify(VerifyRequest(str(store)), OneByOne()).parts["index"]
    monkeypatch.setattr(rocksdb_index, "KEYS_AT_ONCE", 7)

    assert at_once == verify(VerifyRequest(str(store)), OneByOne()).parts["index"]
    assert [finding.times for finding in at_once.findings] == [2, 2]


class _Rows:
    """A database of as many rows of an index, in the order of their topics, not of the log."""

    def __init__(self, count: int) -> None:
        self._count = count

    def rows(self, _family: str, _start: bytes = b"", at_once: int = 4096) -> Iterator[Rows]:
        for first in range(0, self._count, at_once):
            numbers = [number * 7919 % self._count for number in range(first, min(first + at_once, self._count))]
            keys = [b"%08d@T@U@%d@%s" % (0, number, (number * 100).to_bytes(8)) for number in numbers]
            yield Rows(keys, [bytes(8)] * len(keys))


def _peak_of_comparison(count: int, folder: Path) -> int:
    """Return the peak memory of comparing so many rows with as many keys, all of which differ."""
    folder.mkdir()
    scratch = Scratch(str(folder))
    keys = np.zeros(count, PACKED_KEY)
    keys["physical_offset"] = np.arange(count) * 100
    keys["key_hash"] = -1
    (folder / "all.keys").write_bytes(keys.tobytes())
    span = RangeKeys("all.keys", count, count, (count - 1) * 100, (count - 1) * 100, {}, ())
    del keys
    tracemalloc.start()
    row = KeyRow(scratch, (span,), 0)
    tally = rocksdb_index.compare_rows(_Rows(count), row, scratch)  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert set(tally.counts.values()) == {count}
    assert len(tally.counts) == 2
    return peak


def test_memory_does_not_grow_with_the_rows_of_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows and keys were held at once: 7.3 GB for 50 million."""
    monkeypatch.setattr(rocksdb_index, "KEYS_AT_ONCE", 1 << 15)
    _peak_of_comparison(1 << 12, tmp_path / "first")  # what is compiled and imported at the first call
    smaller, larger = (_peak_of_comparison(count, tmp_path / str(count)) for count in (150_000, 300_000))

    assert larger < 1.2 * smaller


@pytest.mark.parametrize(
    ("name", "record", "finding"),
    [
        ("b551-indexrocks", 954, "index_rows_of_no_message"),
        ("b551-transrocks", 2715, "transaction_row_of_no_message"),
        ("b551-timerwheel", 7044, "timer_unit_of_no_message"),
    ],
)
def test_rows_whose_record_is_lost_follow_from_the_damaged_log(
    situation: StoreOf, tmp_path: Path, name: str, record: int, finding: str
) -> None:
    """Keys of a message, and a pending transaction's half message: the rows stay in RocksDB."""
    store = Path(shutil.copytree(situation(name) / "store", tmp_path / "store"))
    overwrite(store / "commitlog" / f"{0:020d}", record + 4, b"\0\0\0\0")
    verdict = verify(VerifyRequest(str(store)), OneByOne())
    (group,) = verdict.groups

    assert group.cause.kind == "damaged_range"
    assert finding in {consequence.kind for consequence in group.consequences}


def test_a_key_that_rocksdb_lacks_is_a_missing_row(situation: StoreOf, tmp_path: Path) -> None:
    store = Path(shutil.copytree(situation("b551-indexrocks") / "store", tmp_path / "store"))
    segment = store / "commitlog" / f"{0:020d}"
    overwrite(segment, segment.read_bytes().index(b"k3 "), b"k?")
    verdict = verify(VerifyRequest(str(store)), OneByOne())

    assert [(finding.kind, finding.times) for finding in verdict.parts["index"].findings] == [
        ("missing_index_rows", 1),
        ("index_rows_of_no_message", 1),
    ]
    assert verdict.exit_code is ExitCode.MISMATCH


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("b551-transrocks", "4 pending transactions, 0 timer"),
        ("b551-timerrocks", "0 pending transactions, 21 timer"),
        ("b551-timerwheel", "21 timer messages in timerwheel wait"),
    ],
)
def test_rows_of_transactions_and_timers_are_compared_with_the_log(situation: StoreOf, name: str, rows: str) -> None:
    part = verify(VerifyRequest(str(situation(name) / "store")), OneByOne()).parts["queues"]

    assert any(rows in note for note in part.notes)
    assert part.severity is Severity.HEALTHY


def test_a_damaged_timer_log_is_damage_of_its_own(situation: StoreOf, tmp_path: Path) -> None:
    store = Path(shutil.copytree(situation("b551-timerwheel") / "store", tmp_path / "store"))
    overwrite(store / "timerlog" / f"{600:020d}", 808 - 600, b"\1")
    verdict = verify(VerifyRequest(str(store)), OneByOne())
    (finding,) = verdict.parts["queues"].findings

    assert (finding.kind, finding.file, finding.offset) == ("damaged_timer", f"timerlog/{600:020d}", 808)
    assert verdict.exit_code is ExitCode.DAMAGE
