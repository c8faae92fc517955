"""How often a repair reads the log: segments that it does not change are read once for each purpose."""

import os
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.diagnosis.log_check import check_range
from jobs.lake.lake import Lake
from jobs.repair.remembered import RememberingWorkers
from jobs.repair.run import RepairRequest, repair
from jobs.store.chain import run_range
from jobs.store.ranges import WHOLE_SEGMENTS, Range, plan_ranges
from jobs.store.store import list_store
from jobs.store.workers import OneByOne
from tests.golden import StoreOf
from tests.support.fault_kinds import STORE, WANTED
from tests.support.lakes import ingest_store


def _zero_a_page(store: Path) -> None:
    with sorted((store / "commitlog").iterdir())[2].open("r+b") as file:
        file.seek(4096)
        file.write(bytes(4096))


def _delete_a_queue_file(store: Path) -> None:
    min((store / "consumequeue" / "T1").glob("*/0*0")).unlink()


def _delete_an_index_file(store: Path) -> None:
    min((store / "index").iterdir()).unlink()


# The segments are tiny. In each pass a fourth of such a file is read besides, to find where the log ends, and the like.
@pytest.mark.parametrize(
    ("damage", "most"),
    [
        pytest.param([_zero_a_page], 3.3, id="page"),
        pytest.param([_zero_a_page, _delete_a_queue_file, _delete_an_index_file], 4.4, id="page and files"),
    ],
)
def test_segments_that_stay_are_read_once_for_each_purpose(
    golden: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: list[Any], most: float
) -> None:
    store, lake = Path(copytree(golden(STORE), tmp_path / "store")), tmp_path / "lake"
    ingest_store(store, lake, release="5.3.3")
    for harm in damage:
        harm(store)
    segment = sorted((store / "commitlog").iterdir())[1]
    read = 0
    preadv = os.preadv

    def counting(descriptor: int, *rest: Any) -> int:  # noqa: ANN401
        nonlocal read
        count = preadv(descriptor, *rest)
        read += count if os.fstat(descriptor).st_ino == segment.stat().st_ino else 0
        return count

    monkeypatch.setattr(os, "preadv", counting)
    request = RepairRequest(str(store), tmp_path / "repair", Lake(str(lake)), None, WANTED, apply=True)

    summary = repair(request, OneByOne())

    assert summary.exit_code is ExitCode.CLEAN
    assert 1 < read / segment.stat().st_size <= most


def test_a_segment_that_changed_is_read_again(golden: StoreOf, tmp_path: Path) -> None:
    store = Path(copytree(golden(STORE), tmp_path / "store"))
    ranges = plan_ranges(list_store(str(store)), range_size=WHOLE_SEGMENTS)[:-1]
    read: list[int] = []

    class Counting(OneByOne):
        def map(self, items: Any, *rest: Any) -> list[Any]:  # noqa: ANN401
            read.extend(range_.base_offset for range_ in items if isinstance(range_, Range))
            return super().map(items, *rest)

    workers = RememberingWorkers(Counting(), store)
    task = partial(run_range, task=check_range)

    first = workers.map(ranges, task)
    second = workers.map(ranges, task)
    assert read == [range_.base_offset for range_ in ranges]
    assert second == first

    del read[:]
    place = Path(ranges[1].location)
    place.with_name("copy").write_bytes(place.read_bytes())
    place.with_name("copy").replace(place)
    assert workers.map(ranges, task) == first
    assert read == [ranges[1].base_offset]
