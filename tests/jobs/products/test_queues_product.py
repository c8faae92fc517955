"""The queues of a growing store: each unit becomes one row, in any order of arrival and deletion."""

import json
import pickle
import shutil
import struct
import sys
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from jobs.console.result import Severity
from jobs.ingest import Summary
from jobs.ingest.run import ingest
from jobs.products.product import RunOutput
from jobs.products.queues.join import compare_queue_groups
from jobs.products.queues.join_result import DifferenceKind
from jobs.products.queues.remainder import CollectedLog
from jobs.products.queues.remainder_explanation import classify_displaced, explain_remainder, lost_offset_of_blanks
from jobs.products.queues.rows import UnitStatus, make_record_batches, make_row_block
from jobs.products.queues.settings import determine_unit_rules
from jobs.products.queues.unit_files import RangeUnitCollector, RangeUnits, write_units
from jobs.store.queue_ends import ProbedQueue, QueueEnd, _probe_all
from jobs.store.queue_files import StoredQueue, list_queues
from jobs.store.ranges import Range, plan_ranges
from jobs.store.release import determine_writers
from jobs.store.selection import Selection
from jobs.store.store import list_store
from jobs.store.workers import SerialWorkers
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.consumequeue.collect import PACKED_UNIT, PackedUnits
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName, expected_units
from rmq_formats.errors import CorruptData
from rmq_formats.properties import parse_properties
from tests.golden import GOLDEN, SCENARIO, StoreOf, release_of, unpack_feature
from tests.rmq_formats.builders import STORED, make_record
from tests.support.broker import SEGMENT_SIZE, Broker, some_records
from tests.support.lakes import ingest_into_own_lake, ingest_store, request_of, rows_of
from tests.support.meanwhile import DisturbedWorkers, call_after, call_before
from tests.support.stores import kill_after_dispatch, list_segments, read_records, read_store_records

Row = dict[str, Any]


def run(store: Path, lake: Path) -> tuple[list[Row], Summary, dict[str, Any]]:
    """Return the rows of the lake after a run, the summary of the run, and the state for the next run."""
    summary = ingest(request_of("b551-base", store, lake, tables=frozenset({"consume_queue"})), SerialWorkers())
    manifests = [json.loads(path.read_bytes()) for path in lake.glob("_manifests/*")]
    newest: Row = max(manifests, key=lambda manifest: int(manifest["run"]), default={"state": {"queues": {}}})
    return _rows(lake), summary, newest["state"]["queues"]


def copy_at_moment(whole: Path, target: Path, log_end: int, dispatched: int) -> Path:
    """Copy a store as it was with the given end of its log, when records before *dispatched* had units."""
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(whole, target, ignore=shutil.ignore_patterns("index"))  # the checkpoint would be ahead of the log
    for path in (target / "commitlog").iterdir():
        kept = log_end - int(path.name)
        if kept <= 0:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:kept].ljust(path.stat().st_size, b"\0"))
    kill_after_dispatch(target, dispatched)
    return target


def units_of_log(root: Path) -> Counter[tuple[Any, ...]]:
    store = list_store(str(root))
    rules = determine_unit_rules(store, determine_writers(store, release_of("b551-base")).value.rules, BrokerConf())
    rows: Counter[tuple[Any, ...]] = Counter()
    for record, _ in read_store_records(root):
        parser = rules.release_at(record.physical_offset).property_parser
        tags = parse_properties(record.properties_raw, parser).get("TAGS")
        for unit in expected_units(record, rules):
            place = (unit.queue.topic, unit.queue.queue_id, unit.queue_offset, unit.physical_offset, unit.size)
            rows[*place, unit.tags_code, "matched", unit.store_timestamp, tags] += 1
    return rows


UNIT_COLUMNS = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code")


def columns_of(rows: Sequence[Row], names: Sequence[str] = UNIT_COLUMNS) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def units_of_rows(rows: Sequence[Row]) -> Counter[tuple[Any, ...]]:
    return Counter(columns_of(rows, (*UNIT_COLUMNS, "status", "store_timestamp", "tags")))


