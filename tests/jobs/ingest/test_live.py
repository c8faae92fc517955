"""Ingest a store that changes or is damaged: incomplete records, sealed and deleted segments, `--min-age`."""

import errno
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable

from jobs.console.result import ExitCode, Severity
from jobs.ingest import OpenDamage, Summary
from jobs.lake import history, identity, upkeep
from jobs.metrics import write_metrics
from jobs.products.index import product as index_product
from jobs.store import store as store_files
from jobs.store.ranges import Range
from jobs.store.store import Store
from jobs.store.workers import SerialWorkers
from rmq_formats.commitlog.layout import BLANK
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.errors import FormatError
from tests.rmq_formats.builders import STORED, make_record
from tests.support.broker import KEYS, SEGMENT_SIZE, Broker, some_records
from tests.support.commands import Run, overwrite
from tests.support.lakes import gaps_of, ingest_into_own_lake, list_leftovers, raw_rows, restore_log, rows_of
from tests.support.meanwhile import DisturbedWorkers, call_before, fail_reads_of_first_segment
from tests.support.stores import flip, raw_records, read_store_records


def test_a_segment_sealed_after_its_listing_is_read_to_its_end(broker: Broker, tmp_path: Path) -> None:
    broker.append(some_records(10))
    more: list[Any] = []

    grows = DisturbedWorkers(happens=lambda: more.extend(broker.append(some_records(100, seed=2))))
    first = ingest_into_own_lake(broker.root, workers=grows)
    second = ingest_into_own_lake(broker.root)

    assert first.to_offset == SEGMENT_SIZE
    assert first.exit_code == ExitCode.CLEAN
    assert first.messages + second.messages == 110
    assert [row["physical_offset"] for row in rows_of(tmp_path / "lake")][10:] == [one.physical_offset for one in more]


def test_segments_deleted_in_the_middle_of_a_run_are_a_gap_in_that_run_only(broker: Broker, tmp_path: Path) -> None:
    written = broker.append(some_records(200))

    during = ingest_into_own_lake(
        broker.root, workers=DisturbedWorkers(happens=lambda: broker.expire(2)), range_size=4096
    )
    after = ingest_into_own_lake(broker.root)

    assert (during.exit_code, after.exit_code) == (ExitCode.DAMAGE, ExitCode.DAMAGE)  # until it is acknowledged
    assert len(during.gaps) == during.open.gap_count
    assert after.gaps == []
    assert {gap["why"] for gap in during.gaps} == {"deleted while it was being read"}
    assert gaps_of(tmp_path / "lake")[0][0] == 0
    assert gaps_of(tmp_path / "lake")[-1][1] == 2 * SEGMENT_SIZE
    assert [row["physical_offset"] for row in rows_of(tmp_path / "lake")] == [
        record.physical_offset for record in written if record.physical_offset >= 2 * SEGMENT_SIZE
    ]


@pytest.mark.parametrize(("records", "range_size", "is_read_already"), [(200, 4096, False), (100, SEGMENT_SIZE, True)])
def test_a_log_that_is_rewritten_during_a_run_is_listed_again(
    records: int, range_size: int, tmp_path: Path, *, is_read_already: bool
) -> None:
    """Before the log is read, or after that and before its index entries are built."""
    broker = Broker(tmp_path / "store", history=tmp_path / "history")
    written = broker.append(some_records(records))

    def crash() -> None:
        if broker.offset == written[-1].end_offset:
            broker.truncate(written[70].physical_offset)
            broker.append(some_records(20, seed=2, stored=STORED + 10_000))

    plan = index_product.plan_index_files_work
    workers = SerialWorkers() if is_read_already else DisturbedWorkers(happens=crash)
    with patch.object(index_product, "plan_index_files_work", call_before(plan, crash) if is_read_already else plan):
        during = ingest_into_own_lake(broker.root, workers=workers, range_size=range_size)
    after = ingest_into_own_lake(broker.root)

    history = list(read_store_records(tmp_path / "history"))
    entries = rows_of(tmp_path / "lake", "index_entries", "entry")

    assert during.exit_code == ExitCode.CLEAN
    assert after.exit_code == ExitCode.CLEAN
    assert during.messages == 90
    assert after.messages == 0
    assert [data for _, data in raw_rows(tmp_path / "lake")] == [data for _, data in history]
    assert [(row["entry"], row["physical_offset"]) for row in entries] == list(
        enumerate((record.physical_offset for record, _ in history for _ in range(KEYS)), start=1)
    )
    assert list_leftovers(tmp_path / "lake") == []


