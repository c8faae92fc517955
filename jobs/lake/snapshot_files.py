"""
Reads the files of a lake's tables: lists those of a snapshot, with their entries in Delta's log, and reads rows.

This is the only module that reads rows of a lake's files: callers get the files from `list_snapshot_files`, each with
its deletion vector, which marks rows as deleted without rewriting the file. So rows that another engine has deleted
cannot be read by mistake.

`deltalake` reads vectors, but its commits remove a file by its path alone. In Delta, a file is identified by its path
*and* its vector: such a commit removes nothing, and the file's rows are in the table twice. `read_vector_descriptors`
returns what a commit must say about the vectors of the files that it removes.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from jobs.lake.features import refuse_unreadable_layout
from jobs.lake.lake import Lake
from jobs.lake.snapshots import refuse_files_elsewhere, refuse_wrong_row_counts, rows_without_timestamps
from jobs.lake.tables import MESSAGES, Table
from jobs.storage import object_store
from jobs.storage.local import naming_file_in_errors
from jobs.storage.locations import is_local, local_path, object_key
from jobs.storage.paths import refuse_special_file
from jobs.storage.s3 import retry_server_failures
from rmq_formats.errors import is_lost_file_error

T = TypeVar("T")

Limits = Mapping[str, tuple[int, int]]  # the minimum and maximum wanted value of a column
NO_LIMITS: Limits = MappingProxyType({})
_BATCH_SIZE = 16 << 20  # bytes according to the file; a repetitive body may be far larger in memory
_BATCH_ROWS = 1 << 16
_FOOTERS_AT_ONCE = 8
_WHOSE = "store_id"
_TIMES = "us"  # Spark writes times in 96 bits; Arrow's default, nanoseconds, covers only 1677 to 2262
_LAYOUT = ds.ParquetFileFormat(
    ds.ParquetReadOptions(coerce_int96_timestamp_unit=_TIMES),
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True),
)


_ARROW_STAT_ERROR = "error stat()ing file"  # arrow/util/io_util.cc, which does not keep the errno


class DamagedFileError(OSError):
    """A file of a lake has bytes that are not valid Parquet."""


@contextmanager
def _naming_damaged_files(location: str, what: str) -> Iterator[None]:
    """
    Convert errors of Arrow and `deltalake` about invalid data to `DamagedFileError`.

    The original errors do not always name the file.
    """
    try:
        with naming_file_in_errors(location):
            yield
    except (pa.ArrowException, DeltaError, OSError) as error:
        # On remote storage, an error without an errno may also be a failure of the server.
        if isinstance(error, OSError) and (error.errno is not None or not is_local(location)):
            raise
        _raise_if_not_examined(location, error)
        raise DamagedFileError(f"{location}: {what} cannot be read: {str(error).partition(chr(10))[0]}") from error


def _raise_if_not_examined(location: str, error: Exception) -> None:
    """Raise `OSError` if Arrow could not examine a file: this proves nothing about the bytes of the file."""
    if str(error) == _ARROW_STAT_ERROR:
        raise OSError(f"{location}: {error}") from error


class SnapshotFile(NamedTuple):
    """One file of a snapshot, and its entry in Delta's log."""

    path: str
    size: int
    row_count: int
    lowest: Mapping[str, object]
    highest: Mapping[str, object]
    kept_row_mask: npt.NDArray[np.bool_] | None = None  # True for rows that no engine has deleted, in file order

    @property
    def identity(self) -> tuple[str, bytes]:
        """The path and the deleted rows: in Delta, the same file with other deleted rows is another file."""
        return self.path, b"" if self.kept_row_mask is None else self.kept_row_mask.tobytes()

    def mask_kept_rows(self, rows: int) -> npt.NDArray[np.bool_]:
        """Return which of the first *rows* are not deleted; a vector may end at the last deleted row."""
        vector = np.ones(0, np.bool_) if self.kept_row_mask is None else self.kept_row_mask[:rows]
        return np.pad(vector, (0, rows - vector.size), constant_values=True)

    def minimum(self, column: str, otherwise: T) -> T:
        """Return the minimum of a column, or *otherwise* if the log does not have it."""
        value = self.lowest.get(column)
        return otherwise if value is None else cast("T", value)

    def maximum(self, column: str, otherwise: T) -> T:
        """Return the maximum of a column, or *otherwise* if the log does not have it."""
        value = self.highest.get(column)
        return otherwise if value is None else cast("T", value)

    def may_have(self, column: str, value: str | int) -> bool:
        """Return whether the file may contain rows with this value, which has the type of the column's limits."""
        low: Any = self.minimum(column, value)
        high: Any = self.maximum(column, value)
        return bool(low <= value <= high)


