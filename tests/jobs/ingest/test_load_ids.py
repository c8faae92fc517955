"""Each row of `messages` has the number and the start of the run that wrote it, for models that load new rows only."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from jobs.demo.tour import extract
from jobs.lake.tables import MESSAGES
from jobs.lake.upkeep import merge_small_files
from tests.support.broker import some_records
from tests.support.lakes import LakeOfBroker, ingest_store, rows_of
from tests.support.query_stores import Sent, stored, write_store

LAKES = Path(__file__).parents[2] / "lakes"


def read_new_rows(lake: Path, loaded: Counter[str]) -> list[dict[str, object]]:
    """Load as the recipe of the pages does: per store, the rows of later runs than those that were loaded."""
    new = [row for row in rows_of(lake) if row["run"] > loaded[row["store_id"]]]
    for row in new:
        loaded[row["store_id"]] = max(loaded[row["store_id"]], row["run"])
    return new


def test_rows_have_the_number_and_the_start_of_their_run(tmp_path: Path) -> None:
    grown = LakeOfBroker(tmp_path)
    before = datetime.now(UTC)
    written = dict[int, int]()
    for _ in range(3):
        offsets = grown.grow()
        written |= dict.fromkeys(offsets, grown.run().run or 0)
    merge_small_files(grown.lake, MESSAGES)
    rows = rows_of(grown.path)

    assert written == {row["physical_offset"]: row["run"] for row in rows}
    assert [1, 2, 3] == sorted(set(written.values()))
    times = [min(row["ingested_at"] for row in rows if row["run"] == run) for run in (1, 2, 3)]

    assert before <= times[0] < times[1] < times[2] <= datetime.now(UTC)
    assert 3 == len({row["ingested_at"] for row in rows})


def test_an_incremental_model_loses_no_row_of_the_slower_of_two_brokers(tmp_path: Path) -> None:
    """The run of the slower broker starts first and commits last: its rows are older than rows that were loaded."""
    slow = LakeOfBroker(tmp_path / "slow")
    fast = LakeOfBroker(tmp_path / "fast")
    slow.broker.append(some_records(1, seed=12345))  # otherwise both would have the same bytes
    first = slow.broker.offset
    lake = tmp_path / "lake"
    loaded = Counter[str]()
    found = list[tuple[str, int]]()
    expected = set[tuple[str, int]]()
    for number in range(3):
        for name, one in (("slow", slow), ("fast", fast)):
            expected |= {(name, offset) for offset in one.grow(5 + number)}
        ingest_store(fast.broker.root, lake, "fast")
        found += [(str(row["broker"]), int(str(row["physical_offset"]))) for row in read_new_rows(lake, loaded)]
        ingest_store(slow.broker.root, lake, "slow")
    found += [(str(row["broker"]), int(str(row["physical_offset"]))) for row in read_new_rows(lake, loaded)]

    assert sorted(expected) == sorted(row for row in found if row[0] == "fast" or row[1] >= first)
    assert len(set(found)) == len(found)


def test_rows_of_an_earlier_release_have_neither(tmp_path: Path) -> None:
    extract(LAKES / "da301fd.tar.xz", tmp_path)
    ended = ingest_store(write_store(tmp_path / "other", stored([Sent("T1")])), tmp_path / "lake", "other")
    rows = rows_of(tmp_path / "lake")

    assert {(None, None)} == {(row["run"], row["ingested_at"]) for row in rows if row["broker"] != "other"}
    assert {ended.run} == {row["run"] for row in rows if row["broker"] == "other"}
