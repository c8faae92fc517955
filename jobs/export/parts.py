"""
Files of messages, which tasks write themselves: rows stay in Arrow and do not pass through the JVM.

A task writes one part, and returns its name and figures. The part of a failed attempt is never used, and is deleted
with the folder of the parts.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.console.rows import Form, csv_line
from jobs.export.items import ANY_TIME, SCHEMA, ExportDefect, Item, Undecoded, decoded_slices, rows_of, with_bodies
from jobs.lake.bodies import DEFAULT_LIMIT, Body
from jobs.query import json_text
from jobs.query.message import Message
from jobs.storage.local import explaining_full_disk, naming_file_in_errors
from rmq_formats.commitlog.record import record_of_row
from rmq_formats.commitlog.segment import Piece
from rmq_formats.release import Release

if TYPE_CHECKING:
    from jobs.export.condition import SelectRows

_GROUP_ROWS, _GROUP_BYTES = 1 << 16, 8 << 20
_PAGE, _MOST_AT_ONCE = 1 << 20, 1 << 10  # pyarrow's own: bytes of a page, and values that are encoded before it is full
_NAMED = 20  # damaged places of a part that are named; all are counted
_LONG = 1 << 20
_CHUNK = 4 << 20

_Slices: TypeAlias = Iterator[tuple[pa.RecordBatch, list[Body]]]  # of rows, with their bodies


@dataclass(slots=True)
class Part:
    """A file written by a task; no file is written if there are no messages."""

    name: str
    messages: int = 0
    undecoded: Undecoded = field(default_factory=Undecoded)
    damaged_bytes: int = 0  # of the log, which are left out
    damaged: list[ExportDefect] = field(default_factory=list)  # the first of them


@dataclass(frozen=True, slots=True)
class PartTask:
    """Writes the rows of an item into one part."""

    folder: Path
    form: Form
    release: Release  # says how properties are read
    limit: int = DEFAULT_LIMIT  # bytes of a body
    chosen: "SelectRows | None" = None  # None for all rows

    def __call__(self, numbered: tuple[int, Item]) -> Part:
        """Write the part of an item."""
        number, item = numbered
        part = Part(f"{number:08d}-{uuid4()}")
        damage: list[Piece] = []
        rows = _without_damage(rows_of(item), damage)
        if self.chosen is not None:
            rows = self.chosen(number, rows)
        noted = 0

        def counted() -> _Slices:
            nonlocal noted
            for batch, bodies in chain.from_iterable(map(partial(decoded_slices, limit=self.limit), rows)):
                part.undecoded.note(batch, bodies)
                part.messages, noted = part.messages + batch.num_rows, len(damage)
                yield batch, bodies
                del batch, bodies  # not held while the next ones are read; so below

        path = self.folder / part.name
        with explaining_full_disk(str(path)):
            if self.form is Form.PARQUET:
                _write_parquet(path, counted())
            else:
                _write_lines(path, counted(), self.release, self.form)
        pa.default_memory_pool().release_unused()  # idle workers keep it while another one works
        if self.chosen is not None or item.between != ANY_TIME:
            del damage[noted:]  # damage after the last wanted row is not reported
        part.damaged_bytes = sum(piece.size for piece in damage)
        part.damaged = [ExportDefect(None, piece.offset, piece.size, piece.reason) for piece in damage[:_NAMED]]
        return part


def _without_damage(items: Iterator[pa.RecordBatch | Piece], damage: list[Piece]) -> Iterator[pa.RecordBatch]:
    for item in items:
        if not isinstance(item, Piece):
            yield item
        elif item.is_lost:
            damage.append(item)
        del item


def _write_lines(path: Path, rows: _Slices, release: Release, form: Form) -> None:
    with ExitStack() as stack:
        file = None
        for batch, bodies in rows:
            is_first = file is None
            file = file or stack.enter_context(path.open("x", encoding="utf-8"))
            for row, body in zip(batch.to_pylist(), bodies, strict=True):
                message = Message(record_of_row({**row, "body": row["body"] or b""}), release)
                message.body = None if body.error is not None else body.data or b""
                shown = json_text.message_object(message, with_body=True)
                value = {"broker": row["broker"], **shown, "body_error": body.error}
                if form is Form.CSV:
                    file.write((csv_line(tuple(value)) if is_first else "") + csv_line(tuple(value.values())))
                    is_first = False
                elif form is Form.JSON:
                    file.write(f"{json_text.json_line('message', value).rstrip()},\n")
                elif len(body.data or b"") < _LONG:
                    file.write(json_text.json_line("message", value))
                else:
                    file.writelines(json_text.json_pieces("message", value))
            del batch, bodies


def _write_parquet(path: Path, rows: _Slices) -> None:
    held: list[pa.RecordBatch] = []  # of the next row group
    with ExitStack() as stack:
        writer: pq.ParquetWriter | None = None

        def write_group() -> None:
            nonlocal writer
            if held:
                table = pa.Table.from_batches(held)
                held.clear()
                writer = writer or stack.enter_context(_parquet_writer(path, table.num_rows, table.nbytes))
                writer.write_table(table)

        for batch, bodies in rows:
            new = with_bodies(batch, bodies, SCHEMA)
            size, count = sum(part.nbytes for part in (*held, new)), sum(map(len, (*held, new)))
            if size > _GROUP_BYTES or count > _GROUP_ROWS:
                write_group()
            held.append(new)
            del batch, bodies, new
        write_group()


def _parquet_writer(path: Path, rows: int, size: int) -> pq.ParquetWriter:
    """Return a Parquet writer for rows of about *size* bytes; pages of large rows are written when full."""
    at_once = min(max(rows * _PAGE // max(size, 1), 1), _MOST_AT_ONCE)
    return pq.ParquetWriter(path, SCHEMA, compression="zstd", write_batch_size=at_once)


def merge(parts: Sequence[Part], folder: Path, form: Form, out: Path) -> int:
    """
    Merge the parts, in order, into one file, and return its size; each part is deleted after it is copied.

    No file is written if there are no messages, so that a corrected command can use the same name.
    """
    attempt = out.with_name(f".{out.name}.attempt-{uuid4()}")
    files = [folder / part.name for part in parts if part.messages]
    if not files:
        return 0
    size = sum(path.stat().st_size for path in files)
    # Under a name of its own until it is whole: a killed export leaves no FILE that looks like a result.
    try:
        with explaining_full_disk(str(out), size):
            if form is Form.PARQUET:
                _merge_parquet(files, attempt)
            else:
                _merge_text(files, attempt, form)
            attempt.replace(out)
    finally:
        attempt.unlink(missing_ok=True)
    return out.stat().st_size


def stream(parts: Sequence[Part], folder: Path, form: Form, *, has_begun: bool) -> int:
    """Copy parts to standard output, in order, and return their size; delete each after it is copied."""
    files = [folder / part.name for part in parts if part.messages]
    size = _move(files, sys.stdout.buffer, form, has_begun=has_begun)
    sys.stdout.flush()
    return size


def _move(files: Sequence[Path], whole: BinaryIO, form: Form, *, has_begun: bool = False) -> int:
    """Copy text parts, delete each one afterwards, and return their total size."""
    size = 0
    for path in files:
        with naming_file_in_errors(str(path)), path.open("rb") as file:
            if form is Form.CSV and (has_begun or size):
                file.readline()  # every part has the header; its names have no line breaks
            while chunk := file.read(_CHUNK):
                whole.write(chunk)
                size += len(chunk)
        path.unlink()
    return size


def _merge_text(files: Sequence[Path], attempt: Path, form: Form) -> None:
    with attempt.open("xb") as whole:
        if form is Form.JSON:
            whole.write(b"[\n")
        _move(files, whole, form)
        if form is Form.JSON:
            whole.seek(-2, os.SEEK_END)  # the last comma
            whole.truncate()
            whole.write(b"\n]\n")


def _merge_parquet(files: Sequence[Path], attempt: Path) -> None:
    rows, size = 0, 0
    for path in files:
        metadata = pq.read_metadata(path)
        rows += metadata.num_rows
        size += sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    with _parquet_writer(attempt, rows, size) as writer:
        for path in files:
            with pq.ParquetFile(path, pre_buffer=False) as file:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group, use_threads=False))  # each of them holds memory
            path.unlink()
