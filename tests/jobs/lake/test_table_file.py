"""Files of tables: how they are written and clustered, their entries in Delta's log, and other readers."""

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock, patch

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.lake import upkeep
from jobs.lake.commit import commit, commit_rows, ensure_table
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import SnapshotFile, find_damaged_file, list_snapshot_files, read_batches, read_rows_where
from jobs.lake.table_file import ROW_GROUP_BYTES, AddedFile, TableFile
from jobs.lake.tables import INDEX_ENTRIES, QUARANTINE, TABLES_BY_NAME, Table
from jobs.lake.upkeep import CROWDED_NODE_FILES, cluster_by_hash, merge_small_files
from rmq_formats.arrow import column, required_column
from tests.support.lakes import dataset_of, ingest_store, rows_of
from tests.support.stores import flip

_RANDOM = random.Random(4711)
_WHOSE = {"broker": "b", "store_id": "s"}
_TABLE = Table(
    "bodies",
    "one body",
    (required_column("physical_offset", pa.int64(), "where it stands"), column("body", pa.binary(), "its bytes")),
    statistics=("physical_offset",),
)


def _action(lake: Path, **values: list[Any]) -> AddedFile | None:
    columns = [pa.array(values[field.name], field.type) for field in _TABLE.columns]
    with TableFile(Lake(str(lake)), _TABLE, "file.parquet", _WHOSE) as file:
        file.write(pa.RecordBatch.from_arrays(columns, schema=pa.schema(_TABLE.columns)))
        return file.close()


def _write_file(lake: Path, **values: list[Any]) -> Path:
    _action(lake, **values)
    return lake / _TABLE.name / "file.parquet"


@pytest.mark.parametrize(
    ("bodies", "codec"),
    [
        ([_RANDOM.randbytes(900) for _ in range(500)], "UNCOMPRESSED"),
        ([b"order created, paid and shipped " * 30 for _ in range(500)], "ZSTD"),
        ([None] * 500, "ZSTD"),
    ],
    ids=["random", "text", "none"],
)
def test_incompressible_bodies_are_stored_uncompressed(tmp_path: Path, bodies: list[object], codec: str) -> None:
    path = _write_file(tmp_path, physical_offset=list(range(500)), body=bodies)
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    codecs = {column.path_in_schema: column.compression for column in columns}

    assert codecs.pop("body") == codec
    assert set(codecs.values()) == {"ZSTD"}
    assert pq.read_table(path, columns=["body"])["body"].to_pylist() == bodies


def test_random_numbers_are_stored_as_differences_without_compression(tmp_path: Path) -> None:
    """Compression takes more time and space for the hashes of index entries; differences may exceed 64 bits."""
    numbers = [_RANDOM.randrange(-(1 << 63), 1 << 63) for _ in range(500)] + [-(1 << 63), (1 << 63) - 1, 0] * 50
    batch = pa.record_batch({"physical_offset": range(len(numbers)), "number": numbers})
    table = replace(_TABLE, columns=(_TABLE.columns[0], column("number", pa.int64(), "")), random_numbers=("number",))
    with TableFile(Lake(str(tmp_path)), table, "file.parquet", _WHOSE) as file:
        file.write(batch)
        file.close()
    path = tmp_path / table.name / "file.parquet"
    stored = pq.ParquetFile(path).metadata.row_group(0).column(3)

    assert "UNCOMPRESSED" == stored.compression
    assert "DELTA_BINARY_PACKED" in stored.encodings
    assert numbers == pq.read_table(path)["number"].to_pylist()
    assert numbers == [number for (number,) in duckdb.sql(f"SELECT number FROM '{path}'").fetchall()]


