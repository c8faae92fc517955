"""The index in the lake equals the broker's own files, after any number of runs."""

import hashlib
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from jobs.ingest import Summary
from jobs.ingest.run import ingest
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import SnapshotFile
from jobs.lake.table_file import FileNaming
from jobs.products import PRODUCT_NAMES
from jobs.products.index import entries
from jobs.products.index import product as index_product
from jobs.products.index.entries import read_index_file_entries
from jobs.products.index.file_builder import detect_zone, file_name_for_time, file_names_between
from jobs.products.product import RunOutput
from jobs.requests.ingest import IngestRequest
from jobs.store.range_reader import RangeReader
from jobs.store.selection import Selection
from jobs.store.store import list_store
from jobs.store.workers import InProcessWorkers, SerialWorkers, Workers
from rmq_formats.indexfile.layout import decode_header
from tests.golden import GOLDEN, SCENARIO, UNDISTURBED, StoreOf, release_of
from tests.support.broker import Broker, some_records
from tests.support.killing import count_wrong_entries
from tests.support.lakes import (
    ENTRIES,
    SLOTS,
    ingest_into_own_lake,
    ingest_store,
    lake_entries,
    newest_headers,
    read_index_entries,
    request_of,
    rows_of,
    table_of,
)
from tests.support.meanwhile import call_before
from tests.support.stores import flip, list_segments, log_folders, read_records

Row = dict[str, Any]
UPGRADED = {"up470-471": "4.7.0,4.7.1@11232", "up533-540": "5.3.3,5.4.0@11232"}


def run(store: Path, lake: Path, name: str, **options: Any) -> Summary:  # noqa: ANN401 - fields of the request
    usual: dict[str, Any] = {
        "release": UPGRADED.get(name) or release_of(name),
        "hash_slots": SLOTS,
        "index_num": ENTRIES,
        "tables": frozenset({"index"}),
    }
    return ingest(request_of(name, store, lake, **(usual | options)), SerialWorkers())


def entry_rows(lake: Path) -> list[Row]:
    return sorted(rows_of(lake, "index_entries"), key=lambda row: (row["index_file"], row["entry"]))


def complete_files(lake: Path) -> dict[int, str]:
    return {row["index_file"]: row["sha256"] for row in newest_headers(lake) if row["is_complete"]}


def grow_in_steps(store: Path, copy: Path) -> Iterator[Path]:
    listed = list_store(str(store), commitlog=log_folders(store))
    segments = [Path(segment.location) for segment in listed.segments]
    shutil.copytree(store, copy, ignore=lambda at, names: [name for name in names if Path(at, name) in segments])
    for segment in segments:
        yield Path(shutil.copy(segment, copy / segment.relative_to(store)))


def without_index(store: Path, directory: Path) -> Path:
    copy = directory / "bare"
    shutil.copytree(store, copy, ignore=shutil.ignore_patterns("index"))
    return copy


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", UNDISTURBED)
@pytest.mark.parametrize("whole", [True, False])
def test_index_entries_equal_the_brokers_files_in_one_run_or_several(
    golden: StoreOf, tmp_path: Path, name: str, *, whole: bool
) -> None:
    store = without_index(golden(name), tmp_path)
    lake = tmp_path / "lake"
    if whole:
        run(store, lake, name)
    else:
        for _ in grow_in_steps(store, tmp_path / "growing"):
            run(tmp_path / "growing", lake, name)
    real = [path.read_bytes() for path in sorted((golden(name) / "index").iterdir())]

    assert lake_entries(lake) == read_index_entries(golden(name))
    assert complete_files(lake) == {
        number: hashlib.sha256(data).hexdigest()
        for number, data in enumerate(real)
        if decode_header(data).index_count == ENTRIES
    }
    headers = [
        tuple(row[name] for name in ("hash_slot_count", "index_count", "end_timestamp")) for row in newest_headers(lake)
    ]
    expected = [decode_header(data) for data in real if decode_header(data).index_count > 1]

    assert headers == [(header.hash_slot_count, header.index_count, header.end_timestamp) for header in expected]


