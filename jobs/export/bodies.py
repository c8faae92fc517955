"""Rows with their bodies decompressed, and which bodies are left as they are stored."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import pyarrow as pa

from jobs.lake.bodies import Body, decoded
from jobs.lake.tables import BODY_ERROR, STORED_MESSAGES

BODY_TEXT = "body_text"
SCHEMA = STORED_MESSAGES.plain_schema.append(pa.field(BODY_TEXT, pa.string())).append(pa.field(BODY_ERROR, pa.string()))
NEEDED = ("broker", "physical_offset", "sys_flag", "body_length", "body")  # columns of who decompresses and notes
BUDGET = 4 << 20  # of a slice: it is there as rows, as bodies and as Arrow's columns, in Python and in the JVM
_NAMED = 20


def slices(batch: pa.RecordBatch, limit: int, budget: int = BUDGET) -> Iterator[tuple[pa.RecordBatch, list[Body]]]:
    """Yield the rows of *batch* with their bodies, in slices whose bodies fit into *budget*."""
    stored, flags = batch.column("body"), batch.column("sys_flag")
    start, size, bodies = 0, 0, list[Body]()
    for number in range(batch.num_rows):
        body = decoded(stored[number].as_py(), flags[number].as_py(), limit)
        size += len(body.data or b"")
        if bodies and size > budget:
            yield batch.slice(start, len(bodies)), bodies
            start, size, bodies = number, len(body.data or b""), []
        bodies.append(body)
    if bodies:
        yield batch.slice(start, len(bodies)), bodies


def with_bodies(rows: pa.RecordBatch, bodies: Sequence[Body], schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a schema, with bodies as their producers sent them."""
    of_body = {"body": "data", BODY_TEXT: "text", BODY_ERROR: "error"}
    arrays = [
        pa.array([getattr(body, of_body[field.name]) for body in bodies], field.type)
        if field.name in of_body
        else rows.column(field.name).cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class LeftOut(NamedTuple):
    """Something of a log that is left out, or is not as its producer sent it."""

    broker: str | None
    offset: int
    size: int  # as it is stored
    reason: str


@dataclass
class Undecoded:
    """Bodies that are left as they are stored: how many, and the first of them."""

    count: int = 0
    places: list[LeftOut] = field(default_factory=list)

    def note(self, batch: pa.RecordBatch, bodies: Sequence[Body]) -> None:
        """Note those of some rows."""
        failed = [row for row, body in enumerate(bodies) if body.error is not None]
        self.count += len(failed)
        for row in failed[: _NAMED - len(self.places)]:
            broker, offset, size = (
                batch.column(name)[row].as_py() for name in ("broker", "physical_offset", "body_length")
            )
            self.places.append(LeftOut(broker, offset, size, bodies[row].error or ""))

    def add(self, other: Self) -> None:
        """Add the notes of another task."""
        self.count += other.count
        self.places += other.places[: _NAMED - len(self.places)]
