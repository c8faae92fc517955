"""An export holds few decompressed bytes at once, and names the bodies that it leaves as they are stored."""

import json
import tracemalloc
import zlib
from base64 import b64decode
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.export.condition import Chosen, candidates, numbered_rows
from jobs.export.export import Asked, Output, Summary, export, plan
from jobs.export.items import COLUMNS, Item, LogItem, TimeBounds, Undecoded, slices
from jobs.export.parts import Format, PartTask
from jobs.lake.bodies import DEFAULT_LIMIT
from jobs.query.place import Place
from jobs.store.workers import OneByOne
from rmq_formats.commitlog.layout import COMPRESSED
from rmq_formats.commitlog.segment import Piece
from tests.rmq_formats.builders import a_record
from tests.support.broker import Broker
from tests.support.query_lakes import write_messages
from tests.support.query_stores import RELEASE, Sent, stored, write_store
from tests.support.stores import flip

LIMIT = 1 << 16
SMALL, LARGE, CUT = (b"small", bytes(LIMIT), bytes(LIMIT + 1))


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Asked]:
    packed = [Sent(keys=("k",), body=zlib.compress(body), sys_flag=COMPRESSED) for body in (SMALL, LARGE, CUT)]
    broken = Sent(keys=("k",), body=b"no stream", sys_flag=COMPRESSED)
    store = write_store(tmp_path / "store", stored([*packed, broken]))
    write_messages(tmp_path / "lake", store, RELEASE)
    return {"store": Asked(Place(store=str(store))), "lake": Asked(Place(lake=str(tmp_path / "lake")))}


def _export(source: Asked, out: Path, kind: Format, limit: int = LIMIT) -> Summary:
    return export(plan(source, {}), RELEASE, Output(out, kind, limit), OneByOne())


@pytest.mark.parametrize("place", ["store", "lake"])
def test_a_body_larger_than_the_limit_is_named_in_ndjson(place: str, places: dict[str, Asked], tmp_path: Path) -> None:
    summary = _export(places[place], tmp_path / "out", Format.NDJSON)
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]

    assert [SMALL, LARGE] == [b64decode(row["decoded_body_base64"]) for row in rows[:2]]
    assert [(None, None)] * 2 == [(row["decoded_body_base64"], row["decoded_body_text"]) for row in rows[2:]]
    assert [None, None] == [row["body_error"] for row in rows[:2]]
    assert f"larger than {LIMIT} bytes" in rows[2]["body_error"]
    assert "no zlib stream" in rows[3]["body_error"]
    assert CUT == zlib.decompress(b64decode(rows[2]["body_base64"]))
    offsets = [int(row["physical_offset"]) for row in rows[2:]]
    assert (2, offsets) == (summary.undecoded.count, [place.offset for place in summary.undecoded.places])


@pytest.mark.parametrize("place", ["store", "lake"])
def test_a_body_larger_than_the_limit_is_named_in_parquet(place: str, places: dict[str, Asked], tmp_path: Path) -> None:
    _export(places[place], tmp_path / "out", Format.PARQUET)
    rows = pq.read_table(tmp_path / "out").to_pylist()

    assert [SMALL, LARGE] == [row["body"] for row in rows[:2]]
    assert CUT == zlib.decompress(rows[2]["body"])
    assert [None, None, True, True] == [row["body_error"] and len(row["body_error"]) > 0 for row in rows]
    assert [SMALL.decode(), LARGE.decode(), None, None] == [row["body_text"] for row in rows]


def test_a_batch_of_bombs_is_cut_into_slices_of_the_budget() -> None:
    stored_ = [zlib.compress(bytes(LIMIT)) for _ in range(10)]
    batch = pa.RecordBatch.from_pydict({"body": stored_, "sys_flag": [COMPRESSED] * 10})
    found = [len(bodies) for _, bodies in slices(batch, LIMIT, budget=3 * LIMIT)]

    assert [3, 3, 3, 1] == found


