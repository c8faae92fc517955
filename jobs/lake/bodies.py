"""
Decompresses message bodies within limits: a kilobyte of log may expand to gigabytes.

A body whose decompressed size exceeds the limit stays compressed, and the reason is recorded. A batch of rows is cut
into slices that stay within a budget of decompressed bytes. A slice has at least one body.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from jobs.lake.tables import BODY_ERROR, BODY_INFLATED
from rmq_formats.body import decode_body
from rmq_formats.errors import FormatError

DEFAULT_INFLATED_BODY_LIMIT = 16 << 20  # four times a broker's default limit, which applies before compression
INFLATION_BUDGET = 16 << 20


class Body(NamedTuple):
    """A body as its producer sent it; if it cannot be decompressed, the stored body and the reason."""

    data: bytes | None
    error: str | None

    @property
    def text(self) -> str | None:
        """The body as text; None if it is not valid text."""
        if self.data is None or self.error is not None:
            return None
        try:
            return self.data.decode()
        except UnicodeDecodeError:
            return None


def decode_stored_body(stored: bytes | None, sys_flag: int | None, limit: int) -> Body:
    """
    Decompress a body, if the result is not larger than *limit*.

    Rows written by another engine may lack *sys_flag*, which states the compression.
    """
    if stored is None:
        return Body(None, None)
    try:
        return Body(decode_body(stored, sys_flag or 0, limit), None)
    except FormatError as error:
        return Body(stored, str(error))


def add_inflated_bodies(
    batch: pa.RecordBatch,
    *,
    limit: int = DEFAULT_INFLATED_BODY_LIMIT,
    budget: int = INFLATION_BUDGET,
    wanted: bool = True,
) -> Iterator[pa.RecordBatch]:
    """
    Yield the rows of *batch* with `body_inflated` or `body_error` set if the stored body is compressed.

    In all other rows, both columns are NULL; if the columns are not *wanted*, they are NULL in every row.
    """
    rows = batch.drop_columns([name for name in (BODY_INFLATED, BODY_ERROR) if name in batch.schema.names])
    stored, flags = rows.column("body"), rows.column("sys_flag")
    compressed = np.flatnonzero(needs_inflation(rows)).tolist() if wanted else []
    found: dict[int, Body] = {}
    start = size = 0
    for row in compressed:
        body = found[row - start] = decode_stored_body(stored[row].as_py(), flags[row].as_py(), limit)
        size += 0 if body.error else len(body.data or b"")
        if size >= budget:
            yield _add_inflated_bodies(rows.slice(start, row + 1 - start), found)
            start, size, found = row + 1, 0, {}
    if start < rows.num_rows:
        yield _add_inflated_bodies(rows.slice(start), found)


def needs_inflation(rows: pa.RecordBatch) -> NDArray[np.bool_]:
    """Return which rows have a compressed body; in rows of another engine any column may be NULL."""
    has_parts = pc.and_(rows.column("body").is_valid(), rows.column("sys_flag").is_valid())
    return np.asarray(pc.and_(pc.fill_null(rows.column("is_compressed"), fill_value=False), has_parts), np.bool_)


def _add_inflated_bodies(rows: pa.RecordBatch, found: dict[int, Body]) -> pa.RecordBatch:
    inflated: list[bytes | None] = [None] * rows.num_rows
    errors: list[str | None] = [None] * rows.num_rows
    for row, body in found.items():
        errors[row] = body.error
        inflated[row] = None if body.error else body.data
    return rows.append_column(BODY_INFLATED, pa.array(inflated, pa.binary())).append_column(
        BODY_ERROR, pa.array(errors, pa.string())
    )