def test_a_changed_byte_of_a_page_is_reported(tmp_path: Path) -> None:
    """Parquet's readers ignore it in a body or a number, unless the page has a checksum."""
    lake = Lake(str(tmp_path))
    bodies = [_RANDOM.randbytes(900) for _ in range(500)]
    snapshot = ensure_table(lake, _TABLE)
    action = _action(tmp_path, physical_offset=list(range(500)), body=bodies)

    assert action is not None
    commit(lake, _TABLE, [action], ("s", 1), {})
    snapshot.update_incremental()
    path = tmp_path / _TABLE.name / action.path
    (file,) = list_snapshot_files(lake, snapshot, _TABLE)
    flip(path, path.read_bytes().index(bodies[250]) + 5)

    with pytest.raises(OSError, match=path.name):
        list(read_batches(lake, _TABLE, file, ("body",)))
    with patch.dict(TABLES_BY_NAME, {_TABLE.name: _TABLE}), pytest.raises(OSError, match=str(path.parent)):
        read_rows_where(lake, snapshot, ["body"])

    assert find_damaged_file(lake, [f"{_TABLE.name}/{path.name}"], 10) is not None
    assert sum(batch.num_rows for batch in read_batches(lake, _TABLE, file, ("physical_offset",))) == 500


def test_a_page_that_lost_its_values_is_reported(tmp_path: Path) -> None:
    """Arrow ended the row group there, without an error."""
    path = _write_file(tmp_path, physical_offset=list(range(500)), body=[b"x"] * 500)
    file = SnapshotFile(path.name, 0, 0, {}, {})
    batches = list(pq.ParquetFile(path).iter_batches(100, columns=["body"]))[:-1]
    shortened = Mock(
        metadata=pq.read_metadata(path),
        num_row_groups=1,
        schema_arrow=pq.read_schema(path),
        **{"iter_batches.return_value": batches},
    )
    with (
        patch("jobs.lake.snapshot_files.pq.ParquetFile", return_value=shortened),
        pytest.raises(OSError, match=path.name),
    ):
        list(read_batches(Lake(str(tmp_path)), _TABLE, file, ("body",)))


def test_a_file_declares_its_required_columns(tmp_path: Path) -> None:
    action = _action(tmp_path, physical_offset=[7, 9], body=[b"x", None])

    assert action is not None
    path = tmp_path / _TABLE.name / action.path
    schema = pq.ParquetFile(path).schema
    required_ = [one.path for one in map(schema.column, range(len(schema))) if one.max_definition_level == 0]

    assert required_ == ["broker", "store_id", "physical_offset"]
    stats = json.loads(action.stats)

    assert stats["nullCount"] == {"broker": 0, "store_id": 0, "physical_offset": 0}
    assert stats["minValues"]["physical_offset"] == 7
    assert stats["maxValues"]["physical_offset"] == 9
    status = path.stat()

    assert action.size == status.st_size
    assert action.row_count == 2
    assert abs(action.modification_time - status.st_mtime * 1000) < 60_000


def test_a_row_without_a_required_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pa.ArrowInvalid, match="physical_offset"):
        _write_file(tmp_path, physical_offset=[7, None], body=[b"x", b"y"])

    assert not list((tmp_path / _TABLE.name).iterdir())


def test_a_file_is_never_written_over_another(tmp_path: Path) -> None:
    taken = tmp_path / QUARANTINE.name / "f.parquet"
    taken.parent.mkdir()
    taken.write_bytes(b"precious")
    with pytest.raises(FileExistsError), TableFile(Lake(str(tmp_path)), QUARANTINE, "f.parquet", _WHOSE) as file:
        file.write_rows([{"physical_offset": 4711, "sample": bytes(ROW_GROUP_BYTES)}])

    assert taken.read_bytes() == b"precious"


