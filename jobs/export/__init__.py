"""
Export messages from a store or a lake: tasks write parts, and the driver merges them into one file.

This module has the items: each is a segment of a log, or a file of a lake's messages, and is read by one task.

Batches are limited in bytes, not in rows: a body may have several MiB.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jobs.lake.bodies import Body, add_inflated_bodies, decode_stored_body, needs_inflation
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import SnapshotFile, read_batches
from jobs.lake.tables import BODY_ERROR, BODY_INFLATED, MESSAGES, RECORD_CRC, STORED_MESSAGES
from jobs.restore.segment import check_crcs
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import Range
from rmq_formats.commitlog import kernels
from rmq_formats.commitlog.assembly import ASSEMBLED_COLUMNS as RECORD_COLUMNS
from rmq_formats.commitlog.assembly import AssembledRecords, assemble_records
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.kernels.integers import Integers
from rmq_formats.properties import MAX_LONG, MIN_LONG, PropertyParser
from rmq_formats.release import NEWEST, Release

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


DERIVED_COLUMNS = (
    "store_date", "born_time", "store_time", "is_compressed", "transaction_type", "offset_msg_id", "uniq_key", "tags",
    "keys",
)  # fmt: skip
VERIFIED_COLUMNS = (
    "store_id",
    "broker",
    "segment",
    *RECORD_COLUMNS,
    *DERIVED_COLUMNS,
    RECORD_CRC,
    BODY_ERROR,
    BODY_INFLATED,
)
"""The columns of `messages` that are needed to verify a row."""

RowMask = npt.NDArray[np.bool_]


def mask_changed_rows(batch: pa.RecordBatch, dropped_columns: frozenset[str]) -> RowMask:
    """Return which rows another engine has changed; *dropped_columns* are not compared."""
    made = assemble_records(batch)
    changed = _flags(batch.column(RECORD_CRC).is_valid())
    if made.offsets.size:
        rows, (has_other_crc, _) = _some(batch, made.row_numbers), check_crcs(batch, made)
        changed[made.row_numbers] = (
            has_other_crc | _are_changed(rows, made, dropped_columns) | _inflates_otherwise(rows)
        )
    return changed


def _are_changed(rows: pa.RecordBatch, made: AssembledRecords, dropped: frozenset[str]) -> RowMask:
    numbers = np.empty(made.offsets.size, np.int64)
    count = kernels.find_invalid_records(made.buffer, made.positions, made.sizes, made.offsets, numbers)
    is_record = np.ones(made.offsets.size, np.bool_)
    is_record[numbers[:count]] = False  # lengths that a record cannot have: no kernel may read by them
    changed = np.ones(made.offsets.size, np.bool_)
    for parser in PropertyParser:  # the row does not show which one the run had
        again = np.flatnonzero(changed & is_record)
        if again.size:
            some = made.select(changed & is_record)
            changed[again] = _contradicts_itself(_some(rows, again), some, parser, dropped)
    return changed


def _inflates_otherwise(rows: pa.RecordBatch) -> RowMask:
    """Return which rows have an inflated body, or an error, that does not follow from their stored body."""
    stated, failed = (_flags(rows.column(name).is_valid()) for name in (BODY_INFLATED, BODY_ERROR))
    wrong: RowMask = (stated | failed) & ~needs_inflation(rows)
    some = np.flatnonzero((stated | failed) & ~wrong)
    start = 0
    for again in add_inflated_bodies(rows.take(pa.array(some))):  # the words of an error may be of an earlier version
        here = some[start : start + again.num_rows]
        inflated = again.column(BODY_INFLATED)
        other = _find_unequal(rows.column(BODY_INFLATED).take(pa.array(here)), inflated)
        wrong[here] = (other & stated[here]) | (failed[here] & _flags(inflated.is_valid()))
        start += again.num_rows
    return wrong


def _contradicts_itself(
    rows: pa.RecordBatch, made: AssembledRecords, parser: PropertyParser, dropped: frozenset[str]
) -> RowMask:
    records = RawRecords(made.buffer, 0, made.positions, made.sizes)
    derived, bad = message_batch(records, parser, with_body=False)
    changed = np.isin(records.positions, np.array([position for position, _ in bad], np.int64))
    sound = np.flatnonzero(~changed)
    ours = _some(rows, sound)
    is_checked = _flags(ours.column(RECORD_CRC).is_valid())  # the version that wrote it has written every column
    for name in (*DERIVED_COLUMNS, *RECORD_COLUMNS):
        if name != "body" and name not in dropped:
            other = _find_unequal(ours.column(name), derived.column(name))
            changed[sound] |= other & (is_checked | (_flags(ours.column(name).is_valid()) & (name in DERIVED_COLUMNS)))
    return changed


def _find_unequal(stated: pa.Array, expected: pa.Array) -> RowMask:
    """Return where two columns are unequal; Arrow compares lists and maps only as whole columns."""
    expected = expected.cast(stated.type)
    if stated.equals(expected):  # the usual case, and fast
        return np.zeros(len(stated), np.bool_)
    if len(stated) == 1:
        return np.ones(1, np.bool_)
    middle = len(stated) // 2
    halves = (stated[:middle], expected[:middle]), (stated[middle:], expected[middle:])
    return np.concatenate([_find_unequal(*half) for half in halves])


def _some(rows: pa.RecordBatch, numbers: Integers) -> pa.RecordBatch:
    """Return the rows with these ascending *numbers*; the batch itself, without a copy, if these are all rows."""
    return rows if numbers.size == rows.num_rows else rows.take(pa.array(numbers))


def _flags(column: pa.Array) -> RowMask:
    return np.array(column.to_numpy(zero_copy_only=False), np.bool_)


TimeRange = tuple[int, int]  # first and last store time in milliseconds, both inclusive
ANY_TIME: TimeRange = (MIN_LONG, MAX_LONG)
StoreTimeBounds = tuple[int | None, int | None]  # the minimum and maximum store time, if known
STORE_TIME_COLUMN = "store_timestamp"
READ_BYTES = 4 << 20  # bytes of log that are read together: in memory also as rows, and as a slice of rows with bodies
COLUMNS = tuple(STORED_MESSAGES.schema_without_dictionaries.names)
DELETED_WHILE_READ = "deleted while it was being read"
# A lake's stores: the label, the start of the log, and the length of its files, or NULL where these are not known.
REGISTERED_STORES_SCHEMA = pa.schema(
    {"store_id": pa.string(), "broker": pa.string(), "first": pa.int64(), "size": pa.int64()}
)


@dataclass(frozen=True, slots=True)
class LogItem:
    """A segment of a log, from a given record on."""

    range: Range
    release: Release
    broker: str
    wanted_topics: tuple[str, ...] = ()  # none: all topics
    store_times: StoreTimeBounds = (None, None)
    time_range: TimeRange = ANY_TIME

    @property
    def size(self) -> int:
        """Bytes of the segment."""
        return self.range.end - self.range.start

    def release_of(self, _store_id: str | None) -> Release:
        """Return the release by whose rules a row's properties are read."""
        return self.release

    def read(self, columns: Sequence[str] = COLUMNS) -> Iterator[pa.RecordBatch | Piece]:
        """Yield the rows of the segment's records."""
        reader = RangeReader(self.range, READ_BYTES)
        takes = frozenset(self.wanted_topics).__contains__ if self.wanted_topics else None
        for item in reader.pieces():
            if isinstance(item, Piece):
                yield item
                continue
            yield from self._rows(item, columns, takes)
        if reader.facts.was_deleted:
            start = reader.facts.next_offset if reader.facts.first_offset is not None else self.range.start_offset
            yield Piece(PieceKind.DAMAGE, start, self.range.end_offset - start, DELETED_WHILE_READ)

    def _rows(
        self, group: RawRecords, columns: Sequence[str], takes: Callable[[str], bool] | None
    ) -> Iterator[pa.RecordBatch | Piece]:
        """Yield the rows and the damage of a group of records; a batch is released before the next group is read."""
        batch, bad = message_batch(group, self.release.property_parser, with_body="body" in columns, wants_topic=takes)
        yield from (Piece(PieceKind.DAMAGE, offset, size, "a body with a wrong CRC") for offset, size in bad)
        yield convert_to_table_rows(batch, self.range.base_offset, self.broker).select(columns)


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
    # Columns that another engine dropped from the table; None: rows are not verified.
    dropped_columns: frozenset[str] | None = None
    stores: pa.Table | None = None  # all stores of the lake, if rows are verified
    time_range: TimeRange = ANY_TIME

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.file.size

    def release_of(self, store_id: str | None) -> Release:
        """Return the release by whose rules a row's properties are read."""
        return self.releases.get(store_id, NEWEST)

    @property
    def store_times(self) -> StoreTimeBounds:
        """The store times of its rows, from Delta's log."""
        return self.file.minimum(STORE_TIME_COLUMN, None), self.file.maximum(STORE_TIME_COLUMN, None)

    def read(self, columns: Sequence[str] = COLUMNS) -> Iterator[pa.RecordBatch | Piece]:
        """Yield the file's rows."""
        needed = {*columns, "total_size", *(["topic"] if self.wanted_topics else [])}
        if self.broker:
            needed |= {"broker", "store_id"}
        if self.dropped_columns is not None:
            needed |= {*VERIFIED_COLUMNS}
        names = [name for name in MESSAGES.schema_without_dictionaries.names if name in needed]
        for batch in read_batches(self.lake, MESSAGES, self.file, names):
            wanted = self._wanted(batch)
            if self.dropped_columns is not None:
                changed = mask_changed_rows(wanted, self.dropped_columns) | self._is_elsewhere(wanted)
                for row in wanted.select(["physical_offset", "total_size"]).filter(pa.array(changed)).to_pylist():
                    offset, size = row["physical_offset"] or 0, row["total_size"]
                    yield Piece(PieceKind.DAMAGE, offset, size, "another engine has changed this row")
                wanted = wanted.filter(pa.array(~changed))
            if self.wanted_topics:  # last, because a row whose topic was changed may belong to one of them
                wanted = wanted.filter(pc.is_in(wanted.column("topic"), pa.array(self.wanted_topics, pa.string())))
            yield wanted.select(columns)

    def _is_elsewhere(self, rows: pa.RecordBatch) -> RowMask:
        """Return which rows have an unregistered store or label, or belong to another file."""
        stores = REGISTERED_STORES_SCHEMA.empty_table() if self.stores is None else self.stores
        owners = stores.take(pc.index_in(rows.column("store_id"), stores.column("store_id")))
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
            # A row whose label was changed is named.
            ids = pa.array([self.broker])
            if self.stores is not None:
                own = self.stores.filter(pc.equal(self.stores["broker"], self.broker))["store_id"]
                ids = pa.array([self.broker, *own.to_pylist()])
            is_of_store = pc.is_in(batch.column("store_id"), ids)
            batch = batch.filter(pc.or_kleene(pc.equal(batch.column("broker"), self.broker), is_of_store))
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
    return map(in_times, found if isinstance(item, LakeItem) else _without_damage_outside(found, item.time_range))


def _without_damage_outside(
    found: Iterator[pa.RecordBatch | Piece], times: TimeRange
) -> Iterator[pa.RecordBatch | Piece]:
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