def list_snapshot_files(lake: Lake, snapshot: DeltaTable, table: Table | None = None) -> list[SnapshotFile]:
    """
    Return a snapshot's files with their deletion vectors; `UnsupportedTableError` if they cannot be read as its rows.

    *table* is needed only for a typed table; other tables are identified by name.
    """
    stored = rows_without_timestamps(snapshot.get_add_actions(flatten=True))
    paths = [row["path"] for row in stored]
    refuse_unreadable_layout(lake, snapshot, paths, table)
    refuse_files_elsewhere(snapshot, paths)
    deleted = _read_deletion_vectors(snapshot)
    return [
        SnapshotFile(
            row["path"],
            row["size_bytes"],
            row["num_records"] or 0,
            _values_with_prefix("min.", row),
            _values_with_prefix("max.", row),
            deleted.get(row["path"]),
        )
        for row in stored
    ]


def may_have_deletion_vectors(snapshot: DeltaTable) -> bool:
    """Return whether a table's files may have deletion vectors."""
    return "deletionVectors" in (snapshot.protocol().reader_features or ())


def _read_deletion_vectors(snapshot: DeltaTable) -> dict[str, npt.NDArray[np.bool_]]:
    """Return the deletion vectors of a snapshot's files, by path."""
    if not may_have_deletion_vectors(snapshot):
        return {}
    root = _decode_uri(snapshot.table_uri).rstrip("/") + "/"
    with _naming_damaged_files(root.rstrip("/"), "the deletion vectors of this table"):
        return {
            _decode_uri(location.as_py()).removeprefix(root): np.asarray(mask.values, np.bool_)
            for batch in pa.RecordBatchReader.from_stream(snapshot.deletion_vectors())
            for location, mask in zip(batch.column("filepath"), batch.column("selection_vector"), strict=True)
        }


def _decode_uri(uri: str) -> str:
    return unquote(uri).removeprefix("file://")


def read_vector_descriptors(checkpoint: str) -> dict[str, dict[str, object]]:
    """Return how a local checkpoint describes the deletion vectors of its files, by path."""
    with pa.OSFile(checkpoint) as source:
        adds = pq.ParquetFile(source).read(["add.path", "add.deletionVector"]).column("add").to_pylist()
    vectors = {add["path"]: add["deletionVector"] for add in adds if add and add["deletionVector"]}
    return {path: {key: value for key, value in one.items() if value is not None} for path, one in vectors.items()}


def _values_with_prefix(prefix: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}


def is_readable_parquet(lake: Lake, table: Table, file: SnapshotFile) -> bool:
    """Return whether a file can be opened as Parquet."""
    path = f"{table.name}/{file.path}"
    try:
        with lake.open_arrow_file(path) as source:
            pq.read_metadata(source)
    except pa.ArrowInvalid:
        return False
    except OSError as error:  # Arrow's own errors about the bytes have no errno
        _raise_if_not_examined(lake.locate(path), error)
        if error.errno is not None and not is_lost_file_error(error):
            raise
        return False
    return True


def has_view_columns(lake: Lake, table: Table, file: SnapshotFile) -> bool:
    """Return whether the schema that a file states contains Arrow's views, such as `string_view`, at any depth."""
    path = f"{table.name}/{file.path}"
    with _naming_damaged_files(lake.locate(path), "this file of the lake"), lake.open_arrow_file(path) as source:
        return any(_contains_view(field.type) for field in pq.read_schema(source))


def _contains_view(kind: pa.DataType) -> bool:
    is_view = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return bool(is_view) or any(_contains_view(kind.field(number).type) for number in range(kind.num_fields))


def find_damaged_file(lake: Lake, files: Iterable[str], seconds: float) -> str | None:
    """Return the first of these files that is missing or not valid Parquet; None if none is found within *seconds*."""
    last_moment = monotonic() + seconds
    for file in files:
        try:
            with _naming_damaged_files(lake.locate(file), "this file"), lake.open_arrow_file(file) as source:
                for _ in pq.ParquetFile(source, page_checksum_verification=True).iter_batches():
                    if monotonic() > last_moment:
                        return None
        except OSError:  # the file that the caller reports
            return file
    return None


