"""A store that changes during a run: incomplete records, segments that are sealed, created and deleted, `--settle`."""

import shutil
import time
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from jobs.console.result import ExitCode
from jobs.lake import history, identity
from jobs.lake.runs import list_known_stores
from jobs.products.index import product as index_product
from jobs.store import store as store_files
from jobs.store.ranges import Range
from jobs.store.store import Store
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.errors import FormatError
from tests.rmq_formats.builders import STORED
from tests.support.broker import KEYS, SEGMENT_SIZE, Broker, some_records
from tests.support.commands import overwrite
from tests.support.lakes import gaps_of, ingest_beside, leftovers, raw, raw_rows, rows_of
from tests.support.meanwhile import Meanwhile, preceded
from tests.support.stores import stored_records


def history_of(folder: Path) -> list[bytes]:
    return [data for _, data in stored_records(folder / "history")]


@pytest.mark.parametrize("written", [1, 4, 8, 60, 91, -1])
def test_an_incomplete_record_is_left_for_the_next_run(written: int, broker: Broker, tmp_path: Path) -> None:
    first = broker.append(some_records(5))
    newest = some_records(1, seed=2)
    broker.append(newest, cut_at=written)

    half = ingest_beside(broker.root)
    placed = broker.append(newest)
    whole = ingest_beside(broker.root)

    assert (half.messages, half.to_offset, half.exit_code) == (5, broker.offset - placed[0].total_size, ExitCode.CLEAN)
    assert (whole.messages, whole.exit_code) == (1, ExitCode.CLEAN)
    assert raw_rows(tmp_path / "lake") == raw(first + placed)


def test_a_segment_sealed_after_its_listing_is_read_to_its_end(broker: Broker, tmp_path: Path) -> None:
    broker.append(some_records(10))
    more: list[Any] = []

    grows = Meanwhile(happens=lambda: more.extend(broker.append(some_records(100, seed=2))))
    first = ingest_beside(broker.root, workers=grows)
    second = ingest_beside(broker.root)

    assert (first.to_offset, first.exit_code) == (SEGMENT_SIZE, ExitCode.CLEAN)
    assert first.messages + second.messages == 110
    assert [row["physical_offset"] for row in rows_of(tmp_path / "lake")][10:] == [one.physical_offset for one in more]


def test_segments_deleted_in_the_middle_of_a_run_are_a_gap_in_that_run_only(broker: Broker, tmp_path: Path) -> None:
    placed = broker.append(some_records(200))

    during = ingest_beside(broker.root, workers=Meanwhile(happens=lambda: broker.expire(2)), range_size=4096)
    after = ingest_beside(broker.root)

    assert (during.exit_code, after.exit_code) == (ExitCode.DAMAGE, ExitCode.DAMAGE)  # until it is acknowledged
    assert (len(during.gaps), after.gaps) == (during.open.gap_count, [])
    assert {gap["why"] for gap in during.gaps} == {"deleted while it was being read"}
    assert (gaps_of(tmp_path / "lake")[0][0], gaps_of(tmp_path / "lake")[-1][1]) == (0, 2 * SEGMENT_SIZE)
    assert [row["physical_offset"] for row in rows_of(tmp_path / "lake")] == [
        one.physical_offset for one in placed if one.physical_offset >= 2 * SEGMENT_SIZE
    ]


