"""A store and a lake of the same log: data that only one of them has is reported with its cause."""

from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.console.result import Severity
from jobs.diff import DiffSummary
from jobs.store.selection import Selection
from tests.support.broker import Broker, some_records
from tests.support.fault_draws import draw_case, lake_of, plant_faults
from tests.support.lakes import compare_with_lake, ingest_store, rows_of, table_of
from tests.support.stores import read_store_records

RELEASE = "5.3.3"


def ingest_to_lake(store: Path, selection: Selection | None = None) -> Path:
    lake = store.parent / "lake"
    ingest_store(store, lake, release=RELEASE, selection=selection or Selection())
    return lake


def compare(store: Path) -> DiffSummary:
    return compare_with_lake(store, store.parent / "lake")


def test_rows_that_another_engine_deletes_or_changes_are_reported(store: Path) -> None:
    offsets = [row["physical_offset"] for row in rows_of(ingest_to_lake(store))]
    table, where = DeltaTable(store.parent / "lake/messages"), "physical_offset BETWEEN {} AND {}"
    table.delete(where.format(offsets[10], offsets[12]))
    table.update({"flag": "flag + 1"}, predicate=where.format(offsets[20], offsets[21]))

    summary = compare(store)

    found = [(one.severity, one.what, one.start, one.records, one.cause) for one in summary.differences]
    changed = "another engine has changed the row since a run wrote it"
    assert sorted(found, key=lambda one: one[2]) == [
        (Severity.GAP, "only in the store", offsets[10], 3, "rows were deleted from the lake"),
        (Severity.DAMAGE, "changed in the lake", offsets[20], 2, changed),
    ]
    assert summary.exit_code == 3


def test_duplicate_rows_are_a_finding(store: Path) -> None:
    rows = table_of(ingest_to_lake(store) / "messages")
    write_deltalake(store.parent / "lake/messages", rows, mode="append")

    summary = compare(store)

    assert (summary.exit_code, summary.equal) == (3, rows.num_rows)
    assert {difference.what for difference in summary.differences} == {"twice in the lake"}
    assert sum(difference.records for difference in summary.differences) == rows.num_rows


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


def test_deleted_rows_of_a_selected_topic_are_a_finding(store: Path) -> None:
    """They were treated as messages of topics that were not selected, which are not a finding."""
    lake = ingest_to_lake(store, Selection(topics=("T1",)))
    chosen = len(rows_of(lake))
    DeltaTable(lake / "messages").delete("queue_id = 0")
    left = len(rows_of(lake))

    summary = compare(store)

    found = Counter[Severity]()
    for difference in summary.differences:
        found[difference.severity] += difference.records
    others = len(list(read_store_records(store))) - chosen
    assert (summary.exit_code, summary.equal) == (3, left)
    assert found == {Severity.GAP: chosen - left, Severity.NOT_VERIFIED: others}
    assert 0 < left < chosen


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
