"""Tables match their declarations, including findings and inflated bodies."""

import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from jobs.ingest import Summary
from jobs.lake.bodies import DEFAULT_INFLATED_BODY_LIMIT, add_inflated_bodies
from jobs.store.selection import Selection
from rmq_formats.commitlog.layout import COMPRESSED
from rmq_formats.commitlog.record import MessageRecord
from tests.jobs.lake.test_integrity import LATER
from tests.rmq_formats.builders import make_record
from tests.support.broker import Broker, some_records
from tests.support.lakes import ingest_store, restore_log, rows_of
from tests.support.reference import tables_page
from tests.support.stores import read_files

DOCS = Path(__file__).parents[3] / "docs" / "tables.md"


def test_the_page_of_tables_is_generated_from_the_declarations() -> None:
    assert tables_page() == DOCS.read_text(encoding="utf-8")


TEXT = b'{"order": 7, "note": "' + b"again " * 40 + b'"}'
BOMB = zlib.compress(bytes(DEFAULT_INFLATED_BODY_LIMIT + 1))


def compressed(body: bytes = TEXT) -> MessageRecord:
    return make_record(body, sys_flag=COMPRESSED)


def ingest_and_inflate(broker: Broker, lake: Path, *, inflated: bool = True) -> Summary:
    selection = Selection(with_inflated=inflated)
    return ingest_store(broker.root, lake, "b", selection=selection)


def drop_columns(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in {"store_id", *names}}


def read_bodies(lake: Path, table: str = "messages") -> list[tuple[bytes | None, str | None]]:
    rows = rows_of(lake, table)
    assert [(None, None)] * (len(rows) - sum(row["is_compressed"] for row in rows)) == [
        (row["body_inflated"], row["body_error"]) for row in rows if not row["is_compressed"]
    ]
    return [(row["body_inflated"], row["body_error"]) for row in rows if row["is_compressed"]]


EXPECTED = [
    (TEXT, None),
    (None, "body is not a zlib stream: Error -3 while decompressing data: incorrect header check"),
    (None, f"body is larger than {DEFAULT_INFLATED_BODY_LIMIT} bytes when decompressed"),
    (b"", None),
]


def test_a_decompressed_body_is_stored_next_to_the_compressed_one_which_is_restored(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", segment_size=1 << 20)
    sent = [compressed(zlib.compress(TEXT)), compressed(b"no stream"), compressed(BOMB), compressed(b"")]
    broker.append([*some_records(5), *sent, *some_records(5, seed=2)])
    ingest_and_inflate(broker, tmp_path / "with")
    ingest_and_inflate(broker, tmp_path / "without", inflated=False)

    assert read_bodies(tmp_path / "with") == EXPECTED
    assert read_bodies(tmp_path / "without") == [(None, None)] * 4
    stored, plain = ([drop_columns(row, *LATER) for row in rows_of(tmp_path / name)] for name in ("with", "without"))
    assert stored == plain
    restore_log(tmp_path / "with", tmp_path / "out")
    assert read_files(tmp_path / "out" / "commitlog") == read_files(broker.root / "commitlog")


def test_decompression_bombs_are_inflated_a_few_at_a_time() -> None:
    """A window of the log may contain a thousand of them, each within the size limit."""
    limit = 1 << 16
    bomb = zlib.compress(bytes(limit))
    rows = {
        "broker": ["b"] * 100,
        "physical_offset": list(range(100)),
        "sys_flag": [COMPRESSED] * 100,
        "body_length": [len(bomb)] * 100,
        "body": [bomb] * 100,
        "is_compressed": [True] * 100,
    }

    parts = list(add_inflated_bodies(pa.RecordBatch.from_pydict(rows), limit=limit, budget=4 * limit))

    assert [part.num_rows for part in parts] == [4] * 25
    assert [offset for part in parts for offset in part.column("physical_offset").to_pylist()] == list(range(100))
    assert {len(body) for part in parts for body in part.column("body_inflated").to_pylist()} == {limit}
