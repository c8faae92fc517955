"""Gaps and damage of earlier runs are filled when the store, or a replica, has the messages: exactly once."""

import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from jobs.console.result import ExitCode, Severity
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import list_lake_stores, read_gaps_and_filled
from jobs.query.lake_source import RunRecords
from jobs.query.lake_tables import LakeTables
from rmq_formats.commitlog.record import MessageRecord
from tests.support.commands import Run
from tests.support.lakes import compare_with_lake, encode_rows, ingest_store, raw_rows, restore_log, rows_of
from tests.support.query_stores import SEGMENT_SIZE, Sent, stored, write_store
from tests.support.stopping import KilledError, killing_after

COUNT = 80
Fault = Callable[[Path, list[MessageRecord]], None]


def write_messages(root: Path, count: int = COUNT) -> list[MessageRecord]:
    records = stored([Sent(keys=(f"k{number}",), body=b"body %d" % number) for number in range(count)])
    write_store(root, records)
    return records


def segments(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def lose_segment(store: Path, _: list[MessageRecord]) -> None:
    segments(store)[1].unlink()


def truncate_segment(store: Path, _: list[MessageRecord]) -> None:
    path = segments(store)[1]
    path.write_bytes(path.read_bytes()[:1000])


def damage_record(store: Path, records: list[MessageRecord]) -> None:
    """Overwrite two records in the middle of a segment, the first one with its size."""
    first = next(one for one in records if one.physical_offset > SEGMENT_SIZE + 500)
    path = segments(store)[first.physical_offset // SEGMENT_SIZE]
    data = bytearray(path.read_bytes())
    position = first.physical_offset % SEGMENT_SIZE
    data[position : position + first.total_size + 30] = b"\xff" * (first.total_size + 30)
    path.write_bytes(data)


def damage_body(store: Path, records: list[MessageRecord]) -> None:
    record = next(one for one in records if one.physical_offset > SEGMENT_SIZE + 500)
    path = segments(store)[record.physical_offset // SEGMENT_SIZE]
    path.write_bytes(path.read_bytes().replace(record.body, b"X" * len(record.body)))


FAULTS = [lose_segment, truncate_segment, damage_record, damage_body]


def make_lake_with_gap(directory: Path, fault: Fault) -> tuple[Path, list[MessageRecord]]:
    """Return a lake of a damaged store, and all records; the intact store is in the directory `replica`."""
    records = write_messages(directory / "store")
    shutil.copytree(directory / "store", directory / "replica")
    fault(directory / "store", records)
    lake = directory / "lake"
    ingest_store(directory / "store", lake, "b")
    assert len(rows_of(lake)) < len(records)
    return lake, records


def repair(directory: Path) -> None:
    """Restore the log in its own directory."""
    shutil.copytree(directory / "replica" / "commitlog", directory / "store" / "commitlog", dirs_exist_ok=True)


def list_filled(lake: Path) -> list[dict[str, object]]:
    details = [json.loads(row["detail"] or "{}") for row in rows_of(lake, "runs", "time")]
    return [one for detail in details for one in detail.get("filled", ())]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_next_run_fills_the_gap_of_a_repaired_store(fault: Fault, tmp_path: Path) -> None:
    lake, records = make_lake_with_gap(tmp_path, fault)

    assert ingest_store(tmp_path / "store", lake).filled == []
    repair(tmp_path)

    summary = ingest_store(tmp_path / "store", lake)

    assert encode_rows(records) == raw_rows(lake)
    assert [str(tmp_path / "store")] == [one["source"] for one in summary.filled]
    assert summary.filled == list_filled(lake)
    assert summary.severity is Severity.NOT_VERIFIED
    assert rows_of(lake, "quarantine") == []
    assert compare_with_lake(tmp_path / "replica", lake).severity is Severity.HEALTHY
    restored = restore_log(lake, tmp_path / "out")

    assert restored.missing == []
    assert restored.twice == []
    assert restored.lost == []
    for path in segments(tmp_path / "replica"):
        assert path.read_bytes() == (tmp_path / "out" / "commitlog" / path.name).read_bytes()

    assert ingest_store(tmp_path / "store", lake).filled == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_replica_fills_the_gap_only_if_the_user_wants_it(fault: Fault, tmp_path: Path) -> None:
    lake, records = make_lake_with_gap(tmp_path, fault)

    assert ingest_store(tmp_path / "replica", lake).filled == []

    summary = ingest_store(tmp_path / "replica", lake, fill_gaps=True)

    assert len(summary.filled) == 1
    assert encode_rows(records) == raw_rows(lake)


def test_a_store_with_other_bytes_next_to_the_gap_does_not_fill_it(tmp_path: Path) -> None:
    lake, records = make_lake_with_gap(tmp_path, damage_record)
    before = rows_of(lake)
    path = segments(tmp_path / "replica")[1]
    lost = {one.physical_offset for one in records} - {row["physical_offset"] for row in before}
    neighbor = max(one.physical_offset for one in records if one.physical_offset < min(lost))
    data = bytearray(path.read_bytes())
    data[neighbor % SEGMENT_SIZE + 30] ^= 1  # a byte of its header that no checksum of the record covers
    path.write_bytes(data)

    summary = ingest_store(tmp_path / "replica", lake, fill_gaps=True)

    assert summary.filled == []
    assert before == rows_of(lake)


def test_messages_of_a_filled_gap_are_found_by_their_keys(tmp_path: Path, run: Run) -> None:
    lake, records = make_lake_with_gap(tmp_path, lose_segment)
    number = next(at for at, one in enumerate(records) if one.physical_offset >= SEGMENT_SIZE)
    query = ("query", "by-key", "--lake", lake, "-t", "Orders", "-k", f"k{number}")
    before = run(*query)

    assert "was missing when it was ingested" in before.err
    repair(tmp_path)
    ingest_store(tmp_path / "store", lake)
    shutil.rmtree(tmp_path / "store")
    write_messages(tmp_path / "store", COUNT + 20)  # the next run writes index entries of later messages
    ingest_store(tmp_path / "store", lake)

    found = run(*query)

    assert ExitCode.NOT_FOUND == before.code
    assert ExitCode.CLEAN == found.code
    assert "missing" not in found.err


def test_damage_that_is_left_in_a_filled_gap_is_quarantined_and_filled_later(tmp_path: Path) -> None:
    lake, records = make_lake_with_gap(tmp_path, lose_segment)
    intact = segments(tmp_path / "replica")[1].read_bytes()
    repair(tmp_path)
    damage_record(tmp_path / "store", records)

    ingest_store(tmp_path / "store", lake)
    partly = len(rows_of(lake))
    (damage,) = rows_of(lake, "quarantine")
    segments(tmp_path / "store")[1].write_bytes(intact)
    ingest_store(tmp_path / "store", lake)

    assert 0 < damage["length"] < SEGMENT_SIZE
    assert partly < len(records)
    assert encode_rows(records) == raw_rows(lake)


def test_a_run_that_fills_a_gap_and_is_killed_after_any_effect_fills_it_once(tmp_path: Path) -> None:
    lake, records = make_lake_with_gap(tmp_path, lose_segment)
    repair(tmp_path)
    kills = 0
    while True:
        copy = Path(shutil.copytree(lake, tmp_path / f"lake-{kills}"))
        with killing_after(kills + 1) as seen, suppress(KilledError):
            ingest_store(tmp_path / "store", copy)
        ingest_store(tmp_path / "store", copy)

        assert encode_rows(records) == raw_rows(copy)
        assert len(list_filled(copy)) == 1
        if len(seen) <= kills:
            break
        kills += 1

    assert kills > 5


def lose_end(directory: Path, count: int = 1) -> list[Path]:
    """Move the last segments of the store away, and return their places."""
    lost = segments(directory / "store")[-count:]
    for path in lost:
        path.rename(directory / path.name)
    return lost


def test_a_gap_at_the_end_of_the_log_closes_when_a_run_reads_the_messages_that_have_returned(tmp_path: Path) -> None:
    records = write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    (lost,) = lose_end(tmp_path)
    before = ingest_store(tmp_path / "store", lake, "b")
    (tmp_path / lost.name).rename(lost)

    summary = ingest_store(tmp_path / "store", lake)
    later = ingest_store(tmp_path / "store", lake)

    (lake_store,) = list_lake_stores(Lake(str(lake)))

    assert ["the end of the log is missing" in gap["why"] for gap in before.gaps] == [True]
    assert Severity.GAP == before.severity
    assert Severity.NOT_VERIFIED == summary.severity
    assert not later.open
    assert later.filled == []
    assert encode_rows(records) == raw_rows(lake)
    assert RunRecords(LakeTables(str(lake), {}), lake_store.store_id).gaps == []
    assert read_gaps_and_filled(Lake(str(lake)), lake_store) == ([], [])


def test_the_gaps_at_the_end_of_a_log_that_returns_in_parts_close_with_its_last_part(tmp_path: Path) -> None:
    records = write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    first, second = lose_end(tmp_path, 2)
    severities = [ingest_store(tmp_path / "store", lake, "b").severity]
    for path in (first, second):
        (tmp_path / path.name).rename(path)
        severities.append(ingest_store(tmp_path / "store", lake).severity)

    assert [Severity.GAP, Severity.GAP, Severity.NOT_VERIFIED] == severities
    assert encode_rows(records) == raw_rows(lake)


def test_a_gap_at_the_end_stays_open_when_the_broker_has_written_other_messages_there(tmp_path: Path) -> None:
    records = write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    (lost,) = lose_end(tmp_path)
    ingest_store(tmp_path / "store", lake, "b")
    start = int(lost.name)
    others = [Sent(body=b"another body %d" % number) for number in range(2 * COUNT)]
    kept = [one for one in records if one.physical_offset < start]
    shutil.rmtree(tmp_path / "store")
    write_store(tmp_path / "store", [*kept, *stored(others, start=start)])

    summary = ingest_store(tmp_path / "store", lake)

    assert summary.messages == 2 * COUNT
    assert summary.open.gap_count == 1


def test_a_gap_at_the_end_stays_open_when_other_messages_begin_at_the_same_offsets(tmp_path: Path) -> None:
    """Messages of one size do; these were stored after the run that recorded the gap."""
    records = write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    (lost,) = lose_end(tmp_path)
    before = ingest_store(tmp_path / "store", lake, "b")
    later = int(time.time() * 1000) + 60_000
    others = [
        one if one.physical_offset < int(lost.name) else one._replace(store_timestamp=later + number)
        for number, one in enumerate(records)
    ]
    shutil.rmtree(tmp_path / "store")
    write_store(tmp_path / "store", others)

    summary = ingest_store(tmp_path / "store", lake)

    assert encode_rows(others) == raw_rows(lake)
    assert before.gaps == list(summary.open.gaps)


def test_a_gap_begins_after_the_messages_that_the_lake_has(tmp_path: Path) -> None:
    """A segment loses messages that an earlier run has read, and others."""
    records = stored([Sent(body=b"body %d" % number) for number in range(COUNT)])
    at = next(number for number, one in enumerate(records) if one.physical_offset > SEGMENT_SIZE + 2000)
    write_store(tmp_path / "first", records[:at])
    lake = tmp_path / "lake"
    read_to = ingest_store(tmp_path / "first", lake, "b").to_offset
    write_store(tmp_path / "store", records)
    truncate_segment(tmp_path / "store", records)

    summary = ingest_store(tmp_path / "store", lake)

    assert [(read_to, 2 * SEGMENT_SIZE)] == [(gap["from"], gap["to"]) for gap in summary.gaps]