def test_a_log_that_is_rewritten_before_the_watermark_during_a_run_is_read_again(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", history=tmp_path / "history")
    written = broker.append(some_records(30))
    ingest_into_own_lake(broker.root)

    def crash() -> None:
        if broker.offset == written[-1].end_offset:
            broker.truncate(written[20].physical_offset)
            broker.append(some_records(20, seed=2, stored=STORED + 10_000))

    ingest_into_own_lake(broker.root, workers=DisturbedWorkers(happens=crash))

    assert [data for _, data in raw_rows(tmp_path / "lake")] == raw_records(tmp_path / "history")


@pytest.mark.parametrize("records", [1, 30])
def test_leftovers_of_a_recovery_are_not_damage_of_a_segment_that_was_complete_before(
    records: int, tmp_path: Path
) -> None:
    broker = Broker(tmp_path / "store", history=tmp_path / "history")
    written = broker.append(some_records(100))
    while broker.offset < 2 * SEGMENT_SIZE + 1000:  # shortly after the start of its third segment
        written += broker.append(some_records(1, stored=written[-1].store_timestamp + 1))
    cut = max(record.physical_offset for record in written if record.physical_offset < 2 * SEGMENT_SIZE - 2000)
    happened: list[MessageRecord] = []

    def crash(range_: Range) -> None:
        """Recover from a crash before the segment is read, and continue writing before the next one is read."""
        if range_.base_offset == SEGMENT_SIZE and broker.offset > written[-1].physical_offset:
            broker.truncate(cut)
            segment = broker.root / "commitlog" / f"{SEGMENT_SIZE:020d}"
            overwrite(segment, cut - SEGMENT_SIZE, bytes(2 * SEGMENT_SIZE - cut))
        elif range_.base_offset > SEGMENT_SIZE and not happened:
            happened.extend(broker.append(some_records(records, seed=2, stored=STORED + 10_000)))

    during = ingest_into_own_lake(broker.root, workers=DisturbedWorkers(before_range=crash), range_size=SEGMENT_SIZE)
    broker.append(some_records(30, seed=3, stored=STORED + 20_000))
    after = ingest_into_own_lake(broker.root)

    assert during.quarantined == 0
    assert after.quarantined == 0
    assert [data for _, data in raw_rows(tmp_path / "lake")] == raw_records(tmp_path / "history")


@pytest.mark.parametrize(("module", "step"), [(identity, "list_lake_stores"), (history, "find_first_difference")])
def test_a_store_is_recognized_if_retention_deletes_all_of_its_known_segments_meanwhile(
    module: ModuleType, step: str, broker: Broker
) -> None:
    """After the listing, before the store is identified, or while the bytes after the end of the last run are read."""
    broker.append(some_records(60))
    broker.seal()
    first = ingest_into_own_lake(broker.root)
    broker.append(some_records(200, seed=2))
    expired = broker.offset // SEGMENT_SIZE - 1

    with patch.object(module, step, call_before(getattr(module, step), lambda: broker.expire(expired))):
        second = ingest_into_own_lake(broker.root)

    assert second.store_id == first.store_id
    assert second.superseded is None
    assert first.to_offset == second.from_offset
    assert ExitCode.DAMAGE == second.exit_code
    assert second.gaps[0]["from"] == first.to_offset
    assert second.gaps[-1]["to"] == expired * SEGMENT_SIZE


def test_a_store_that_disappears_during_a_run_is_an_error_and_not_a_gap(broker: Broker, tmp_path: Path) -> None:
    broker.append(some_records(200))
    away = tmp_path / "away"

    with pytest.raises((OSError, FormatError)):
        ingest_into_own_lake(
            broker.root, workers=DisturbedWorkers(happens=lambda: shutil.move(broker.root / "commitlog", away))
        )
    shutil.move(away, broker.root / "commitlog")

    assert ingest_into_own_lake(broker.root).messages == 200
    assert gaps_of(tmp_path / "lake") == []


def test_a_file_missing_in_the_listing_of_a_changing_directory_is_not_a_gap(broker: Broker) -> None:
    broker.append(some_records(200))
    listings: list[Store] = []
    real = store_files._list  # noqa: SLF001 - every listing of a store begins here

    def list_without(*whose: Any) -> Store:  # noqa: ANN401 - arguments of the original
        store = real(*whose)
        listings.append(store)
        return store if len(listings) > 1 else replace(store, segments=store.segments[:1] + store.segments[2:])

    with patch.object(store_files, "_list", list_without):
        summary = ingest_into_own_lake(broker.root)

    assert summary.messages == 200
    assert summary.gaps == []


HOUR = 3_600_000


@pytest.mark.parametrize(
    ("parts", "ingested"),
    [
        ([(20, -HOUR), (20, -1000), (1, -HOUR)], 20),
        # A message was stored while the clock was ahead; until that time, each run would report that nothing is new.
        ([(5, -HOUR), (1, HOUR), (20, -HOUR // 2), (4, -1000)], 26),
        ([(5, -HOUR), (1, 365 * 24 * HOUR), (20, -HOUR // 2), (4, -1000)], 26),
    ],
)
def test_settle_leaves_out_the_newest_records_of_the_open_segment(
    parts: list[tuple[int, int]], ingested: int, broker: Broker
) -> None:
    now = time.time_ns() // 1_000_000
    for seed, (count, stored) in enumerate(parts):
        broker.append(some_records(count, seed=seed, stored=now + stored))

    assert ingest_into_own_lake(broker.root, min_age_ms=HOUR // 6).messages == ingested
    assert ingest_into_own_lake(broker.root, min_age_ms=HOUR // 6).run is None
    assert ingest_into_own_lake(broker.root).messages == sum(count for count, _ in parts) - ingested


MANY = 3  # a run merges that many small files


@pytest.fixture
def damaged(tmp_path: Path) -> Broker:
    broker = Broker(tmp_path / "store")
    broker.append(some_records(3))
    hit = broker.append([make_record(b"body of a message that is damaged")])[0]
    broker.append(some_records(3, seed=2))
    flip(broker.root / "commitlog" / f"{0:020}", hit.physical_offset + 90)
    return broker


def test_the_next_run_reports_the_damage_found_by_a_run_that_was_killed_before_its_report(damaged: Broker) -> None:
    with patch("jobs.ingest.run.commit_prepared", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        ingest_into_own_lake(damaged.root)

    finished = ingest_into_own_lake(damaged.root)

    assert 1 == finished.recovered
    assert ExitCode.DAMAGE == finished.exit_code


def test_a_lake_of_an_earlier_version_has_only_the_damage_of_its_newest_run(damaged: Broker) -> None:
    with patch("jobs.ingest.run.OPEN_DAMAGE_KEY", "not known"):
        ingest_into_own_lake(damaged.root)

    assert ExitCode.DAMAGE == ingest_into_own_lake(damaged.root).exit_code


def test_a_gap_is_counted_only_once() -> None:
    gap = {"broker": "b", "from": 0, "to": 5, "why": "deleted before it was read"}
    twice = OpenDamage().after_run(1, [gap], 0, 0).after_run(2, [gap], 0, 0)  # type: ignore[list-item]

    assert 1 == twice.gap_count
    assert 1 == twice.since_run


def test_an_error_during_maintenance_is_a_note_with_the_file_after_a_successful_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, broker: Broker
) -> None:
    """A damaged file must be reported, but must not fail a run that has committed all rows."""
    monkeypatch.setattr(upkeep, "MAX_SMALL_FILES", MANY)
    for number in range(MANY - 1):
        broker.append(some_records(2, seed=number))
        ingest_into_own_lake(broker.root)
    rotten = min((tmp_path / "lake" / "messages").glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    data = rotten.read_bytes()
    rotten.write_bytes(data[:4] + bytes(len(data) // 2) + data[4 + len(data) // 2 :])
    broker.append(some_records(2, seed=MANY))
    capfd.readouterr()
    done = ingest_into_own_lake(broker.root)

    assert 2 == done.messages
    assert ExitCode.CLEAN == done.exit_code
    assert [rotten.name in note for note in done.notes] == [True]
    assert rotten.name in capfd.readouterr().err
    assert list((tmp_path / "lake" / "messages").glob(f"*-{MANY}-*.parquet"))


def test_following_reports_damage_in_the_step_that_finds_it_and_keeps_its_counts(damaged: Broker, run: Run) -> None:
    """The result of the command is printed only at its end, which may be weeks later."""
    figures = damaged.root.parent / "rmq.prom"
    line = ("ingest", damaged.root, "--lake", damaged.root.parent / "lake", "--follow", "--every", "10ms")
    seen: list[dict[str, float]] = []

    def grow(path: Path, summary: Summary) -> None:
        write_metrics(path, summary)
        lines = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
        seen.append({name.partition("{")[0].removeprefix("rmq_lake_ingest_"): float(value) for name, value in lines})
        if len(seen) == 1:
            damaged.append(some_records(2, seed=3))
        if len(seen) == len(("first step", "second step")):  # they are written again at the end
            os.kill(os.getpid(), signal.SIGTERM)

    with patch("jobs.metrics.write_metrics", grow):
        done = run(*line, "--metrics", figures, "--until", "+60s")

    said = [
        line
        for line in done.err.splitlines()
        if "run 1: DAMAGE 1 damaged range of the log, stored in the table quarantine" in line
    ]

    assert ExitCode.DAMAGE == done.code
    assert 1 == len(said)
    assert [(1, 1, 3)] * 2 == [(one["quarantined"], one["open_quarantined"], one["exit_code"]) for one in seen[:2]]
    assert seen[0]["messages"] + 2 == seen[1]["messages"]
    assert min(metrics["newest_message_time_seconds"] for metrics in seen) > 0


BLOCK = 4096
STALE = b"an earlier message, which the broker left after the end of its file"


def _store_with_stale_bytes(directory: Path) -> tuple[Broker, int]:
    """Write a full segment whose end has stale bytes up to the end of the file; return where the end begins."""
    broker = Broker(directory / "store")
    broker.append(some_records(12))
    end = broker.offset
    assert end < BLOCK
    broker.seal()
    with (broker.root / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(end + BLANK.size)
        file.write((STALE * SEGMENT_SIZE)[: SEGMENT_SIZE - end - BLANK.size])
    broker.append(some_records(5, seed=2))
    return broker, end


@pytest.mark.parametrize("version", ["now", "earlier"])
def test_a_block_that_cannot_be_read_is_missing_from_a_restored_log_and_the_bytes_around_it_are_kept(
    tmp_path: Path, version: str
) -> None:
    """
    A row without bytes stands for zeros, so `restore` would write wrong bytes.

    Earlier versions wrote the row of a segment's end before reading its bytes, and kept it after a disk error.
    """
    broker, end = _store_with_stale_bytes(tmp_path)

    with fail_reads_of_first_segment(errno.EIO, lambda at, length: at < 3 * BLOCK and at + length > 2 * BLOCK):
        summary = ingest_into_own_lake(broker.root, "b")

    rows = rows_of(tmp_path / "lake", "log_pieces")
    places = [(row["kind"], row["physical_offset"], row["length"]) for row in rows if row["bytes"] is None]
    kept = {row["physical_offset"]: row["bytes"] for row in rows if row["bytes"] is not None}
    stored = (broker.root / "commitlog" / f"{0:020}").read_bytes()
    after = 3 * BLOCK

    assert ("unknown", 2 * BLOCK, BLOCK) in places
    assert {("end", end, 2 * BLOCK - end), ("end", after, SEGMENT_SIZE - after)} <= set(places)
    assert all(stored[at : at + len(data)] == data for at, data in kept.items())
    assert stored[end : 2 * BLOCK] + stored[after:] == b"".join(kept[at] for at in sorted(kept))
    assert [("io_error", 2 * BLOCK, BLOCK)] == [
        (row["reason"], row["physical_offset"], row["length"]) for row in rows_of(tmp_path / "lake", "quarantine")
    ]
    assert summary.severity is Severity.DAMAGE
    if version == "earlier":
        DeltaTable(tmp_path / "lake" / "log_pieces").update({"kind": "'end'"}, predicate="kind = 'unknown'")

    restored = restore_log(tmp_path / "lake", tmp_path / "restored")

    assert [(2 * BLOCK, 3 * BLOCK)] == [tuple(part) for part in restored.missing]
    assert version == "earlier" or "no run could read these bytes" in restored.causes[0]


@pytest.mark.parametrize(("error", "raised"), [(errno.ETIMEDOUT, TimeoutError), (errno.ENOENT, FileNotFoundError)])
def test_a_read_that_fails_for_another_reason_ends_the_run_before_anything_is_committed(
    tmp_path: Path, error: int, raised: type[OSError]
) -> None:
    """The next run must read the bytes again, because a timeout proves nothing about them."""
    broker, end = _store_with_stale_bytes(tmp_path)

    # Only the first read of the end of the file fails.
    with fail_reads_of_first_segment(error, lambda offset, _: offset == end), pytest.raises(raised):
        ingest_into_own_lake(broker.root, "b")

    assert [] == rows_of(tmp_path / "lake")
    ingest_into_own_lake(broker.root, "b")

    rows = rows_of(tmp_path / "lake", "log_pieces")

    assert [STALE] == [row["bytes"][BLANK.size :][: len(STALE)] for row in rows if row["bytes"] is not None]
    assert list_leftovers(tmp_path / "lake") == []


def test_bytes_of_a_file_that_retention_deletes_at_the_end_of_its_range_are_a_gap(tmp_path: Path) -> None:
    """The records are already in the lake, but the bytes between them are lost."""
    broker, end = _store_with_stale_bytes(tmp_path)

    def delete_at(offset: int, _: int) -> bool:
        if offset == end:
            broker.expire()
        return offset == end

    with fail_reads_of_first_segment(errno.ENOENT, delete_at):
        summary = ingest_into_own_lake(broker.root, "b")

    places = [(row["kind"], row["physical_offset"], row["length"]) for row in rows_of(tmp_path / "lake", "log_pieces")]

    assert ("unknown", end, SEGMENT_SIZE - end) in places
    assert "end" not in {kind for kind, _, _ in places}
    assert 12 + 5 == summary.messages
    assert [(0, SEGMENT_SIZE)] == [(gap["from"], gap["to"]) for gap in summary.gaps]
