"""
Message rows: one in `messages` for each record of the log, and one in `traces` for each line of a trace message.

Bytes that are not a record are listed in `quarantine`, and stored in `log_pieces` so that the log can be restored.

Messages of excluded topics are left out regardless of where the broker has stored them. A delayed, transactional,
timed, retried or dead-letter message is in a system topic; a property names the topic to which it was sent. A message
of the trace topic contains keys and tags of other messages. If such a message does not name its original topic, it is
left out. A backfill of a topic reads exactly what an exclusion of the topic leaves out.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from jobs.console.result import RequestError
from jobs.lake.bodies import add_inflated_bodies, decode_stored_body
from jobs.lake.commit import ExpiredRows, open_table
from jobs.lake.lock import check_lock_is_shared
from jobs.lake.snapshot_files import read_rows_within
from jobs.lake.table_file import AddedFile
from jobs.lake.tables import BODY_ERROR, BODY_INFLATED, LOG_PIECES, MESSAGES, QUARANTINE, RECORD_CRC, TRACES, Table
from jobs.products.log_pieces import LogPiece, PieceCollector
from jobs.products.product import FinishedProduct, Run, RunOutput, StartedProduct, State
from jobs.store.chain import RangeOutcome, confirm_deleted_since_first_read
from jobs.store.ranges import Range
from jobs.store.selection import Selection, carries_other_topics
from rmq_formats.commitlog.columns import compute_record_crcs, message_batch
from rmq_formats.commitlog.scan import IO_ERROR, RawRecords
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.kernels.integers import Integers
from rmq_formats.properties import MAX_LONG, REAL_TOPIC, PropertyParser, decode_java_text
from rmq_formats.release import Rules, release_at
from rmq_formats.trace import LINE_END, decode_trace_line, is_trace_topic
from rmq_formats.trace_columns import decode_trace_bodies

_LARGEST_REPORT = 4 << 20  # bytes of a decompressed body of traces; clients put 128,000 into one
_OF_MESSAGE = ("physical_offset", "store_timestamp", "born_host")
_ROWS_A_BATCH = 1 << 15  # limits the memory of a batch of tiny messages, which its bytes do not


DAMAGE_SAMPLE_SIZE = 256
_WRONG_CRC = "body_crc does not match the body"
# MessageConst: REAL_TOPIC of delayed and half messages, RETRY_TOPIC of retries, DLQ_ORIGIN_TOPIC of dead letters.
_ORIGINS = pa.array([REAL_TOPIC, "RETRY_TOPIC", "DLQ_ORIGIN_TOPIC"])
_FIRST_POP_TIME = "1ST_POP_TIME"  # property of a popped message, whose retry topic ends with its own topic


class Damage(NamedTuple):
    """Bytes that are not a message, with a sample if they are readable and may be stored."""

    physical_offset: int
    length: int
    reason: str
    sample: bytes | None = None

    @classmethod
    def from_changed_body(cls, group: RawRecords, offset: int, size: int) -> Self:
        """Return the damage of a record whose body was changed after it was written."""
        at = offset - group.base_offset
        return cls(offset, size, _WRONG_CRC, group.buffer[at : at + min(size, DAMAGE_SAMPLE_SIZE)].tobytes())


class RangeMessages(NamedTuple):
    """The result for a range."""

    files: Mapping[str, AddedFile]
    was_deleted: bool  # whether the file was deleted before the bytes between its messages were read
    matched_patterns: frozenset[str]  # patterns that match topics of this range, but no topic known before
    scratch_files: tuple[str, ...] = ()


def start_product(run: Run, state: State | None) -> StartedProduct[RangeMessages]:
    """Prepare the collector of messages, from the start of the log's new part."""
    del state
    shared = (
        *(run.output, run.writers.value.rules, run.selection, run.from_offset, run.unmatched_patterns),
        *(run.only_missing, run.expired, run.expired_until, run.backfilled_topics),
    )  # fmt: skip
    return StartedProduct(run.from_offset, partial(_RangeMessages, shared), partial(_finish, run))


# Shared by all ranges of a run: output, rules, selection, the offset before which records are read for other products,
# patterns of topics that no known topic matches, whether records are left out that the lake has, expired messages, the
# offset at and after which none has expired, and the topics of a backfill.
_Shared = tuple[RunOutput, Rules, Selection, int, tuple[str, ...], bool, ExpiredRows | None, int, frozenset[str]]