def test_threads_that_write_an_index_file_together_write_each_row_once(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.append(some_records(200))
    expected = ingest_and_list_entries(broker.root, tmp_path / "serial", SerialWorkers())
    monkeypatch.setattr(entries, "_LEAST_ROWS_PER_FILE", 1)
    monkeypatch.setattr(entries, "ROWS_PER_ROW_GROUP", 1)

    assert ingest_and_list_entries(broker.root, tmp_path / "threads", InProcessWorkers(width=3)) == expected
    files = DeltaTable(tmp_path / "threads" / "index_entries").file_uris()

    assert len(files) == 3  # one of each thread


def ingest_and_list_entries(store: Path, lake: Path, workers: Workers) -> list[Row]:
    request = IngestRequest(str(store), str(lake), "b", hash_slots=100, index_num=10_000)
    ingest(request, workers)
    return [{**row, "store_id": ""} for row in rows_of(lake, "index_entries", "entry")]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name", [name for name in GOLDEN if SCENARIO[name] in {"crash-after", "crash-later", "expired"}]
)
def test_the_first_run_takes_the_file_boundaries_from_the_brokers_own_files(
    golden: StoreOf, tmp_path: Path, name: str
) -> None:
    store = golden(name)
    lake = tmp_path / "lake"
    run(store, lake, name)

    assert lake_entries(lake) == read_index_entries(store)
    assert [row["name"] for row in newest_headers(lake)] == sorted(path.name for path in (store / "index").iterdir())
    history = [row for row in entry_rows(lake) if row["topic"] is None]

    assert bool(history) == (SCENARIO[name] == "expired")


@pytest.mark.parametrize("predicate", [None, "entry < 5", "index_file > 2 AND physical_offset % 3 = 0"])
@pytest.mark.parametrize("log_is_there", [True, False])
def test_entries_of_the_open_file_that_another_engine_has_deleted_are_rebuilt(
    golden: StoreOf, tmp_path: Path, predicate: str | None, *, log_is_there: bool
) -> None:
    """The next entries are chained to them, so later runs failed. They are rebuilt from the log or from messages."""
    store = without_index(golden("b533-base"), tmp_path)
    lake = tmp_path / "lake"
    segments = grow_in_steps(store, tmp_path / "growing")
    first = next(segments)
    _ = next(segments)
    run(tmp_path / "growing", lake, "b533-base")
    open_file = max(row["index_file"] for row in rows_of(lake, "index_files", "index_file"))
    DeltaTable(lake / "index_entries").delete(predicate)
    known = {(row["index_file"], row["entry"]) for row in entry_rows(lake)}
    if not log_is_there:
        first.unlink()
    list(segments)
    run(tmp_path / "growing", lake, "b533-base")

    expected = read_index_entries(golden("b533-base"))

    assert lake_entries(lake) == [row for row in expected if row[0] >= open_file or row[:2] in known]
    assert None not in {row["key"] for row in entry_rows(lake) if row["index_file"] >= open_file}
    complete = complete_files(lake)
    real = [path.read_bytes() for path in sorted((golden("b533-base") / "index").iterdir())]

    assert complete == {number: hashlib.sha256(real[number]).hexdigest() for number in complete}


@pytest.mark.parametrize("chosen", [True, False], ids=["chosen", "deleted"])
def test_only_messages_that_the_lake_has_are_indexed(golden: StoreOf, tmp_path: Path, *, chosen: bool) -> None:
    """Keys are as private as bodies, but a later run added those of excluded and deleted messages."""
    store = without_index(golden("b533-base"), tmp_path)
    lake = tmp_path / "lake"
    selection = Selection(exclude_topics=("T1",) if chosen else ())
    segments = grow_in_steps(store, tmp_path / "growing")
    next(segments)
    run(tmp_path / "growing", lake, "b533-base", tables=frozenset({"messages"}), selection=selection)
    if not chosen:
        DeltaTable(lake / "messages").delete("topic = 'T1'")
    expected = read_index_entries(golden("b533-base"))
    for _ in segments:
        run(tmp_path / "growing", lake, "b533-base", change_topics=True)
    known = set(table_of(lake / "messages", ["physical_offset"])["physical_offset"].to_pylist())
    entries = lake_entries(lake)

    assert [row[:5] for row in entries] == [row[:5] for row in expected if row[3] in known]
    assert not any(row["topic"] == "T1" for row in entry_rows(lake) if row["physical_offset"] < 16384)
    assert entries


def test_entries_of_another_store_in_the_same_file_are_kept(tmp_path: Path) -> None:
    rows = [
        {"store_id": store, "index_file": number, "entry": 1, "key_hash": key, "physical_offset": 0, "time_diff_s": 0,
         "prev_entry": 0}
        for store, number, key in (("a", 0, 1), ("b", 0, 2), ("a", 1, 3))
    ]  # fmt: skip
    path = tmp_path / "index_entries" / "compacted.parquet"
    path.parent.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), path)
    lake = Lake(str(tmp_path))
    found = [
        read_index_file_entries(output, [SnapshotFile(path.name, 0, 0, {}, {})], 0, 1, ("key_hash",))[0]["key_hash"][0]
        for output in (RunOutput(lake, FileNaming(store, 1), "broker", datetime.now(UTC)) for store in ("a", "b"))
    ]

    assert found == [1, 2]


CHINA = timezone(timedelta(hours=8))
DAY = "19700101000000"  # with milliseconds


