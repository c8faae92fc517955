"""The queues of a growing store: every unit gets one row, in whatever order units and messages arrive and go."""

import json
import shutil
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from jobs.ingest.request import IngestRequest, Summary
from jobs.ingest.run import ingest
from jobs.products.queues.rows import Status
from jobs.products.queues.settings import known_releases, queue_rules
from jobs.store.queue_ends import _look_at_all
from jobs.store.selection import Selection
from jobs.store.store import list_store
from jobs.store.workers import OneByOne
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.consumequeue.unit import expected_units
from rmq_formats.properties import parse_properties
from tests.golden import StoreOf, release_of
from tests.support.commands import overwrite
from tests.support.lakes import table_of
from tests.support.meanwhile import followed
from tests.support.stores import stored_records

BORN, BORN_AT = struct.Struct(">q"), 40  # on purpose not the declared layout
CONSUMED, CONSUMED_AT = struct.Struct(">i"), 72
Row = dict[str, Any]


class Run(NamedTuple):
    """One run: the rows that the lake has then, what it did, and what the next one begins with."""

    rows: list[Row]
    summary: Summary
    state: dict[str, Any]


def run(store: Path, lake: Path, name: str = "b551-base", topics: Sequence[str] = ()) -> Run:
    request = IngestRequest(
        str(store),
        str(lake),
        broker=name,
        release=release_of(name),
        selection=Selection(topics=tuple(topics)),
        tables=frozenset({"consume_queue"}),
    )
    summary = ingest(request, OneByOne())
    manifests = [json.loads(path.read_bytes()) for path in lake.glob("_manifests/*")]
    newest: Row = max(manifests, key=lambda manifest: int(manifest["run"]), default={"state": {"queues": {}}})
    rows = table_of(lake / "consume_queue").to_pylist() if (lake / "consume_queue").exists() else []
    return Run(rows, summary, newest["state"]["queues"])


class Moment(NamedTuple):
    """How far a store is: where its log ends, and up to where its records have units."""

    log_end: int
    dispatched: int


def shorten(store: Path, log_end: int) -> None:
    for path in (store / "commitlog").iterdir():
        kept = log_end - int(path.name)
        if kept <= 0:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:kept].ljust(path.stat().st_size, b"\0"))


def at_moment(whole: Path, target: Path, moment: Moment) -> Path:
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(whole, target, ignore=shutil.ignore_patterns("index"))  # which would be ahead of the log
    (target / "abort").touch()
    shorten(target, moment.log_end)
    for path in target.glob("consumequeue/*/*/*"):
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), UNIT.size):
            if int(UNIT.unpack(data, at)[0]) >= moment.dispatched:
                data[at : at + UNIT.size] = bytes(UNIT.size)
        if any(data):
            path.write_bytes(bytes(data))
        else:
            path.unlink()
    return target


def truth(root: Path, name: str = "b551-base") -> Counter[tuple[Any, ...]]:
    store = list_store(str(root))
    rules = queue_rules(store, known_releases(store, release_of(name)).value.rules, BrokerConf())
    rows: Counter[tuple[Any, ...]] = Counter()
    for record, _ in stored_records(root):
        parser = rules.release_at(record.physical_offset).property_parser
        tags = parse_properties(record.properties_raw, parser).get("TAGS")
        for unit in expected_units(record, rules):
            place = (unit.queue.topic, unit.queue.queue_id, unit.queue_offset, unit.physical_offset, unit.size)
            rows[*place, unit.tags_code, "matched", unit.store_timestamp, tags] += 1
    return rows


def told(rows: Sequence[Row]) -> Counter[tuple[Any, ...]]:
    names = (
        "topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code", "status", "store_timestamp",
        "tags",
    )  # fmt: skip
    return Counter(tuple(row[name] for name in names) for row in rows)


HISTORIES = [[0.0, 0.3, 0.3, 0.7], [0.1, 0.2, 0.5, 0.9, 0.95], [0.5]]


@pytest.mark.sample(4)
@pytest.mark.parametrize("lag", [0, 1, 7])
@pytest.mark.parametrize("history", HISTORIES)
def test_a_growing_store_gives_each_unit_one_row(
    golden: StoreOf, tmp_path: Path, history: list[float], lag: int
) -> None:
    """The dispatcher is some records after the log, and another number of records at each run."""
    whole = golden("b551-base")
    records = [record for record, _ in stored_records(whole)]
    lake = tmp_path / "lake"
    for number, share in enumerate(history):
        count = int(share * len(records))
        behind = max(count - lag * (number % 2 + 1), 0)
        moment = Moment(records[count].physical_offset, records[behind].physical_offset)
        result = run(at_moment(whole, tmp_path / "store", moment), lake)
        assert result.summary.units.get("differences", 0) == 0
        assert result.state.get("dispatched", 0) <= moment.dispatched

    assert told(run(whole, lake).rows) == truth(whole)


def cut(whole: Path, target: Path, log_end: int) -> Path:
    shutil.copytree(whole, target)
    shorten(target, log_end)
    return target


def test_units_that_are_newer_than_what_a_run_reads_are_left_to_the_next(golden: StoreOf, tmp_path: Path) -> None:
    """Even of a store that was closed in order: the run was said to leave the newest messages."""
    whole = golden("b551-base")
    records = [record for record, _ in stored_records(whole)]
    first = run(cut(whole, tmp_path / "store", records[30].physical_offset), tmp_path / "lake")
    second = run(whole, tmp_path / "lake")

    assert first.summary.units["differences"] == 0
    assert told(second.rows) == truth(whole)


