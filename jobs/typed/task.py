"""
One file of `messages`, typed: its bodies become rows of typed tables or dead letters, in the task that reads it.

Rows go from Parquet to Parquet; each message of a topic becomes exactly one row here.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.lake.bodies import with_inflated
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import StoredFile, plain_batches
from jobs.lake.table_file import Action, FileNaming, TableFile
from jobs.lake.tables import BODY_ERROR, BODY_INFLATED, DEAD_LETTERS, MESSAGES, PROVENANCE, Table
from jobs.typed.declaration import Discriminator, Json, TopicType
from jobs.typed.rows import Reader, Typed, UnknownField, merge_unknown
from jobs.typed.tables import TYPING, typed_table
from jobs.typed.values import Refusal, Times

_WHOSE = ("broker", "store_id")
_KEPT = (*_WHOSE, *(one.name for one in PROVENANCE))
_READ = (*_KEPT, "topic", "properties", "is_compressed", "sys_flag", "body")
_OF_DEAD = (*_KEPT, "topic", "properties", "body", "reason")
_LONGEST_NAME = 60  # of a type, in a place
_SLICE = 16_384  # rows whose values Python holds at a time
_COMPRESSED = "cannot be decompressed: "
_NO_BODY = Refusal("the lake has no body of this message (it was ingested with --no-body)")


class FromOffset(NamedTuple):
    """Which messages of a topic are still to be typed."""

    type: TopicType
    offsets: Mapping[str, int]  # by store: from here on; from 0 on where it is not named

    def wanted(self, rows: pa.RecordBatch, *, before: bool = False) -> pa.Array:
        """Return which rows these are, or those *before* them; another engine's without store or offset is neither."""
        stores, at = rows.column("store_id"), rows.column("physical_offset")
        is_old: pa.Array = pc.less(at, 0)
        for store, offset in self.offsets.items():
            is_old = pc.or_(is_old, pc.and_(pc.equal(stores, store), pc.less(at, offset)))
        found = pc.and_(pc.equal(rows.column("topic"), self.type.topic), is_old if before else pc.invert(is_old))
        return pc.fill_null(pc.and_(found, stores.is_valid()), fill_value=False)


@dataclass(frozen=True)
class TypingTask:
    """Types the messages of a file, or the dead letters of one again."""

    lake: Lake
    number: int  # of the typing
    topics: tuple[FromOffset, ...]
    retries: bool = False

    def __call__(self, file: StoredFile) -> "TypedFile":
        """Write the rows of a file into new files, and return these."""
        with ExitStack() as stack:
            work = _Work(self, stack)
            table, columns = (DEAD_LETTERS, _OF_DEAD) if self.retries else (MESSAGES, _READ)
            for batch in plain_batches(self.lake, table, file, ("topic", "store_id", "physical_offset")):
                work.note_offsets(batch)
            if work.topics_needed:
                for batch in plain_batches(self.lake, table, file, columns):
                    work.type_batch(batch)
            return work.closed()


class TypedFile(NamedTuple):
    """The new files of one file of messages, by table, and their contents."""

    actions: Mapping[str, Action]
    rows: Mapping[str, int]  # by topic
    reasons: Mapping[str, Mapping[str, int]]  # of dead letters, by topic
    unknown: Mapping[str, Mapping[str, UnknownField]]  # fields of typed bodies that no column takes, by topic
    ends: Mapping[str, int]  # by store: where its messages in the file end


