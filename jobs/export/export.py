"""
The export: plan the items, let tasks write the rows that match a condition into parts, and merge these into one file.

Tasks write the rows themselves: rows stay in Arrow and do not pass through the JVM. A task writes one part, and returns
its name and figures. The part of a failed attempt is never used, and is deleted with the directory of the parts.
"""

import codecs
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress
from pathlib import Path
from typing import TypeAlias
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.console.lines import printable_lines
from jobs.console.rows import RowFormat, csv_line
from jobs.export import (
    SCHEMA,
    ExportDefect,
    ExportItem,
    LakeItem,
    LogItem,
    add_decoded_bodies,
    is_outside_times,
    iterate_decoded_slices,
    read_rows,
)
from jobs.export.condition import Condition
from jobs.lake.bodies import Body
from jobs.lake.lake import DEFAULT_BROKER, Lake, why_without_messages
from jobs.lake.lake_stores import list_broker_stores, open_complete_table
from jobs.lake.snapshot_files import SnapshotFile, list_snapshot_files
from jobs.lake.tables import MESSAGES
from jobs.products.index.settings import determine_releases
from jobs.query import Message, has_body_in_lake, json_text, record_of_row
from jobs.query.merging import merge_answers
from jobs.query.message import removed_column_text
from jobs.query.reasons import coverage_text, explain_unknown_topic
from jobs.query.source import Answer, OtherBrokerError, Reason, ReasonKind, Source
from jobs.query.store_reader import SKIPPED_SEGMENTS, StoreReader
from jobs.query.target import open_stores
from jobs.requests.export import ANY_TIME, ExportRequest
from jobs.restore import NEWER_COLUMNS
from jobs.storage.local import (
    explaining_full_disk,
    make_directory,
    naming_file_in_errors,
    publish_file,
    temporary_directory_for,
)
from jobs.store.log_ends import find_lost_ends
from jobs.store.ranges import WHOLE_SEGMENTS, find_holes, plan_ranges
from jobs.store.request import GivenSettings
from jobs.store.store import list_store
from jobs.store.workers import Workers
from rmq_formats.commitlog.segment import Piece
from rmq_formats.errors import NotAStore
from rmq_formats.release import Release

_AT_ONCE = 8  # maximum number of items whose parts are on the disk at the same time, when writing to standard output
_GROUP_ROWS, _GROUP_BYTES = 1 << 16, 8 << 20
_PAGE, _MOST_AT_ONCE = 1 << 20, 1 << 10  # pyarrow's own: bytes of a page, and values that are encoded before it is full
_NAMED = 20  # undecoded bodies, and damaged ranges of a part, that are named; all are counted
_LONG = 1 << 20
_CHUNK = 4 << 20

_Slices: TypeAlias = Iterator[tuple[pa.RecordBatch, list[Body]]]  # slices of rows, with their bodies


@dataclass(slots=True)
class ExportSummary:
    """The result of an export, or of one part of it: its figures, and everything that was left out."""

    messages: int = 0
    bytes: int = 0  # 0 for a part
    undecoded_bodies: int = 0  # bodies that are exported as they are stored
    undecoded: list[ExportDefect] = field(default_factory=list)  # the first of them
    without_body: int = 0  # messages whose bodies are not in the lake
    damaged_bytes: int = 0  # damaged bytes of the log, which are left out
    damaged_ranges: int = 0
    damaged: list[ExportDefect] = field(default_factory=list)  # only the first ones of a part
    gaps: list[ExportDefect] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # skipped segments, or topics that the lake never had
    file: str = ""  # the file of a part; not written if there are no messages


def plan_export(request: ExportRequest, options: Mapping[str, str]) -> tuple[list[ExportItem], ExportSummary]:
    """Return the items to read, and a summary with the gaps of the log."""
    if request.target.lake is not None:
        return _plan_lake(request, Lake(request.target.lake, options))
    store = list_store(request.target.store or "", commitlog=request.target.commitlog or (), options=options)
    store.refuse_lost_log()
    label = request.target.broker or DEFAULT_BROKER
    ranges = plan_ranges(store, range_size=WHOLE_SEGMENTS)
    given = request.target.release
    rules = determine_releases(store, GivenSettings(release=None if given is None else str(given))).value.rules
    with StoreReader(store) as reader:
        times = reader.probable_time_bounds
    items: list[ExportItem] = [
        LogItem(range_, rules, label, request.topics, times[range_.base_offset], request.time_range)
        for range_ in ranges
    ]
    gaps = [
        ExportDefect(label, start, end - start, "no file contains these offsets")
        for _, start, end in find_holes(store.segments)
    ]
    gaps += [ExportDefect(label, lost.start, lost.end - lost.start, lost.text) for lost in find_lost_ends(store)]
    return items, ExportSummary(gaps=gaps, notes=[SKIPPED_SEGMENTS] if any(map(is_outside_times, items)) else [])


