"""Columns of the rows that a condition may choose, as tasks read them: with numbers, bodies decompressed."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from jobs.export.bodies import NEEDED, Undecoded, slices
from jobs.export.items import COLUMNS, Item
from jobs.export.parts import BODY_TEXT
from jobs.lake.bodies import Body
from jobs.lake.tables import STORED_MESSAGES
from rmq_formats.commitlog.segment import Piece

ITEM, ROW = "_item", "_row"
NUMBERS = (pa.field(ITEM, pa.int32()), pa.field(ROW, pa.int64()))
_TEXT = pa.field(BODY_TEXT, pa.string())


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of columns that a condition may name."""
    return pa.schema([_TEXT if name == BODY_TEXT else STORED_MESSAGES.plain_schema.field(name) for name in columns])


def numbered(number: int, item: Item, columns: Sequence[str], limit: int, notes: Path) -> Iterator[pa.RecordBatch]:
    """Yield *columns* of an item's rows, and the rows' numbers; bodies that stay compressed go below *notes*."""
    row = 0
    undecoded = Undecoded()
    for batch in candidates(item, columns, limit, undecoded):
        numbers = [
            pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows),
            pa.array(np.arange(row, row + batch.num_rows)),
        ]
        schema = pa.schema([*batch.schema, *NUMBERS])
        yield pa.RecordBatch.from_arrays([*batch.columns, *numbers], schema=schema)
        row += batch.num_rows
    pa.default_memory_pool().release_unused()  # who finds candidates writes parts next, with columns of other sizes
    if undecoded.count:
        (notes / str(number)).write_text(json.dumps([undecoded.count, undecoded.places]))


def candidates(item: Item, columns: Sequence[str], limit: int, undecoded: Undecoded) -> Iterator[pa.RecordBatch]:
    """Yield some columns of an item's rows, bodies as their producers sent them; note those that are not."""
    needs_body = bool({"body", BODY_TEXT} & {*columns})
    wanted = {*columns, *(NEEDED if needs_body else ("physical_offset",))} - {BODY_TEXT}
    rows = item.read([name for name in COLUMNS if name in wanted])
    if not needs_body:
        schema = schema_of(columns)
        yield from (batch.select(schema.names).cast(schema) for batch in rows if not isinstance(batch, Piece))
        return
    # Through functions, as the variable of a loop would hold a batch while the next one is read.
    yield from chain.from_iterable(map(partial(_shown, columns, limit, undecoded), rows))


def _shown(
    columns: Sequence[str], limit: int, undecoded: Undecoded, rows: pa.RecordBatch | Piece
) -> Iterator[pa.RecordBatch]:
    """Yield rows with their bodies, in slices."""
    if not isinstance(rows, Piece):
        for part, bodies in slices(rows, limit):
            undecoded.note(part, bodies)
            yield _with_bodies(part, bodies, schema_of(columns))


def _with_bodies(part: pa.RecordBatch, bodies: Sequence[Body], schema: pa.Schema) -> pa.RecordBatch:
    """Return columns of rows, with bodies as their producers sent them."""
    made: dict[str, Callable[[], pa.Array]] = {
        "body": lambda: pa.array([body.data for body in bodies], pa.binary()),
        BODY_TEXT: lambda: pa.array([body.text for body in bodies], pa.string()),
    }
    arrays = [
        made[field.name]() if field.name in made else part.column(field.name).cast(field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