def _finish(run: Run, outcomes: Sequence[RangeOutcome[RangeMessages]], _to_offset: int) -> FinishedProduct:
    """Accept files that retention deleted after their records were read; raise an error for unmatched patterns."""
    matched = frozenset[str]().union(*(outcome.payload.matched_patterns for outcome in outcomes))
    unmatched = [pattern for pattern in run.unmatched_patterns if pattern not in matched]
    if unmatched:
        raise RequestError(
            f"no topic in this log matches {', '.join(unmatched)} (--topics, --exclude-topics), so nothing was "
            "committed. Topic names are case-sensitive"
        )
    deleted = [outcome.range for outcome in outcomes if outcome.payload.was_deleted]
    confirm_deleted_since_first_read(run.store, deleted)
    why = "deleted before the bytes between its messages were read; the messages themselves are in the lake"
    return FinishedProduct(gaps=[(range_.start_offset, range_.end_offset, why) for range_ in deleted])


class _RangeMessages:
    def __init__(self, shared: _Shared, range_: Range, files: ExitStack) -> None:
        """Start without files: a file is created by its first row."""
        output, self._rules, self._selection, self._from_offset, self._unmatched, only_missing = shared[:6]
        self._expired, self._expired_until, self._backfilled_topics = shared[6:]
        # A run that fills gaps replaces the rows of `quarantine`; a backfill adds to them.
        tables = (MESSAGES, QUARANTINE) if self._backfilled_topics else (MESSAGES,)
        self._known_offsets = _read_known_offsets(output, range_, tables) if only_missing else None
        check_lock_is_shared(output.lake, output.naming.store_id)
        self._matched = set[str]()
        self._chooses = None if self._selection.topic_filter is None else self._takes
        part, segment, run = f"{range_.start_offset:020d}", range_.base_offset, output.naming.run
        messages = output.new_file(MESSAGES, part, segment=segment, run=run, ingested_at=output.started_at)
        self._messages = files.enter_context(messages)
        self._traces = files.enter_context(output.new_file(TRACES, part))
        quarantine = output.new_file(QUARANTINE, part, segment=segment, run=run, file=range_.location)
        self._quarantine = files.enter_context(quarantine)
        self._piece_rows = files.enter_context(output.new_file(LOG_PIECES, part, segment=segment, run=run))
        # The run that read this part of the log for the first time has recorded the bytes between its records.
        pieces_from = MAX_LONG if self._backfilled_topics else self._from_offset
        self._pieces = PieceCollector(range_, pieces_from, self._selection, files, self._write_piece)

    def _takes(self, topic: str) -> bool:
        """Return whether a topic is wanted, and record the patterns that match it."""
        self._matched.update(pattern for pattern in self._unmatched if fnmatchcase(topic, pattern))
        return self._selection.includes(topic)

    def add(self, item: RawRecords | Piece) -> None:
        unread = self._pieces.add(item)
        if isinstance(item, Piece):
            if not self._backfilled_topics:  # as above
                self._add_damage_of_piece(item, unread)
            return
        first = int(np.searchsorted(item.positions, self._from_offset - item.base_offset))
        new = item._replace(positions=item.positions[first:], sizes=item.sizes[first:])
        if self._known_offsets is not None:
            is_missing = ~np.isin(new.positions + new.base_offset, self._known_offsets)
            new = new._replace(positions=new.positions[is_missing], sizes=new.sizes[is_missing])
        for records, parser in split_by_release(new, self._rules):
            group = drop_excluded_messages(records, parser, self._selection)
            if self._backfilled_topics:
                group = self._select_backfilled(group, parser)
            found, bad = message_batch(group, parser, with_body=self._selection.with_body, wants_topic=self._chooses)
            batch = _drop_expired(found, self._expired, self._expired_until)
            checked = add_record_crcs(batch, group, wanted=self._selection.with_body)
            for rows in add_inflated_bodies(checked, wanted=self._selection.with_inflated):
                self._messages.write(rows)
            for rows in build_trace_rows(batch):
                self._traces.write(rows)
            for offset, size in bad:
                self._add_damage(Damage.from_changed_body(group, offset, size))
                at = offset - group.base_offset
                self._pieces.add_damage(offset, group.buffer[at : at + size].data)

    def _select_backfilled(self, records: RawRecords, parser: PropertyParser) -> RawRecords:
        """Return the records that would be left out if the topics of the backfill were excluded as well."""
        topics, selection = self._backfilled_topics, self._selection
        if not records.positions.size:
            return records
        narrower = replace(selection, exclude_topics=(*selection.exclude_topics, *topics))
        messages, _ = message_batch(records, parser, wants_topic=selection.includes)
        names = messages.column("topic").cast(pa.string())
        is_own = np.asarray(pc.is_in(names, value_set=pa.array(sorted(topics), pa.string())))
        self._matched.update(topics.intersection(names.unique().to_pylist()))
        _, bad = message_batch(records, parser, with_body=False, wants_topic=topics.__contains__)
        chosen = messages.column("physical_offset").to_numpy()[is_own | mask_excluded(messages, narrower)]
        offsets = np.append(chosen, np.array([offset for offset, _ in bad], np.int64))
        stays = np.isin(records.positions + records.base_offset, offsets)
        return records._replace(positions=records.positions[stays], sizes=records.sizes[stays])

    def _add_damage_of_piece(self, piece: Piece, unread: Sequence[tuple[int, int]]) -> None:
        if piece.kind is not PieceKind.DAMAGE:
            for offset, size in unread:
                self._add_damage(Damage(offset, size, IO_ERROR))
        elif piece.end > self._from_offset:
            sample = self._pieces.read(piece.offset, min(piece.size, DAMAGE_SAMPLE_SIZE))
            self._add_damage(Damage(piece.offset, piece.size, piece.reason, sample))

    def _write_piece(self, piece: LogPiece) -> None:
        self._piece_rows.write_rows([piece._asdict()])

    def _add_damage(self, damage: Damage) -> None:
        self._quarantine.write_rows([(damage if self._pieces.with_bytes else damage._replace(sample=None))._asdict()])

    def finish(self) -> RangeMessages:
        self._pieces.finish()
        files = {
            MESSAGES.name: self._messages.close(),
            QUARANTINE.name: self._quarantine.close(),
            LOG_PIECES.name: self._piece_rows.close(),
            TRACES.name: self._traces.close(),
        }
        found = {table: action for table, action in files.items() if action is not None}
        return RangeMessages(found, self._pieces.was_deleted, frozenset(self._matched))


