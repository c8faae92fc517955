"""The scripts of the guide rename a broker, and remove the rows of a store, in all tables; later runs respect it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest
from deltalake import DeltaTable

from jobs.console.result import RequestError
from tests.support.broker import some_records
from tests.support.commands import ROOT
from tests.support.lakes import LakeOfBroker, ingest_store, rows_of
from tests.support.scenes import fences
from tests.support.stopping import KilledError

SCRIPT, REMOVAL, UNDO = [
    text for language, text in fences(ROOT / "docs" / "guides" / "move.md") if language == "python"
]
NO_STORE = "00000000-0000-0000-0000-000000000000"
TABLES = ("messages", "consume_queue", "index_entries", "log_pieces", "runs")


@contextmanager
def killing_engine_after(tables: int) -> Iterator[None]:
    """End a script with an error before it changes one more table than these."""
    changed = 0

    def count(change: Callable[..., object]) -> Callable[..., object]:
        def changing(*args: object, **named: object) -> object:
            nonlocal changed
            if changed >= tables:
                raise KilledError
            changed += 1
            return change(*args, **named)

        return changing

    with (
        patch.object(DeltaTable, "update", count(DeltaTable.update)),
        patch.object(DeltaTable, "delete", count(DeltaTable.delete)),
    ):
        yield


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

    assert 3 == summary.run
    assert len(offsets) == summary.messages
    assert before + offsets == [row["physical_offset"] for row in rows_of(grown.path)]
    for table in TABLES:
        order = "time" if table == "runs" else "physical_offset"

        assert {"new"} == {row["broker"] for row in rows_of(grown.path, table, order)}
    with pytest.raises(RequestError, match="which this lake has as broker 'new'"):
        grown.run()


@pytest.mark.parametrize("script", ["rename", "remove"])
def test_a_script_that_is_killed_between_two_tables_and_repeated_loses_and_repeats_nothing(
    script: str, tmp_path: Path
) -> None:
    grown = LakeOfBroker(tmp_path)
    grown.grow()
    store_id = str(grown.run().store_id)
    text = SCRIPT if script == "rename" else REMOVAL
    text = text.replace('"broker-a"', '"b"').replace("broker-b", "new").replace(NO_STORE, store_id)
    tables = len(list(grown.path.rglob("_delta_log")))
    before = [row["physical_offset"] for row in rows_of(grown.path)] if script == "rename" else []
    for killed_after in range(tables):
        copy = grown.copied(tmp_path / f"copy-{killed_after}")
        with killing_engine_after(killed_after), suppress(KilledError):
            exec(text.replace("/data/lake", str(copy.path)), {})  # noqa: S102 - our own document
        exec(text.replace("/data/lake", str(copy.path)), {})  # noqa: S102 - our own document
        offsets = copy.grow() if script == "rename" else []

        summary = ingest_store(copy.broker.root, copy.path, "new" if script == "rename" else "b")

        assert len(offsets) == summary.messages
        for table in ("messages", "consume_queue"):
            found = [row["physical_offset"] for row in rows_of(copy.path, table)]
            assert before + offsets == found
        assert {"new" if script == "rename" else "b"} == {row["broker"] for row in rows_of(copy.path, "runs", "time")}

    assert tables > 5


def test_the_script_of_the_guide_undoes_a_run(tmp_path: Path) -> None:
    grown = LakeOfBroker(tmp_path)
    first = grown.grow()
    grown.run()
    second = grown.grow()
    grown.run()
    script = UNDO.replace("/data/lake", str(grown.path)).replace("broker-a", "b").replace("first_run=12", "first_run=2")

    exec(script.replace("rocketmq_lake", "jobs"), {})  # noqa: S102 - our own document
    left = [row["physical_offset"] for row in rows_of(grown.path)]
    summary = grown.run()

    assert first == left
    assert len(second) == summary.messages
    assert first + second == [row["physical_offset"] for row in rows_of(grown.path)]


@pytest.mark.parametrize("times", [1, 2])
def test_the_rows_of_a_removed_store_do_not_come_back_and_others_stay(times: int, tmp_path: Path) -> None:
    retired = LakeOfBroker(tmp_path / "retired")
    other = LakeOfBroker(tmp_path / "other")
    other.broker.append(some_records(1, seed=12345))  # otherwise both would have the same bytes
    retired.grow()
    other.grow()
    lake = tmp_path / "lake"
    gone = ingest_store(retired.broker.root, lake, "retired").store_id
    ingest_store(other.broker.root, lake, "other")
    kept = [row["physical_offset"] for row in rows_of(lake) if row["store_id"] != gone]
    script = REMOVAL.replace("/data/lake", str(lake)).replace(NO_STORE, str(gone))

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
