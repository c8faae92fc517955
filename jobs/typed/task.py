"""
One file of `messages`, typed: its bodies become rows of typed tables or dead letters, in the task that reads it.

Rows go from Parquet to Parquet; each message of a topic becomes exactly one row here.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jobs.lake.bodies import with_inflated
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import StoredFile, plain_batches
from jobs.lake.table_file import Action, FileNaming, TableFile
from jobs.lake.tables import BODY_ERROR, BODY_INFLATED, DEAD_LETTERS, MESSAGES, PROVENANCE, Table
from jobs.typed.declaration import Discriminator, Json, Reader, TopicType
from jobs.typed.refusal import Refusal
from jobs.typed.tables import TYPING, array_of, typed_table
from jobs.typed.values import Times

_WHOSE = ("broker", "store_id")
_KEPT = (*_WHOSE, *(one.name for one in PROVENANCE))
_READ = (*_KEPT, "topic", "properties", "is_compressed", "sys_flag", "body")
_OF_DEAD = (*_KEPT, "topic", "properties", "body", "reason")
_LONGEST_NAME = 60  # of a type, in a place
_SLICE = 4096  # rows whose values Python holds at once
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
        return pc.fill_null(pc.and_(found, stores.is_valid()), False)  # noqa: FBT003 - the value


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
            if work.is_needed:
                for batch in plain_batches(self.lake, table, file, columns):
                    work.type_batch(batch)
            return work.closed()


class TypedFile(NamedTuple):
    """The new files of one file of messages, by table, and what they hold."""

    actions: Mapping[str, Action]
    rows: Mapping[str, int]  # by topic
    reasons: Mapping[str, Mapping[str, int]]  # of dead letters, by topic
    ends: Mapping[str, int]  # by store: where its messages in the file end


@dataclass
class _Work:
    task: TypingTask
    stack: ExitStack
    files: dict[str, TableFile] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, Counter[str]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    is_needed: set[str] = field(default_factory=set)
    readers: dict[str, Reader] = field(default_factory=dict)

    def note_offsets(self, rows: pa.RecordBatch) -> None:
        """Note the end of each store's messages, and which topics have any."""
        self.is_needed |= {topic.type.topic for topic in self.task.topics if self._wanted(topic, rows).true_count}
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
            if topic.type.topic not in self.is_needed:
                continue
            chosen = batch.filter(self._wanted(topic, batch))
            for some in (_as_read(chosen),) if self.task.retries else with_inflated(chosen):
                for start in range(0, some.num_rows, _SLICE):
                    self._type_rows(topic.type, some.slice(start, _SLICE))

    def _type_rows(self, type_: TopicType, rows: pa.RecordBatch) -> None:
        """Write each row into the table of its type, or into `dead_letters`."""
        if type_.by is None:
            reader = self.readers.setdefault(type_.table, type_.reader())
            self._write(type_, rows, _results(reader, rows))
            return
        names = _names(type_.by, rows)
        for name, one in type_.types.items():
            chosen = [number for number, found in enumerate(names) if found == name]
            if chosen:
                self._type_rows(one, rows.take(pa.array(chosen)))
        refused = {number: _unknown(type_.by, name) for number, name in enumerate(names) if name not in type_.types}
        self._write(type_, rows.take(pa.array(list(refused), pa.int64())), list(refused.values()))

    def _write(self, type_: TopicType, rows: pa.RecordBatch, results: Sequence[tuple[object, ...] | Refusal]) -> None:
        typed = [number for number, result in enumerate(results) if not isinstance(result, Refusal)]
        refused = {number: result for number, result in enumerate(results) if isinstance(result, Refusal)}
        if typed:
            table = typed_table(type_.table, type_.all_columns)
            values = [results[number] for number in typed]
            self._file(table).write(_typed_rows(type_, rows.take(pa.array(typed)), values))
            self.rows[type_.topic] += len(typed)
        if refused:
            dead = _dead_rows(type_, rows.take(pa.array(list(refused))), list(refused.values()))
            self._file(DEAD_LETTERS).write(dead)
            reasons = self.reasons.setdefault(type_.topic, Counter())
            reasons.update(refusal.reason for refusal in refused.values())

    def _file(self, table: Table) -> TableFile:
        if table.name not in self.files:
            name = FileNaming(TYPING, self.task.number).name("rows")
            self.files[table.name] = self.stack.enter_context(TableFile(self.task.lake, table, name, {}))
        return self.files[table.name]

    def closed(self) -> TypedFile:
        closed = {name: file.close() for name, file in self.files.items()}
        actions = {name: action for name, action in closed.items() if action is not None}
        return TypedFile(actions, self.rows, self.reasons, self.ends)


