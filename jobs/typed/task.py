"""
Decodes one file of `messages` in a task.

Each message of a typed topic becomes exactly one row of a typed table, or one dead letter.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.lake.bodies import add_inflated_bodies
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import SnapshotFile, read_batches
from jobs.lake.table_file import AddedFile, FileNaming, TableFile
from jobs.lake.tables import (
    BODY_ERROR,
    BODY_INFLATED,
    DEAD_LETTERS,
    MESSAGES,
    PROVENANCE_COLUMNS,
    RUN,
    TYPING_APPLICATION,
    Table,
)
from jobs.typed.ddl import STORE_DATE, TYPING, typed_table
from jobs.typed.declaration import JSON_FORMAT, TopicType
from jobs.typed.formats import BodyReader, TypedRows, UnknownField, merge_unknown
from jobs.typed.values import Refusal, TimeDefaults

_KEPT = ("broker", "store_id", *(one.name for one in PROVENANCE_COLUMNS))
_READ = (*_KEPT, "topic", "properties", "is_compressed", "sys_flag", "body", RUN)
_OF_DEAD = (*_KEPT, "topic", "properties", "body", "reason")
_LONGEST_NAME = 60  # characters of an undeclared type name that a refusal shows
_SLICE = 16_384  # rows whose values are Python objects at a time
_COMPRESSED = "cannot be decompressed: "
_NO_BODY = Refusal("the lake has no body of this message (it was ingested with --no-body)")


# A type and, for each store, the first untyped offset and the newest typed run. Messages before this offset are typed
# if this run or an earlier one has written them.
TopicToType = tuple[TopicType, Mapping[str, tuple[int, int]]]


def _mask_rows_of_topic(topic: TopicToType, rows: pa.RecordBatch, *, before: bool) -> pa.Array:
    """Return which rows are still to be typed, or those *before* them; rows without store or offset are neither."""
    (type_, progress), stores, at = topic, rows.column("store_id"), rows.column("physical_offset")
    is_old: pa.Array = pc.less(at, 0)
    for store, (offset, run) in progress.items():
        is_typed = pc.less(at, offset)
        if not before:  # a later run may have filled a gap
            is_typed = pc.and_(is_typed, pc.fill_null(pc.less_equal(rows.column(RUN), run), fill_value=True))
        is_old = pc.or_(is_old, pc.and_(pc.equal(stores, store), is_typed))
    found = pc.and_(pc.equal(rows.column("topic"), type_.topic), is_old if before else pc.invert(is_old))
    return pc.fill_null(pc.and_(found, stores.is_valid()), fill_value=False)


@dataclass
class TypingResult:
    """The result of typing files of messages: the new files by table, and counts."""

    added_files: dict[str, list[AddedFile]] = field(default_factory=partial(defaultdict, list))
    rows: Counter[str] = field(default_factory=Counter)  # the number of rows, by topic
    # The reasons of dead letters, by topic.
    reasons: dict[str, Counter[str]] = field(default_factory=partial(defaultdict, Counter))
    # Fields of typed bodies without a column, by topic.
    unknown_fields: dict[str, dict[str, UnknownField]] = field(default_factory=partial(defaultdict, dict))
    ends: Counter[str] = field(default_factory=Counter)  # the end offset of the messages in the file, by store

    @classmethod
    def sum_of(cls, files: Iterable["TypingResult"]) -> "TypingResult":
        """Return the sum of several results."""
        found = cls()
        for file in files:
            found.rows.update(file.rows)
            for table, actions in file.added_files.items():
                found.added_files[table] += actions
            for topic, reasons in file.reasons.items():
                found.reasons[topic].update(reasons)
            for topic, unknown in file.unknown_fields.items():
                merge_unknown(found.unknown_fields[topic], unknown)
            found.ends |= file.ends  # keeps the later end of each store
        return found


def type_file(
    lake: Lake,
    load: Mapping[str, object],
    topics: Sequence[TopicToType],
    file: SnapshotFile,
    *,
    retries: bool = False,
) -> TypingResult:
    """Type the messages of a file, or retry its dead letters, into new files; *load* has the columns of the typing."""
    table, columns = (DEAD_LETTERS, _OF_DEAD) if retries else (MESSAGES, _READ)
    needed: set[str] = set()
    done = TypingResult()
    places = ("topic", "store_id", "physical_offset")
    for batch in read_batches(lake, table, file, places if retries else (*places, RUN)):
        needed |= {topic[0].topic for topic in topics if _mask_rows_of_topic(topic, batch, before=retries).true_count}
        if not retries:  # a superseded row may be after the messages that are typed
            _note_log_ends(done, batch)
    topics = [topic for topic in topics if topic[0].topic in needed]
    with ExitStack() as stack:
        work = _Work(lake, load, stack, done)
        for batch in read_batches(lake, table, file, columns) if topics else ():
            for topic in topics:
                wanted = _mask_rows_of_topic(topic, batch, before=retries)
                chosen = batch if wanted.true_count == batch.num_rows else batch.filter(wanted)
                for some in _cut_batches((_restore_message_form(chosen),) if retries else add_inflated_bodies(chosen)):
                    work.type_rows(topic[0], some)
        for name, file_ in work.files.items():
            if (action := file_.close()) is not None:
                done.added_files[name].append(action)
    return done


def _note_log_ends(done: TypingResult, rows: pa.RecordBatch) -> None:
    """Note in *done* the offset after the newest message of each store in *rows*."""
    ends = pa.table([rows.column("store_id"), rows.column("physical_offset")], ["store", "offset"])
    for one in ends.group_by("store").aggregate([("offset", "max")]).to_pylist():
        if one["store"] is not None and one["offset_max"] is not None:
            done.ends |= Counter({one["store"]: one["offset_max"] + 1})


def _cut_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from (batch.slice(start, _SLICE) for start in range(0, batch.num_rows, _SLICE))


@dataclass
class _Work:
    lake: Lake
    load: Mapping[str, object]
    stack: ExitStack
    done: TypingResult
    files: dict[str, TableFile] = field(default_factory=dict)
    readers: dict[str, BodyReader] = field(default_factory=dict)

    def type_rows(self, type_: TopicType, rows: pa.RecordBatch) -> None:
        """Write each row into the table of its type, or into `dead_letters`."""
        if type_.selector is None:
            reader = self.readers.setdefault(type_.table, type_.reader())
            self._write(type_, rows, _decode_bodies(reader, rows))
            return
        names, refusals = _names(type_.selector, rows)
        for name, one in type_.types.items():
            chosen = rows.filter(pc.equal(names, name))
            if chosen.num_rows:
                self.type_rows(one, chosen)
        for number, name in enumerate(names.to_pylist()):
            if name not in type_.types:
                place = f"{type_.selector}: {'none' if name is None else name[:_LONGEST_NAME]!r}"
                refusals.setdefault(number, Refusal("its type is not declared", place))
        self._write_dead(type_, rows, refusals)

    def _write(self, type_: TopicType, rows: pa.RecordBatch, results: TypedRows) -> None:
        self._write_dead(type_, rows, results.refusals)
        typed = rows.select([*_KEPT, "properties"])
        typed = typed.take(_fitting_rows(rows, results.refusals)) if results.refusals else typed
        if not typed.num_rows:
            return
        columns = {name: typed.column(name) for name in _KEPT}
        columns[STORE_DATE] = typed.column("store_time").cast(pa.date32())
        columns |= {column.name: values for column, values in zip(type_.columns, results.columns, strict=True)}
        for name, source in type_.properties.items():
            columns[name] = pc.map_lookup(typed.column("properties"), source, "first")
        self._file(typed_table(type_.table, type_.all_columns), type_.all_columns).write(
            pa.RecordBatch.from_pydict(columns)
        )
        self.done.rows[type_.topic] += typed.num_rows
        if results.unknown_fields:
            offsets, prefix = rows.column("physical_offset"), "" if type_.name is None else f"{type_.name}: "
            found = {
                prefix + path: one._replace(at=offsets[one.at].as_py()) for path, one in results.unknown_fields.items()
            }
            merge_unknown(self.done.unknown_fields[type_.topic], found)

    def _write_dead(self, type_: TopicType, rows: pa.RecordBatch, refusals: Mapping[int, Refusal]) -> None:
        if not refusals:
            return
        numbers = sorted(refusals)
        dead, refused = rows.take(pa.array(numbers)), [refusals[number] for number in numbers]
        columns = {name: dead.column(name) for name in _KEPT} | {
            "topic": dead.column("topic"),
            "type": pa.array([type_.name] * dead.num_rows, pa.string()),
            "reason": pa.array([one.reason for one in refused], pa.string()),
            "place": pa.array([one.place for one in refused], pa.string()),
            "properties": dead.column("properties"),
            "body": _bodies(dead),
        }
        self._file(DEAD_LETTERS).write(pa.RecordBatch.from_pydict(columns))
        self.done.reasons[type_.topic].update(one.reason for one in refused)

    def _file(self, table: Table, body_columns: Sequence[pa.Field] = ()) -> TableFile:
        load = {name: value for name, value in self.load.items() if name not in {one.name for one in body_columns}}
        if table.name not in self.files:
            name = FileNaming(TYPING_APPLICATION, cast("int", self.load[TYPING])).new_file_name("rows")
            file = TableFile(self.lake, table, name, {} if table is DEAD_LETTERS else load)
            self.files[table.name] = self.stack.enter_context(file)
        return self.files[table.name]


def read_refusals(lake: Lake, file: SnapshotFile, topic: str, reader: BodyReader) -> Iterator[Refusal | None]:
    """Yield the refusal of each message of a topic in a file; None if *reader* accepts it."""
    for batch in read_batches(lake, MESSAGES, file, _READ):
        of_topic = batch.filter(pc.fill_null(pc.equal(batch.column("topic"), topic), fill_value=False))
        for rows in _cut_batches(add_inflated_bodies(of_topic)):
            refusals = _decode_bodies(reader, rows).refusals
            yield from map(refusals.get, range(rows.num_rows))


def _names(by: str, rows: pa.RecordBatch) -> tuple[pa.Array, dict[int, Refusal]]:
    """Return the name of each message's type, and the refusals of bodies that are not JSON objects."""
    source, _, name = by.partition(" ")
    if source == "tag":
        return rows.column("tags"), {}
    if source == "property":
        return pc.map_lookup(rows.column("properties"), name, "first"), {}
    results = _decode_bodies(JSON_FORMAT.reader((pa.field(name, pa.string()),), TimeDefaults()), rows)
    is_read = np.ones(rows.num_rows, np.bool_)
    is_read[list(results.refusals)] = False
    whole = pc.replace_with_mask(pa.nulls(rows.num_rows, pa.string()), pa.array(is_read), results.columns[0])
    return whole, dict(results.refusals)


