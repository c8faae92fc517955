"""The newest runs of a store can be undone: their rows leave all tables together, and the next run reads them again."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.console.result import RequestError, Severity
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import list_lake_stores, read_gaps_and_filled
from jobs.lake.retention import Retention, remove_expired_rows
from jobs.library import undo_runs
from jobs.requests.typing import TypeRequest
from jobs.store.selection import Selection
from jobs.store.workers import SerialWorkers
from jobs.typed.declaration import read_types
from jobs.typed.run import type_lake
from rmq_formats.commitlog.record import MessageRecord
from tests.support.lakes import (
    compare_with_lake,
    encode_rows,
    ingest_store,
    raw_rows,
    restore_log,
    rows_of,
    state_without_locks,
)
from tests.support.query_stores import SEGMENT_SIZE, Sent, stored, write_store
from tests.support.stopping import KilledError, killing_after

STEP = 40
COLUMNS = {
    "messages": ("physical_offset", "topic", "body"),
    "consume_queue": ("topic", "queue_id", "queue_offset", "physical_offset", "status", "tags"),
    "index_entries": ("index_file", "entry", "key_hash", "physical_offset", "prev_entry"),
    "log_pieces": ("kind", "physical_offset", "length", "bytes"),
    "config_files": ("name", "to_offset", "bytes"),
    "quarantine": ("physical_offset", "length", "reason"),
}
Contents = dict[str, list[str]]


def write_messages(root: Path, count: int) -> list[MessageRecord]:
    shutil.rmtree(root, ignore_errors=True)
    sent = [
        Sent(
            "Audit" if number % 3 == 0 else "Orders",
            (f"k{number}",),
            queue_id=number % 2,
            body=b'{"id": %d}' % number,
            tags=f"t{number % 5}",
        )
        for number in range(count)
    ]
    records = stored(sent)
    write_store(root, records)
    (root / "config").mkdir()
    positions = {"offsetTable": {"Orders@group": {"0": count // 8}}}
    (root / "config" / "consumerOffset.json").write_text(json.dumps(positions))
    return records


def read_contents(lake: Path) -> Contents:
    found = {}
    for table, columns in COLUMNS.items():
        rows = rows_of(lake, table, "name" if table == "config_files" else "physical_offset")
        found[table] = sorted(str([row[name] for name in columns]) for row in rows)
    return found


def type_orders(lake: Path) -> None:
    path = lake.parent / "types.toml"
    path.write_text('[topic."Orders"]\nformat = "json"\nschema = "id bigint"\n')
    type_lake(TypeRequest(Lake(str(lake)), read_types(path)), SerialWorkers())


def make_lake(directory: Path, runs: int) -> tuple[list[Contents], list[MessageRecord]]:
    """Return the contents of a lake before its first run and after each run, and all records."""
    contents: list[Contents] = [{table: [] for table in COLUMNS}]
    records: list[MessageRecord] = []
    for number in range(1, runs + 1):
        records = write_messages(directory / "store", number * STEP)
        ingest_store(directory / "store", directory / "lake", "b")
        contents.append(read_contents(directory / "lake"))
    return contents, records


@pytest.mark.parametrize(("runs", "first"), [(3, 3), (3, 2), (2, 1)])
def test_the_rows_of_undone_runs_leave_all_tables_and_the_next_run_reads_them_again(
    runs: int, first: int, tmp_path: Path
) -> None:
    contents, records = make_lake(tmp_path, runs)
    lake = tmp_path / "lake"

    number = undo_runs(lake, first)
    undone = read_contents(lake)
    summary = ingest_store(tmp_path / "store", lake)

    assert runs + 1 == number
    assert contents[first - 1] == undone
    assert runs + 2 == summary.run
    assert encode_rows(records) == raw_rows(lake)
    for table in COLUMNS:
        of_runs = set(contents[-1][table])
        assert table == "config_files" or of_runs == set(read_contents(lake)[table])
        assert len(read_contents(lake)[table]) == len(set(read_contents(lake)[table]))
    assert compare_with_lake(tmp_path / "store", lake).severity is Severity.HEALTHY
    restored = restore_log(lake, tmp_path / "out")
    assert (restored.missing, restored.twice, restored.lost) == ([], [], [])


@pytest.mark.slow
def test_an_undo_that_is_killed_after_any_effect_and_repeated_loses_and_repeats_nothing(tmp_path: Path) -> None:
    contents, records = make_lake(tmp_path, 2)
    lake = tmp_path / "lake"
    kills = 0
    while True:
        copy = Path(shutil.copytree(lake, tmp_path / f"lake-{kills}"))
        with killing_after(kills + 1) as seen, suppress(KilledError):
            undo_runs(copy, 2)
        if kills % 2:  # the next run of `ingest` completes it, too
            ingest_store(tmp_path / "store", copy)
        undo_runs(copy, 2)
        undone = read_contents(copy)
        ingest_store(tmp_path / "store", copy)

        assert contents[1] == undone
        assert encode_rows(records) == raw_rows(copy)
        assert set(contents[2]["index_entries"]) == set(read_contents(copy)["index_entries"])
        if len(seen) <= kills:
            break
        kills += 1

    assert kills > 5


def test_the_units_of_a_store_with_many_queues_are_removed(tmp_path: Path) -> None:
    with patch("jobs.products.state_file.MAX_VALUES_IN_MANIFEST", 1):
        contents, records = make_lake(tmp_path, 3)
        lake = tmp_path / "lake"

        undo_runs(lake, 3)
        undone = read_contents(lake)
        ingest_store(tmp_path / "store", lake)

    assert contents[2] == undone
    assert contents[3]["consume_queue"] == read_contents(lake)["consume_queue"]
    assert encode_rows(records) == raw_rows(lake)


def test_a_repeated_undo_changes_nothing(tmp_path: Path) -> None:
    make_lake(tmp_path, 2)
    lake = tmp_path / "lake"
    number = undo_runs(lake, 2)
    before = state_without_locks(lake)

    assert number == undo_runs(lake, 2, broker="b")
    assert before == state_without_locks(lake)


def test_typed_rows_of_an_undone_run_are_removed_and_typed_again(tmp_path: Path) -> None:
    _, records = make_lake(tmp_path, 2)
    lake = tmp_path / "lake"
    type_orders(lake)
    undo_runs(lake, 2)
    type_orders(lake)
    kept = [row["physical_offset"] for row in rows_of(lake, "typed/Orders")]
    ingest_store(tmp_path / "store", lake)
    type_orders(lake)

    assert [one.physical_offset for one in records[:STEP] if one.topic == "Orders"] == kept
    assert [one.physical_offset for one in records if one.topic == "Orders"] == [
        row["physical_offset"] for row in rows_of(lake, "typed/Orders")
    ]


def test_typed_rows_are_right_when_the_range_is_read_again_before_the_next_typing(tmp_path: Path) -> None:
    _, records = make_lake(tmp_path, 2)
    lake = tmp_path / "lake"
    type_orders(lake)
    undo_runs(lake, 1)
    ingest_store(tmp_path / "store", lake)
    type_orders(lake)

    assert [one.physical_offset for one in records if one.topic == "Orders"] == [
        row["physical_offset"] for row in rows_of(lake, "typed/Orders")
    ]


def test_expired_messages_of_an_undone_run_stay_out(tmp_path: Path) -> None:
    contents, records = make_lake(tmp_path, 2)
    lake = tmp_path / "lake"
    cutoff = records[STEP + STEP // 2].store_timestamp
    list(remove_expired_rows(Lake(str(lake)), Retention(1), now_ms=cutoff + 1000))

    undo_runs(lake, 2)
    ingest_store(tmp_path / "store", lake)

    kept = [one for one in records if one.store_timestamp >= cutoff]
    assert len(contents[2]["messages"]) == len(records)
    assert encode_rows(kept) == raw_rows(lake)
    assert len(kept) == len(rows_of(lake, "consume_queue"))


def test_gaps_of_an_undone_run_are_forgotten(tmp_path: Path) -> None:
    records = write_messages(tmp_path / "store", 2 * STEP)
    lake, lost = tmp_path / "lake", tmp_path / "store" / "commitlog" / f"{SEGMENT_SIZE:020}"
    lost.rename(tmp_path / "lost")
    before = ingest_store(tmp_path / "store", lake, "b")
    (tmp_path / "lost").rename(lost)

    undo_runs(lake, 1)
    summary = ingest_store(tmp_path / "store", lake)

    (lake_store,) = list_lake_stores(Lake(str(lake)))
    assert (Severity.GAP, Severity.NOT_VERIFIED) == (before.severity, summary.severity)
    assert read_gaps_and_filled(Lake(str(lake)), lake_store) == ([], [])
    assert encode_rows(records) == raw_rows(lake)


def test_runs_that_changed_earlier_rows_are_not_undone(tmp_path: Path) -> None:
    make_lake(tmp_path, 1)
    lake = tmp_path / "lake"
    excluded = Selection(exclude_topics=("Audit",))
    ingest_store(tmp_path / "store", lake, selection=excluded, change_topics=True)
    write_messages(tmp_path / "store", 2 * STEP)
    ingest_store(tmp_path / "store", lake)
    ingest_store(tmp_path / "store", lake, backfill=("Audit",))
    before = state_without_locks(lake)

    for run, reason in ((0, "has no run 0"), (9, "its newest run is 5"), (4, "run 4 backfilled topics")):
        with pytest.raises(RequestError, match=reason):
            undo_runs(lake, run)

    assert before == state_without_locks(lake)


def test_a_run_that_added_the_units_of_a_backfilled_topic_is_undone(tmp_path: Path) -> None:
    records = write_messages(tmp_path / "store", STEP)
    lake = tmp_path / "lake"
    ingest_store(tmp_path / "store", lake, "b", selection=Selection(exclude_topics=("Audit",)))
    ingest_store(tmp_path / "store", lake, backfill=("Audit",))
    whole = read_contents(lake)["consume_queue"]

    undo_runs(lake, 3)
    undone = read_contents(lake)["consume_queue"]
    ingest_store(tmp_path / "store", lake)

    assert len(undone) < len(whole) == len(records)
    assert whole == read_contents(lake)["consume_queue"]
    assert encode_rows(records) == raw_rows(lake)
