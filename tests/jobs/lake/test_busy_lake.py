"""A lake that is large, or that everybody works on at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable

from jobs.lake.commit import commit
from jobs.lake.lake import Lake
from jobs.lake.runs import known_stores
from jobs.lake.tables import QUARANTINE
from jobs.lake.upkeep import optimize
from jobs.store.workers import OneByOne
from tests.jobs.lake.test_runs import a_file
from tests.support.broker import Broker, some_records
from tests.support.lakes import ingest_store, leftovers, rows_of

RUNS = 4
FILES = 10_000


def test_two_stores_into_one_lake_beside_optimize_and_a_vacuum(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    brokers = {name: Broker(tmp_path / name) for name in ("a", "b")}
    for name, broker in brokers.items():
        broker.append(some_records(5, seed=ord(name)))
        ingest_store(broker.root, lake, name)

    def fill(name: str) -> list[int]:
        found = []
        for number in range(RUNS):
            found += [record.physical_offset for record in brokers[name].append(some_records(4, seed=number))]
            ingest_store(brokers[name].root, lake, name)
        return found

    def keep_in_shape() -> None:
        for _ in range(RUNS // 2):
            optimize(str(lake), OneByOne())
            DeltaTable(lake / "messages").vacuum(168, dry_run=False, full=True)

    with ThreadPoolExecutor(3) as pool:
        filled = {name: pool.submit(fill, name) for name in brokers}
        pool.submit(keep_in_shape).result()
        new = {name: future.result() for name, future in filled.items()}

    rows = rows_of(lake)
    for name in brokers:
        offsets = [row["physical_offset"] for row in rows if row["broker"] == name]
        assert offsets[5:] == new[name]
    assert leftovers(lake) == []


@pytest.mark.campaign
@pytest.mark.timeout(1800)  # on a busy machine
def test_a_lake_of_ten_thousand_files(broker: Broker, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    broker.append(some_records(5))
    ingest_store(broker.root, lake.location, "b")
    (known,) = known_stores(lake)
    commit(lake, QUARANTINE, [a_file(lake, known.store_id, 0, offset) for offset in range(FILES)], ("many", 1), {})

    broker.append(some_records(5, seed=2))
    assert ingest_store(broker.root, lake.location, "b").messages == 5
    saved = {table.table: table for table in optimize(lake.location, OneByOne())}

    assert (saved["quarantine"].merged, saved["quarantine"].written) == (FILES, 1)
    assert [found["physical_offset"] for found in rows_of(tmp_path / "lake", "quarantine")] == list(range(FILES))
    assert len(rows_of(tmp_path / "lake")) == 10
