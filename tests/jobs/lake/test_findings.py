"""The history of a store's faults in the lake."""

from pathlib import Path

from jobs.lake.findings import Finding
from jobs.lake.identity import identify
from jobs.lake.integrity import record_findings
from jobs.lake.lake import Lake
from jobs.store.store import list_store
from tests.golden import StoreOf
from tests.support.lakes import ingest_store, table_of

FINDING = Finding(
    "queues", "dangling", "consumequeue/T1/0/00000000000000000000", 40, "physical_offset", "1", "2", "why", 3
)


def test_each_verification_is_kept_under_its_own_number(golden: StoreOf, tmp_path: Path) -> None:
    root = golden("b551-base")
    summary = ingest_store(root, tmp_path, "b0")
    lake = Lake(str(tmp_path))
    known = identify(lake, list_store(str(root)), None, register_new=False)

    assert [record_findings(lake, known, None, found) for found in ([FINDING], [], [FINDING, FINDING])] == [1, 2, 3]

    rows = table_of(tmp_path / "findings").to_pylist()
    assert sorted(row["verification"] for row in rows) == [1, 3, 3]
    assert {(row["broker"], row["store_id"]) for row in rows} == {("b0", summary.store_id)}
    kept = {key: rows[0][key] for key in Finding._fields if key in rows[0]}
    assert kept.items() <= FINDING._asdict().items()
    assert len(kept) == 9
