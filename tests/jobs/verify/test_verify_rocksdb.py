"""Queues in RocksDB, alone and in addition to files, compared with the log and with each other."""

import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jobs.console.result import Severity
from jobs.products.index import KeySequence, RangeKeys
from jobs.rebuild.queue_run import RebuildQueuesRequest, rebuild_queues
from jobs.rebuild.queues import ROCKSDB
from jobs.storage.scratch import Scratch
from jobs.store.rocksdb import Rows
from jobs.store.workers import SerialWorkers
from jobs.verify import rocksdb_index
from jobs.verify.run import VerifyRequest, verify
from rmq_formats.indexfile.build import PACKED_KEY
from tests.golden import StoreOf, kill_with_database, unpack_feature
from tests.support.commands import overwrite
from tests.support.stores import compare_queues, records_of


def test_light_queues_that_a_killed_broker_had_in_memory_are_not_reported_as_deleted(tmp_path: Path) -> None:
    """They were `missing_queue`, exit 4; with double write RocksDB alone keeps them, and the next start makes them."""
    unpacked = unpack_feature("b551-lmq-selective", tmp_path / "selective")
    killed = unpack_feature("b551-rockscq-killed", tmp_path / "killed")
    kill_with_database(unpacked.root, killed.root / "consumequeue")
    report = compare_queues(unpacked.root, "5.5.1")
    light = [name for name in unpacked.before_stop["queues"] if name.startswith("%LMQ%")]

    assert light
    assert report.findings == []
    assert report.severity is Severity.BEHIND
    assert report.numbers["queues"] == len(unpacked.before_stop["queues"]) - len(light)
    assert report.numbers["behind"] == unpacked.before_stop["maxPhyOffset"]
    assert "light queues (LMQ) were not in RocksDB yet" in report.notes[0]


def test_light_queues_in_rocksdb_are_compared_up_to_their_end(tmp_path: Path) -> None:
    """A killed broker had written a part: what is missing in it was lost, what follows it is still to come."""
    root = unpack_feature("b551-lmq-selective", tmp_path).root
    part = shutil.copytree(root, tmp_path / "part")
    first, last = sorted((part / "commitlog").iterdir())
    last.unlink()
    records = [record for record, _ in records_of([first])]
    log = first.read_bytes()
    first.write_bytes(log[: records[len(records) // 4].physical_offset].ljust(len(log), b"\0"))
    request = RebuildQueuesRequest(str(part), tmp_path / "out", release="5.5.1", to=ROCKSDB)
    summary = rebuild_queues(request, SerialWorkers())
    kill_with_database(root, tmp_path / "out" / summary.folder)
    report = compare_queues(root, "5.5.1")

    assert report.findings == []
    assert report.numbers["matched"] == report.numbers["expected"]
    assert "light queues (LMQ) were not in RocksDB yet" in report.notes[0]


def test_an_index_in_rocksdb_is_compared_range_by_range_of_the_log(
    situation: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The findings do not depend on how many keys are compared at once."""
    store = Path(shutil.copytree(situation("b551-indexrocks") / "store", tmp_path / "store"))
    segment = store / "commitlog" / f"{0:020d}"
    for text in (b"k3 ", b"k9 "):
        overwrite(segment, segment.read_bytes().index(text), b"k?")
    at_once = verify(VerifyRequest(str(store)), SerialWorkers()).parts["index"]
    monkeypatch.setattr(rocksdb_index, "KEYS_PER_PORTION", 7)

    assert at_once == verify(VerifyRequest(str(store)), SerialWorkers()).parts["index"]
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
    span = RangeKeys("all.keys", count, (count - 1) * 100, (count - 1) * 100)
    del keys
    tracemalloc.start()
    row = KeySequence(scratch, (span,), 0)
    tally = rocksdb_index.compare_rows(_Rows(count), row, scratch)  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert set(tally.counts.values()) == {count}
    assert len(tally.counts) == 2
    return peak


def test_memory_does_not_grow_with_the_rows_of_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows and keys were held at once: 7.3 GB for 50 million."""
    monkeypatch.setattr(rocksdb_index, "KEYS_PER_PORTION", 1 << 12)
    _peak_of_comparison(1 << 12, tmp_path / "first")  # what is compiled and imported at the first call
    smaller, larger = (_peak_of_comparison(count, tmp_path / str(count)) for count in (20_000, 40_000))

    assert larger < 1.2 * smaller
