"""An export holds few decompressed bodies in memory, and reports the bodies that it leaves compressed."""

import json
import tracemalloc
import zlib
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.console.rows import RowFormat
from jobs.export.condition import parse_condition
from jobs.export.export import ExportRequest, ExportSummary, PartTask, export, plan_export
from jobs.export.items import ANY_TIME, LogItem, iterate_decoded_slices
from jobs.query.place import Place
from jobs.store.workers import SerialWorkers
from rmq_formats.commitlog.layout import COMPRESSED
from tests.rmq_formats.builders import a_record
from tests.support.broker import Broker
from tests.support.query_stores import Sent, stored, write_lake, write_store
from tests.support.stores import flip

LIMIT = 1 << 16
SMALL, LARGE, CUT = (b"small", bytes(LIMIT), bytes(LIMIT + 1))


@pytest.fixture
def places(tmp_path: Path) -> dict[str, ExportRequest]:
    packed = [Sent(keys=("k",), body=zlib.compress(body), sys_flag=COMPRESSED) for body in (SMALL, LARGE, CUT)]
    broken = Sent(keys=("k",), body=b"no stream", sys_flag=COMPRESSED)
    store = write_store(tmp_path / "store", stored([*packed, broken]))
    write_lake(store, tmp_path / "lake")
    return {"store": ExportRequest(Place(store=str(store))), "lake": ExportRequest(Place(lake=str(tmp_path / "lake")))}


def _export(source: ExportRequest, out: Path, form: RowFormat) -> ExportSummary:
    return export(replace(source, out=out, form=form, limit=LIMIT), plan_export(source, {}), SerialWorkers())


@pytest.mark.parametrize("place", ["store", "lake"])
def test_a_body_larger_than_the_limit_is_reported(place: str, places: dict[str, ExportRequest], tmp_path: Path) -> None:
    summary = _export(places[place], tmp_path / "out", RowFormat.NDJSON)
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    _export(places[place], tmp_path / "table", RowFormat.PARQUET)
    table = pq.read_table(tmp_path / "table").to_pylist()

    assert [SMALL, LARGE] == [b64decode(row["decoded_body_base64"]) for row in rows[:2]]
    assert [(None, None)] * 2 == [(row["decoded_body_base64"], row["decoded_body_text"]) for row in rows[2:]]
    assert [None, None] == [row["body_error"] for row in rows[:2]]
    assert f"larger than {LIMIT} bytes" in rows[2]["body_error"]
    assert "not a zlib stream" in rows[3]["body_error"]
    assert CUT == zlib.decompress(b64decode(rows[2]["body_base64"]))
    offsets = [int(row["physical_offset"]) for row in rows[2:]]
    assert (2, offsets) == (summary.undecoded_bodies, [place.offset for place in summary.undecoded])
    assert [SMALL, LARGE] == [row["body"] for row in table[:2]]
    assert CUT == zlib.decompress(table[2]["body"])
    assert [row["body_error"] for row in rows] == [row["body_error"] for row in table]
    assert [SMALL.decode(), LARGE.decode(), None, None] == [row["body_text"] for row in table]


def test_a_batch_of_decompression_bombs_is_cut_into_slices_within_the_budget() -> None:
    stored_ = [zlib.compress(bytes(LIMIT)) for _ in range(10)]
    batch = pa.RecordBatch.from_pydict({"body": stored_, "sys_flag": [COMPRESSED] * 10})
    found = [len(bodies) for _, bodies in iterate_decoded_slices(batch, LIMIT, budget=3 * LIMIT)]

    assert [3, 3, 3, 1] == found


@pytest.mark.parametrize("how", ["with a condition", "parquet", "by times"])
def test_an_export_of_large_bodies_holds_one_batch_and_one_slice(how: str, tmp_path: Path) -> None:
    size = 4 << 20
    broker = Broker(tmp_path / "store", segment_size=64 << 20)
    broker.append(a_record(bytes(size)) for _ in range(15))
    between = (0, ANY_TIME[1]) if how == "by times" else ANY_TIME
    condition = parse_condition("length(body) > 0") if how == "with a condition" else None
    place = Place(store=str(broker.root))
    asked = ExportRequest(place, time_range=between, form=RowFormat.PARQUET, condition=condition)
    [item] = plan_export(asked, {}).items
    task = PartTask(tmp_path, asked)
    next(item.read())  # what is loaded once
    tracemalloc.start()
    try:
        assert task((0, item)).messages == 15
        peak = tracemalloc.get_traced_memory()[1]  # of Python and numpy; Arrow's columns of slices are not in it
    finally:
        tracemalloc.stop()

    assert peak < 4 * size + (2 << 20)  # the bytes of a record, its row, the last record of all, a body


@pytest.mark.parametrize("place", ["store", "lake"])
def test_a_condition_sees_no_text_of_a_body_larger_than_the_limit_and_it_is_named(
    place: str, places: dict[str, ExportRequest], tmp_path: Path
) -> None:
    condition = parse_condition(f"body_text IS NULL OR length(body) = {LIMIT}")
    summary = _export(replace(places[place], condition=condition), tmp_path / "out", RowFormat.NDJSON)
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]

    assert [1, 2, 3] == [row["queue_offset"] for row in rows]
    assert (3, 2) == (summary.messages, summary.undecoded_bodies)


def test_the_first_and_the_last_message_of_a_file_are_exported_for_their_own_times(tmp_path: Path) -> None:
    records = stored([Sent() for _ in range(3)])
    lake = write_lake(write_store(tmp_path / "store", records), tmp_path / "lake")
    for record in records:
        time = record.store_timestamp
        asked = ExportRequest(Place(lake=str(lake)), time_range=(time, time), out=tmp_path / str(time))
        assert 1 == export(asked, plan_export(asked, {}), SerialWorkers()).messages


@pytest.mark.parametrize(("since", "messages", "damaged"), [(0, 3, 1), (300, 1, 1), (900, 0, 0)])
def test_an_export_by_times_reads_a_segment_once(since: int, messages: int, damaged: int, tmp_path: Path) -> None:
    records = stored([Sent(body=bytes(50)) for _ in range(4)])
    store = write_store(tmp_path / "store", records)
    flip(store / "commitlog" / f"{0:020d}", records[2].physical_offset + 90)  # its body
    begin = records[0].store_timestamp + since
    asked = ExportRequest(Place(store=str(store)), time_range=(begin, ANY_TIME[1]), out=tmp_path / "out")
    with patch.object(LogItem, "read", autospec=True, side_effect=LogItem.read) as read:
        summary = export(asked, plan_export(asked, {}), SerialWorkers())

    assert 1 == read.call_count
    found = [(place.offset, place.size) for place in summary.damaged]
    assert (messages, [(records[2].physical_offset, records[2].total_size)] * damaged) == (summary.messages, found)