HISTORIES = [[0.0, 0.3, 0.3, 0.7], [0.1, 0.2, 0.5, 0.9, 0.95], [0.5]]


@pytest.mark.sample(3, always=["history0--1000"])
@pytest.mark.parametrize("lag", [0, 1, 7, -1000])
@pytest.mark.parametrize("history", HISTORIES)
def test_every_unit_of_a_growing_store_becomes_one_row(
    golden: StoreOf, tmp_path: Path, history: list[float], lag: int
) -> None:
    """
    The dispatcher lags the log, by another number of records at each run.

    With a negative lag, the run excludes the newest messages of a cleanly stopped store.
    """
    whole = golden("b551-base")
    records = [record for record, _ in read_store_records(whole)]
    lake = tmp_path / "lake"
    for number, share in enumerate(history):
        count = max(int(share * len(records)), lag < 0)
        behind = max(count - lag * (number % 2 + 1), 0)
        dispatched = records[behind].physical_offset if lag >= 0 else sys.maxsize
        store = copy_at_moment(whole, tmp_path / "store", records[count].physical_offset, dispatched)
        if lag < 0:
            (store / "abort").unlink()
        _, summary, state = run(store, lake)

        assert summary.units.get("differences", 0) == 0
        assert state.get("dispatched", 0) <= dispatched

    assert units_of_rows(run(whole, lake)[0]) == units_of_log(whole)


@pytest.mark.parametrize("created", ["consumequeue/T1/0", "consumequeue/T1/0/00000000000000000200"])
def test_a_queue_file_created_between_two_probes_is_read(newer_store: Path, tmp_path: Path, created: str) -> None:
    """A unit of another queue shows that the log was dispatched beyond records whose units are in an unlisted file."""
    (newer_store / "abort").touch()
    (newer_store / created).rename(tmp_path / "not made yet")

    def make() -> None:
        if not (newer_store / created).exists():
            (tmp_path / "not made yet").rename(newer_store / created)

    with patch("jobs.store.queue_ends._probe_all", call_after(_probe_all, make)):
        rows, summary, _ = run(newer_store, tmp_path / "lake")

    assert summary.units["differences"] == 0
    assert units_of_rows(rows) == units_of_log(newer_store)


OWN_UNIT = struct.Struct(">qiq")  # written by hand, independent of the code under test
PRE_BLANK = (0, 0x7FFFFFFF, 0)


def _ingest(store: Path, lake: Path, name: str) -> Summary:
    return ingest(request_of(name, store, lake), SerialWorkers())


