"""
Files of messages, written by the tasks themselves: rows stay in Arrow and never pass through the JVM as values.

A task writes one part and returns its name and how many messages it holds. A part of an attempt that failed is never
named, and goes with the folder that the parts lie in.
"""

from collections.abc import Iterator
from enum import StrEnum, unique
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext

from jobs.lake.tables import MESSAGES
from jobs.query import json_text
from jobs.query.message import Message
from rmq_formats.body import decode_body
from rmq_formats.commitlog.row import record_of_row
from rmq_formats.errors import FormatError
from rmq_formats.release import Release

BODY_TEXT = "body_text"
STORED_BODY = "stored_body"
PART_COLUMNS = "number int, name string, messages bigint"


@unique
class Format(StrEnum):
    """What a file of messages is."""

    NDJSON = "ndjson"
    PARQUET = "parquet"


class Part(NamedTuple):
    """One file that a task has written."""

    number: int
    name: str
    messages: int


def with_decoded_body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make `body` what its producer sent, and add it as text where it is one, and as it is stored."""
    for batch in batches:
        stored = batch.column("body")
        flags = batch.column("sys_flag").to_pylist()
        bodies = [_decoded(body, flag) for body, flag in zip(stored.to_pylist(), flags, strict=True)]
        place = batch.schema.get_field_index("body")
        decoded = batch.set_column(place, "body", pa.array(bodies, pa.binary()))
        decoded = decoded.append_column(BODY_TEXT, pa.array(map(_text, bodies), pa.string()))
        yield decoded.append_column(STORED_BODY, stored)


def _decoded(body: bytes | None, sys_flag: int) -> bytes | None:
    """Return the body decompressed; one that cannot be is left as it is stored."""
    try:
        return None if body is None else decode_body(body, sys_flag)
    except FormatError:
        return body


def _text(body: bytes | None) -> str | None:
    try:
        return None if body is None else body.decode()
    except UnicodeDecodeError:
        return None


class PartWriter:
    """Writes the rows of a partition into one part."""

    def __init__(self, folder: Path, kind: Format, release: Release) -> None:
        """Write below *folder*; *release* says how properties are read."""
        self._folder = folder
        self._kind = kind
        self._release = release

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all rows; yield the part, if there are any."""
        context = TaskContext.get()
        number = context.partitionId() if context else 0
        name = f"{number:08d}-{uuid4()}"
        write = self._write_parquet if self._kind is Format.PARQUET else self._write_ndjson
        messages = write(self._folder / name, batches)
        if messages:
            yield pa.RecordBatch.from_pylist(
                [Part(number, name, messages)._asdict()],
                pa.schema({"number": pa.int32(), "name": pa.string(), "messages": pa.int64()}),
            )

    def _write_ndjson(self, path: Path, batches: Iterator[pa.RecordBatch]) -> int:
        messages = 0
        with path.open("x", encoding="utf-8") as file:
            for batch in batches:
                for row in batch.to_pylist():
                    file.write(json_text.line("message", self._object(row)))
                messages += batch.num_rows
        return messages

    def _object(self, row: dict[str, Any]) -> dict[str, Any]:
        message = Message(record_of_row({**row, "body": row["body"] or b""}), self._release)
        return {"broker": row["broker"], **json_text.message_object(message, with_body=True)}

    def _write_parquet(self, path: Path, batches: Iterator[pa.RecordBatch]) -> int:
        messages = 0
        writer: pq.ParquetWriter | None = None
        for decoded in with_decoded_body(batches):
            batch = decoded.drop_columns([STORED_BODY])
            writer = writer or pq.ParquetWriter(path, batch.schema, compression="zstd")
            writer.write_batch(batch)
            messages += batch.num_rows
        if writer:
            writer.close()
        return messages


def merge(parts: list[Part], folder: Path, kind: Format, out: Path) -> int:
    """Make one file of all parts, in their order, and return its size; a part goes as soon as it is copied."""
    attempt = out.with_name(f".{out.name}.attempt-{uuid4()}")
    try:
        if kind is Format.PARQUET:
            _merge_parquet(parts, folder, attempt)
        else:
            _merge_text(parts, folder, attempt)
        attempt.replace(out)
    finally:
        attempt.unlink(missing_ok=True)
    return out.stat().st_size


def _merge_text(parts: list[Part], folder: Path, attempt: Path) -> None:
    with attempt.open("xb") as whole:
        for part in parts:
            with (folder / part.name).open("rb") as file:
                while chunk := file.read(_CHUNK):
                    whole.write(chunk)
            (folder / part.name).unlink()


def _merge_parquet(parts: list[Part], folder: Path, attempt: Path) -> None:
    writer: pq.ParquetWriter | None = None
    for part in parts:
        with pq.ParquetFile(folder / part.name) as file:
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group)
                writer = writer or pq.ParquetWriter(attempt, rows.schema, compression="zstd")
                writer.write_table(rows)
        (folder / part.name).unlink()
    if writer is None:
        schema = MESSAGES.plain_schema.append(pa.field(BODY_TEXT, pa.string()))
        pq.write_table(schema.empty_table(), attempt)
    else:
        writer.close()


_CHUNK = 4 << 20