def read_topic(lake: Lake, file: StoredFile, topic: str, reader: Reader) -> Iterator[Refusal | None]:
    """Yield the refusal of each message of a topic in a file; None for one that *reader* reads."""
    for batch in plain_batches(lake, MESSAGES, file, _READ):
        of_topic = batch.filter(pc.fill_null(pc.equal(batch.column("topic"), topic), False))  # noqa: FBT003 - the value
        for some in with_inflated(of_topic):
            for start in range(0, some.num_rows, _SLICE):
                for result in _results(reader, some.slice(start, _SLICE)):
                    yield result if isinstance(result, Refusal) else None


def _names(by: Discriminator, rows: pa.RecordBatch) -> list[object]:
    """Return the name of each message's type; a refusal where its body is no JSON that could have a field."""
    if by.source == "tag":
        return list(rows.column("tags").to_pylist())
    if by.source == "property":
        return list(pc.map_lookup(rows.column("properties"), by.name, "first").to_pylist())
    results = _results(Json().reader((pa.field(by.name, pa.string()),), Times()), rows)
    return [result if isinstance(result, Refusal) else result[0] for result in results]


def _unknown(by: Discriminator, name: object) -> Refusal:
    if isinstance(name, Refusal):
        return name
    return Refusal("its type is not declared", f"{by}: {'none' if name is None else str(name)[:_LONGEST_NAME]!r}")


def _results(reader: Reader, rows: pa.RecordBatch) -> list[tuple[object, ...] | Refusal]:
    """Return a row of values, or the refusal, of each message."""
    errors = rows.column(BODY_ERROR).to_pylist()
    results: list[tuple[object, ...] | Refusal] = []
    bodies = _bodies(rows)
    read = iter(
        reader.read([body for body, error in zip(bodies, errors, strict=True) if body is not None and not error])
    )
    for body, error in zip(bodies, errors, strict=True):
        if error:
            results.append(Refusal(_COMPRESSED + error))
        else:
            results.append(_NO_BODY if body is None else next(read))
    return results


def _as_read(dead: pa.RecordBatch) -> pa.RecordBatch:
    """Return dead letters as their messages were read: what could not be decompressed is no body still."""
    reason = dead.column("reason")
    error = pc.if_else(pc.starts_with(reason, _COMPRESSED), pc.utf8_slice_codeunits(reason, len(_COMPRESSED)), None)
    return dead.append_column(BODY_INFLATED, dead.column("body")).append_column(BODY_ERROR, error.cast(pa.string()))


def _bodies(rows: pa.RecordBatch) -> list[bytes | None]:
    """Return the bodies as they were sent; as they are stored where they cannot be decompressed."""
    bodies: list[bytes | None] = pc.coalesce(rows.column(BODY_INFLATED), rows.column("body")).to_pylist()
    return bodies


def _typed_rows(type_: TopicType, rows: pa.RecordBatch, values: Sequence[Sequence[object]]) -> pa.RecordBatch:
    kept = rows.select(_KEPT)
    for column, cells in zip(type_.columns, zip(*values, strict=True), strict=True):
        kept = kept.append_column(column.name, array_of(cells, column.type))
    for name, source in type_.properties.items():
        kept = kept.append_column(name, pc.map_lookup(rows.column("properties"), source, "first"))
    return kept


def _dead_rows(type_: TopicType, rows: pa.RecordBatch, refusals: Sequence[Refusal]) -> pa.RecordBatch:
    columns = {
        "topic": rows.column("topic"),
        "type": pa.array([type_.name] * rows.num_rows, pa.string()),
        "reason": pa.array([refusal.reason for refusal in refusals], pa.string()),
        "place": pa.array([refusal.place for refusal in refusals], pa.string()),
        "properties": rows.column("properties"),
        "body": pa.array(_bodies(rows), pa.binary()),
    }
    kept = rows.select(_KEPT)
    for name, values in columns.items():
        kept = kept.append_column(name, values)
    return kept