def _fitting_rows(rows: pa.RecordBatch, refusals: Mapping[int, Refusal]) -> pa.Array:
    return pa.array(np.delete(np.arange(rows.num_rows), list(refusals)))


def _decode_bodies(reader: BodyReader, rows: pa.RecordBatch) -> TypedRows:
    """Decode the bodies of rows; a missing body, or one that cannot be decompressed, is refused."""
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
    unknown = {path: one._replace(at=others[one.at].as_py()) for path, one in results.unknown_fields.items()}
    return TypedRows(results.columns, refusals, unknown)


def _restore_message_form(dead: pa.RecordBatch) -> pa.RecordBatch:
    """Return dead letters in the form of `messages`, with the errors of bodies that could not be decompressed."""
    reason = dead.column("reason")
    error = pc.if_else(pc.starts_with(reason, _COMPRESSED), pc.utf8_slice_codeunits(reason, len(_COMPRESSED)), None)
    return dead.append_column(BODY_INFLATED, dead.column("body")).append_column(BODY_ERROR, error.cast(pa.string()))


def _bodies(rows: pa.RecordBatch) -> pa.Array:
    inflated = rows.column(BODY_INFLATED)
    return pc.coalesce(inflated, rows.column("body")) if inflated.null_count < len(inflated) else rows.column("body")
