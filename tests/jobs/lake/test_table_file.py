"""The Parquet files of a lake: how they are made, and what is left when they are not finished."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import StoredFile, batches
from jobs.lake.table_file import SMALL_GROUP, Action, TableFile
from jobs.lake.tables import QUARANTINE, Table
from rmq_formats.arrow import column, required

_RANDOM = random.Random(4711)
_WHOSE = {"broker": "b", "store_id": "s"}
_TABLE = Table(
    "bodies",
    "one body",
    (required("physical_offset", pa.int64(), "where it stands"), column("body", pa.binary(), "its bytes")),
    statistics=("physical_offset",),
)


def _action(lake: Path, **values: list[Any]) -> Action | None:
    columns = [pa.array(values[field.name], field.type) for field in _TABLE.columns]
    with TableFile(Lake(str(lake)), _TABLE, "file.parquet", _WHOSE) as file:
        file.write(pa.RecordBatch.from_arrays(columns, schema=pa.schema(_TABLE.columns)))
        return file.close()


def _written(lake: Path, **values: list[Any]) -> Path:
    _action(lake, **values)
    return lake / _TABLE.name / "file.parquet"


def _codecs(path: Path) -> dict[str, str]:
    group = pq.read_metadata(path).row_group(0)
    return {group.column(at).path_in_schema: group.column(at).compression for at in range(group.num_columns)}


@pytest.mark.parametrize(
    ("bodies", "codec"),
    [
        ([_RANDOM.randbytes(900) for _ in range(500)], "UNCOMPRESSED"),
        ([b"order created, paid and shipped " * 30 for _ in range(500)], "ZSTD"),
        ([None] * 500, "ZSTD"),
    ],
    ids=["random", "text", "none"],
)
def test_bodies_that_a_codec_does_not_shorten_are_stored_as_they_are(
    tmp_path: Path, bodies: list[object], codec: str
) -> None:
    path = _written(tmp_path, physical_offset=list(range(500)), body=bodies)
    codecs = _codecs(path)
    assert codecs.pop("body") == codec
    assert set(codecs.values()) == {"ZSTD"}
    assert pq.read_table(path, columns=["body"])["body"].to_pylist() == bodies


def test_a_file_says_which_columns_every_row_has(tmp_path: Path) -> None:
    action = _action(tmp_path, physical_offset=[7, 9], body=[b"x", None])
    assert action is not None
    path = tmp_path / _TABLE.name / action.path
    assert {name: _is_required(path, name) for name in pq.read_schema(path).names} == {
        "broker": True,
        "store_id": True,
        "physical_offset": True,
        "body": False,
    }
    stats = json.loads(action.stats)
    assert stats["nullCount"] == {"broker": 0, "store_id": 0, "physical_offset": 0}
    assert (stats["minValues"]["physical_offset"], stats["maxValues"]["physical_offset"]) == (7, 9)


def test_a_commit_learns_the_size_of_a_file_and_when_it_was_written(tmp_path: Path) -> None:
    with TableFile(Lake(str(tmp_path)), QUARANTINE, "f.parquet", _WHOSE | {"reason": "r"}) as file:
        file.write_rows([{"physical_offset": 4711}])
        written = file.close()
    status = (tmp_path / QUARANTINE.name / "f.parquet").stat()
    assert written is not None
    assert (written.path, written.size, written.rows) == ("f.parquet", status.st_size, 1)
    assert abs(written.modification_time - status.st_mtime * 1000) < 60_000


def _is_required(path: Path, name: str) -> bool:
    return bool(pq.ParquetFile(path).schema.column(pq.read_schema(path).names.index(name)).max_definition_level == 0)


def test_a_row_without_a_column_that_every_row_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pa.ArrowInvalid, match="physical_offset"):
        _written(tmp_path, physical_offset=[7, None], body=[b"x", b"y"])
    assert not list((tmp_path / _TABLE.name).iterdir())


def test_files_from_before_a_column_was_required_are_merged_with_others(tmp_path: Path) -> None:
    older = tmp_path / _TABLE.name / "older.parquet"
    older.parent.mkdir()
    pq.write_table(pa.table({**{name: [text] for name, text in _WHOSE.items()}, "physical_offset": [5]}), older)
    lake = Lake(str(tmp_path))
    with TableFile(lake, _TABLE, "merged.parquet", {}) as file:
        for path in (older, _written(tmp_path, physical_offset=[7], body=[b"x"])):
            for batch in batches(lake, _TABLE, StoredFile.not_committed(path.name)):
                file.write(batch)
        file.close()
    merged = pq.read_table(tmp_path / _TABLE.name / "merged.parquet", columns=["physical_offset", "body"])
    assert merged.to_pylist() == [{"physical_offset": 5, "body": None}, {"physical_offset": 7, "body": b"x"}]


def _write_until_the_disk_is_gone(lake: Path) -> None:
    with TableFile(Lake(str(lake)), QUARANTINE, "f.parquet", _WHOSE) as file:
        file.write_rows([{"physical_offset": 4711, "sample": bytes(SMALL_GROUP)}])
        assert list((lake / QUARANTINE.name).iterdir())
        raise OSError("the disk is gone")


def test_a_file_that_an_error_ends_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk"):
        _write_until_the_disk_is_gone(tmp_path)
    assert not list((tmp_path / QUARANTINE.name).iterdir())


def test_a_file_is_never_written_over_another(tmp_path: Path) -> None:
    taken = tmp_path / QUARANTINE.name / "f.parquet"
    taken.parent.mkdir()
    taken.write_bytes(b"precious")
    with pytest.raises(FileExistsError), TableFile(Lake(str(tmp_path)), QUARANTINE, "f.parquet", _WHOSE) as file:
        file.write_rows([{"physical_offset": 4711, "sample": bytes(SMALL_GROUP)}])
    assert taken.read_bytes() == b"precious"


def test_small_batches_become_one_row_group(tmp_path: Path) -> None:
    """What chooses a few records of each window makes tiny batches; a file of as many row groups is slow to read."""
    rows = [{"physical_offset": number, "sample": _RANDOM.randbytes(SMALL_GROUP // 40)} for number in range(100)]
    with TableFile(Lake(str(tmp_path)), QUARANTINE, "f.parquet", _WHOSE | {"reason": "r"}) as file:
        for row in rows:
            file.write_rows([row])
        file.close()
    metadata = pq.read_metadata(tmp_path / QUARANTINE.name / "f.parquet")
    assert metadata.num_row_groups == 3
    assert pq.read_table(tmp_path / QUARANTINE.name / "f.parquet")["physical_offset"].to_pylist() == list(range(100))