def _rows(lake: Path) -> list[Row]:
    return sorted(rows_of(lake, "consume_queue"), key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"]))


def _units(store: Path) -> list[tuple[str, int, int, int, int, int]]:
    """Return each unit of each plain queue: topic, queue id, position, and content."""
    found = []
    for path in (store / "consumequeue").glob("*/*/*"):
        content = path.read_bytes()
        for number in range(len(content) // OWN_UNIT.size):
            unit = OWN_UNIT.unpack_from(content, number * OWN_UNIT.size)
            if any(unit):
                position = int(path.name) // OWN_UNIT.size + number
                found.append((path.parent.parent.name, int(path.parent.name), position, *unit))
    return sorted(found)


@pytest.mark.sample(4)
@pytest.mark.parametrize("group_size", [64 << 20, 4096], ids=["in-memory", "on-scratch"])
@pytest.mark.parametrize("name", [name for name in GOLDEN if SCENARIO[name] != "rockscq"])
def test_every_unit_of_a_real_store_is_a_row_once(name: str, group_size: int, golden: StoreOf, tmp_path: Path) -> None:
    store = golden(name)
    with patch.multiple("jobs.products.queues.unit_files", _A_GROUP=group_size, _SHORT_RANGE=-1):
        _ingest(store, tmp_path, name)

    assert not [*tmp_path.rglob("*.units")]
    rows = [row for row in _rows(tmp_path) if row["status"] != "missing" and row["batch_count"] is None]
    segments = list_segments(store)
    log_end = max(record.end_offset for record, _ in read_records(segments))
    expected = [unit for unit in _units(store) if unit[3] < log_end]  # a live copy may have more units than records

    assert expected == columns_of(rows)
    assert [row["is_pre_blank"] for row in rows] == [unit[3:] == PRE_BLANK for unit in expected]


@pytest.mark.parametrize("name", ["b540-cqcombine-rocksonly", "b551-lmq-rockscq", "b551-rockscq-separate"])
def test_every_unit_in_rocksdb_is_a_row_once(name: str, tmp_path: Path) -> None:
    unpacked = unpack_feature(name, tmp_path)
    _ingest(unpacked.root, tmp_path / "lake", name)
    rows = _rows(tmp_path / "lake")
    expected = []
    for queue, answers in unpacked.answers_before_stop["queues"].items():
        topic, number = queue.rsplit("/", 1)
        expected += [(topic, int(number), *unit) for unit in answers["units"]]

    assert {row["status"] for row in rows} == {"matched"}
    assert sorted(expected) == columns_of(rows)


def test_damage_in_a_block_that_only_the_join_reads_is_repaired_by_a_later_run(tmp_path: Path) -> None:
    name = "b551-rockscq-separate"
    store = unpack_feature(name, tmp_path).root
    lake = tmp_path / "lake"
    database = store / "consumequeue_rocksdb"
    error = CorruptData("block checksum mismatch", None, str(database))
    with patch("jobs.products.queues.product.compare_queues", side_effect=error):
        damaged = _ingest(store, lake, name)

    assert damaged.severity == Severity.DAMAGE
    assert damaged.open.unreadable == 1
    assert damaged.messages == 138
    assert damaged.unreadable[0].startswith(f"{database}: ")
    assert _rows(lake) == []
    _ingest(store, lake, name)

    assert units_of_rows(_rows(lake)) == units_of_log(store)


def _retention(store: Path, offset: int, range_: Range) -> None:
    """Delete all segments except the newest one when the read reaches *offset*."""
    if range_.start_offset >= offset:
        _delete_old(store)


def _delete_old(store: Path) -> None:
    for path in list_segments(store)[:-1]:
        path.unlink()


@pytest.mark.parametrize("deleted", ["before the run", "before its record is read", "after its record is read"])
def test_a_unit_read_after_its_record_was_deleted_is_compared_with_the_row_in_the_lake(
    deleted: str, golden: StoreOf, tmp_path: Path
) -> None:
    """The lake has the message, so the unit is not wrong if retention deletes the record before the next run."""
    whole = golden("b551-base")
    dispatched = sorted(unit[3] for unit in _units(whole))[40]
    store = copy_at_moment(whole, tmp_path / "store", 1 << 40, dispatched)
    first = _ingest(store, tmp_path / "lake", "b551-base")
    shutil.copytree(whole / "consumequeue", store / "consumequeue", dirs_exist_ok=True)
    offset = dispatched + 1 if deleted.startswith("after") else 0
    if deleted == "before the run":
        _delete_old(store)
    request = request_of("b551-base", store, tmp_path / "lake", range_size=1024)
    second = ingest(request, DisturbedWorkers(before_range=partial(_retention, store, offset)))

    assert first.messages > 40
    assert second.gaps == []
    assert [row["status"] for row in _rows(tmp_path / "lake")] == ["matched"] * len(_units(whole))


@pytest.mark.parametrize("offset", [0, 8192, SEGMENT_SIZE + 4096])
def test_units_of_records_that_are_deleted_while_a_run_reads_have_expired(offset: int, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    broker.append(some_records(10))
    ingest_into_own_lake(broker.root)
    broker.append(some_records(300, seed=2))
    workers = DisturbedWorkers(before_range=partial(_retention, broker.root, offset))
    hurried = ingest_into_own_lake(broker.root, workers=workers, range_size=4096)
    broker.append(some_records(10, seed=3))
    ingest_into_own_lake(broker.root)
    rows = _rows(tmp_path / "lake")

    assert hurried.gaps
    assert {row["status"] for row in rows} == {"matched", "expired"}
    assert [unit[:4] for unit in _units(broker.root)] == columns_of(rows, UNIT_COLUMNS[:4])
    messages = {row["physical_offset"] for row in rows_of(tmp_path / "lake")}

    assert {row["physical_offset"] for row in rows if row["status"] == "matched"} == messages


_record = partial(make_record, properties={"TAGS": "TagA"})


def test_a_unit_that_overwrites_a_leftover_during_a_run_becomes_one_row(tmp_path: Path) -> None:
    """The run has already determined the end of the queue; later units belong to the next run."""
    broker = Broker(tmp_path / "store", dispatches=True)
    old = broker.append([_record(b"old") for _ in range(3)])
    ingest_into_own_lake(broker.root)
    broker.truncate(old[1].physical_offset)  # units are kept
    new = broker.append([_record(bytes(2000), queue_id=1, store_timestamp=STORED + 1000)])
    over = [_record(b"new", store_timestamp=STORED + 1001)]
    explain = call_before(explain_remainder, lambda: new.extend(broker.append(over)))
    with patch("jobs.products.queues.join.explain_remainder", explain):
        ingest_into_own_lake(broker.root)
    new += broker.append([_record(b"more", store_timestamp=STORED + 1002) for _ in range(4)])
    ingest_into_own_lake(broker.root)

    rows = _rows(tmp_path / "lake")

    assert len(rows) == len({*columns_of(rows, UNIT_COLUMNS[1:4])})
    matched = {row["physical_offset"] for row in rows if row["status"] == "matched"}

    assert matched == {record.physical_offset for record in (old[0], *new)}


def test_rows_of_units_are_the_same_without_the_tags_and_topics_that_are_excluded(store: Path, tmp_path: Path) -> None:
    """Neither rows nor scratch files of tasks may contain a tag of an excluded message."""
    for queue in sorted((store / "consumequeue" / "T2").iterdir()):
        min(queue.iterdir()).unlink()
    written: list[bytes] = []
    find_scratch = partial(tmp_path.glob, "some/*/*.units")
    with (
        patch("jobs.products.queues.product.choose_group_count", return_value=3),
        patch("jobs.products.queues.unit_files._SHORT_RANGE", -1),
    ):
        ingest_store(store, tmp_path / "all")
        with patch.object(RunOutput, "delete_scratch", lambda *_: written.extend(map(Path.read_bytes, find_scratch()))):
            ingest_store(store, tmp_path / "some", selection=Selection(exclude_topics=("T1",)))

    every = [row for row in rows_of(tmp_path / "all", "consume_queue") if row["topic"] != "T1"]

    assert {row["tags"] for row in every} - {None}
    some = [{**row, "store_id": ""} for row in rows_of(tmp_path / "some", "consume_queue")]

    assert some == [{**row, "store_id": "", "tags": None} for row in every]
    tags = {row["tags"] for row in rows_of(tmp_path / "all", "consume_queue")} - {None}

    assert written
    assert not [tag for tag in tags for data in written if f'"{tag}"'.encode() in data]


def test_rows_have_the_tags_of_their_numbers_and_each_text_once_in_the_dictionary() -> None:
    name = QueueName(QueueKind.PLAIN, "T", 0)
    units = np.zeros(4, PACKED_UNIT)
    with_tags = make_row_block(name, units, UnitStatus.MATCHED, np.array([0, -1, 2, 1], np.int32))
    (rows,) = make_record_batches([with_tags, make_row_block(name, units[:1], UnitStatus.MISSING)], ["a", "b", "a"])

    assert rows["tags"].to_pylist() == ["a", None, "a", "b", None]
    assert rows["status"].to_pylist() == ["matched"] * 4 + ["missing"]
    assert rows["topic"].to_pylist() == [name.topic] * 5
    assert {column: rows[column].dictionary.to_pylist() for column in ("tags", "topic")} == {
        "tags": ["a", "b"],
        "topic": [name.topic],
    }


GAPS = ((2_000, 3_000),)


@pytest.mark.parametrize(
    ("end", "start", "count", "lost", "found"),
    [
        (1_000, 4_000, 3, GAPS, 2_000),
        (2_100, 2_500, 3, GAPS, 2_100),  # as many as fit between the neighboring records
        (1_000, 4_000, 100, GAPS, None),  # more than fit
        (1_000, 2_000, 1, GAPS, None),
        (3_000, 4_000, 1, GAPS, None),
        (4_000, 1_000, 1, GAPS, None),
        (1_000, 4_000, 8, ((1_500, 2_000), (3_000, 3_500)), 1_500),
        (1_000, 4_000, 1, (), None),
    ],
)
def test_blanks_are_assigned_to_lost_records_between_their_neighbors(
    end: int, start: int, count: int, lost: tuple[tuple[int, int], ...], found: int | None
) -> None:
    assert lost_offset_of_blanks(end, start, count, lost) == found


def test_a_unit_of_queue_offset_0_at_another_position_restarts_its_queue() -> None:
    (restarted,) = classify_displaced(QueueName(QueueKind.PLAIN, "T", 0), [(4, 0)])

    assert restarted.kind is DifferenceKind.RESTARTED


def test_many_ranges_multiply_neither_the_reads_of_queues_nor_the_results_of_tasks(
    tmp_path: Path, golden: StoreOf
) -> None:
    """With 24 bytes for each pair of a range and a queue, 40,000 ranges and 50,000 queues needed 48 GB."""
    store = golden("b551-base")
    reads = list[int]()
    sizes = list[int]()

    def compare(*args: Any, **options: Any) -> Any:  # noqa: ANN401
        result = compare_queue_groups(*args, **options)
        sizes.append(len(pickle.dumps(result)))
        return result

    for range_size in (1 << 28, 2048):
        with (
            patch("jobs.products.queues.join.compare_queue_groups", compare),
            patch.object(StoredQueue, "read", autospec=True, side_effect=StoredQueue.read) as read,
        ):
            ingest_store(store, tmp_path / str(range_size), range_size=range_size, release=release_of("b551-base"))
        reads.append(read.call_count)
    few, many = sizes

    assert reads[0] == reads[1]
    assert many < few + 8 * len(list_queues(list_store(str(store))))


@pytest.mark.parametrize(
    ("range_size", "window", "at_once"),
    [(1 << 28, 4096, 1 << 18), (2048, 2048, 1), (2048, 2048, 7)],
    ids=["a range of many files", "queues one after the other", "some queues at a time"],
)
def test_the_division_of_a_log_and_its_units_does_not_change_the_rows(
    range_size: int, window: int, at_once: int, tmp_path: Path, golden: StoreOf
) -> None:
    store = golden("b551-base")
    parts = list[int]()
    ingest_store(store, tmp_path / "whole", release="5.5.1")

    def finished(self: RangeUnitCollector) -> RangeUnits:
        units = finish(self)
        parts.append(len(units.parts))
        return units

    finish = RangeUnitCollector.finish
    with (
        patch.multiple("jobs.products.queues.unit_files", _A_GROUP=4096, _UNITS_AT_ONCE=at_once, _SHORT_RANGE=-1),
        patch.multiple("rmq_formats.consumequeue.collect", _MANY=5, _MANY_OF_A_QUEUE=0),
        patch("jobs.ingest.run.plan_ranges", lambda *args: [replace(one, window=window) for one in plan_ranges(*args)]),
        patch.object(RangeUnitCollector, "finish", finished),
    ):
        ingest_store(store, tmp_path / "divided", range_size=range_size, release="5.5.1")

    assert max(parts) > 2 or range_size == 2048
    assert not [*tmp_path.rglob("*.units")]
    whole, divided = ([row | {"store_id": ""} for row in _rows(tmp_path / name)] for name in ("whole", "divided"))

    assert whole == divided


def _write_unit(store: Path, position: int, *fields: int) -> None:
    """Overwrite a unit in the first file of the only queue."""
    (path,) = (store / "consumequeue").glob("*/*/" + "0" * 20)
    content = bytearray(path.read_bytes())
    OWN_UNIT.pack_into(content, position * OWN_UNIT.size, *fields)
    path.write_bytes(content)


def _recreate_topic_twice(store: Path) -> list[list[MessageRecord]]:
    """Write a store with one queue, whose topic was created again twice; return the messages of each topic."""
    broker = Broker(store, dispatches=True)
    generations = list[list[MessageRecord]]()
    for count in (30, 20, 40):
        if generations:
            broker.delete_queues("T1")
        generations.append(broker.append([_record(b"m", topic="T1", queue_id=0) for _ in range(count)]))
    return generations


@pytest.mark.parametrize("at_once", [1 << 18, 7], ids=["at once", "in portions"])
@pytest.mark.parametrize("damage", ["none", "first unit", "unit of an earlier message"])
def test_each_message_of_a_deleted_topic_has_one_row(damage: str, at_once: int, tmp_path: Path) -> None:
    """If the first unit is wrong, or another one points to an earlier message, the earlier units are read again."""
    store = tmp_path / "store"
    first, second, new = _recreate_topic_twice(store)
    expected = Counter[tuple[int, int, str, str | None]]()
    expected.update((one.queue_offset, one.physical_offset, "missing", "TagA") for one in (*first, *second))
    expected.update((one.queue_offset, one.physical_offset, "matched", "TagA") for one in new)
    if damage == "first unit":
        _write_unit(store, 0, 1 << 40, new[0].total_size, 0)
        del expected[0, new[0].physical_offset, "matched", "TagA"]
        expected[0, new[0].physical_offset, "missing", "TagA"] += 1
        expected[0, 1 << 40, "dangling", None] += 1
    if damage == "unit of an earlier message":
        claimed = second[3]
        _write_unit(store, 5, claimed.physical_offset, claimed.total_size, 2598919)
        del expected[5, new[5].physical_offset, "matched", "TagA"]
        del expected[3, claimed.physical_offset, "missing", "TagA"]
        expected[5, new[5].physical_offset, "missing", "TagA"] += 1
        expected[5, claimed.physical_offset, "mismatched", "TagA"] += 1
    with patch("jobs.products.queues.unit_files._UNITS_AT_ONCE", at_once):
        ingest_into_own_lake(store)

    rows = columns_of(_rows(tmp_path / "lake"), ("queue_offset", "physical_offset", "status", "tags"))

    assert expected == Counter(rows)


STORED_UNITS = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])


def _measure_peak_of_comparison(root: Path, earlier: int) -> int:
    """Return the peak memory of comparing a queue with a log in which as many messages are of a deleted topic."""
    name = QueueName(QueueKind.PLAIN, "T1", 0)
    units = np.zeros(2 * earlier, PACKED_UNIT)
    units["queue_offset"] = np.tile(np.arange(earlier), 2)
    units["physical_offset"] = np.arange(2 * earlier) * 100
    units["size"] = 100
    stored = np.zeros(earlier, STORED_UNITS)
    stored["physical_offset"], stored["size"] = units["physical_offset"][earlier:], 100
    path = root / "consumequeue" / "T1" / "0" / f"{0:020d}"
    path.parent.mkdir(parents=True)
    path.write_bytes(stored.tobytes())
    (queue,) = list_queues(list_store(str(root)))
    parts = []
    for start in range(0, units.size, 4096):
        some = units[start : start + 4096]
        packed = PackedUnits([name], np.array([0, some.size]), some, np.empty(0, np.int32), [])
        parts.append(write_units(None, "", packed, list(packed.queues()), 1))
    log = CollectedLog([RangeUnits(tuple(parts))], None, 1, 0, 2 * earlier * 100)
    with patch("jobs.products.queues.unit_files._UNITS_AT_ONCE", 4096):
        tracemalloc.start()
        figures, unresolved = compare_queue_groups([(0, [ProbedQueue(queue, QueueEnd(0, earlier))])], log=log)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert unresolved == []
    assert figures.matched == earlier
    assert sum(one.unit_count for one in figures.differences) == earlier
    return peak


def test_the_messages_of_a_deleted_topic_are_compared_without_memory_for_each(tmp_path: Path) -> None:
    """Each of them once needed 846 bytes: a gigabyte for a million."""
    few = _measure_peak_of_comparison(tmp_path / "few", 20_000)
    many = _measure_peak_of_comparison(tmp_path / "many", 40_000)

    assert (many - few) / 20_000 < 40
