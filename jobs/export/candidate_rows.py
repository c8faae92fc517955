"""Columns of the rows that a condition may choose, as tasks read them: with numbers, bodies decompressed."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.export.items import (
    BODY_TEXT,
    COLUMNS,
    NEEDED,
    SCHEMA,
    STORE_TIME,
    Item,
    LeftOut,
    Undecoded,
    slices,
    with_bodies,
)
from rmq_formats.commitlog.segment import Piece

ITEM, ROW = "_item", "_row"
NUMBERS = (pa.field(ITEM, pa.int32()), pa.field(ROW, pa.int64()))
ROWS, UNDECODED = "rows", "undecoded"  # folders of chosen row numbers, and of bodies that could not be decompressed


Rows = Iterator[pa.RecordBatch]
Chosen = Callable[[int, Item, Rows], Rows]  # of the rows of an item, which has a number, those that are wanted


class TimeBounds(NamedTuple):
    """Times of storage, in milliseconds, both included; None leaves a side open."""

    since: int | None
    until: int | None

    def may_include(self, low: int | None, high: int | None) -> bool:
        """Return whether a time from *low* to *high*, where they are known, may be one of these."""
        is_before = self.since is not None and high is not None and high < self.since
        is_after = self.until is not None and low is not None and low > self.until
        return not (is_before or is_after)

    def of_batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that were stored at one of these times."""
        for compare, limit in ((pc.greater_equal, self.since), (pc.less_equal, self.until)):
            if limit is not None:
                rows = rows.filter(compare(rows.column(STORE_TIME), limit))
        return rows

    def condition(self) -> list[str]:
        """Return the same in SQL."""
        limits = ((">=", self.since), ("<=", self.until))
        return [f"{STORE_TIME} {comparison} {limit}" for comparison, limit in limits if limit is not None]


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of columns that a condition may name."""
    return pa.schema([SCHEMA.field(name) for name in columns])


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
            yield with_bodies(part, bodies, schema_of(columns))


def choose_by_time(between: TimeBounds, _items: Sequence[Item], _folder: Path, _limit: int) -> Chosen:
    """Return the choice of the rows that were stored *between* two times, which needs no look before."""
    return partial(_stored_between, between)


def _stored_between(between: TimeBounds, _number: int, item: Item, rows: Rows) -> Rows:
    low, high = item.bounds.get(STORE_TIME, (None, None))
    return map(between.of_batch, rows) if between.may_include(low, high) else iter(())


def numbered_rows(folder: Path, number: int, _item: Item, rows: Rows) -> Rows:
    """Yield those of an item's rows whose numbers are below *folder*."""
    paths = (folder / ROWS / f"{ITEM}={number}").glob("*.parquet")
    parts = [pq.ParquetFile(path).read([ROW]).column(ROW).to_numpy() for path in paths]
    numbers = np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
    start = 0  # number of the batch's first row
    for batch in rows if numbers.size else ():
        first, last = np.searchsorted(numbers, (start, start + batch.num_rows))
        wanted, start = numbers[first:last] - start, start + batch.num_rows
        if wanted.size:
            yield batch if wanted.size == batch.num_rows else batch.take(pa.array(wanted))
        del batch
        if start > numbers[-1]:
            return


def undecoded_of(folder: Path) -> Undecoded:
    """Return the bodies that could not be looked at as their producers sent them."""
    found = Undecoded()
    for path in sorted((folder / UNDECODED).glob("*"), key=lambda path: int(path.name)):
        count, places = json.loads(path.read_text())
        found.add(Undecoded(count, [LeftOut(*place) for place in places]))
    return found
