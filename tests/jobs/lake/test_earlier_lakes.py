"""Lakes that earlier commits wrote: read, continued, merged and verified as if they were today's."""

from pathlib import Path

import pytest

from jobs.demo import extract
from jobs.ingest.request import Summary
from jobs.lake.compaction import compact
from jobs.lake.history import history_conflict
from jobs.lake.integrity import newest_runs
from jobs.lake.lake import Lake
from jobs.lake.runs import known_stores
from jobs.lake.tables import WRITTEN_BY_RUNS
from jobs.store.store import list_store
from tests.support.broker import Broker, some_records
from tests.support.lakes import ingest_store, raw_rows, rows_of
from tests.support.stores import files_in

LAKES = Path(__file__).parents[2] / "lakes"
LATER = ("record_crc", "body_error", "body_inflated")  # columns that the archives' versions did not have


def played(root: Path) -> Broker:
    broker = Broker(root, dispatches=True)
    broker.append(some_records(60))
    placed = broker.append(some_records(30, seed=2))
    broker.truncate(placed[20].physical_offset)
    broker.append(some_records(40, seed=3))
    broker.append(some_records(60, seed=4))
    return broker


def of_log(lake: Path, table: str, end: int = 1 << 62) -> list[str]:
    rows = [row for row in rows_of(lake, table) if row["physical_offset"] < end]
    return sorted(repr({name: value for name, value in row.items() if name not in LATER}) for row in rows)


def run(store: Path, lake: Path) -> Summary:
    return ingest_store(store, lake, "b")


@pytest.mark.parametrize("commit", sorted(path.name.removesuffix(".tar.xz") for path in LAKES.glob("*.tar.xz")))
def test_a_lake_of_an_earlier_commit_is_continued(commit: str, tmp_path: Path) -> None:
    extract(LAKES / f"{commit}.tar.xz", tmp_path)
    store, lake = tmp_path / "store", tmp_path / "lake"
    broker = played(tmp_path / "again")
    assert files_in(store) == files_in(broker.root)
    before = {name: of_log(lake, name) for name in ("messages", "consume_queue", "index_entries")}

    unchanged = run(broker.root, lake)
    placed = broker.append(some_records(50, seed=5))
    continued = run(broker.root, lake)
    fresh = run(broker.root, tmp_path / "fresh")

    assert (unchanged.run, unchanged.messages) == (None, 0)
    assert (continued.run, continued.messages, continued.units["matched"]) == (4, 50, 50)
    assert continued.index_entries == 3 * len(placed)
    assert raw_rows(lake) == raw_rows(tmp_path / "fresh")
    assert fresh.messages == 60 + 20 + 40 + 60 + 50
    for name, rows in before.items():
        assert of_log(lake, name, placed[0].physical_offset) == rows

    of_lake = Lake(str(lake))
    for table in WRITTEN_BY_RUNS:
        compact(of_lake, table)
    known = known_stores(of_lake)[0]
    assert raw_rows(lake) == raw_rows(tmp_path / "fresh")
    assert history_conflict(of_lake, known, list_store(str(broker.root))) is None
    assert newest_runs(of_lake, known, is_done=True, spared=frozenset())["messages"] == 4
