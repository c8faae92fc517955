"""Files of a lake's tables read back: which ones a snapshot has, what Delta's log says of them, and their rows."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from jobs.lake.lake import Lake
from jobs.lake.plain import plain_rows
from jobs.lake.tables import Table


class StoredFile(NamedTuple):
    """One file of a snapshot, and what Delta's log says of it."""

    path: str
    size: int
    rows: int
    lowest: Mapping[str, Any]
    highest: Mapping[str, Any]

    def low(self, column: str, otherwise: Any) -> Any:  # noqa: ANN401 - whatever type the column has
        """Return the least value of a column, or *otherwise* where the log does not say."""
        value = self.lowest.get(column)
        return otherwise if value is None else value

    def high(self, column: str, otherwise: Any) -> Any:  # noqa: ANN401
        """Return the greatest value of a column, or *otherwise* where the log does not say."""
        value = self.highest.get(column)
        return otherwise if value is None else value

    def may_hold(self, store_id: str) -> bool:
        """Tell whether rows of this store may be in the file."""
        return bool(self.low("store_id", store_id) <= store_id <= self.high("store_id", store_id))


def files(snapshot: DeltaTable) -> list[StoredFile]:
    """Return the files of a snapshot."""
    return [
        StoredFile(row["path"], row["size_bytes"], row["num_records"] or 0, _under("min.", row), _under("max.", row))
        for row in plain_rows(snapshot.get_add_actions(flatten=True))
    ]


def _under(prefix: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}


def batches(lake: Lake, table: Table, name: str) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in the table's schema; a column that the table got later is NULL in older files."""
    with lake.arrow_file(f"{table.name}/{name}") as source:
        for batch in pq.ParquetFile(source).iter_batches():
            yield in_schema(batch, table.schema)


def in_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return *batch* with the columns of *schema*."""
    there = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type) if field.name in there else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
