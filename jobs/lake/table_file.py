"""
Writes Parquet files of a lake's tables inside tasks, with pyarrow; rows do not pass through the JVM.

A file is created exclusively under a name that is unique to this attempt, flushed, and described by the action that a
Delta commit needs. It is not part of the table until a commit references it.
"""

import base64
import datetime as dt
import json
import os
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jobs.lake.lake import Lake
from jobs.lake.tables import CONSUME_QUEUE, INDEX_ENTRIES, Table, storable_text
from jobs.storage import object_store
from jobs.storage.local import explaining_full_disk, make_directory, start_flush
from jobs.storage.locations import is_local, local_path, object_key

CODEC = "zstd"
_BODY = "body"
_SAMPLE_SIZE = 1 << 19
_ROWS_AT_ONCE = 1 << 12
_WORTH_IT = 0.95  # bodies that compress to more than this part of their size are stored uncompressed
ROW_GROUP_BYTES = 4 << 20  # bytes of rows in a row group, except the last one
_TABLES_OF_SHORT_VALUES, _VALUES_PER_BATCH = {CONSUME_QUEUE.name, INDEX_ENTRIES.name}, 1 << 14
STATISTICS_LENGTH = 56  # characters of text minima and maxima: IPv6 ids are this long
_CONSTANT_TEXT = pa.dictionary(pa.int32(), pa.string())
_ASCENDING = ("physical_offset", "queue_offset", "store_timestamp")
_HIGHEST = "\U0010ffff"
_FALSE_POSITIVES = 0.01  # the false positive rate of bloom filters


class AddedFile(NamedTuple):
    """One new file, as in Delta's log."""

    path: str
    size: int
    modification_time: int
    stats: str
    row_count: int


MERGED_MARK = "merged"


class FileNaming(NamedTuple):
    """The owner of files, encoded in their names, so that leftovers can be recognized."""

    store_id: str
    run: int

    def new_file_name(self, part: str, suffix: str = ".parquet") -> str:
        """Return a unique name."""
        return f"{self.prefix}{part}-{uuid4()}{suffix}"

    @property
    def prefix(self) -> str:
        """The prefix of the names of this run's files."""
        return f"{self.store_id}-{self.run}-"


