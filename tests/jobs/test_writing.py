"""The Parquet files of a lake: how they are made, and what is left when they are not finished."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.lake.tables import QUARANTINE, SUPERSEDED_MESSAGES, Table
from jobs.lake.writing import SMALL_GROUP, TableFile

_RANDOM = random.Random(4711)
_WHOSE = {"broker": "b", "store_id": "s"}


def _written(lake: Path, table: Table, **values: list[object]) -> Path:
    """Write a file of *table* with these columns, everything else NULL, and return it."""
    rows = len(next(iter(values.values())))
    columns = [
        pa.array(values[field.name], field.type) if field.name in values else pa.nulls(rows, field.type)
        for field in table.schema
    ]
    with TableFile(str(lake), table, "file.parquet", _WHOSE, {}) as file:
        file.write(pa.RecordBatch.from_arrays(columns, schema=table.schema))
        file.close()
    return lake / table.name / "file.parquet"


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
    """Encrypted and compressed bodies cost no time for nothing; all other columns are compressed in any case."""
    path = _written(tmp_path, SUPERSEDED_MESSAGES, body=bodies, physical_offset=list(range(500)))
    codecs = _codecs(path)
    assert codecs.pop("body") == codec
    assert set(codecs.values()) == {"ZSTD"}
    assert pq.read_table(path, columns=["body"])["body"].to_pylist() == bodies


def _write_until_the_disk_is_gone(lake: Path) -> None:
    with TableFile(str(lake), QUARANTINE, "f.parquet", _WHOSE, {}) as file:
        file.write_rows([{"physical_offset": 4711, "sample": bytes(SMALL_GROUP)}])
        assert list((lake / QUARANTINE.name).iterdir())
        raise OSError("the disk is gone")


def test_a_file_that_an_error_ends_is_not_left_behind(tmp_path: Path) -> None:
    """Half a file is nobody's: it goes with the error."""
    with pytest.raises(OSError, match="disk"):
        _write_until_the_disk_is_gone(tmp_path)
    assert not list((tmp_path / QUARANTINE.name).iterdir())


def test_a_file_is_never_written_over_another(tmp_path: Path) -> None:
    """A name that is taken is an error, and what stands there stays."""
    taken = tmp_path / QUARANTINE.name / "f.parquet"
    taken.parent.mkdir()
    taken.write_bytes(b"precious")
    with pytest.raises(FileExistsError), TableFile(str(tmp_path), QUARANTINE, "f.parquet", _WHOSE, {}) as file:
        file.write_rows([{"physical_offset": 4711, "sample": bytes(SMALL_GROUP)}])
    assert taken.read_bytes() == b"precious"


def test_small_batches_become_one_row_group(tmp_path: Path) -> None:
    """What chooses a few records of each window makes tiny batches; a file of as many row groups is slow to read."""
    rows = [{"physical_offset": number, "sample": _RANDOM.randbytes(SMALL_GROUP // 40)} for number in range(100)]
    with TableFile(str(tmp_path), QUARANTINE, "f.parquet", _WHOSE | {"reason": "r"}, {}) as file:
        for row in rows:
            file.write_rows([row])
        file.close()
    metadata = pq.read_metadata(tmp_path / QUARANTINE.name / "f.parquet")
    assert metadata.num_row_groups == 3
    assert pq.read_table(tmp_path / QUARANTINE.name / "f.parquet")["physical_offset"].to_pylist() == list(range(100))
