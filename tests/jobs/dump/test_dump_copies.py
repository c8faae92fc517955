"""`dump` of files that hold copies of records: compacted topics, and the tier of a tiered store."""

from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from tests.golden import StoreOf
from tests.support.commands import Run


def test_a_compacted_log_has_the_newest_record_of_each_key_and_zeros_after_it(situation: StoreOf, run: Run) -> None:
    folder = situation("b551-compaction") / "store/compaction"
    compacted, newer = sorted((folder / "compactionLog/Comp/0").iterdir())
    outcome = run("dump", "--json", compacted)
    *records, unwritten, end = outcome.lines

    assert outcome.code is ExitCode.CLEAN
    assert [record["queue_offset"] for record in records] == [*range(155, 162)]
    assert len({record["properties"]["KEYS"] for record in records}) == len(records)
    assert (unwritten["kind"], end["end"]) == ("unwritten", "open")
    assert run("dump", newer).code is ExitCode.CLEAN


def test_a_compacted_queue_has_a_batch_unit_for_each_record(situation: StoreOf, run: Run) -> None:
    folder = situation("b551-compaction") / "store/compaction"
    for log, queue in zip(*(sorted((folder / name / "Comp/0").iterdir()) for name in _FOLDERS), strict=True):
        records = [line for line in run("dump", "--json", log).lines if line["kind"] == "record"]
        units = [line for line in run("dump", "--json", queue).lines if line["kind"] == "unit"]

        assert [unit["unit"]["physical_offset"] for unit in units] == [record["offset"] for record in records]
        assert [unit["unit"]["base_offset"] for unit in units] == [record["queue_offset"] for record in records]


_FOLDERS = ("compactionLog", "compactionCq")


@pytest.mark.parametrize(("queue", "count"), [("Orders/0", 50), ("Orders/1", 50), ("Bills/0", 30)])
def test_a_tier_has_a_log_and_units_of_each_queue(situation: StoreOf, run: Run, queue: str, count: int) -> None:
    folder = situation("b550-tiered") / "tiered/212d6b50_DefaultCluster/b0" / queue
    records, units = (
        [
            line
            for path in sorted((folder / kind).iterdir(), key=lambda path: path.name[-20:])
            for line in run("dump", "--json", path).lines
            if line["kind"] in {"record", "unit"}
        ]
        for kind in ("COMMIT_LOG", "CONSUME_QUEUE")
    )
    ends = [0, *(record["offset"] + record["size"] for record in records)]

    assert [record["offset"] for record in records] == ends[:-1]
    assert [unit["unit"]["physical_offset"] for unit in units] == [record["offset"] for record in records]
    assert (
        [record["queue_offset"] for record in records]
        == [unit["position_in_queue"] for unit in units]
        == [*range(count)]
    )


def test_a_folder_above_the_store_may_have_any_name(situation: StoreOf, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "compaction/b0/store"
    folder.parent.mkdir(parents=True)
    folder.symlink_to(situation("b551-compaction") / "store")

    assert run("dump", "--limit", 1, folder / "commitlog" / f"{0:020d}").code is ExitCode.CLEAN