class TableFile:
    """One Parquet file of a table; no file is created without rows."""

    def __init__(
        self, lake: Lake, table: Table, name: str, constants: Mapping[str, object], group_size: int = ROW_GROUP_BYTES
    ) -> None:
        """
        Prepare a file, which is created with its first rows; *constants* fill the columns that the batches lack.

        Batches are collected up to *group_size* bytes for each row group.
        """
        self._group_size = group_size
        self._lake = lake
        self._path = f"{table.name}/{name}"
        self._location = lake.locate(table.name, name)
        self._table = table
        self._name = name
        self._constants = constants
        # A constant text is written once, as a dictionary.
        texts = {name for name, value in constants.items() if isinstance(value, str)}
        self._schema = pa.schema(
            [
                field.with_type(_CONSTANT_TEXT) if field.name in texts and pa.types.is_string(field.type) else field
                for field in table.schema
            ]
        )
        self._sink: pa.NativeFile  # once there are rows
        self._flushing = 0  # bytes whose flush has started
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.RecordBatch] = []  # batches that are collected for the next row group
        self._held_size = 0
        self._rows: list[Mapping[str, object]] = []  # rows that are collected for the next batch
        self._rows_size = 0  # of their bytes

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the rows of *batch*."""
        if not batch.num_rows:
            return
        whole = pa.RecordBatch.from_arrays([self._column(batch, field) for field in self._schema], schema=self._schema)
        self._held.append(whole)
        self._held_size += whole.nbytes
        if self._held_size >= self._group_size:
            self._write_pending()

    def write_all(self, batches: Iterable[pa.RecordBatch]) -> AddedFile | None:
        """Write all rows of the file, and close it."""
        with self:
            for batch in batches:
                self.write(batch)
            return self.close()

    def write_groups(self, groups: Iterable[pa.RecordBatch]) -> AddedFile | None:
        """Write each batch as a row group, and close the file."""
        with self:
            for group in groups:
                self.write(group)
                self._write_pending()
            return self.close()

    def write_rows(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Append rows, each a mapping from column to value; they are collected into batches that need little memory."""
        for row in rows:
            self._rows.append(row)
            self._rows_size += sum(len(value) for value in row.values() if isinstance(value, bytes))
            if len(self._rows) >= _ROWS_AT_ONCE or self._rows_size >= ROW_GROUP_BYTES:
                self._write_collected_rows()

    def _write_collected_rows(self) -> None:
        if not self._rows:  # most files are written in batches
            return
        schema = pa.schema([field for field in self._table.schema if field.name not in self._constants])
        rows, self._rows, self._rows_size = self._rows, [], 0
        try:
            batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        except UnicodeEncodeError:  # rare: the name of a file is not UTF-8
            rows = [{name: storable_text(value) for name, value in row.items()} for row in rows]
            batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        self.write(batch)

    def _write_pending(self) -> None:
        """Write the collected batches as one group of rows, and start flushing it to disk."""
        if not self._held:
            return
        group = pa.concat_batches(self._held) if len(self._held) > 1 else self._held[0]
        self._held, self._held_size = [], 0
        with explaining_full_disk(self._location, group.nbytes):
            if self._writer is None:
                self._writer = self._open(group)
            self._writer.write_batch(group)
            if is_local(self._location):
                # Start writing to disk now: a single flush at the end would have to wait for everything.
                size = self._sink.tell()
                start_flush(self._sink.fileno(), self._flushing, size - self._flushing)
                self._flushing = size

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name not in self._constants:
            column = batch.column(field.name)
            return column if column.type == field.type else column.cast(field.type)
        value = self._constants[field.name]
        if pa.types.is_dictionary(field.type):
            return pa.DictionaryArray.from_arrays(np.zeros(batch.num_rows, np.int32), pa.array([value]))
        return pa.repeat(pa.scalar(value, field.type), batch.num_rows)

    def _open(self, batch: pa.RecordBatch) -> pq.ParquetWriter:
        if is_local(self._location):
            path = Path(local_path(self._location))
            make_directory(path.parent)
            path.touch(exist_ok=False)
            self._sink = pa.OSFile(str(path), "wb")  # a Python file object would copy every byte again
        else:
            filesystem = object_store(self._location, self._lake.options).filesystem
            self._sink = filesystem.open_output_stream(object_key(self._location))
        as_is = {_BODY} if _BODY in batch.schema.names and not is_compressible(batch.column(_BODY)) else set()
        return open_parquet_writer(self._sink, self._schema, self._table, batch.num_rows, as_is)

    def close(self) -> AddedFile | None:
        """Finish and flush the file, and return its action; None without rows."""
        self._write_collected_rows()
        self._write_pending()
        if self._writer is None:
            return None
        with explaining_full_disk(self._location):
            self._writer.close()
            self._sink.flush()
            size = self._sink.tell()
            if is_local(self._location):
                os.fsync(self._sink.fileno())
            self._sink.close()
        metadata = self._writer.writer.metadata
        stats = _collect_statistics(metadata, self._table)
        return AddedFile(self._name, size, int(time.time() * 1000), json.dumps(stats), metadata.num_rows)

    def discard(self) -> None:
        """Delete the file, if it exists."""
        if self._writer is not None:
            self._lake.delete(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Delete the incomplete file after an error."""
        if kind is not None and self._writer is not None:
            self._writer.is_open = False  # otherwise it would still write a footer when it is garbage-collected
            self._sink.close()
            self.discard()


def open_parquet_writer(
    place: Path | pa.NativeFile,
    schema: pa.Schema,
    table: Table,
    rows_per_group: int,
    uncompressed_columns: Container[str] = (),
) -> pq.ParquetWriter:
    """
    Open a Parquet writer for *table* with row groups of *rows_per_group*; see decisions.md on the settings.

    The columns *uncompressed_columns* are not compressed.
    """
    compressed = [
        leaf
        for field in table.schema
        if field.name not in uncompressed_columns and field.name not in table.random_numbers
        for leaf in _list_leaf_columns(field.name, field.type)
    ]
    return pq.ParquetWriter(
        place,
        schema,
        compression=dict.fromkeys(compressed, CODEC),
        compression_level=dict.fromkeys(compressed, table.compression_level),
        write_statistics=[name for name in table.columns_with_limits if name in schema.names],
        store_schema=False,
        write_page_checksum=True,
        # Each batch of values has its own costs, mostly of statistics. With long values, a large batch is a large page.
        write_batch_size=_VALUES_PER_BATCH if table.name in _TABLES_OF_SHORT_VALUES else None,
        data_page_size=table.page_bytes,
        use_dictionary=list(_dictionary_columns(table)),
        column_encoding={
            name: "DELTA_BINARY_PACKED" for name in (*_ASCENDING, *table.random_numbers) if name in table.schema.names
        },
        bloom_filter_options={name: {"ndv": rows_per_group, "fpp": _FALSE_POSITIVES} for name in table.bloom_filters},
    )


def is_compressible(bodies: pa.Array) -> bool:
    """
    Sample two runs of *bodies* to decide whether to compress them.

    For encrypted and compressed bodies, compression is a waste of time.
    """
    data = bodies.buffers()[-1]
    size = data.size if data is not None else 0
    if not size:
        return True
    codec = pa.Codec(CODEC, 1)
    samples = [data.slice(start, min(_SAMPLE_SIZE, size - start)) for start in (0, size // 2)]
    return bool(sum(codec.compress(sample).size for sample in samples) < _WORTH_IT * sum(map(len, samples)))


def _list_leaf_columns(path: str, type_: pa.DataType) -> Iterator[str]:
    if pa.types.is_map(type_):
        yield f"{path}.key_value.key"
        yield from _list_leaf_columns(f"{path}.key_value.value", type_.item_type)
    elif pa.types.is_list(type_):
        yield from _list_leaf_columns(f"{path}.list.element", type_.value_type)
    elif pa.types.is_struct(type_):
        for field in type_:
            yield from _list_leaf_columns(f"{path}.{field.name}", field.type)
    else:
        yield path


def _dictionary_columns(table: Table) -> Iterator[str]:
    """Yield the Parquet columns with repeated values; a dictionary for other columns costs a third more time."""
    for field in table.schema:
        is_text = pa.types.is_dictionary(field.type) or pa.types.is_string(field.type)
        if pa.types.is_map(field.type):
            yield f"{field.name}.key_value.key"
        elif is_text and field.name not in {*table.bloom_filters, *table.distinct_texts}:
            yield field.name


def _collect_statistics(metadata: pq.FileMetaData, table: Table) -> dict[str, object]:
    low: dict[str, object] = {}
    high: dict[str, object] = {}
    nulls: dict[str, int] = {}
    columns = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    for name in table.columns_with_limits:
        found = [metadata.row_group(group).column(columns[name]).statistics for group in range(metadata.num_row_groups)]
        if any(item is None or not item.has_null_count for item in found):
            continue
        nulls[name] = sum(item.null_count for item in found)
        ranged = [item for item in found if item.has_min_max]
        if len(ranged) != sum(1 for item in found if item.num_values):
            continue  # a row group has values but no limits, so the limits of the file are unknown
        if ranged:
            low[name] = _encode_limit(min(item.min for item in ranged), "")
            high[name] = _encode_limit(max(item.max for item in ranged), _HIGHEST)
    return {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _encode_limit(value: object, mark: str) -> object:
    """Return a limit as in Delta's log; long text is truncated and marked with *mark*."""
    if isinstance(value, str) and len(value) > STATISTICS_LENGTH:
        return value[:STATISTICS_LENGTH] + mark
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, dt.date):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
