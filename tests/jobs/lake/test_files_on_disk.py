"""How many files a lake keeps after many runs, and what readers of older versions find."""

import json
import os
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from deltalake import DeltaTable

from jobs.lake import upkeep
from jobs.lake.commit import FILE_RETENTION_PROPERTY, LOG_RETENTION_PROPERTY
from tests.support.lakes import LakeOfBroker, ingest_store, raw_rows

_TURN = 4  # runs from one maintenance to the next
_TABLES = ("messages", "consume_queue", "index_entries", "index_files", "runs")


def run_every(lake_of_broker: LakeOfBroker, interval_s: float, runs: int, *, ends_ago_s: float = 0) -> None:
    """Run as if at regular times, the last one *ends_ago_s* ago: files and log entries are dated accordingly."""
    dated = list_files(lake_of_broker)
    for number in range(runs):
        at = time.time_ns() / 1e9 - ends_ago_s - (runs - 1 - number) * interval_s
        lake_of_broker.grow(3)
        with (
            patch("jobs.lake.commit.time.time", lambda at=at: at),
            patch.multiple(
                upkeep, MAX_SMALL_FILES=_TURN, _RUNS_KEPT=_TURN, _measure_runs=lambda *_: _TURN * interval_s
            ),
        ):
            assert lake_of_broker.run().messages == 3
        for path in list_files(lake_of_broker) - dated:
            dated.add(path)
            os.utime(path, (at, at))


def list_files(lake_of_broker: LakeOfBroker) -> set[Path]:
    return {path for path in lake_of_broker.path.rglob("*") if path.is_file()}


def read_retention(lake_of_broker: LakeOfBroker, table: str = "consume_queue") -> tuple[str, str]:
    values = DeltaTable(lake_of_broker.path / table).metadata().configuration
    return values[LOG_RETENTION_PROPERTY], values[FILE_RETENTION_PROPERTY]


def count_files(lake_of_broker: LakeOfBroker) -> dict[str, int]:
    return {table: len([path for path in list_files(lake_of_broker) if table in path.parts]) for table in _TABLES}


@pytest.fixture
def lake_of_broker(tmp_path: Path) -> LakeOfBroker:
    return LakeOfBroker(tmp_path, dispatches=True)


def test_the_number_of_files_does_not_grow_with_the_number_of_runs(tmp_path: Path) -> None:
    few, many = (LakeOfBroker(tmp_path / name, dispatches=True) for name in ("few", "many"))

    run_every(few, 21_600, 4 * _TURN)
    run_every(many, 21_600, 8 * _TURN)

    assert len(raw_rows(many.path)) == 8 * _TURN * 3
    of_few, of_many = count_files(few), count_files(many)
    assert all(of_many[table] <= of_few[table] + 3 for table in _TABLES), (of_few, of_many)


def test_versions_of_the_retention_time_stay_readable(lake_of_broker: LakeOfBroker) -> None:
    run_every(lake_of_broker, 3600, 15)
    newest = DeltaTable(lake_of_broker.path / "messages").version()

    rows = [
        DeltaTable(lake_of_broker.path / "messages", version=version).to_pyarrow_table().num_rows
        for version in range(newest - 3, newest + 1)
    ]

    assert rows == sorted(rows)
    assert rows[-1] == 15 * 3


def test_a_reader_that_opened_a_table_before_a_merge_can_finish(lake_of_broker: LakeOfBroker) -> None:
    run_every(lake_of_broker, 1800, _TURN - 1, ends_ago_s=1800)
    opened = DeltaTable(lake_of_broker.path / "messages")

    run_every(lake_of_broker, 1800, 2)

    assert DeltaTable(lake_of_broker.path / "messages").file_uris() != opened.file_uris()
    assert opened.to_pyarrow_table().num_rows == (_TURN - 1) * 3


@pytest.mark.parametrize(
    ("interval_s", "kept"),
    [(3600, "interval 14400 seconds"), (300, "interval 3600 seconds"), (86_400, "interval 7 days")],
)
def test_files_are_kept_for_some_runs_but_at_least_an_hour(
    interval_s: int, kept: str, lake_of_broker: LakeOfBroker
) -> None:
    run_every(lake_of_broker, interval_s, _TURN)

    found = read_retention(lake_of_broker)

    assert (kept, kept) == found


def test_a_stream_of_messages_that_is_resumed_once_a_day_finds_every_commit(lake_of_broker: LakeOfBroker) -> None:
    run_every(lake_of_broker, 1800, 5 * _TURN)

    table = lake_of_broker.path / "messages"
    commits = [
        (table / "_delta_log" / f"{version:020}.json").read_text().splitlines()
        for version in range(DeltaTable(table).version() + 1)
    ]
    added = [action["add"]["path"] for commit in commits for action in map(json.loads, commit) if "add" in action]
    assert len(added) > 5 * _TURN
    assert all((table / path).exists() for path in added)
    assert ("interval 90000 seconds", "interval 90000 seconds") == read_retention(lake_of_broker, "messages")


def test_files_are_kept_longer_once_runs_are_rarer(lake_of_broker: LakeOfBroker) -> None:
    run_every(lake_of_broker, 3600, _TURN)
    run_every(lake_of_broker, 36_000, _TURN)

    assert ("interval 144000 seconds", "interval 144000 seconds") == read_retention(lake_of_broker)


@pytest.mark.parametrize("kept", ["interval 30 days", "interval 10 minutes", "interval 60 seconds"])
def test_a_retention_time_that_a_user_has_set_stays(kept: str, lake_of_broker: LakeOfBroker) -> None:
    lake_of_broker.grow(3)
    lake_of_broker.run()
    DeltaTable(lake_of_broker.path / "consume_queue").alter.set_table_properties(
        {LOG_RETENTION_PROPERTY: kept, FILE_RETENTION_PROPERTY: kept}
    )

    run_every(lake_of_broker, 3600, _TURN)

    assert (kept, kept) == read_retention(lake_of_broker)
    assert read_retention(lake_of_broker, "index_entries")[0].endswith("seconds")


def test_runs_in_quick_succession_delete_nothing(lake_of_broker: LakeOfBroker) -> None:
    run_every(lake_of_broker, 1, 2 * _TURN)

    names = [path.name for path in list_files(lake_of_broker) if path.parts[-2:-1] == ("messages",)]
    assert ("interval 7 days", "interval 7 days") == read_retention(lake_of_broker)
    assert len(names) == 2 * _TURN + 2


def test_the_first_run_of_a_large_log_merges_its_many_tiny_files(lake_of_broker: LakeOfBroker) -> None:
    """A run wrote two files of `log_pieces` for each segment, and `restore` opened all of them."""
    lake_of_broker.grow(800)

    with patch.object(upkeep, "_MAX_TINY_FILES", 8):
        ingest_store(lake_of_broker.broker.root, lake_of_broker.path, "b", range_size=2048)

    pieces = DeltaTable(lake_of_broker.path / "log_pieces")
    assert len(pieces.history()) > 1
    assert len(pieces.file_uris()) == 1