def _drop_expired(messages: pa.RecordBatch, expired: ExpiredRows | None, until: int) -> pa.RecordBatch:
    if expired is None:
        return messages
    is_old = expired.mask_messages(messages.column("store_timestamp"), messages.column("topic"))
    return messages.filter(pc.invert(pc.and_(is_old, pc.less(messages.column("physical_offset"), until))))


def _read_known_offsets(output: RunOutput, range_: Range, tables: Sequence[Table]) -> Integers:
    """Return the offsets of the rows of a range that these tables have."""
    found = [np.empty(0, np.int64)]
    limits = {"physical_offset": (range_.start_offset, range_.end_offset)}
    for table in tables:
        snapshot = open_table(output.lake, table.name)
        if snapshot is not None:
            rows = read_rows_within(output.lake, table, snapshot, output.naming.store_id, limits)
            found += [one.column("physical_offset").to_numpy() for one in rows]
    return np.concatenate(found)


def add_record_crcs(batch: pa.RecordBatch, group: RawRecords, *, wanted: bool) -> pa.RecordBatch:
    """Append the CRC of each row's record, with which a record that is rebuilt from the row can be checked."""
    crcs = pa.nulls(batch.num_rows, pa.int64())
    if wanted:
        positions = batch.column("physical_offset").to_numpy() - group.base_offset
        crcs = pa.array(compute_record_crcs(group.buffer, positions, batch.column("total_size").to_numpy()))
    return batch.append_column(RECORD_CRC, crcs)


def split_by_release(group: RawRecords, rules: Rules) -> Iterator[tuple[RawRecords, PropertyParser]]:
    """Split a group where another release continued the log, or if it has many rows; yield parts with their parsers."""
    if not group.positions.size:
        return
    switches = [since - group.base_offset for since, _ in rules[1:]]
    count = group.positions.size
    cuts = {*range(0, count, _ROWS_A_BATCH), *np.searchsorted(group.positions, switches).tolist(), count}
    for start, stop in pairwise(sorted(cuts)):
        part = group._replace(positions=group.positions[start:stop], sizes=group.sizes[start:stop])
        yield part, release_at(rules, group.base_offset + int(part.positions[0])).property_parser


