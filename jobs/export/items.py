"""
The items of an export: each is a segment of a log, or a file of a lake's messages, and is read by one task.

Batches are limited in bytes, not in rows: a body may have several MiB.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.lake.bodies import Body, decode_stored_body
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import SnapshotFile, read_batches
from jobs.lake.tables import BODY_ERROR, MESSAGES, STORED_MESSAGES
from jobs.products.messages import split_by_release
from jobs.requests.export import ANY_TIME, TimeRange
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import Range
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.scan import WINDOW_SIZE, RawRecords
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.properties import MIN_LONG
from rmq_formats.release import NEWEST, Release, Rules, release_at

BODY_TEXT = "body_text"
SCHEMA = STORED_MESSAGES.schema_without_dictionaries.append(pa.field(BODY_TEXT, pa.string())).append(
    pa.field(BODY_ERROR, pa.string())
)
SLICE_BYTES = 4 << 20  # a slice is in memory as rows, bodies and Arrow columns, in Python and in DataFusion


def iterate_decoded_slices(
    batch: pa.RecordBatch, limit: int, budget: int = SLICE_BYTES
) -> Iterator[tuple[pa.RecordBatch, list[Body]]]:
    """Yield the rows of *batch* with their bodies, in slices whose bodies fit into *budget*."""
    stored, flags = batch.column("body"), batch.column("sys_flag")
    start, size, bodies = 0, 0, list[Body]()
    for number in range(batch.num_rows):
        body = decode_stored_body(stored[number].as_py(), flags[number].as_py(), limit)
        size += len(body.data or b"")
        if bodies and size > budget:
            yield batch.slice(start, len(bodies)), bodies
            start, size, bodies = number, len(body.data or b""), []
        bodies.append(body)
    if bodies:
        yield batch.slice(start, len(bodies)), bodies


def add_decoded_bodies(rows: pa.RecordBatch, bodies: Sequence[Body], schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a schema, with bodies as their producers sent them."""
    of_body = {"body": "data", BODY_TEXT: "text", BODY_ERROR: "error"}
    arrays = [
        pa.array([getattr(body, of_body[field.name]) for body in bodies], field.type)
        if field.name in of_body
        else rows.column(field.name).cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class ExportDefect(NamedTuple):
    """A part of a log that is left out, or is not as its producer sent it."""

    broker: str | None
    offset: int
    size: int  # the stored size
    reason: str


StoreTimeBounds = tuple[int | None, int | None]  # the minimum and maximum store time, if known
STORE_TIME_COLUMN = "store_timestamp"
READ_BYTES = 4 << 20  # bytes of log that are read together: in memory also as rows, and as a slice of rows with bodies
COLUMNS = tuple(STORED_MESSAGES.schema_without_dictionaries.names)
DELETED_WHILE_READ = "deleted while it was being read"


@dataclass(frozen=True, slots=True)
class LogItem:
    """A segment of a log, starting at a given record."""

    range: Range
    rules: Rules
    broker: str
    wanted_topics: tuple[str, ...] = ()  # none: all topics
    store_times: StoreTimeBounds = (None, None)
    time_range: TimeRange = ANY_TIME

    @property
    def size(self) -> int:
        """Bytes of the segment."""
        return self.range.end - self.range.start

    def release_of(self, row: Mapping[str, Any]) -> Release:
        """Return the release by whose rules a row's properties are read."""
        return release_at(self.rules, row["physical_offset"])

    def read(self, columns: Sequence[str] = COLUMNS) -> Iterator[pa.RecordBatch | Piece]:
        """Yield the rows of the segment's records."""
        takes = frozenset(self.wanted_topics).__contains__ if self.wanted_topics else None
        for item in read_range_messages(self.range, self.rules, takes, with_body="body" in columns, window=READ_BYTES):
            if isinstance(item, Piece):
                yield item
            else:
                yield convert_to_table_rows(item, self.range.base_offset, self.broker).select(columns)


def read_range_messages(
    range_: Range,
    rules: Rules,
    wants_topic: Callable[[str], bool] | None,
    *,
    with_body: bool,
    window: int = WINDOW_SIZE,
) -> Iterator[pa.RecordBatch | Piece]:
    """
    Yield the messages of a range of the log as columns, and its other pieces.

    Damage includes bodies with a wrong CRC and, with the reason `DELETED_WHILE_READ`, the part that was deleted.
    """
    reader = RangeReader(range_, window)
    for item in reader.pieces():
        if isinstance(item, Piece):
            yield item
            continue
        yield from _convert_group(item, rules, wants_topic, with_body=with_body)
    if reader.facts.was_deleted:
        start = reader.facts.next_offset if reader.facts.first_offset is not None else range_.start_offset
        yield Piece(PieceKind.DAMAGE, start, range_.end_offset - start, DELETED_WHILE_READ)


def _convert_group(
    group: RawRecords, rules: Rules, wants_topic: Callable[[str], bool] | None, *, with_body: bool
) -> Iterator[pa.RecordBatch | Piece]:
    """Yield the messages and the damage of a group of records; a batch is released before the next group is read."""
    for part, parser in split_by_release(group, rules):
        batch, bad = message_batch(part, parser, with_body=with_body, wants_topic=wants_topic)
        yield from (Piece(PieceKind.DAMAGE, offset, size, "a body with a wrong CRC") for offset, size in bad)
        yield batch


def convert_to_table_rows(
    batch: pa.RecordBatch, segment: int, broker: str, store_id: str | None = None, columns: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Return records as rows of the table `messages`, or some of its columns; by default with an empty store id."""
    constants = {"broker": broker, "store_id": store_id, "segment": segment}
    plain = STORED_MESSAGES.schema_without_dictionaries
    schema = plain if columns is None else pa.schema([plain.field(name) for name in columns])
    values = [
        pa.repeat(pa.scalar(constants[field.name], field.type), batch.num_rows)
        if field.name in constants
        else batch.column(field.name).cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(values, schema=schema)


@dataclass(frozen=True, slots=True)
class LakeItem:
    """A file of the table `messages`."""

    lake: Lake
    file: SnapshotFile
    releases: Mapping[str | None, Release] = field(default_factory=dict)  # by store id
    broker: str | None = None  # or the id of its store
    wanted_topics: tuple[str, ...] = ()  # none: all topics
    time_range: TimeRange = ANY_TIME

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.file.size

    def release_of(self, row: Mapping[str, Any]) -> Release:
        """Return the release by whose rules a row's properties are read."""
        return self.releases.get(row["store_id"], NEWEST)

    @property
    def store_times(self) -> StoreTimeBounds:
        """The store times of its rows, from Delta's log."""
        return self.file.minimum(STORE_TIME_COLUMN, None), self.file.maximum(STORE_TIME_COLUMN, None)

    def read(self, columns: Sequence[str] = COLUMNS) -> Iterator[pa.RecordBatch | Piece]:
        """Yield the file's rows."""
        needed = {*columns, "total_size", *(["topic"] if self.wanted_topics else [])}
        if self.broker:
            needed |= {"broker", "store_id"}
        names = [name for name in MESSAGES.schema_without_dictionaries.names if name in needed]
        for batch in read_batches(self.lake, MESSAGES, self.file, names):
            wanted = self._select_rows(batch)
            if self.wanted_topics:
                wanted = wanted.filter(pc.is_in(wanted.column("topic"), pa.array(self.wanted_topics, pa.string())))
            yield wanted.select(columns)

    def _select_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        batch = batch.filter(pc.is_valid(batch.column("total_size")))  # otherwise another engine has added the row
        if self.broker:
            has_label, has_id = (pc.equal(batch.column(name), self.broker) for name in ("broker", "store_id"))
            batch = batch.filter(pc.or_kleene(has_label, has_id))
        return batch


# `read` of each yields rows of `messages`, some columns of them, and the ranges of the log without messages.
ExportItem = LogItem | LakeItem


def is_outside_times(item: ExportItem) -> bool:
    """Return whether an item has no row within the time bounds; of a segment, this is only probable."""
    (since, until), (low, high) = item.time_range, item.store_times
    return (low is not None and low > until) or (high is not None and high < since)


def read_rows(item: ExportItem, columns: Sequence[str] = COLUMNS) -> Iterator[pa.RecordBatch | Piece]:
    """Yield the rows of an item that are within the time bounds."""
    since, until = item.time_range
    if item.time_range == ANY_TIME:
        return item.read(columns)
    if is_outside_times(item):
        return iter(())

    def in_times(rows: pa.RecordBatch | Piece) -> pa.RecordBatch | Piece:
        if isinstance(rows, Piece):
            return rows
        times = rows.column(STORE_TIME_COLUMN)
        return rows.filter(pc.and_(pc.greater_equal(times, since), pc.less_equal(times, until))).select(columns)

    found = item.read(tuple(dict.fromkeys((*columns, "physical_offset", STORE_TIME_COLUMN))))
    return map(in_times, found if isinstance(item, LakeItem) else _drop_damage_outside(found, item.time_range))


def _drop_damage_outside(found: Iterator[pa.RecordBatch | Piece], times: TimeRange) -> Iterator[pa.RecordBatch | Piece]:
    """Yield rows and damage of a log, except damage before a row that is too old, or after one that is too new."""
    since, until = times
    damage: list[Piece] = []  # after the newest row so far
    newest = MIN_LONG
    for rows in found:
        if isinstance(rows, Piece):
            damage.append(rows)
            continue
        offsets, stored = (rows.column(name).to_numpy() for name in ("physical_offset", STORE_TIME_COLUMN))
        times_before, left = np.concatenate([[newest], stored]), list[Piece]()
        for piece, at in zip(damage, np.searchsorted(offsets, [piece.offset for piece in damage]), strict=True):
            if times_before[at] > until:
                continue
            if at == stored.size:
                left.append(piece)
            elif stored[at] >= since:
                yield piece
        damage, newest = left, int(times_before[-1])
        yield rows
        del rows
    yield from damage if newest <= until else ()
