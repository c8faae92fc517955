"""
What an export reads, as items that a task reads each: a segment of a log, or a file of a lake's messages.

An item gives the same rows in the same order whenever it is read, so that a row is known by its number. Batches are
small in bytes, not in rows: a message may have a body of some MiB.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.export.changed_rows import JUDGED, Flags, changed_rows
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import StoredFile, plain_batches
from jobs.lake.tables import MESSAGES, STORED_MESSAGES
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import Range
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.properties import PropertyParser

Bounds = Mapping[str, tuple[Any, Any]]  # the least and the greatest value of a column; None where it is not known
STORE_TIME = "store_timestamp"
WINDOW = (
    4 << 20
)  # bytes of log that are read together: they are in memory also as rows, and as a slice of rows with bodies
COLUMNS = tuple(STORED_MESSAGES.plain_schema.names)
DELETED = "deleted while it was read"
_REGISTERED = pa.schema({"store_id": pa.string(), "broker": pa.string(), "first": pa.int64(), "size": pa.int64()})


@dataclass(frozen=True, slots=True)
class LogItem:
    """A segment of a log, from a record on."""

    range: Range
    parser: PropertyParser
    broker: str
    topics: tuple[str, ...] = ()
    known: Bounds = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of the segment."""
        return self.range.end - self.range.start

    @property
    def bounds(self) -> Bounds:
        """The known limits of the values in it."""
        return {**self.known, "physical_offset": (self.range.start_offset, self.range.end_offset - 1)}

    def read(self, columns: Sequence[str] = COLUMNS) -> Iterator[pa.RecordBatch | Piece]:
        """Yield the rows of the segment's records."""
        reader = RangeReader(self.range, WINDOW)
        takes = frozenset(self.topics).__contains__ if self.topics else None
        for item in reader.pieces():
            if isinstance(item, Piece):
                yield item
                continue
            yield from self._rows(item, columns, takes)
        if reader.was_deleted:
            start = reader.seen.next if reader.seen.first is not None else self.range.start_offset
            yield Piece(PieceKind.DAMAGE, start, self.range.end_offset - start, DELETED)

    def _rows(
        self, group: Records, columns: Sequence[str], takes: Callable[[str], bool] | None
    ) -> Iterator[pa.RecordBatch | Piece]:
        """Yield the rows and the damage of a group of records; its batch is let go before the next group is read."""
        batch, bad = message_batch(group, self.parser, with_body="body" in columns, takes=takes)
        yield from (Piece(PieceKind.DAMAGE, offset, size, "a body with a wrong CRC") for offset, size in bad)
        yield table_rows(batch, self.range.base_offset, self.broker).select(columns)


def table_rows(
    batch: pa.RecordBatch, segment: int, broker: str, store_id: str | None = None, columns: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Return records as rows of the table `messages`, or some columns, by default of a store that no lake knows."""
    constants = {"broker": broker, "store_id": store_id, "segment": segment}
    plain = STORED_MESSAGES.plain_schema
    schema = plain if columns is None else pa.schema([plain.field(name) for name in columns])
    values = [
        pa.repeat(pa.scalar(constants[field.name], field.type), batch.num_rows)
        if field.name in constants
        else batch.column(field.name).cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(values, schema=schema)


class Registered(NamedTuple):
    """A store as the lake knows it: its label, where its log began, and how long its files are; None: not known."""

    store_id: str
    broker: str
    first: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class LakeItem:
    """A file of the table `messages`."""

    lake: Lake
    file: StoredFile
    broker: str | None = None
    topics: tuple[str, ...] = ()
    dropped: frozenset[str] | None = None  # columns that the table lacks, where rows are to be verified
    stores: tuple[Registered, ...] = ()  # all of the lake, where rows are to be verified

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.file.size

    @property
    def bounds(self) -> Bounds:
        """The limits of the values in it, from Delta's log."""
        return {name: (self.file.low(name, None), self.file.high(name, None)) for name in STORED_MESSAGES.statistics}

    def read(self, columns: Sequence[str] = COLUMNS) -> Iterator[pa.RecordBatch | Piece]:
        """Yield the file's rows."""
        needed = {*columns, "total_size", *(["broker"] if self.broker else []), *(["topic"] if self.topics else [])}
        if self.dropped is not None:
            needed |= {*JUDGED}
        names = [name for name in MESSAGES.plain_schema.names if name in needed]
        for batch in plain_batches(self.lake, MESSAGES, self.file, names):
            wanted = self._wanted(batch)
            if self.dropped is not None:
                changed = changed_rows(wanted, self.dropped) | self._is_elsewhere(wanted)
                yield from _as_damage(wanted.filter(pa.array(changed)))
                wanted = wanted.filter(pa.array(~changed))
            if self.topics:  # asked last: a row whose topic was changed may be of one of them
                wanted = wanted.filter(pc.is_in(wanted.column("topic"), pa.array(self.topics, pa.string())))
            yield wanted.select(columns)

    def _is_elsewhere(self, rows: pa.RecordBatch) -> Flags:
        """Return which rows name a store that the lake has not registered, not under this label, or another file."""
        known = pa.Table.from_pylist([one._asdict() for one in self.stores], _REGISTERED)
        owners = known.take(pc.index_in(rows.column("store_id"), known.column("store_id")))
        offsets, first, size = rows.column("physical_offset"), owners.column("first"), owners.column("size")
        segment = pc.add(first, pc.multiply(pc.divide(pc.subtract(offsets, first), size), size))
        in_file = pc.fill_null(pc.equal(segment, rows.column("segment")), fill_value=False)
        is_right = pc.and_(
            pc.fill_null(pc.equal(owners.column("broker"), rows.column("broker")), fill_value=False),
            pc.or_(in_file, size.is_null()),
        )
        return np.asarray(pc.invert(is_right), np.bool_)

    def _wanted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        batch = batch.filter(pc.is_valid(batch.column("total_size")))  # else it is a row of another engine's own
        if self.broker:
            of_store = pa.array([one.store_id for one in self.stores if one.broker == self.broker], pa.string())
            is_ours = pc.equal(batch.column("broker"), self.broker)
            if len(of_store):  # a row whose label was changed is named
                is_ours = pc.or_kleene(is_ours, pc.is_in(batch.column("store_id"), of_store))
            batch = batch.filter(is_ours)
        return batch


# `read` of each yields rows of `messages`, some columns of them, and the places of the log that hold no message.
Item = LogItem | LakeItem


def _as_damage(rows: pa.RecordBatch) -> Iterator[Piece]:
    """Yield the place of each row as damage."""
    for offset, size in zip(rows["physical_offset"].to_pylist(), rows["total_size"].to_pylist(), strict=True):
        yield Piece(PieceKind.DAMAGE, offset or 0, size, "another engine has changed this row")
