"""Tables match their declarations, including findings and inflated bodies."""

import zlib
from pathlib import Path

import pyarrow as pa

from jobs.lake.bodies import DEFAULT_INFLATED_BODY_LIMIT, add_inflated_bodies
from jobs.store.selection import Selection
from rmq_formats.commitlog.layout import COMPRESSED
from tests.jobs.lake.test_integrity import LATER
from tests.rmq_formats.builders import make_record
from tests.support.broker import Broker, some_records
from tests.support.lakes import ingest_store, restore_log, rows_of
from tests.support.reference import tables_page
from tests.support.stores import read_files

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "tables.md"


def test_the_page_of_tables_is_generated_from_the_declarations() -> None:
    assert tables_page() == DOCS.read_text(encoding="utf-8")


TEXT = b'{"order": 7, "note": "' + b"again " * 40 + b'"}'
BOMB = zlib.compress(bytes(DEFAULT_INFLATED_BODY_LIMIT + 1))


EXPECTED = [
    (TEXT, None),
    (None, "body is not a zlib stream: Error -3 while decompressing data: incorrect header check"),
    (None, f"body is larger than {DEFAULT_INFLATED_BODY_LIMIT} bytes when decompressed"),
    (b"", None),
]


def test_a_decompressed_body_is_stored_next_to_the_compressed_one_which_is_restored(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", segment_size=1 << 20)
    compressed = [make_record(body, sys_flag=COMPRESSED) for body in (zlib.compress(TEXT), b"no stream", BOMB, b"")]
    broker.append([*some_records(5), *compressed, *some_records(5, seed=2)])
    rows = {}
    for name in ("with", "without"):
        selection = Selection(with_inflated=name == "with")
        ingest_store(broker.root, tmp_path / name, "b", selection=selection)
        rows[name] = rows_of(tmp_path / name)

    bodies = {name: [(row["body_inflated"], row["body_error"]) for row in rows[name]] for name in rows}
    nothing = (None, None)

    assert [*[nothing] * 5, *EXPECTED, *[nothing] * 5] == bodies["with"]
    assert [nothing] * 14 == bodies["without"]
    assert [5, 6, 7, 8] == [number for number, row in enumerate(rows["with"]) if row["is_compressed"]]
    others = rows["with"][0].keys() - {"store_id", *LATER}
    stored, plain = ([{name: row[name] for name in others} for row in rows[lake]] for lake in rows)

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