def _plan_lake(request: ExportRequest, lake: Lake) -> tuple[list[ExportItem], ExportSummary]:
    from jobs.query.lake_source import open_lake_stores  # loads the SQL engine

    known, broker = list_broker_stores(lake), request.target.broker
    snapshot = open_complete_table(lake, MESSAGES.name)
    if snapshot is None:
        raise NotAStore(why_without_messages(has_runs=bool(known)), None, lake.location)
    dropped = frozenset({*MESSAGES.schema.names} - {field.name for field in snapshot.schema().fields})
    if dropped - NEWER_COLUMNS:
        raise OSError(removed_column_text(f"the lake's table {MESSAGES.name}", min(dropped - NEWER_COLUMNS)))

    def place(file: SnapshotFile) -> tuple[str, int, str]:
        return str(file.minimum("store_id", "")), int(file.minimum("physical_offset", 0)), file.path

    # Messages of topics that runs did not select: a gap if the export selects topics, otherwise a note.
    of_broker = [one for one in known if broker in {None, one.broker, one.store_id}]
    left_out = [(one, reason) for one in of_broker if (reason := one.topic_choices.left_out_note(request.topics))]
    gaps = [ExportDefect(one.broker, 0, one.topic_choices.end_offset, why) for one, why in left_out if request.topics]
    releases: dict[str | None, Release] = {}
    with suppress(OtherBrokerError):  # an export without messages reports this error
        for store in open_lake_stores(request.target.lake or "", broker, request.target.release):
            lost_parts = store.list_lost_parts()
            gaps += [ExportDefect(store.label, lost.start, lost.end - lost.start, lost.text) for lost in lost_parts]
            releases[store.store_id] = store.release
    items: list[ExportItem] = [
        LakeItem(lake, file, releases, broker, request.topics, request.time_range)
        for file in sorted(list_snapshot_files(lake, snapshot), key=place)
    ]
    notes = [] if request.topics else [f"{one.broker}: {reason}" for one, reason in left_out]
    return items, ExportSummary(gaps=gaps, notes=notes)


def export(
    request: ExportRequest, items: Sequence[ExportItem], summary: ExportSummary, workers: Workers
) -> ExportSummary:
    """Write the messages to one file, or to standard output while they are read; complete and return the *summary*."""
    out = request.out
    if out is not None:
        make_directory(out.parent)
    with temporary_directory_for(out or Path(tempfile.gettempdir(), "export")) as directory:
        task = partial(write_part, directory, request)
        numbered = list(enumerate(items))
        write = partial(_print_part, codecs.getincrementaldecoder("utf-8")("replace"))
        at_once = len(numbered) if out is not None else _AT_ONCE
        for start in range(0, len(numbered), at_once or 1):
            parts = workers.map(numbered[start : start + at_once], task, "writing messages")
            files = [directory / part.file for part in parts if part.messages]
            if out is not None:
                summary.bytes = merge_parts(files, directory, request.form, out)
            else:
                summary.bytes += _move(files, write, request.form, has_begun=summary.bytes > 0)
                sys.stdout.flush()
            for part in parts:
                _add_part(summary, part)
    return summary


def _add_part(summary: ExportSummary, part: ExportSummary) -> None:
    summary.messages += part.messages
    summary.undecoded_bodies += part.undecoded_bodies
    summary.without_body += part.without_body
    summary.undecoded += part.undecoded[: _NAMED - len(summary.undecoded)]
    summary.damaged_bytes += part.damaged_bytes
    summary.damaged_ranges += part.damaged_ranges
    summary.damaged += part.damaged