def test_a_log_that_is_truncated_during_a_run_is_listed_again(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", history=tmp_path / "history")
    placed = broker.append(some_records(200))
    happened: list[MessageRecord] = []

    def crash() -> None:
        if not happened:
            broker.truncate(placed[70].physical_offset)
            happened.extend(broker.append(some_records(20, seed=2, stored=STORED + 10_000)))

    during = ingest_beside(broker.root, workers=Meanwhile(happens=crash), range_size=4096)
    after = ingest_beside(broker.root)

    assert (during.exit_code, after.exit_code) == (ExitCode.CLEAN, ExitCode.CLEAN)
    assert (during.messages, after.messages) == (90, 0)
    assert [data for _, data in raw_rows(tmp_path / "lake")] == history_of(tmp_path)
    assert leftovers(tmp_path / "lake") == []


def test_a_log_that_is_rewritten_before_its_index_entries_are_built_is_listed_again(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", history=tmp_path / "history")
    placed = broker.append(some_records(40))

    def crash() -> None:
        if broker.offset == placed[-1].end_offset:
            broker.truncate(placed[30].physical_offset)
            broker.append(some_records(20, seed=2, stored=STORED + 10_000))

    with patch.object(index_product, "plan_entry_work", preceded(index_product.plan_entry_work, crash)):
        during = ingest_beside(broker.root)
    history = list(stored_records(tmp_path / "history"))
    entries = rows_of(tmp_path / "lake", "index_entries")

    assert (during.exit_code, during.messages) == (ExitCode.CLEAN, 50)
    assert [data for _, data in raw_rows(tmp_path / "lake")] == [data for _, data in history]
    assert [(row["entry"], row["physical_offset"]) for row in sorted(entries, key=itemgetter("entry"))] == list(
        enumerate((record.physical_offset for record, _ in history for _ in range(KEYS)), start=1)
    )
    assert leftovers(tmp_path / "lake") == []


@pytest.mark.parametrize("records", [1, 30])
def test_leftovers_of_a_recovery_are_not_damage_of_a_segment_that_was_complete_before(
    records: int, tmp_path: Path
) -> None:
    broker = Broker(tmp_path / "store", history=tmp_path / "history")
    placed = broker.append(some_records(100))
    while broker.offset < 2 * SEGMENT_SIZE + 1000:  # just into its third segment
        placed += broker.append(some_records(1, stored=placed[-1].store_timestamp + 1))
    cut = max(record.physical_offset for record in placed if record.physical_offset < 2 * SEGMENT_SIZE - 2000)
    happened: list[MessageRecord] = []

    def crash(range_: Range) -> None:
        """Recover from a crash before the segment is read, and write on before the next one is."""
        if range_.base_offset == SEGMENT_SIZE and broker.offset > placed[-1].physical_offset:
            broker.truncate(cut)
            segment = broker.root / "commitlog" / f"{SEGMENT_SIZE:020d}"
            overwrite(segment, cut - SEGMENT_SIZE, bytes(2 * SEGMENT_SIZE - cut))
        elif range_.base_offset > SEGMENT_SIZE and not happened:
            happened.extend(broker.append(some_records(records, seed=2, stored=STORED + 10_000)))

    during = ingest_beside(broker.root, workers=Meanwhile(before_range=crash), range_size=SEGMENT_SIZE)
    broker.append(some_records(30, seed=3, stored=STORED + 20_000))
    after = ingest_beside(broker.root)

    assert (during.quarantined, after.quarantined) == (0, 0)
    assert [data for _, data in raw_rows(tmp_path / "lake")] == history_of(tmp_path)


def test_a_store_is_recognised_if_retention_deletes_its_last_known_segment_meanwhile(
    broker: Broker, tmp_path: Path
) -> None:
    """After the listing and before the read, retention deleted all segments with known fingerprints."""
    broker.append(some_records(60))
    first = ingest_beside(broker.root)
    broker.append(some_records(200, seed=2))
    with patch.object(identity, "list_known_stores", preceded(list_known_stores, lambda: broker.expire(2))):
        second = ingest_beside(broker.root)

    assert second.store_id == first.store_id
    assert second.exit_code is ExitCode.DAMAGE
    assert gaps_of(tmp_path / "lake")[0][0] == first.to_offset
    assert gaps_of(tmp_path / "lake")[-1][1] == 2 * SEGMENT_SIZE


def test_a_segment_deleted_while_the_history_is_checked_does_not_end_the_run(broker: Broker) -> None:
    """The run reads after the end of the last run's segment, which retention deletes at that moment."""
    broker.append(some_records(60))
    broker.seal()
    first = ingest_beside(broker.root)
    broker.append(some_records(200, seed=2))
    expired = broker.offset // SEGMENT_SIZE - 1
    looked = preceded(history.find_first_difference, lambda: broker.expire(expired))

    with patch.object(history, "find_first_difference", looked):
        second = ingest_beside(broker.root)

    assert (first.to_offset, None) == (second.from_offset, second.superseded)
    assert second.exit_code is ExitCode.DAMAGE
    assert (second.gaps[0]["from"], second.gaps[-1]["to"]) == (first.to_offset, expired * SEGMENT_SIZE)


def test_a_store_that_disappears_during_a_run_is_an_error_and_not_a_gap(broker: Broker, tmp_path: Path) -> None:
    broker.append(some_records(200))
    away = tmp_path / "away"

    with pytest.raises((OSError, FormatError)):
        ingest_beside(broker.root, workers=Meanwhile(happens=lambda: shutil.move(broker.root / "commitlog", away)))
    shutil.move(away, broker.root / "commitlog")

    assert ingest_beside(broker.root).messages == 200
    assert gaps_of(tmp_path / "lake") == []


@pytest.mark.parametrize("number", [1, 2])
def test_a_preallocated_segment_is_not_the_end_of_the_log_and_a_missing_one_before_it_not_a_gap(
    number: int, broker: Broker
) -> None:
    """A broker preallocates files of zeros."""
    broker.append(some_records(30))
    (broker.root / "commitlog" / f"{number * SEGMENT_SIZE:020}").write_bytes(bytes(SEGMENT_SIZE))

    ahead = ingest_beside(broker.root)
    assert (ahead.messages, ahead.gaps) == (30, [])
    placed = broker.append(some_records(100, seed=2))
    assert ingest_beside(broker.root).messages == len(placed)


def test_a_file_missing_in_the_listing_of_a_changing_folder_is_not_a_gap(broker: Broker) -> None:
    broker.append(some_records(200))
    listings: list[Store] = []
    real = store_files._list  # noqa: SLF001 - what every listing of a store begins with

    def listed(*whose: Any) -> Store:  # noqa: ANN401 - those of the real one
        store = real(*whose)
        listings.append(store)
        return store if len(listings) > 1 else replace(store, segments=store.segments[:1] + store.segments[2:])

    with patch.object(store_files, "_list", listed):
        summary = ingest_beside(broker.root)

    assert (summary.messages, summary.gaps) == (200, [])


HOUR = 3_600_000


@pytest.mark.parametrize(
    ("parts", "taken"),
    [
        ([(20, -HOUR), (20, -1000), (1, -HOUR)], 20),
        # While the clock was ahead a message was stored: every run until then would say that nothing is new.
        ([(5, -HOUR), (1, HOUR), (20, -HOUR // 2), (4, -1000)], 26),
        ([(5, -HOUR), (1, 365 * 24 * HOUR), (20, -HOUR // 2), (4, -1000)], 26),
    ],
)
def test_settle_leaves_out_the_newest_records_of_the_open_segment(
    parts: list[tuple[int, int]], taken: int, broker: Broker
) -> None:
    now = time.time_ns() // 1_000_000
    for seed, (count, stored) in enumerate(parts):
        broker.append(some_records(count, seed=seed, stored=now + stored))

    assert ingest_beside(broker.root, settle_ms=HOUR // 6).messages == taken
    assert ingest_beside(broker.root, settle_ms=HOUR // 6).run is None
    assert ingest_beside(broker.root).messages == sum(count for count, _ in parts) - taken


def test_settle_applies_only_to_the_open_segment(broker: Broker) -> None:
    placed = broker.append(some_records(100, stored=time.time_ns() // 1_000_000 - 1000))

    summary = ingest_beside(broker.root, settle_ms=600_000)

    assert summary.messages == sum(one.physical_offset < SEGMENT_SIZE for one in placed)
