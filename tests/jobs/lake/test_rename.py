"""The scripts of the guide rename a broker, and remove the rows of a store, in all tables; later runs respect it."""

from pathlib import Path

import pytest

from jobs.console.result import RequestError
from tests.support.broker import some_records
from tests.support.commands import ROOT
from tests.support.lakes import LakeOfBroker, ingest_store, rows_of
from tests.support.scenes import fences

SCRIPT, REMOVAL = [text for language, text in fences(ROOT / "docs" / "guides" / "move.md") if language == "python"]
TABLES = ("messages", "consume_queue", "index_entries", "log_pieces", "runs")


@pytest.mark.parametrize("times", [1, 2])
def test_a_renamed_broker_continues_its_store_under_the_new_label(times: int, tmp_path: Path) -> None:
    grown = LakeOfBroker(tmp_path)
    for _ in range(2):
        grown.grow()
        grown.run()
    before = [row["physical_offset"] for row in rows_of(grown.path)]
    script = SCRIPT.replace("/data/lake", str(grown.path)).replace('"broker-a"', '"b"').replace("broker-b", "new")

    for _ in range(times):
        exec(script, {})  # noqa: S102 - our own document
    offsets = grown.grow()
    summary = ingest_store(grown.broker.root, grown.path, "new")

    assert (3, len(offsets)) == (summary.run, summary.messages)
    assert before + offsets == [row["physical_offset"] for row in rows_of(grown.path)]
    for table in TABLES:
        order = "time" if table == "runs" else "physical_offset"
        assert {"new"} == {row["broker"] for row in rows_of(grown.path, table, order)}
    with pytest.raises(RequestError, match="which this lake has as broker 'new'"):
        grown.run()


@pytest.mark.parametrize("times", [1, 2])
def test_the_rows_of_a_removed_store_do_not_come_back_and_others_stay(times: int, tmp_path: Path) -> None:
    retired, other = LakeOfBroker(tmp_path / "retired"), LakeOfBroker(tmp_path / "other")
    other.broker.append(some_records(1, seed=12345))  # otherwise both would have the same bytes
    retired.grow()
    other.grow()
    lake = tmp_path / "lake"
    gone = ingest_store(retired.broker.root, lake, "retired").store_id
    ingest_store(other.broker.root, lake, "other")
    kept = [row["physical_offset"] for row in rows_of(lake) if row["store_id"] != gone]
    script = REMOVAL.replace("/data/lake", str(lake)).replace("00000000-0000-0000-0000-000000000000", str(gone))

    for _ in range(times):
        exec(script, {})  # noqa: S102 - our own document
    again = ingest_store(retired.broker.root, lake, "retired")
    offsets = other.grow()
    ingest_store(other.broker.root, lake, "other")

    assert again.messages == 0
    assert kept + offsets == [row["physical_offset"] for row in rows_of(lake)]
    for table in ("consume_queue", "index_entries", "log_pieces", "config_files"):
        order = "to_offset" if table == "config_files" else "physical_offset"
        assert gone not in {row["store_id"] for row in rows_of(lake, table, order)}