@pytest.mark.parametrize(
    ("time", "zone", "name"),
    [
        (0, UTC, "19700101000000000"),
        (1_700_000_000_123, CHINA, "20231115061320123"),
        (1 << 62, UTC, "99991231235959999"),
        (-1 << 62, UTC, "00010101000000000"),
    ],
)
def test_a_file_is_named_after_its_first_message(time: int, zone: timezone, name: str) -> None:
    assert file_name_for_time(time, zone) == name


@pytest.mark.parametrize(
    ("times", "before", "following", "ends"),
    [
        ([5, 9], "", "", ["005", "009"]),
        ([5, 5, 5], "", "", ["005", "006", "007"]),
        ([5], "005", "", ["006"]),
        ([10, 20], "", "012", ["010", "011"]),
        ([10, 20], "009", "011", ["0091", "0092"]),
        ([5, 6], "005", "006", ["0051", "0052"]),
        ([5] * 10, "005", "006", [f"005{number:02d}" for number in range(1, 11)]),
    ],
)
def test_files_sort_between_their_neighbors(times: list[int], before: str, following: str, ends: list[str]) -> None:
    names = file_names_between(times, UTC, DAY + before if before else "", DAY + following if following else "")

    assert names == [DAY + end for end in ends]


@pytest.mark.parametrize(("files", "following"), [(2, "0052"), (100, "006")])
def test_an_error_is_raised_if_no_file_name_is_left(files: int, following: str) -> None:
    """A broker reads a name as a 64-bit number, so a name of twenty digits may be too large."""
    before, after = f"{DAY}005", DAY + following
    with pytest.raises(OSError, match=f"cannot choose {files} file names that sort between {before} and {after}"):
        file_names_between([5] * files, UTC, before, after)


def test_the_time_zone_is_that_of_most_file_names() -> None:
    times = [1_700_000_000_000, 1_700_000_100_000, 1_700_000_200_000]
    named = [(file_name_for_time(time, CHINA), time) for time in times]

    assert detect_zone([*named, (file_name_for_time(times[0], UTC), times[0])]) == CHINA
    assert detect_zone([("0", times[0]), (file_name_for_time(times[0] + 420_000, UTC), times[0])]) is None
    assert detect_zone([(file_name_for_time(times[0], UTC), times[0])]) is UTC


@pytest.mark.parametrize(("with_files", "wrong_bodies"), [(True, 0), (False, 0), (False, 1)])
def test_entries_of_segments_deleted_after_they_were_read_are_built(
    with_files: bool, wrong_bodies: int, golden: StoreOf, tmp_path: Path, newer_store: Path
) -> None:
    """The keys of a message are kept even if it has no row in `messages`, because the broker has indexed it."""
    if not with_files:
        shutil.rmtree(newer_store / "index")
    *deleted, _ = list_segments(newer_store)
    if wrong_bodies:
        record = next(record for record, _ in read_records(deleted) if record.body and record.topic == "T1")
        flip(deleted[0], deleted[0].read_bytes().index(record.body, record.physical_offset), 0xFF)

    def retention() -> None:
        for path in deleted:
            path.unlink()

    with patch.object(
        index_product, "plan_index_files_work", call_before(index_product.plan_index_files_work, retention)
    ):
        summary = run(newer_store, tmp_path / "lake", "b551-base", tables=PRODUCT_NAMES)

    assert summary.quarantined == wrong_bodies
    assert summary.gaps == []
    assert read_index_entries(golden("b551-base")) == lake_entries(tmp_path / "lake")


def test_the_index_is_built_without_another_pass_over_the_log(newer_store: Path, tmp_path: Path) -> None:
    """The log was once decoded a second time for the keys of the entries."""
    shutil.rmtree(newer_store / "index")
    passes, rows = [], []
    for tables in (frozenset({"messages"}), frozenset({"messages", "index"})):
        with patch.object(RangeReader, "pieces", autospec=True, side_effect=RangeReader.pieces) as pieces:
            rows.append(ingest_store(newer_store, tmp_path / f"lake{len(tables)}", tables=tables).index_entries)
        passes.append(pieces.call_count)

    assert rows[0] == 0 < rows[1]
    assert passes[0] == passes[1]
    assert not [path.name for path in tmp_path.glob("lake*/*/*") if path.suffix in {".keys", ".units"}]


def test_a_run_adds_the_entries_of_earlier_runs_without_the_index(broker: Broker, tmp_path: Path) -> None:
    for seed, tables in enumerate([PRODUCT_NAMES, frozenset({"messages", "consume_queue"}), PRODUCT_NAMES]):
        broker.append(some_records(20, seed=seed))
        ingest_into_own_lake(broker.root, tables=tables)

    offsets = table_of(tmp_path / "lake/messages", ["physical_offset"])["physical_offset"].to_pylist()

    assert count_wrong_entries(tmp_path / "lake", offsets) == 0