@pytest.mark.parametrize("made", ["consumequeue/T1/0", "consumequeue/T1/0/00000000000000000200"])
def test_a_file_that_is_made_between_two_looks_is_looked_at(golden: StoreOf, tmp_path: Path, made: str) -> None:
    """Another queue's unit says that the log was dispatched beyond records whose units lie in no file listed so far."""
    store = Path(shutil.copytree(golden("b551-base"), tmp_path / "store"))
    (store / "abort").touch()
    (store / made).rename(tmp_path / "not made yet")

    def make() -> None:
        if not (store / made).exists():
            (tmp_path / "not made yet").rename(store / made)

    with patch("jobs.store.queue_ends._look_at_all", followed(_look_at_all, make)):
        whole = run(store, tmp_path / "lake")

    assert whole.summary.units["differences"] == 0
    assert told(whole.rows) == truth(store)


def test_a_unit_that_lies_about_the_end_moves_no_boundary(golden: StoreOf, tmp_path: Path) -> None:
    """The next run reads the log from the end of a record on, whatever the last unit says."""
    whole = golden("b551-base")
    records = [record for record, _ in stored_records(whole)]
    middle = Moment(records[40].physical_offset, records[40].physical_offset)
    store = at_moment(whole, tmp_path / "store", middle)
    path = next(path for path in store.glob("consumequeue/T1/0/*") if any(path.read_bytes()[:20]))
    unit = path.read_bytes()[:8] + (30_000).to_bytes(4) + path.read_bytes()[12:20]
    (store / "consumequeue/T1/0" / "00000000000000000000").write_bytes(unit.ljust(200, b"\0"))

    state = run(store, tmp_path / "lake").state

    assert state["boundary"] in {record.end_offset for record in records}


def test_units_whose_messages_were_deleted_are_expired(golden: StoreOf, tmp_path: Path) -> None:
    """They have a row all the same: the first run sees what the broker kept."""
    rows = run(golden("b533-expired"), tmp_path, "b533-expired").rows
    statuses = Counter(row["status"] for row in rows)

    assert statuses == {"matched": 35, "expired": 16}
    assert {(row["store_timestamp"], row["tags"]) for row in rows if row["status"] == "expired"} == {(None, None)}


def test_messages_deleted_between_two_runs_leave_no_row_twice(golden: StoreOf, tmp_path: Path) -> None:
    whole = golden("b551-base")
    records = [record for record, _ in stored_records(whole)]
    middle = Moment(records[40].physical_offset, records[40].physical_offset)
    run(at_moment(whole, tmp_path / "store", middle), tmp_path / "lake")
    shrunk = Path(shutil.copytree(whole, tmp_path / "shrunk"))
    (shrunk / "commitlog" / "00000000000000000000").unlink()

    assert told(run(shrunk, tmp_path / "lake").rows) == truth(whole)


def test_a_message_without_unit_has_a_row_that_says_so(golden: StoreOf, tmp_path: Path) -> None:
    store = Path(shutil.copytree(golden("b551-base"), tmp_path / "store"))
    path = store / "consumequeue/T1/0/00000000000000000200"
    overwrite(path, 40, path.read_bytes()[20:40])
    rows = [row for row in run(store, tmp_path / "lake").rows if row["status"] != Status.MATCHED]

    assert [(row["status"], row["queue_offset"], row["mismatch"]) for row in rows] == [
        ("mismatched", 12, ["queue_offset"]),
        ("missing", 12, None),
    ]
    assert all(row["tags"] is not None for row in rows)


def test_a_field_that_its_record_contradicts_is_named(golden: StoreOf, tmp_path: Path) -> None:
    store = Path(shutil.copytree(golden("b551-base"), tmp_path / "store"))
    path = store / "consumequeue/T1/0/00000000000000000200"
    overwrite(path, 48, (77).to_bytes(4))
    (row,) = [row for row in run(store, tmp_path / "lake").rows if row["status"] != Status.MATCHED]

    assert (row["status"], row["size"], row["mismatch"]) == ("mismatched", 77, ["size"])


def test_a_topic_that_was_made_again_is_taken_from_its_beginning(golden: StoreOf, tmp_path: Path) -> None:
    """Its queue is shorter than what was taken of the old one; the new messages count from 0."""
    whole = golden("b551-base")
    unit = (whole / "consumequeue/T1/0/00000000000000000400").read_bytes()[100:120]
    newest = int(UNIT.unpack(unit)[0])
    first = run(at_moment(whole, tmp_path / "before", Moment(newest, newest)), tmp_path / "lake")
    store = Path(shutil.copytree(whole, tmp_path / "store"))
    for path in (store / "consumequeue/T1/0").iterdir():
        path.unlink()
    (store / "consumequeue/T1/0/00000000000000000000").write_bytes(unit.ljust(200, b"\0"))
    segment = store / "commitlog" / f"{newest // 16384 * 16384:020d}"
    overwrite(segment, newest % 16384 + 20, bytes(8))
    second = run(store, tmp_path / "lake")
    new = [row for row in second.rows if row not in first.rows]
    (row,) = [row for row in new if (row["topic"], row["queue_id"]) == ("T1", 0)]

    assert (row["queue_offset"], row["physical_offset"], row["status"]) == (0, newest, "matched")
    assert [*("consumequeue", "T1", 0), 1] in second.state["queues"]