def build_trace_rows(messages: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `traces` for a batch of messages; none for a body that cannot be decompressed."""
    topics = messages.column("topic")
    wanted = [topic for topic in topics.dictionary.to_pylist() if is_trace_topic(topic)]
    if not wanted:
        return
    of_topic = pc.is_in(topics.cast(pa.string()), value_set=pa.array(wanted))
    for rows in add_inflated_bodies(messages.filter(of_topic), limit=_LARGEST_REPORT):
        readable = rows.filter(pc.is_null(rows.column(BODY_ERROR)))
        bodies = pc.coalesce(readable.column(BODY_INFLATED), readable.column("body"))
        for body_numbers, line_numbers, traces in decode_trace_bodies(bodies):
            parents = readable.select(_OF_MESSAGE).take(pa.array(body_numbers))
            columns = {name: parents.column(name) for name in _OF_MESSAGE}
            columns["born_host"] = columns["born_host"].cast(pa.string())
            columns["line"] = pa.array(line_numbers, pa.int32())
            columns |= {field.name: traces.column(field.name) for field in traces.schema}
            yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def drop_excluded_messages(records: RawRecords, parser: PropertyParser, selection: Selection) -> RawRecords:
    """Return the records without those that contain a message of an excluded topic."""
    if not selection.exclude_topics or not records.positions.size:
        return records
    # Columns are created after this, because Arrow's dictionaries of a filtered batch would keep the excluded values.
    messages, _ = message_batch(records, parser, wants_topic=selection.includes)
    offsets = messages.column("physical_offset").to_numpy()[mask_excluded(messages, selection)]
    stays = ~np.isin(records.positions + records.base_offset, offsets)
    return records._replace(positions=records.positions[stays], sizes=records.sizes[stays])


def mask_excluded(messages: pa.RecordBatch, selection: Selection) -> NDArray[np.bool_]:
    """Return which messages contain, or may contain, one of an excluded topic."""
    topics = messages.column("topic").cast(pa.string()).to_pylist()
    is_excluded, has_origin = _mask_by_origin(messages, selection)
    bodies, flags = messages.column("body"), messages.column("sys_flag")
    for number, topic in enumerate(topics):
        if is_trace_topic(topic):
            body = decode_stored_body(bodies[number].as_py(), flags[number].as_py(), _LARGEST_REPORT)
            is_excluded[number] |= body.error is not None or not _reports_on_others(body.data, selection)
        elif carries_other_topics(topic) and not has_origin[number]:
            is_popped = _FIRST_POP_TIME in dict(messages.column("properties")[number].as_py())
            # The name of a pop retry topic, `%RETRY%GROUP_TOPIC` or `…+TOPIC`, may end with an excluded topic.
            ends = [topic[at + 1 :] for at, character in enumerate(topic) if character in "_+"]
            is_excluded[number] |= not is_popped or any(map(selection.excludes, ends))
    return is_excluded


def _mask_by_origin(messages: pa.RecordBatch, selection: Selection) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which messages name an excluded topic as their origin, and which name any origin."""
    properties = messages.column("properties")
    counts = np.diff(properties.offsets.to_numpy())
    of_origin = np.asarray(pc.is_in(properties.keys.cast(pa.string()), value_set=_ORIGINS))
    rows = np.repeat(np.arange(messages.num_rows), counts)[of_origin]
    names = properties.items.filter(pa.array(of_origin)).to_pylist()
    is_excluded, has_origin = np.zeros(messages.num_rows, np.bool_), np.zeros(messages.num_rows, np.bool_)
    for row, name in zip(rows.tolist(), names, strict=True):
        is_excluded[row] |= selection.excludes(name)
        has_origin[row] |= not carries_other_topics(name)
    return is_excluded, has_origin


def _reports_on_others(body: bytes | None, selection: Selection) -> bool:
    """Return whether every line of a trace names a topic that is not excluded; consumers' lines name no topic."""
    if body is None:
        return False
    lines = [decode_trace_line(line) for line in decode_java_text(body).split(LINE_END) if line]
    return all(
        line is not None
        and line.topic is not None
        and not carries_other_topics(line.topic)
        and not selection.excludes(line.topic)
        for line in lines
    )
