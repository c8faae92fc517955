"""`consume_queue` in the run that brings the messages: every unit of every queue once, and what the join says of it."""

import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from jobs.ingest.request import IngestRequest, Summary
from jobs.ingest.run import ingest
from jobs.products.product import Collected, RangePass
from jobs.products.queues.settling import settle
from jobs.store.ranges import Range
from jobs.store.selection import Selection
from jobs.store.workers import OneByOne
from rmq_formats.commitlog.record import MessageRecord
from tests.golden import GOLDEN, SCENARIO, StoreOf, kill_with_database, unpack_feature
from tests.rmq_formats.builders import STORED, a_record
from tests.support.broker import SEGMENT_SIZE, Broker, some_records
from tests.support.lakes import ingest_store, request_of, rows_of, table_of
from tests.support.meanwhile import BetweenRanges, preceded
from tests.support.stores import records_of, segments_of

UNIT = struct.Struct(">qiq")  # on purpose not the declared layout: nothing here is taken from the code under test
PRE_BLANK = (0, 0x7FFFFFFF, 0)


def _ingest(store: Path, lake: Path, name: str) -> Summary:
    return ingest(request_of(name, store, lake), OneByOne())


def _rows(lake: Path) -> list[dict[str, Any]]:
    path = lake / "consume_queue"
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = table_of(path).to_pylist()
    return sorted(rows, key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"]))


def _units(store: Path) -> list[tuple[str, int, int, int, int, int]]:
    """Return every unit of every plain queue: topic, queue id, position, and what it holds."""
    found = []
    for path in (store / "consumequeue").glob("*/*/*"):
        content = path.read_bytes()
        for number in range(len(content) // UNIT.size):
            unit = UNIT.unpack_from(content, number * UNIT.size)
            if any(unit):
                position = int(path.name) // UNIT.size + number
                found.append((path.parent.parent.name, int(path.parent.name), position, *unit))
    return sorted(found)


@pytest.mark.sample(6)
@pytest.mark.parametrize("group_size", [64 << 20, 4096], ids=["in-memory", "on-scratch"])
@pytest.mark.parametrize("name", [name for name in GOLDEN if SCENARIO[name] != "rockscq"])
def test_every_unit_of_a_real_store_is_a_row_once(name: str, group_size: int, golden: StoreOf, tmp_path: Path) -> None:
    store = golden(name)
    with patch("jobs.products.queues.unit_files._A_GROUP", group_size):
        _ingest(store, tmp_path, name)
    assert not [*tmp_path.rglob("*.units")]
    rows = [row for row in _rows(tmp_path) if row["status"] != "missing" and row["batch_count"] is None]
    seen = [
        (row["topic"], row["queue_id"], row["queue_offset"], row["physical_offset"], row["size"], row["tags_code"])
        for row in rows
    ]
    segments = segments_of(store)
    log_end = max(record.end_offset for record, _ in records_of(segments))
    expected = [unit for unit in _units(store) if unit[3] < log_end]  # of a live copy, units may be ahead of the log

    assert expected == seen
    assert [row["is_pre_blank"] for row in rows] == [unit[3:] == PRE_BLANK for unit in expected]


@pytest.mark.parametrize("name", ["b540-cqcombine-rocksonly", "b551-lmq-rockscq", "b551-rockscq-separate"])
def test_every_unit_in_rocksdb_is_a_row_once(name: str, tmp_path: Path) -> None:
    unpacked = unpack_feature(name, tmp_path)
    _ingest(unpacked.root, tmp_path / "lake", name)
    rows = _rows(tmp_path / "lake")
    expected = sorted(
        (*queue.rsplit("/", 1), *unit)
        for queue, answers in unpacked.before_stop["queues"].items()
        for unit in answers["units"]
    )

    assert {row["status"] for row in rows} == {"matched"}
    assert expected == sorted(
        (
            row["topic"], str(row["queue_id"]), row["queue_offset"], row["physical_offset"], row["size"],
            row["tags_code"],
        )
        for row in rows
    )  # fmt: skip


def test_units_that_a_killed_broker_had_in_memory_are_rows_once_they_are_written(tmp_path: Path) -> None:
    """The next start makes them; until then the log is not dispatched, and nothing is missing."""
    unpacked = unpack_feature("b551-rockscq-killed", tmp_path)
    summary = _ingest(unpacked.root, tmp_path / "lake", "b551-rockscq-killed")

    assert _rows(tmp_path / "lake") == []
    assert summary.behind == unpacked.before_stop["maxPhyOffset"]


def _shown_later(whole: Path, store: Path, number: int) -> Callable[[], object]:
    shutil.copytree(whole, store)
    (store / "abort").touch()  # the broker runs
    behind = sorted(unit[3] for unit in _units(whole))[number]
    for path in (store / "consumequeue").glob("*/*/*"):
        content = path.read_bytes()
        kept = [content[at : at + 20] for at in range(0, len(content), 20) if UNIT.unpack_from(content, at)[0] < behind]
        path.write_bytes(b"".join(kept).ljust(len(content), b"\0"))
    return lambda: shutil.copytree(whole / "consumequeue", store / "consumequeue", dirs_exist_ok=True)


def _retention(store: Path, offset: int, range_: Range) -> None:
    """Delete all but the newest segment once the reading comes to *offset*."""
    if range_.start_offset >= offset:
        _delete_old(store)


def _delete_old(store: Path) -> None:
    for path in segments_of(store)[:-1]:
        path.unlink()


@pytest.mark.parametrize("deleted", ["before the run", "before its record is read", "after its record is read"])
def test_a_unit_that_comes_when_records_are_deleted_is_compared_with_its_row_once(
    deleted: str, golden: StoreOf, tmp_path: Path
) -> None:
    """The lake has the message: its unit is no less right because retention was faster than the next run."""
    whole, store = golden("b551-base"), tmp_path / "store"
    dispatch = _shown_later(whole, store, 40)
    first = _ingest(store, tmp_path / "lake", "b551-base")
    dispatch()
    offset = sorted(unit[3] for unit in _units(whole))[40] + 1 if deleted.startswith("after") else 0
    if deleted == "before the run":
        _delete_old(store)
    request = request_of("b551-base", store, tmp_path / "lake", range_size=1024)
    second = ingest(request, BetweenRanges(happens=partial(_retention, store, offset)))

    assert first.messages > 40
    assert second.gaps == []
    assert [row["status"] for row in _rows(tmp_path / "lake")] == ["matched"] * len(_units(whole))


@pytest.mark.parametrize("offset", [0, 8192, SEGMENT_SIZE + 4096])
def test_units_of_records_that_are_deleted_while_a_run_reads_have_expired(offset: int, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    broker.append(some_records(10))
    request = IngestRequest(str(broker.root), str(tmp_path / "lake"), broker="b")
    ingest(request, OneByOne())
    broker.append(some_records(300, seed=2))
    ranges = replace(request, range_size=4096)
    hurried = ingest(ranges, BetweenRanges(happens=partial(_retention, broker.root, offset)))
    broker.append(some_records(10, seed=3))
    ingest(request, OneByOne())
    rows = _rows(tmp_path / "lake")

    assert hurried.gaps
    assert {row["status"] for row in rows} == {"matched", "expired"}
    assert [tuple(row[name] for name in ("topic", "queue_id", "queue_offset", "physical_offset")) for row in rows] == [
        unit[:4] for unit in _units(broker.root)
    ]
    messages = {row["physical_offset"] for row in rows_of(tmp_path / "lake")}
    assert {row["physical_offset"] for row in rows if row["status"] == "matched"} == messages


_record = partial(a_record, properties={"TAGS": "TagA"})


def _taken_back(root: Path, count: int) -> tuple[Broker, IngestRequest, list[MessageRecord]]:
    """Ingest the store of a broker that then takes back all but the first of its records; their units stay."""
    broker = Broker(root / "store", dispatches=True)
    old = broker.append([_record(b"old") for _ in range(count)])
    request = IngestRequest(str(broker.root), str(root / "lake"), broker="b")
    ingest(request, OneByOne())
    broker.truncate(old[1].physical_offset)
    return broker, request, old


def test_a_unit_that_is_written_over_what_recovery_left_while_a_run_looks_is_a_row_once(tmp_path: Path) -> None:
    """The run has settled how much of the queue it takes; what is there a moment later is of the next run."""
    broker, request, old = _taken_back(tmp_path, 3)
    new = broker.append([_record(bytes(2000), queue_id=1, store_timestamp=STORED + 1000)])

    def write_over() -> None:
        new.extend(broker.append([_record(b"new", store_timestamp=STORED + 1001)]))

    with patch("jobs.products.queues.matching.settle", preceded(settle, write_over)):
        ingest(request, OneByOne())
    new += broker.append([_record(b"more", store_timestamp=STORED + 1002) for _ in range(4)])
    ingest(request, OneByOne())

    rows = _rows(tmp_path / "lake")
    units = [(row["queue_id"], row["queue_offset"], row["physical_offset"]) for row in rows]
    assert len(units) == len(set(units))
    matched = {row["physical_offset"] for row in rows if row["status"] == "matched"}
    assert matched == {record.physical_offset for record in (old[0], *new)}


def test_light_queues_that_come_to_rocksdb_late_are_taken_by_a_later_run(tmp_path: Path) -> None:
    """With double write of 5.5 RocksDB alone has them, a killed broker's none yet: they counted as missing."""
    name = "b551-lmq-selective"
    store = unpack_feature(name, tmp_path / "store").root
    whole = shutil.copytree(store, tmp_path / "whole")
    kill_with_database(store, unpack_feature("b551-rockscq-killed", tmp_path / "killed").root / "consumequeue")
    first = _ingest(store, tmp_path / "lake", name)
    only_files = _there(tmp_path / "lake")
    shutil.rmtree(store)
    whole.rename(store)
    _ingest(store, tmp_path / "lake", name)
    _ingest(store, tmp_path / "at-once", name)

    assert (first.contradictions, first.units["matched"]) == (0, len(only_files))
    assert _there(tmp_path / "lake") == _there(tmp_path / "at-once") > only_files


def _there(lake: Path) -> set[tuple[object, ...]]:
    names = ("topic", "queue_id", "queue_offset", "physical_offset", "status")
    return {tuple(row[name] for name in names) for row in _rows(lake) if row["status"] != "missing"}


def test_rows_of_units_are_the_same_without_the_tags_and_topics_that_are_excluded(
    golden: StoreOf, tmp_path: Path
) -> None:
    """Neither the rows nor what tasks hand on in scratch files may hold a tag of an excluded message."""
    store = Path(shutil.copytree(golden("b533-base"), tmp_path / "store"))
    for queue in sorted((store / "consumequeue" / "T2").iterdir()):
        min(queue.iterdir()).unlink()
    written: list[bytes] = []

    def swept(_pass: RangePass, _collected: Collected) -> None:
        written.extend(path.read_bytes() for path in tmp_path.glob("some/*/*.units"))

    with patch("jobs.products.queues.product.count_groups", return_value=3):
        ingest_store(store, tmp_path / "all")
        with patch.object(RangePass, "sweep", swept):
            ingest_store(store, tmp_path / "some", selection=Selection(exclude_topics=("T1",)))

    every = [row for row in rows_of(tmp_path / "all", "consume_queue") if row["topic"] != "T1"]
    assert {row["tags"] for row in every} - {None}
    some = [{**row, "store_id": ""} for row in rows_of(tmp_path / "some", "consume_queue")]
    assert some == [{**row, "store_id": "", "tags": None} for row in every]
    tags = {row["tags"] for row in rows_of(tmp_path / "all", "consume_queue")} - {None}
    assert written
    assert not [tag for tag in tags for data in written if f'"{tag}"'.encode() in data]
