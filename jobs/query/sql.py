"""
SQL on all tables and views of a lake, by DataFusion, which `deltalake` brings: no Java, no other engine.

A statement only reads. Its rows come batch by batch, so that memory does not grow with the number of rows.
"""

import re
from collections.abc import Generator, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from time import monotonic
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from jobs.console.process import LEFT_BEHIND
from jobs.query.lake_tables import LakeTables
from rmq_formats.arrow import plain_type
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.properties import MAX_LONG

_READS = re.compile(r"\s*(explain\s+((analyze|verbose)\s+)*)?(?P<verb>select|with|values|describe)\b", re.IGNORECASE)
_PATIENCE = 1.0  # seconds that are given to the engine for the batch that it is at
_WAITING = 2  # batches that the engine may be ahead


def listing(tables: LakeTables) -> Generator[dict[str, object]]:
    """Yield the tables and views of a lake, and what one row of each is."""
    from jobs.lake.tables import TABLES  # loads the compiler

    rows = {table.name: table.row for table in TABLES}
    for name, (kind, row) in tables.listed.items():
        yield {"name": name, "kind": kind, "row": row or rows.get(name, "")}


class Batches:
    """The rows of a statement, as they come; `TimeoutError` when its time is over."""

    def __init__(self, tables: LakeTables, sql: str, seconds: float | None) -> None:
        """Run a statement on all tables and views; `UnsupportedFormat` where it is not valid, or more than reads."""
        if _READS.match(sql) is None or not tables.listed:
            raise UnsupportedFormat("only statements that read are run: SELECT, WITH, VALUES, DESCRIBE, EXPLAIN")
        self._end = None if seconds is None else monotonic() + seconds
        self._queue: Queue[pa.RecordBatch | BaseException | None] = Queue(_WAITING)
        self._is_stopped = False
        self.schema = pa.schema([])
        # The engine cannot be interrupted: its thread is left behind when the time is over, and ends with the process.
        self._thread = Thread(target=self._run, args=(tables, sql), daemon=True, name=LEFT_BEHIND)
        self._thread.start()
        first = self._next()
        self.schema = self.schema if first is None else first.schema

    def _run(self, tables: LakeTables, sql: str) -> None:
        try:
            reader = pa.RecordBatchReader.from_stream(tables.execute(sql))
            # Views and dictionaries are how the engine holds values in memory.
            views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
            types = [(field.name, views.get(field.type) or plain_type(field.type)) for field in reader.schema]
            schema = pa.schema([pa.field(name, type_) for name, type_ in types])
            self._queue.put(pa.RecordBatch.from_pylist([], schema=schema))
            for batch in reader:
                columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
                self._queue.put(pa.RecordBatch.from_arrays(columns, schema=schema))
                if self._is_stopped:
                    return
            self._queue.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again where the rows are read
            self._queue.put(error)

    def _next(self) -> pa.RecordBatch | None:
        left = None if self._end is None else max(self._end - monotonic(), 0)
        try:
            found = self._queue.get(timeout=left)
        except Empty:
            raise TimeoutError from None
        if isinstance(found, DeltaError) and not self.schema:
            raise UnsupportedFormat(" ".join(str(found).split())) from found
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        """Stop the engine after the batch that it is at."""
        self._is_stopped = True
        end = monotonic() + _PATIENCE
        while self._thread.is_alive() and monotonic() < end:
            with suppress(Empty):  # the engine may wait for room, and may have nothing more to give
                self._queue.get(timeout=0.01)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._next()) is not None:
            yield batch

    def rows(self) -> Generator[dict[str, object]]:
        """Yield rows: times as ISO 8601 in UTC, bytes as hexadecimal digits, maps as objects."""
        try:
            for batch in self:
                columns: list[list[object]] = [
                    # Arrow would load pandas to tell the zone of a Python object.
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
    """Write rows into a new file, whole or not at all; return whether there are more than *limit*, if that is not 0."""
    attempt = out.with_name(f".{out.name}.attempt-{uuid4()}")
    left = limit or MAX_LONG
    try:
        with pq.ParquetWriter(attempt, found.schema, compression="zstd") as writer:
            for batch in found:
                writer.write_batch(batch.slice(0, left))
                left -= batch.num_rows
                if left < 0:
                    break
        attempt.replace(out)
    finally:
        found.close()
        attempt.unlink(missing_ok=True)
    return left < 0
