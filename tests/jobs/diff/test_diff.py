"""A store and a lake of the same log: data that only one of them has is reported with its cause."""

import errno
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from jobs.console.result import Severity
from jobs.diff import DiffSummary
from tests.support.broker import Broker, some_records
from tests.support.fault_draws import draw_case, lake_of, plant_faults
from tests.support.lakes import compare_with_lake, ingest_store
from tests.support.meanwhile import fail_reads_of_first_segment


def ingest_to_lake(store: Path) -> None:
    ingest_store(store, store.parent / "lake", release="5.3.3")


def compare(store: Path) -> DiffSummary:
    return compare_with_lake(store, store.parent / "lake")


def test_a_rewritten_log_contradicts_the_lake(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store")
    broker.append(some_records(60))
    truncated = broker.append(some_records(20, seed=2))
    ingest_to_lake(broker.root)
    broker.truncate(truncated[5].physical_offset)
    broker.append(some_records(40, seed=3))

    assert compare(broker.root).exit_code == 4
    ingest_to_lake(broker.root)

    assert compare(broker.root).exit_code == 0


def test_records_that_equal_their_rows_are_read_once(tmp_path: Path, reads: Counter[int]) -> None:
    broker = Broker(tmp_path / "store", segment_size=3 << 20)
    broker.append(some_records(10_000))
    ingest_to_lake(broker.root)
    reads.clear()
    compare(broker.root)

    assert broker.offset <= reads.total() < 1.5 * broker.offset


def test_records_next_to_a_sector_that_the_disk_cannot_read_are_equal(tmp_path: Path) -> None:
    """All records that were compared with one read were reported as different."""
    broker = Broker(tmp_path / "store")
    records = broker.append(some_records(60))
    ingest_to_lake(broker.root)
    damaged = records[30]

    def touches(position: int, length: int) -> bool:
        return position < damaged.end_offset and position + length > damaged.physical_offset

    with fail_reads_of_first_segment(errno.EIO, touches):
        found = compare(broker.root)

    assert (Severity.DAMAGE, len(records) - 1) == (found.severity, found.equal)


@pytest.mark.parametrize("failing", range(3, 6))
def test_a_read_that_fails_once_does_not_look_like_a_difference(failing: int, tmp_path: Path) -> None:
    """Records that the second read returned unchanged were a contradiction."""
    broker = Broker(tmp_path / "store")
    broker.append(some_records(60))
    ingest_to_lake(broker.root)
    reads = count(1)

    with fail_reads_of_first_segment(errno.EIO, lambda *_: next(reads) == failing):
        try:
            found = compare(broker.root).severity.value
        except OSError as error:
            found = str(error.filename)

    assert found == "healthy" or "commitlog" in found


@pytest.mark.parametrize("seed", range(4))
def test_a_segment_that_is_read_in_parts_has_the_same_differences(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = plant_faults(draw_case(seed), tmp_path)
    lake = Path(lake_of(one.draw.store).location)
    in_parts = compare_with_lake(one.root, lake)
    monkeypatch.setattr("jobs.diff._MOST_PARTS", -1)

    assert compare_with_lake(one.root, lake) == in_parts
