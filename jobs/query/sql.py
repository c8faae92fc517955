"""
SQL on all tables and views of a lake, with the DataFusion engine of `deltalake`.

Statements only read. Rows are returned in batches, so that memory does not grow with their number.
"""

import re
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from jobs.console.process import ABANDONED_THREAD
from jobs.query.lake_tables import LakeTables
from jobs.storage.local import temporary_directory_for
from rmq_formats.arrow import plain_type
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.properties import MAX_LONG

_READS = re.compile(r"\s*(explain\s+((analyze|verbose)\s+)*)?(?P<verb>select|with|values|describe)\b", re.IGNORECASE)
# Parts of DataFusion's messages that mean nothing to a user: the kind of error, and the names of the default catalog.
_RAW = re.compile(
    r'^(?:Error during planning|SQL error|This feature is not implemented): |datafusion\.public\.|ParserError\("|"\)$'
)
_Result = TypeVar("_Result")


def describe_tables(tables: LakeTables) -> Generator[dict[str, object]]:
    """Yield the tables and views of a lake, and what one row of each is."""
    from jobs.lake.tables import TABLES  # loads the compiler

    rows = {table.name: table.row for table in TABLES}
    for name, (kind, row) in tables.tables_and_views.items():
        yield {"name": name, "kind": kind, "row": row or rows.get(name, "")}


class Batches:
    """The rows of a statement in batches; raises `TimeoutError` when its time is over."""

    def __init__(self, tables: LakeTables, sql: str, seconds: float | None) -> None:
        """Run a statement on all tables and views; `UnsupportedFormat` where it is not valid, or more than reads."""
        if _READS.match(sql) is None or not tables.tables_and_views:
            raise UnsupportedFormat("only read-only statements are allowed: SELECT, WITH, VALUES, DESCRIBE, EXPLAIN")
        self._end = None if seconds is None else monotonic() + seconds
        # The engine cannot be interrupted: its thread is left behind when the time is over, and ends with the process.
        self._thread = ThreadPoolExecutor(1, ABANDONED_THREAD)
        try:
            opened = self._thread.submit(lambda: pa.RecordBatchReader.from_stream(tables.execute(sql)))
            self._reader = self._result(opened)
        except DeltaError as error:
            raise UnsupportedFormat(f"the statement failed: {_RAW.sub('', ' '.join(str(error).split()))}") from error
        # Views and dictionaries are how the engine holds values in memory.
        views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
        types = [(field.name, views.get(field.type) or plain_type(field.type)) for field in self._reader.schema]
        self.schema = pa.schema([pa.field(name, type_) for name, type_ in types])

    def _result(self, asked: Future[_Result]) -> _Result:
        return asked.result(None if self._end is None else max(self._end - monotonic(), 0))

    def close(self) -> None:
        """Stop the engine after the current batch."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        following = self._thread.submit(next, self._reader, None)
        while (batch := self._result(following)) is not None:
            following = self._thread.submit(next, self._reader, None)  # the engine is one batch ahead
            columns = [column.cast(field.type) for column, field in zip(batch.columns, self.schema, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def rows(self) -> Generator[dict[str, object]]:
        """Yield rows, with times as ISO 8601 in UTC, bytes as hexadecimal digits, and maps as objects."""
        try:
            for batch in self:
                columns: list[list[object]] = [
                    # Arrow would load pandas to determine the zone of a Python object.
                    pc.strftime(column, "%Y-%m-%dT%H:%M:%SZ").to_pylist()
                    if pa.types.is_timestamp(column.type)
                    else [_plain(value) for value in column.to_pylist(maps_as_pydicts="lossy")]
                    for column in batch.columns
                ]
                for values in zip(*columns, strict=True) if columns else ():
                    yield dict(zip(self.schema.names, values, strict=True))
        finally:
            self.close()


def _plain(value: object) -> object:
    match value:
        case bytes():
            return value.hex()
        case dict():
            return {str(key): _plain(part) for key, part in value.items()}
        case list():
            return [_plain(part) for part in value]
        case None | bool() | int() | float() | str():
            return value
        case datetime():
            return value.isoformat()
        case _:
            return str(value)


def write_parquet(found: Batches, out: Path, limit: int) -> bool:
    """Write rows to a new file atomically; return whether there are more than *limit* (0: no limit)."""
    left = limit or MAX_LONG
    with closing(found), temporary_directory_for(out) as folder:
        attempt = folder / out.name
        with pq.ParquetWriter(attempt, found.schema, compression="zstd") as writer:
            for batch in found:
                writer.write_batch(batch.slice(0, left))
                left -= batch.num_rows
                if left < 0:
                    break
        attempt.replace(out)
    return left < 0