@dataclass
class _Work:
    task: TypingTask
    stack: ExitStack
    files: dict[str, TableFile] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, Counter[str]] = field(default_factory=dict)
    unknown: dict[str, dict[str, UnknownField]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    topics_needed: set[str] = field(default_factory=set)
    readers: dict[str, Reader] = field(default_factory=dict)

    def note_offsets(self, rows: pa.RecordBatch) -> None:
        """Note the end of each store's messages, and which topics have messages to type."""
        self.topics_needed |= {topic.type.topic for topic in self.task.topics if self._wanted(topic, rows).true_count}
        if self.task.retries:  # one that is superseded may lie after the messages that are typed
            return
        ends = pa.table([rows.column("store_id"), rows.column("physical_offset")], ["store", "offset"])
        for one in ends.group_by("store").aggregate([("offset", "max")]).to_pylist():
            if one["store"] is not None and one["offset_max"] is not None:
                self.ends[one["store"]] = max(self.ends.get(one["store"], 0), one["offset_max"] + 1)

    def _wanted(self, topic: FromOffset, rows: pa.RecordBatch) -> pa.Array:
        return topic.wanted(rows, before=self.task.retries)

    def type_batch(self, batch: pa.RecordBatch) -> None:
        for topic in self.task.topics:
            if topic.type.topic not in self.topics_needed:
                continue
            wanted = self._wanted(topic, batch)
            chosen = batch if wanted.true_count == batch.num_rows else batch.filter(wanted)
            for some in (_as_read(chosen),) if self.task.retries else with_inflated(chosen):
                for start in range(0, some.num_rows, _SLICE):
                    self._type_rows(topic.type, some.slice(start, _SLICE))

    def _type_rows(self, type_: TopicType, rows: pa.RecordBatch) -> None:
        """Write each row into the table of its type, or into `dead_letters`."""
        if type_.by is None:
            reader = self.readers.setdefault(type_.table, type_.reader())
            self._write(type_, rows, _results(reader, rows))
            return
        names, refusals = _names(type_.by, rows)
        for name, one in type_.types.items():
            chosen = rows.filter(pc.equal(names, name))
            if chosen.num_rows:
                self._type_rows(one, chosen)
        for number, name in enumerate(names.to_pylist()):
            if name not in type_.types:
                refusals.setdefault(number, _unknown(type_.by, name))
        self._dead(type_, rows, refusals)

    def _write(self, type_: TopicType, rows: pa.RecordBatch, results: Typed) -> None:
        self._dead(type_, rows, results.refusals)
        typed = rows.select([*_KEPT, "properties"])
        typed = typed.take(_fitting_rows(rows, results.refusals)) if results.refusals else typed
        if not typed.num_rows:
            return
        columns = _kept(typed)
        columns |= {column.name: values for column, values in zip(type_.columns, results.columns, strict=True)}
        for name, source in type_.properties.items():
            columns[name] = pc.map_lookup(typed.column("properties"), source, "first")
        self._file(typed_table(type_.table, type_.all_columns)).write(pa.RecordBatch.from_pydict(columns))
        self.rows[type_.topic] += typed.num_rows
        if results.unknown:
            offsets, prefix = rows.column("physical_offset"), "" if type_.name is None else f"{type_.name}: "
            found = {prefix + path: one._replace(at=offsets[one.at].as_py()) for path, one in results.unknown.items()}
            merge_unknown(self.unknown.setdefault(type_.topic, {}), found)

    def _dead(self, type_: TopicType, rows: pa.RecordBatch, refusals: Mapping[int, Refusal]) -> None:
        if refusals:
            numbers = sorted(refusals)
            dead = [refusals[number] for number in numbers]
            self._file(DEAD_LETTERS).write(_dead_rows(type_, rows.take(pa.array(numbers)), dead))
            self.reasons.setdefault(type_.topic, Counter()).update(refusal.reason for refusal in dead)

    def _file(self, table: Table) -> TableFile:
        if table.name not in self.files:
            name = FileNaming(TYPING, self.task.number).name("rows")
            self.files[table.name] = self.stack.enter_context(TableFile(self.task.lake, table, name, {}))
        return self.files[table.name]

    def closed(self) -> TypedFile:
        closed = {name: file.close() for name, file in self.files.items()}
        actions = {name: action for name, action in closed.items() if action is not None}
        return TypedFile(actions, self.rows, self.reasons, self.unknown, self.ends)


def read_topic(lake: Lake, file: StoredFile, topic: str, reader: Reader) -> Iterator[Refusal | None]:
    """Yield the refusal of each message of a topic in a file; None for one that *reader* reads."""
    for batch in plain_batches(lake, MESSAGES, file, _READ):
        of_topic = batch.filter(pc.fill_null(pc.equal(batch.column("topic"), topic), fill_value=False))
        for some in with_inflated(of_topic):
            for start in range(0, some.num_rows, _SLICE):
                some_rows = some.slice(start, _SLICE)
                refusals = _results(reader, some_rows).refusals
                yield from (refusals.get(number) for number in range(some_rows.num_rows))


def _names(by: Discriminator, rows: pa.RecordBatch) -> tuple[pa.Array, dict[int, Refusal]]:
    """Return the name of each message's type, and the refusals of bodies that are no JSON that could have a field."""
    if by.source == "tag":
        return rows.column("tags"), {}
    if by.source == "property":
        return pc.map_lookup(rows.column("properties"), by.name, "first"), {}
    results = _results(Json().reader((pa.field(by.name, pa.string()),), Times()), rows)
    is_read = np.ones(rows.num_rows, np.bool_)
    is_read[list(results.refusals)] = False
    whole = pc.replace_with_mask(pa.nulls(rows.num_rows, pa.string()), pa.array(is_read), results.columns[0])
    return whole, dict(results.refusals)


def _unknown(by: Discriminator, name: str | None) -> Refusal:
    return Refusal("its type is not declared", f"{by}: {'none' if name is None else name[:_LONGEST_NAME]!r}")


def _fitting_rows(rows: pa.RecordBatch, refusals: Mapping[int, Refusal]) -> pa.Array:
    """Return the numbers of the rows that are not refused."""
    return pa.array(np.delete(np.arange(rows.num_rows), list(refusals)))


def _results(reader: Reader, rows: pa.RecordBatch) -> Typed:
    """Return the rows, or the refusals, of messages."""
    errors, bodies = rows.column(BODY_ERROR), _bodies(rows)
    unread = pc.or_(bodies.is_null(), errors.is_valid())
    if not unread.true_count:
        return reader(bodies)
    refusals = {
        number: Refusal(_COMPRESSED + errors[number].as_py()) if errors[number].is_valid else _NO_BODY
        for number in np.flatnonzero(unread).tolist()
    }
    others = _fitting_rows(rows, refusals)
    results = reader(bodies.take(others))
    refusals |= {others[number].as_py(): refusal for number, refusal in results.refusals.items()}
    unknown = {path: one._replace(at=others[one.at].as_py()) for path, one in results.unknown.items()}
    return Typed(results.columns, refusals, unknown)


def _as_read(dead: pa.RecordBatch) -> pa.RecordBatch:
    """Return dead letters as `messages` has them: one that could not be decompressed has its error again."""
    reason = dead.column("reason")
    error = pc.if_else(pc.starts_with(reason, _COMPRESSED), pc.utf8_slice_codeunits(reason, len(_COMPRESSED)), None)
    return dead.append_column(BODY_INFLATED, dead.column("body")).append_column(BODY_ERROR, error.cast(pa.string()))


def _bodies(rows: pa.RecordBatch) -> pa.Array:
    """Return the bodies as they were sent; as they are stored where they cannot be decompressed."""
    inflated = rows.column(BODY_INFLATED)
    return pc.coalesce(inflated, rows.column("body")) if inflated.null_count < len(inflated) else rows.column("body")


def _dead_rows(type_: TopicType, rows: pa.RecordBatch, refusals: Sequence[Refusal]) -> pa.RecordBatch:
    columns = _kept(rows) | {
        "topic": rows.column("topic"),
        "type": pa.array([type_.name] * rows.num_rows, pa.string()),
        "reason": pa.array([refusal.reason for refusal in refusals], pa.string()),
        "place": pa.array([refusal.place for refusal in refusals], pa.string()),
        "properties": rows.column("properties"),
        "body": _bodies(rows),
    }
    return pa.RecordBatch.from_pydict(columns)


def _kept(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    return {name: rows.column(name) for name in _KEPT}