def test_small_batches_become_one_row_group(tmp_path: Path) -> None:
    """Commands that select few records per window produce tiny batches; a file with many row groups is slow to read."""
    rows = [{"physical_offset": number, "sample": _RANDOM.randbytes(ROW_GROUP_BYTES // 40)} for number in range(100)]
    with TableFile(Lake(str(tmp_path)), QUARANTINE, "f.parquet", _WHOSE | {"reason": "r"}) as file:
        for row in rows:
            file.write_rows([row])
        file.close()
    metadata = pq.read_metadata(tmp_path / QUARANTINE.name / "f.parquet")

    assert metadata.num_row_groups == 3
    assert pq.read_table(tmp_path / QUARANTINE.name / "f.parquet")["physical_offset"].to_pylist() == list(range(100))


# The first row is deleted: in the portable form of a Roaring bitmap, in Base85 (PROTOCOL.md, "Deletion Vectors").
VECTOR = {
    "storageType": "i",
    "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000005c8Xg00000",
    "sizeInBytes": 34,
    "cardinality": 1,
}
WITH_VECTORS = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors"],
}


@pytest.mark.parametrize("form", ["", "checkpoint", "checkpoint.0000000001.0000000001"])
def test_a_merge_removes_a_file_together_with_its_deletion_vector(tmp_path: Path, form: str) -> None:
    """Also in a typed table, whose log is one directory deeper."""
    lake = Lake(str(tmp_path))
    stored = replace(QUARANTINE, name="typed/Orders")
    log = tmp_path / stored.name / "_delta_log"
    for number in range(2):
        rows = [{"physical_offset": 10 * number + row, "run": 1} for row in range(3)]
        commit_rows(lake, stored, f"{number}.parquet", _WHOSE | {"reason": "r"}, rows, ("b", number + 1))
    table = DeltaTable(log.parent)
    (add,) = [action["add"] for line in (log / f"{table.version():020}.json").read_text().splitlines()
              if "add" in (action := json.loads(line))]  # fmt: skip
    deleted = [{"protocol": WITH_VECTORS}, {"remove": {**add, "deletionTimestamp": 0}}]
    lines = [json.dumps(action) for action in (*deleted, {"add": {**add, "deletionVector": VECTOR}})]
    (log / f"{table.version() + 1:020}.json").write_text("\n".join(lines))
    if form:
        DeltaTable(log.parent).create_checkpoint()
        (checkpoint,) = log.glob("*.checkpoint.parquet")
        checkpoint.rename(str(checkpoint).replace("checkpoint", form))
        (log / "_last_checkpoint").unlink()

    assert merge_small_files(lake, stored).merged == 2

    merged = DeltaTable(log.parent)
    (file,) = list_snapshot_files(lake, merged, stored)
    batches = read_batches(lake, stored, file, ["physical_offset"])

    assert [0, 1, 2, 11, 12] == [row["physical_offset"] for batch in batches for row in batch.to_pylist()]
    actions = map(json.loads, (log / f"{merged.version():020}.json").read_text().splitlines())
    removed = [action["remove"] for action in actions if "remove" in action]

    assert {"0.parquet": None, "1.parquet": VECTOR} == {one["path"]: one.get("deletionVector") for one in removed}


_LARGEST = (1 << 31) - 1
_SEEDS = (1, 2, 3, 4)


def _add_file(table: Path, random: Random, store: str, run: int, widths: tuple[int, ...] = (_LARGEST, 1000, 1)) -> None:
    """Add a file like a run, with hashes that are spread, close together, or equal."""
    width = random.choice(widths)
    low = random.randrange(_LARGEST - width + 1)
    count = random.randrange(1, 400)
    columns: dict[str, object] = {}
    for field in INDEX_ENTRIES.schema_without_dictionaries:
        value = store if pa.types.is_string(field.type) else run
        columns[field.name] = [value if not pa.types.is_timestamp(field.type) else 0] * count
    hashes = sorted(low + random.randrange(width) for _ in range(count))
    columns["key_hash"] = [*hashes[1:], random.choice([None, hashes[0]])]  # NULL: of another engine
    columns["entry"] = list(range(count))
    write_deltalake(table, pa.table(columns, schema=INDEX_ENTRIES.schema_without_dictionaries), mode="append")


def _rows(table: Path) -> Counter[tuple[object, ...]]:
    found = DeltaTable(table).to_pyarrow_table().select(["store_id", "slot", "key_hash", "entry"])
    return Counter(zip(*(found.column(name).to_pylist() for name in found.column_names), strict=True))


def test_files_of_a_sorted_table_with_many_short_rows_are_not_merged(tmp_path: Path) -> None:
    """A first run of 4 GiB wrote its index entries, and then wrote all of them again."""
    random = Random(1)
    for run in range(20):
        _add_file(tmp_path / INDEX_ENTRIES.name, random, "a", run)
    rows = [
        file.row_count for file in list_snapshot_files(Lake(str(tmp_path)), DeltaTable(tmp_path / INDEX_ENTRIES.name))
    ]
    with patch.object(upkeep, "_MOST_ROWS", 2 * sorted(rows)[10]):
        merged = merge_small_files(Lake(str(tmp_path)), INDEX_ENTRIES, least_files=2).merged

    assert merged == sum(count < sorted(rows)[10] for count in rows) > 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", _SEEDS)
def test_clustering_keeps_all_rows_and_puts_each_hash_into_few_files(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    lake = Lake(str(tmp_path))
    table = tmp_path / INDEX_ENTRIES.name
    for run in range(60):
        _add_file(table, random, random.choice(["a", "b"]), run)
        if run in {20, 40}:
            with patch.object(upkeep, "_MOST_ROWS", 500):
                cluster_by_hash(lake, INDEX_ENTRIES)
    before = _rows(table)
    with patch.object(upkeep, "_MOST_ROWS", 500):
        cluster_by_hash(lake, INDEX_ENTRIES)
        files_of_hash = list_snapshot_files(lake, DeltaTable(table), INDEX_ENTRIES)

        assert cluster_by_hash(lake, INDEX_ENTRIES).merged == 0

    assert _rows(table) == before
    for store, first in product(("a", "b"), files_of_hash):  # the overlap is largest at the beginning of a file
        key_hash = first.minimum("key_hash", 0)
        opened = [
            file for file in files_of_hash if file.may_have("store_id", store) and file.may_have("key_hash", key_hash)
        ]

        assert len(opened) < CROWDED_NODE_FILES * 5  # levels of the clustering of 30 files per store


def test_a_dry_run_plans_every_round_of_the_clustering(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    for run in range(40):
        _add_file(tmp_path / INDEX_ENTRIES.name, Random(run), "a", run, (_LARGEST,))
    with patch.object(upkeep, "_MOST_ROWS", 500), patch.object(upkeep, "SMALL_FILE_BYTES", 0):
        planned = upkeep.estimate_savings(lake, INDEX_ENTRIES)
        done = cluster_by_hash(lake, INDEX_ENTRIES)

    assert (planned.merged, planned.written) == (done.merged, done.written) > (40, 0)


def test_a_failed_clustering_does_not_change_the_table(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    table = tmp_path / INDEX_ENTRIES.name
    for run in range(CROWDED_NODE_FILES):
        _add_file(table, Random(run), "a", run)
    before = _rows(table)
    version = DeltaTable(table).version()

    with pytest.raises(OSError, match="the disk is gone"):
        cluster_by_hash(lake, INDEX_ENTRIES, Mock(side_effect=OSError("the disk is gone")))

    assert _rows(table) == before
    assert DeltaTable(table).version() == version


def test_a_column_without_limits_in_the_log_is_not_treated_as_null(store: Path, tmp_path: Path) -> None:
    """`deltalake` treated missing statistics as NULL, so that Arrow found no message by its tag."""
    ingest_store(store, tmp_path / "lake")
    rows = [row for row in rows_of(tmp_path / "lake") if row["tags"] == "TagA"]
    messages = dataset_of(tmp_path / "lake" / "messages")

    assert rows
    assert len(rows) == messages.to_table(filter=pc.field("tags") == "TagA").num_rows
    assert [(len(rows),)] == duckdb.sql("SELECT count(*) FROM messages WHERE tags = 'TagA'").fetchall()