def read_batches(
    lake: Lake, table: Table, file: SnapshotFile, columns: Sequence[str] = (), wanted: Limits = NO_LIMITS
) -> Iterator[pa.RecordBatch]:
    """
    Yield columns of a file's rows (default: all) in the plain schema, in batches of a few MiB.

    A column that was added later is NULL in older files. Rows that another engine has deleted are left out. Row groups
    are skipped if their statistics exclude all *wanted* values; rows are not filtered individually.
    """
    schema = (
        pa.schema([table.schema_without_dictionaries.field(name) for name in columns])
        if columns
        else table.schema_without_dictionaries
    )
    # A vector refers to rows by position in the file: positions count skipped row groups, and rows may be filtered only
    # after the vector was applied.
    start = 0  # the position of a row group's first row in the file
    path = f"{table.name}/{file.path}"
    with _naming_damaged_files(lake.locate(path), "this file of the lake"), lake.open_arrow_file(path) as source:
        parquet = pq.ParquetFile(source, coerce_int96_timestamp_unit=_TIMES, page_checksum_verification=True)
        there = [name for name in schema.names if name in parquet.schema_arrow.names]
        for number in range(parquet.num_row_groups):
            group = parquet.metadata.row_group(number)
            place, start = start, start + group.num_rows
            limits = _limits_of_group(group, wanted).items()
            if any(known.max < wanted[name][0] or known.min > wanted[name][1] for name, known in limits):
                continue
            row_size = group.total_byte_size // max(group.num_rows, 1) + 1
            rows = min(max(_BATCH_SIZE // row_size, 1), _BATCH_ROWS)
            for batch in parquet.iter_batches(rows, row_groups=[number], columns=there):
                kept, begin, place = batch, place, place + batch.num_rows
                if file.kept_row_mask is not None:
                    kept = batch.filter(pa.array(file.mask_kept_rows(place)[begin:]))
                if kept.num_rows:
                    count, found = kept.num_rows, set(there)
                    arrays = [
                        kept.column(name).cast(type_) if name in found else pa.nulls(count, type_)
                        for name, type_ in zip(schema.names, schema.types, strict=True)
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            refuse_wrong_row_counts(parquet.metadata, [number])  # not earlier: `restore` uses the readable rows
            if place != start:  # a damaged page without values would end the row group early
                raise pa.ArrowInvalid(f"row group {number} should have {group.num_rows:,} rows, but is incomplete")


def read_rows_within(  # noqa: PLR0913, PLR0917 - the rows, and the columns
    lake: Lake, table: Table, snapshot: DeltaTable, store_id: str, limits: Limits, columns: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield columns, and those of the limits, of a store's rows with values within *limits*, in batches."""
    is_wanted = ds.field(_WHOSE) == store_id
    for name, (low, high) in limits.items():
        is_wanted &= (ds.field(name) >= low) & (ds.field(name) <= high)
    needed = tuple(dict.fromkeys((*columns, _WHOSE, *limits)))
    for file in list_snapshot_files(lake, snapshot):
        if all(
            file.maximum(name, low) >= low and file.minimum(name, high) <= high for name, (low, high) in limits.items()
        ):
            for batch in read_batches(lake, table, file, needed, limits):
                yield batch.filter(is_wanted)


def has_rows_within(lake: Lake, table: Table, snapshot: DeltaTable, store_id: str, limits: Limits) -> bool:
    """Return whether a table has a row of a store with values within *limits*; reading stops at the first one."""
    return any(batch.num_rows for batch in read_rows_within(lake, table, snapshot, store_id, limits))


def read_topics(lake: Lake, messages: DeltaTable, store_id: str | None = None) -> set[str]:
    """Return the topics of the messages of a lake, or of one of its stores."""
    topics = set[str]()
    for file in list_snapshot_files(lake, messages):
        for batch in read_batches(lake, MESSAGES, file, ("topic", _WHOSE)):
            rows = batch if store_id is None else batch.filter(pc.field(_WHOSE) == store_id)
            topics.update(filter(None, rows.column("topic").unique().to_pylist()))
    return topics


def _limits_of_group(group: pq.RowGroupMetaData, names: Collection[str]) -> dict[str, pq.Statistics]:
    columns = [group.column(number) for number in range(group.num_columns)] if names else []
    known = {column.path_in_schema: column.statistics for column in columns if column.path_in_schema in names}
    # In a damaged file, the column may have another type. Rows without a value are within no limits.
    return {
        name: limits
        for name, limits in known.items()
        if limits is not None and limits.has_min_max and isinstance(limits.min, int) and not limits.null_count
    }


def read_rows_where(
    lake: Lake,
    snapshot: DeltaTable,
    columns: list[str] | None = None,
    where: pc.Expression | None = None,
    *,
    only_deleted: bool = False,
) -> pa.Table:
    """
    Return the rows of a snapshot that match *where*; with *only_deleted*, instead the deleted ones still in its files.

    Statistics limit the number of files that are opened. Arrow reads the files itself: `deltalake`'s file system for
    Arrow is implemented in Python, and an Arrow thread that is still in it at exit would crash the interpreter.
    """
    if only_deleted and not snapshot.protocol().reader_features:
        return pa.table({"physical_offset": []})
    # A data set of `deltalake` treats a column as NULL if another engine wrote the file without its statistics.
    return retry_server_failures(lambda: _read_rows(lake, snapshot, columns, where, only_deleted=only_deleted))


def _read_rows(
    lake: Lake, snapshot: DeltaTable, columns: list[str] | None, where: pc.Expression | None, *, only_deleted: bool
) -> pa.Table:
    uri = snapshot.table_uri
    if is_local(uri):
        filesystem: fs.FileSystem = fs.SubTreeFileSystem(local_path(uri), fs.LocalFileSystem())
    else:
        filesystem = fs.SubTreeFileSystem(object_key(uri), object_store(uri, lake.options).filesystem)
    schema = pa.schema(snapshot.schema())
    stored = {file.path: file for file in list_snapshot_files(lake, snapshot)}
    fragments = [
        _LAYOUT.make_fragment(path, filesystem, partition_expression=_bounds_of_file(file, schema))
        for path, file in stored.items()
    ]
    dataset = ds.FileSystemDataset(fragments, schema, _LAYOUT, filesystem)
    found = list(dataset.get_fragments(where))
    if is_local(uri):
        for fragment in found:
            refuse_special_file(Path(local_path(uri), fragment.path))
    with _naming_damaged_files(_decode_uri(uri).rstrip("/"), "a file of this table"):
        with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
            for metadata in pool.map(lambda fragment: fragment.metadata, found):  # the fragment keeps it
                refuse_wrong_row_counts(metadata)
        # Arrow does not compare a string with views, which DataFusion writes: these are converted before the filter.
        views = {one.path for one in found if any(map(pa.types.is_string_view, one.physical_schema.types))}
        whole = [one for one in found if stored[one.path].kept_row_mask is None and one.path not in views]
        whole = [] if only_deleted else whole
        tables = [ds.FileSystemDataset(whole, schema, _LAYOUT, filesystem).to_table(columns, where)]
    asked = str(where)  # may match more columns than needed
    needed = None if columns is None else [name for name in schema.names if name in columns or name in asked]
    for fragment in found:
        file = stored[fragment.path]
        if file.kept_row_mask is not None or (fragment.path in views and not only_deleted):
            rows = fragment.to_table(schema, needed)
            rows = rows.filter(pa.array(file.mask_kept_rows(rows.num_rows) != only_deleted))
            rows = rows if where is None else rows.filter(where)
            tables.append(rows.select(columns or schema.names))
    return pa.concat_tables(tables)


def _bounds_of_file(file: SnapshotFile, schema: pa.Schema) -> pc.Expression:
    """Return the limits of a file's integer columns and stores, from its statistics."""
    known = pc.scalar(True)  # noqa: FBT003 - the value
    for name, lowest in file.lowest.items():
        highest = file.highest.get(name)
        is_compared = name == _WHOSE or (name in schema.names and pa.types.is_integer(schema.field(name).type))
        if is_compared and None not in {lowest, highest}:
            column = ds.field(name)
            # Arrow understands only this form: one comparison, or NULL.
            known &= ((column >= lowest) | column.is_null()) & ((column <= highest) | column.is_null())
    return known


def table_for_rewriting(snapshot: DeltaTable, table: Table) -> Table:
    """Return *table* with the columns and NULLs of other engines, so that rewritten rows keep their values."""
    known = set(table.schema.names)
    theirs = [field for field in pa.schema(snapshot.schema()) if field.name not in known]
    columns = (*table.columns, *(pa.field(field.name, field.type) for field in theirs))
    return replace(table, columns=columns, has_foreign_rows=True)