@pytest.mark.parametrize("how", ["candidates", "parquet", "by times"])
def test_an_export_of_large_bodies_holds_one_batch_and_one_slice(how: str, tmp_path: Path) -> None:
    size = 4 << 20
    broker = Broker(tmp_path / "store", segment_size=64 << 20)
    broker.append(a_record(bytes(size)) for _ in range(15))
    between = TimeBounds(0, None) if how == "by times" else TimeBounds()
    [item] = plan(Asked(Place(store=str(broker.root)), between=between), {}).items
    task = PartTask(tmp_path, Format.PARQUET, RELEASE)
    next(candidates(item, ("body",), DEFAULT_LIMIT, Undecoded()))  # what is loaded once
    tracemalloc.start()
    try:
        if how == "candidates":
            for batch in candidates(item, ("body",), DEFAULT_LIMIT, Undecoded()):
                assert batch.num_rows == 1
        else:
            assert task((0, item)).messages == 15
        peak = tracemalloc.get_traced_memory()[1]  # of Python and numpy; Arrow's columns of slices are not in it
    finally:
        tracemalloc.stop()

    assert peak < 4 * size + (2 << 20)  # the bytes of a record, its row, the last record of all, a body


def test_a_condition_sees_a_body_larger_than_the_limit_as_it_is_stored_and_it_is_named(
    places: dict[str, Asked],
) -> None:
    undecoded = Undecoded()
    [item] = plan(places["store"], {}).items
    rows = [row for batch in candidates(item, ("topic", "body_text"), LIMIT, undecoded) for row in batch.to_pylist()]

    assert [SMALL.decode(), LARGE.decode(), None, None] == [row["body_text"] for row in rows]
    assert undecoded.count == 2


@pytest.mark.parametrize("place", ["store", "lake"])
def test_the_chosen_rows_are_those_that_were_numbered(place: str, places: dict[str, Asked], tmp_path: Path) -> None:
    def choose(items: Sequence[Item], folder: Path, _limit: int) -> Chosen:
        (folder / "undecoded").mkdir(parents=True)
        for number, item in enumerate(items):
            wanted = [
                row
                for row, values in enumerate(
                    row
                    for batch in candidates(item, ("queue_offset",), LIMIT, Undecoded())
                    for row in batch.to_pylist()
                )
                if values["queue_offset"] in (0, 3)
            ]
            rows = folder / "rows" / f"_item={number}"
            rows.mkdir(parents=True)
            pq.write_table(pa.table({"_row": pa.array(np.array(wanted[::-1]))}), rows / "part.parquet")
        return partial(numbered_rows, folder)

    planned = plan(places[place], {})
    summary = export(planned, RELEASE, Output(tmp_path / "out", limit=LIMIT), OneByOne(), choose)
    rows: list[dict[str, Any]] = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]

    assert [0, 3] == [row["queue_offset"] for row in rows]
    assert summary.messages == 2


@pytest.mark.parametrize(("since", "messages", "damaged"), [(0, 3, 1), (300, 1, 1), (900, 0, 0)])
def test_an_export_by_times_reads_a_segment_once(
    since: int, messages: int, damaged: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = stored([Sent(body=bytes(50)) for _ in range(4)])
    store = write_store(tmp_path / "store", records)
    flip(store / "commitlog" / f"{0:020d}", records[2].physical_offset + 90)  # its body
    reads = []

    def read(item: LogItem, columns: Sequence[str] = COLUMNS) -> Iterator[pa.RecordBatch | Piece]:
        reads.append(columns)
        return real(item, columns)

    real = LogItem.read
    monkeypatch.setattr(LogItem, "read", read)
    asked = Asked(Place(store=str(store)), between=TimeBounds(records[0].store_timestamp + since, None))
    summary = export(plan(asked, {}), RELEASE, Output(tmp_path / "out"), OneByOne())

    assert [COLUMNS] == reads
    found = [(place.offset, place.size) for place in summary.damaged]
    assert (messages, [(records[2].physical_offset, records[2].total_size)] * damaged) == (summary.messages, found)
