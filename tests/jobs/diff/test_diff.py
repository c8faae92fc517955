"""A store and a lake of the same log: data that only one of them has is reported with its cause."""

from collections import Counter
from pathlib import Path

import pytest

from jobs.diff import DiffSummary
from tests.support.broker import Broker, some_records
from tests.support.fault_draws import draw_case, lake_of, plant_faults
from tests.support.lakes import compare_with_lake, ingest_store


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


@pytest.mark.parametrize("seed", range(4))
def test_a_segment_that_is_read_in_parts_has_the_same_differences(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = plant_faults(draw_case(seed), tmp_path)
    lake = Path(lake_of(one.draw.store).location)
    in_parts = compare_with_lake(one.root, lake)
    monkeypatch.setattr("jobs.diff._MOST_PARTS", -1)

    assert compare_with_lake(one.root, lake) == in_parts
