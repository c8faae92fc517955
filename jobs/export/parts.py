"""
Files of messages, written by the tasks themselves: rows stay in Arrow and never pass through the JVM as values.

A task writes one part and returns its name and its figures. A part of an attempt that failed is never named, and is
deleted with the folder that the parts lie in.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.console.rows import csv_line
from jobs.export.items import ANY_TIME, SCHEMA, Item, LeftOut, Undecoded, rows_of, slices, with_bodies
from jobs.lake.bodies import DEFAULT_LIMIT, Body
from jobs.query import json_text
from jobs.query.message import Message
from jobs.storage.space import named, room_for
from rmq_formats.commitlog.record import record_of_row
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.release import Release

if TYPE_CHECKING:
    from jobs.export.condition import Chosen

_GROUP_ROWS, _GROUP_BYTES = 1 << 16, 8 << 20
_PAGE, _MOST_AT_ONCE = 1 << 20, 1 << 10  # pyarrow's own: bytes of a page, and values that are encoded before it is full
_NAMED = 20  # damaged places of a part that are named; all are counted
_LONG = 1 << 20
_CHUNK = 4 << 20


@unique
class Format(StrEnum):
    """The format of a file of messages."""

    NDJSON = "ndjson"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


class Part(NamedTuple):
    """One file that a task has written; without messages, no file is written."""

    name: str
    messages: int
    undecoded: Undecoded
    damaged_bytes: int  # of the log, which are left out
    damaged: tuple[LeftOut, ...]  # the first of them


@dataclass(frozen=True, slots=True)
class PartTask:
    """Writes the rows of an item into one part."""

    folder: Path
    kind: Format
    release: Release  # says how properties are read
    limit: int = DEFAULT_LIMIT  # bytes of a body
    chosen: "Chosen | None" = None  # None for all rows

    def __call__(self, numbered: tuple[int, Item]) -> Part:
        """Write the part of an item."""
        number, item = numbered
        name = f"{number:08d}-{uuid4()}"
        damage: list[Piece] = []
        rows = _without_damage(rows_of(item), damage)
        if self.chosen is not None:
            rows = self.chosen(number, rows)
        undecoded, messages, noted = Undecoded(), 0, 0
        path = self.folder / name
        part = _ParquetPart(path) if self.kind is Format.PARQUET else _LinesPart(path, self.release, self.kind)
        with room_for(str(path)), part as file:
            for batch, bodies in chain.from_iterable(map(partial(slices, limit=self.limit), rows)):
                file.write(batch, bodies)
                undecoded.note(batch, bodies)
                messages, noted = messages + batch.num_rows, len(damage)
                del batch, bodies  # not held while the next ones are read; so below
        pa.default_memory_pool().release_unused()  # idle workers keep it while another one works
        if self.chosen is not None or item.between != ANY_TIME:
            del damage[noted:]  # damage after the last wanted row is not reported
        places = tuple(LeftOut(None, piece.offset, piece.size, piece.reason) for piece in damage[:_NAMED])
        return Part(name, messages, undecoded, sum(piece.size for piece in damage), places)


def _without_damage(items: Iterator[pa.RecordBatch | Piece], damage: list[Piece]) -> Iterator[pa.RecordBatch]:
    for item in items:
        if not isinstance(item, Piece):
            yield item
        elif item.kind is PieceKind.DAMAGE:
            damage.append(item)
        del item


class _LinesPart:
    """A part of NDJSON, of a JSON array (each object with its comma), or of CSV (with its header)."""

    def __init__(self, path: Path, release: Release, kind: Format) -> None:
        self._path = path
        self._release = release
        self._kind = kind
        self._has_header = False
        self._file: Any = None

    def __enter__(self) -> Self:
        return self

    def write(self, batch: pa.RecordBatch, bodies: Sequence[Body]) -> None:
        if self._file is None:
            self._file = self._path.open("x", encoding="utf-8")
        for row, body in zip(batch.to_pylist(), bodies, strict=True):
            value = self._object(row, body)
            if self._kind is Format.CSV:
                if not self._has_header:
                    self._file.write(csv_line(tuple(value)))
                    self._has_header = True
                self._file.write(csv_line(tuple(value.values())))
            elif self._kind is Format.JSON:
                self._file.write(f"{json_text.line('message', value).rstrip()},\n")
            elif len(body.data or b"") < _LONG:
                self._file.write(json_text.line("message", value))
            else:
                self._file.writelines(json_text.pieces("message", value))

    def _object(self, row: dict[str, object], body: Body) -> dict[str, object]:
        message = Message(record_of_row({**row, "body": row["body"] or b""}), self._release)
        message.body = None if body.error is not None else body.data or b""
        shown = json_text.message_object(message, with_body=True)
        return {"broker": row["broker"], **shown, "body_error": body.error}

    def __exit__(self, *_error: object) -> None:
        if self._file is not None:
            self._file.close()


class _ParquetPart:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.RecordBatch] = []  # of the next row group

    def __enter__(self) -> Self:
        return self

    def write(self, batch: pa.RecordBatch, bodies: Sequence[Body]) -> None:
        rows = with_bodies(batch, bodies, SCHEMA)
        group = [*self._held, rows]
        if sum(part.nbytes for part in group) > _GROUP_BYTES or sum(map(len, group)) > _GROUP_ROWS:
            self._write_held()
        self._held.append(rows)

    def _write_held(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held)
            self._writer = self._writer or _parquet_writer(self._path, table.num_rows, table.nbytes)
            self._writer.write_table(table)
            self._held = []

    def __exit__(self, *error: object) -> None:
        if not any(error):
            self._write_held()
        if self._writer is not None:
            self._writer.close()


def _parquet_writer(path: Path, rows: int, size: int) -> pq.ParquetWriter:
    """Return the writer of a file that begins with rows of *size* bytes; pages of large rows are written when full."""
    at_once = min(max(rows * _PAGE // max(size, 1), 1), _MOST_AT_ONCE)
    return pq.ParquetWriter(path, SCHEMA, compression="zstd", write_batch_size=at_once)


def merge(parts: Sequence[Part], folder: Path, kind: Format, out: Path) -> int:
    """
    Make one file of all parts, in their order, and return its size; a part is deleted as soon as it is copied.

    Without a message no file is written: a corrected command can then use its name.
    """
    attempt = out.with_name(f".{out.name}.attempt-{uuid4()}")
    files = [folder / part.name for part in parts if part.messages]
    if not files:
        return 0
    size = sum(path.stat().st_size for path in files)
    # Under a name of its own until it is whole: a killed export leaves no FILE that looks like a result.
    try:
        with room_for(str(out), size):
            if kind is Format.PARQUET:
                _merge_parquet(files, attempt)
            else:
                _merge_text(files, attempt, kind)
            attempt.replace(out)
    finally:
        attempt.unlink(missing_ok=True)
    return out.stat().st_size


def stream(parts: Sequence[Part], folder: Path, kind: Format, *, has_begun: bool) -> int:
    """Copy parts to standard output, in their order, and return their size; delete each as soon as it is copied."""
    files = [folder / part.name for part in parts if part.messages]
    size = _move(files, sys.stdout.buffer, kind, has_begun=has_begun)
    sys.stdout.flush()
    return size


def _move(files: Sequence[Path], whole: BinaryIO, kind: Format, *, has_begun: bool = False) -> int:
    """Copy parts of text, delete each as soon as it is copied, and return their size."""
    size = 0
    for path in files:
        with named(str(path)), path.open("rb") as file:
            if kind is Format.CSV and (has_begun or size):
                file.readline()  # every part has the header; its names have no line breaks
            while chunk := file.read(_CHUNK):
                whole.write(chunk)
                size += len(chunk)
        path.unlink()
    return size


def _merge_text(files: Sequence[Path], attempt: Path, kind: Format) -> None:
    with attempt.open("xb") as whole:
        if kind is Format.JSON:
            whole.write(b"[\n")
        _move(files, whole, kind)
        if kind is Format.JSON:
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