def explain_empty_export(request: ExportRequest) -> Reason:
    """Explain an empty export as `query` explains an empty answer: unknown topics, or the range of the log."""
    has_times = request.time_range != ANY_TIME

    def explain(source: Source) -> Answer:
        unknown = [explain_unknown_topic(source, topic) for topic in request.topics if not source.has_topic(topic)]
        if unknown:
            return Answer(reason=Reason(unknown[0].kind, "; ".join(reason.text for reason in unknown)))
        of = f" of {', '.join(request.topics)}" if request.topics else ""
        times = " in the requested time range" if has_times else ""
        condition = " that matches --where" if request.condition else ""
        kind = ReasonKind.OUTSIDE_TIMES if has_times else ReasonKind.NO_RECORD
        return Answer(reason=Reason(kind, f"no message{of}{times}{condition}: {coverage_text(source)}"))

    try:
        with open_stores(request.target) as sources:
            answer = merge_answers(sources, explain).answer
    except OtherBrokerError as error:
        return Reason(ReasonKind.OTHER_BROKER, str(error))
    return answer.reason or Reason(ReasonKind.NO_RECORD, "no message matches")


def write_part(directory: Path, request: ExportRequest, numbered: tuple[int, ExportItem]) -> ExportSummary:
    """Write the rows of an item into one part, in a task."""
    number, item = numbered
    part = ExportSummary(file=f"{number:08d}-{uuid4()}")
    damage: list[Piece] = []
    rows = _set_damage_aside(read_rows(item) if _may_match(item, request.condition) else iter(()), damage)

    def count_messages() -> _Slices:
        for batch, bodies in chain.from_iterable(map(partial(_select_messages, request, part), rows)):
            part.messages += batch.num_rows
            yield batch, bodies
            del batch, bodies  # released before the next ones are read; the same below

    path = directory / part.file
    with explaining_full_disk(str(path)):
        if request.form is RowFormat.PARQUET:
            _write_parquet(path, _group_rows(count_messages()))
        else:
            _write_lines(path, count_messages(), request, item)
    pa.default_memory_pool().release_unused()  # idle workers keep it while another one works
    part.damaged_bytes = sum(piece.size for piece in damage)
    part.damaged_ranges = len(damage)
    part.damaged = [ExportDefect(None, piece.offset, piece.size, piece.reason) for piece in damage[:_NAMED]]
    return part


def _may_match(item: ExportItem, condition: Condition | None) -> bool:
    """Return False for a file of a lake without a match, of which only the condition's columns are read."""
    if condition is None or condition.uses_bodies or not condition.is_repeatable:
        return True
    if not isinstance(item, LakeItem):
        return True
    rows = _set_damage_aside(read_rows(item, condition.columns), [])
    return any(condition.find_matches(batch).true_count for batch in rows)


def _select_messages(request: ExportRequest, part: ExportSummary, rows: pa.RecordBatch) -> _Slices:
    """Yield the matching rows with their bodies; note each body that is exported as it is stored."""
    condition = request.condition
    if condition is not None and not condition.uses_bodies:
        rows = rows.filter(condition.find_matches(rows.select(condition.columns)))
    lacking = pc.and_(rows.column("body").is_null(), pc.greater(rows.column("body_length"), 0))
    part.without_body += lacking.true_count
    for batch, bodies in iterate_decoded_slices(rows, request.max_body_size):
        failed = [row for row, body in enumerate(bodies) if body.error is not None]
        part.undecoded_bodies += len(failed)
        for row in failed[: _NAMED - len(part.undecoded)]:
            names = ("broker", "physical_offset", "body_length")
            broker, offset, size = (batch.column(name)[row].as_py() for name in names)
            part.undecoded.append(ExportDefect(broker, offset, size, bodies[row].error or ""))
        if condition is None or not condition.uses_bodies:
            yield batch, bodies
        else:
            matches = condition.find_matches(add_decoded_bodies(batch, bodies, condition.schema))
            if matches.true_count:
                yield batch.filter(matches), [*compress(bodies, matches.to_pylist())]
        del batch, bodies


def _set_damage_aside(items: Iterator[pa.RecordBatch | Piece], damage: list[Piece]) -> Iterator[pa.RecordBatch]:
    for item in items:
        if not isinstance(item, Piece):
            yield item
        elif item.may_lack_messages:
            damage.append(item)
        del item


