"""Snapshots that are kept: as new as ones that were just opened, and opened no more."""

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from jobs.lake.commit import open_table, own_table
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import files, select
from jobs.lake.snapshots import kept_snapshots, open_delta
from tests.support.broker import Broker, some_records
from tests.support.lakes import ingest_store, rows_of

NAME = "things"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    add(tmp_path, 1)
    return Lake(str(tmp_path), {})


def add(folder: Path, *numbers: int) -> None:
    write_deltalake(folder / NAME, pa.table({"number": numbers}), mode="append")


def numbers(table: DeltaTable | None) -> list[int]:
    assert table is not None
    found: list[int] = table.to_pyarrow_table().column("number").to_pylist()
    return sorted(found)


def test_a_table_that_nobody_has_changed_is_opened_once(lake: Lake) -> None:
    with kept_snapshots():
        assert open_table(lake, NAME) is open_table(lake, NAME)
        assert own_table(lake, NAME) is own_table(lake, NAME)
        assert open_table(lake, NAME) is not own_table(lake, NAME)

    assert open_table(lake, NAME) is not open_table(lake, NAME)


def test_blocks_within_a_block_have_its_snapshots(lake: Lake) -> None:
    with kept_snapshots():
        with kept_snapshots():
            inner = open_table(lake, NAME)
        assert open_table(lake, NAME) is inner


def test_a_run_opens_a_table_to_read_it_and_to_change_it(tmp_path: Path) -> None:
    """It opened tables 41 times, which was two fifths of its work."""
    opened = Counter[str]()
    broker = Broker(tmp_path / "store")

    def counting(location: str, options: Mapping[str, str]) -> DeltaTable:
        opened[location.rpartition("/")[2]] += 1
        return open_delta(location, options)

    for number in (1, 2):
        broker.append(some_records(10, seed=number))
        opened.clear()
        with patch("jobs.lake.commit.open_delta", counting):
            ingest_store(broker.root, tmp_path / "lake", "b")

    assert opened["messages"] == 2
    assert max(opened.values()) == 2


def test_a_snapshot_that_is_read_stays_as_it_is_and_the_next_one_is_new(lake: Lake, tmp_path: Path) -> None:
    with kept_snapshots() as kept:
        before = open_table(lake, NAME)
        add(tmp_path, 2)
        after = open_table(lake, NAME)
        assert (numbers(before), numbers(after)) == ([1], [1, 2])
        assert numbers(own_table(lake, NAME)) == [1, 2]

        add(tmp_path, 3)
        kept.renew()
        assert open_table(lake, NAME) is after
        assert (numbers(before), numbers(after)) == ([1], [1, 2, 3])
        assert numbers(own_table(lake, NAME)) == [1, 2, 3]


@pytest.mark.parametrize("commits", [1, 2, 3])
def test_a_table_that_was_deleted_and_made_again_is_another_one(lake: Lake, tmp_path: Path, commits: int) -> None:
    add(tmp_path, 2)
    with kept_snapshots() as kept:
        assert numbers(open_table(lake, NAME)) == numbers(own_table(lake, NAME)) == [1, 2]
        shutil.rmtree(tmp_path / NAME)
        kept.renew()
        assert open_table(lake, NAME) is None
        assert own_table(lake, NAME) is None

        for number in range(commits):
            add(tmp_path, number + 7)
        kept.renew()
        expected = list(range(7, 7 + commits))
        assert numbers(open_table(lake, NAME)) == numbers(own_table(lake, NAME)) == expected


def test_a_log_that_cannot_be_read_is_said_by_whoever_asks_for_the_table(lake: Lake, tmp_path: Path) -> None:
    with kept_snapshots() as kept:
        assert numbers(open_table(lake, NAME)) == numbers(own_table(lake, NAME)) == [1]
        (tmp_path / NAME / "_delta_log" / f"{1:020d}.json").write_text("{no")
        kept.renew()
        for opened in (open_table, own_table):
            with pytest.raises(OSError, match="Delta's log cannot be read"):
                opened(lake, NAME)


def test_properties_and_columns_that_others_set_are_seen(lake: Lake, tmp_path: Path) -> None:
    with kept_snapshots() as kept:
        before = open_table(lake, NAME), own_table(lake, NAME)
        other = DeltaTable(tmp_path / NAME)
        other.alter.set_table_properties({"delta.appendOnly": "true"})
        other.alter.add_columns([Field("more", PrimitiveType("string"))])
        kept.renew()
        for seen in (open_table(lake, NAME), own_table(lake, NAME)):
            assert seen is not None
            assert seen in before
            assert seen.metadata().configuration["delta.appendOnly"] == "true"
            assert [field.name for field in seen.schema().fields] == ["number", "more"]
            assert seen.protocol().min_writer_version > 1


def test_files_whose_statistics_leave_no_wanted_row_are_not_opened(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store")
    for number in (1, 2):
        broker.append(some_records(10, seed=number))
        ingest_store(broker.root, tmp_path / "lake", "b")
    lake = Lake(str(tmp_path / "lake"))
    snapshot = open_delta(lake.locate("messages"), {})
    offsets = [row["physical_offset"] for row in rows_of(tmp_path / "lake")]
    older, newer = sorted(files(lake, snapshot), key=lambda file: file.low("physical_offset", 0))
    Path(lake.locate("messages", older.path)).write_bytes(b"")

    def found(where: pc.Expression) -> object:
        return select(lake, snapshot, ["physical_offset"], where, deleted=False)["physical_offset"].to_pylist()

    assert found(pc.field("physical_offset") >= newer.low("physical_offset", 0)) == offsets[10:]
    assert found(pc.field("physical_offset") > offsets[-1]) == []
    with pytest.raises(pa.ArrowInvalid, match=older.path):
        found(pc.field("physical_offset") <= older.low("physical_offset", 0))
