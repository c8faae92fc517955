"""Columns of the rows that a condition may choose, as tasks read them: with numbers, bodies decompressed."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from jobs.export.bodies import NEEDED, Undecoded, slices
from jobs.export.items import COLUMNS, Item
from jobs.export.parts import BODY_TEXT
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
    if undecoded.count:
        (notes / str(number)).write_text(json.dumps([undecoded.count, undecoded.places]))


def candidates(item: Item, columns: Sequence[str], limit: int, undecoded: Undecoded) -> Iterator[pa.RecordBatch]:
    """Yield some columns of an item's rows, bodies as their producers sent them; note those that are not."""
    schema = schema_of(columns)
    needs_body = bool({"body", BODY_TEXT} & {*columns})
    wanted = {*columns, *(NEEDED if needs_body else ("physical_offset",))} - {BODY_TEXT}
    for batch in item.read([name for name in COLUMNS if name in wanted]):
        if isinstance(batch, Piece):
            continue
        for part, bodies in slices(batch, limit) if needs_body else [(batch, [])]:
            undecoded.note(part, bodies)
            made = {
                "body": lambda bodies=bodies: pa.array([body.data for body in bodies], pa.binary()),
                BODY_TEXT: lambda bodies=bodies: pa.array([body.text for body in bodies], pa.string()),
            }
            arrays = [
                made[field.name]() if field.name in made else part.column(field.name).cast(field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
