"""Queue files that are lost: named once however many units they held, and in the memory of one."""

import gc
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from jobs.lake.findings import Finding
from jobs.store.store import list_store
from jobs.store.workers import OneByOne
from jobs.verify.queues import compare_queues
from rmq_formats.commitlog.layout import HEAD
from rmq_formats.commitlog.record import encode_record
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.consumequeue.unit import QueueRules
from rmq_formats.store import name_of_offset
from tests.rmq_formats.builders import a_record

COUNT = 60_000
A_FILE = 6_000  # units
TAG_A = 65  # Java's hash of "A"
T = "consumequeue/T/0"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store of one queue, whose records are all of one length."""
    record = np.frombuffer(encode_record(a_record(b"body", topic="T", properties={"TAGS": "A"}, queue_id=0)), np.uint8)
    numbers = np.arange(COUNT)
    log = np.tile(record, COUNT).reshape(COUNT, -1)
    for name, values in (("queue_offset", numbers), ("physical_offset", numbers * record.size)):
        at = HEAD.offset(name)
        log[:, at : at + 8] = values.astype(">i8").view(np.uint8).reshape(COUNT, 8)
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / name_of_offset(0)).write_bytes(log.tobytes())
    (tmp_path / T).mkdir(parents=True)
    for first in range(0, COUNT, A_FILE):
        units = (UNIT.pack(number * record.size, record.size, TAG_A) for number in range(first, first + A_FILE))
        (tmp_path / T / name_of_offset(first * UNIT.size)).write_bytes(b"".join(units))
    return tmp_path


def file_of(store: Path, number: int) -> Path:
    return store / T / name_of_offset(number * A_FILE * UNIT.size)


def findings(store: Path) -> list[Finding]:
    return compare_queues(OneByOne(), list_store(str(store)), QueueRules(), 2 << 20).report.findings


def places(found: list[Finding]) -> list[tuple[str, str, int]]:
    return [(finding.kind, Path(finding.file).name, finding.times) for finding in found]


def test_a_healthy_queue_has_no_finding(store: Path) -> None:
    assert findings(store) == []


@pytest.mark.parametrize("lost", [range(1), range(9), range(3, 6), range(9, 10)], ids=str)
def test_lost_files_that_follow_each_other_are_one_finding(store: Path, lost: range) -> None:
    for number in lost:
        file_of(store, number).unlink()

    assert places(findings(store)) == [("missing_file", file_of(store, lost.start).name, len(lost) * A_FILE)]


def test_units_of_a_lost_file_that_are_elsewhere_are_told_there(store: Path) -> None:
    """The units of the second file overwrite those of the last: where they should be is no file, and they are moved."""
    shutil.move(file_of(store, 1), file_of(store, 9))

    assert places(findings(store)) == [
        ("misplaced_unit", file_of(store, 9).name, A_FILE),
        ("missing_file", file_of(store, 1).name, A_FILE),
        ("missing_unit", file_of(store, 9).name, A_FILE),
    ]


def test_lost_files_take_no_more_memory_than_files_that_are_there(store: Path) -> None:
    """A lost file was an object of some hundred bytes for each of its units."""
    peaks = []
    for lost in (range(0), range(8)):
        for number in lost:
            file_of(store, number).unlink()
        compare_queues(OneByOne(), list_store(str(store)), QueueRules(), 2 << 20)  # loads kernels and fills caches
        gc.collect()
        tracemalloc.start()
        compare_queues(OneByOne(), list_store(str(store)), QueueRules(), 2 << 20)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert peaks[1] < peaks[0] + (1 << 20)