def _write_lines(path: Path, rows: _Slices, asked: ExportRequest, item: ExportItem) -> None:
    form = asked.form
    with ExitStack() as stack:
        file = None
        for batch, bodies in rows:
            is_first = file is None
            file = file or stack.enter_context(path.open("x", encoding="utf-8"))
            for row, body in zip(batch.to_pylist(), bodies, strict=True):
                record, has_body = record_of_row(row, asked.target.location), has_body_in_lake(row)
                message = Message(record, item.release_of(row), has_body=has_body)
                message.body = (body.data or b"") if body.error is None and has_body else None
                shown = json_text.message_object(message, with_body=True)
                value = {"broker": row["broker"], **shown, "body_error": body.error}
                if form is RowFormat.CSV:
                    file.write((csv_line(tuple(value)) if is_first else "") + csv_line(tuple(value.values())))
                    is_first = False
                elif form is RowFormat.JSON:
                    file.write(f"{json_text.json_line(value).rstrip()},\n")
                elif len(body.data or b"") < _LONG:
                    file.write(json_text.json_line(value))
                else:
                    file.writelines(json_text.json_pieces(value))
            del batch, bodies


def _group_rows(rows: _Slices) -> Iterator[pa.Table]:
    """Yield the rows, as many together as fit into a row group of Parquet."""
    held: list[pa.RecordBatch] = []
    for batch, bodies in rows:
        new = add_decoded_bodies(batch, bodies, SCHEMA)
        size, count = sum(part.nbytes for part in (*held, new)), sum(map(len, (*held, new)))
        if held and (size > _GROUP_BYTES or count > _GROUP_ROWS):
            yield pa.Table.from_batches(held)
            held.clear()
        held.append(new)
        del batch, bodies, new
    if held:
        yield pa.Table.from_batches(held)


def _write_parquet(path: Path, groups: Iterator[pa.Table]) -> None:
    """Write row groups; pages of large rows are written when they are full."""
    with ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for table in groups:
            if writer is None:
                at_once = min(max(table.num_rows * _PAGE // max(table.nbytes, 1), 1), _MOST_AT_ONCE)
                options = {"compression": "zstd", "write_batch_size": at_once}
                writer = stack.enter_context(pq.ParquetWriter(path, SCHEMA, **options))
            writer.write_table(table)
            del table


def merge_parts(files: Sequence[Path], directory: Path, form: RowFormat, out: Path) -> int:
    """Merge the parts, in order, into one file, and return its size; each part is deleted after it is copied."""
    attempt = directory / out.name
    if not files:
        return 0  # no file is written, so that a corrected command can use the same name
    size = sum(path.stat().st_size for path in files)
    # The file is next to its parts until it is complete: a killed export leaves no FILE that looks like a result.
    with explaining_full_disk(str(out), size):
        if form is RowFormat.PARQUET:
            _write_parquet(attempt, _read_groups(files))
        else:
            with attempt.open("xb") as whole:
                if form is RowFormat.JSON:
                    whole.write(b"[\n")
                _move(files, whole.write, form)
                if form is RowFormat.JSON:
                    whole.seek(-2, os.SEEK_END)  # the last comma
                    whole.truncate()
                    whole.write(b"\n]\n")
        publish_file(attempt, out)
    return out.stat().st_size


def _print_part(decoder: codecs.IncrementalDecoder, data: bytes) -> None:
    """Write bytes to standard output; keys and bodies may contain escape sequences, which a terminal must not get."""
    if sys.stdout.isatty():
        sys.stdout.write(printable_lines(decoder.decode(data)))
    else:
        sys.stdout.buffer.write(data)


def _move(files: Sequence[Path], write: Callable[[bytes], object], form: RowFormat, *, has_begun: bool = False) -> int:
    """Copy text parts, delete each one afterwards, and return their total size."""
    size = 0
    for path in files:
        with naming_file_in_errors(str(path)), path.open("rb") as file:
            if form is RowFormat.CSV and (has_begun or size):
                file.readline()  # every part has the header; its names have no line breaks
            while chunk := file.read(_CHUNK):
                write(chunk)
                size += len(chunk)
        path.unlink()
    return size


def _read_groups(files: Sequence[Path]) -> Iterator[pa.Table]:
    """Yield the row groups of parts, one at a time, and delete each part afterwards."""
    for path in files:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, use_threads=False)
        path.unlink()
