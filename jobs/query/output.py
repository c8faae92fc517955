"""Prints answers: messages to standard output as text or JSON, everything else to standard error."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from pathlib import Path
from typing import Self
from urllib.parse import quote

import click

from jobs.console.lines import printable_text
from jobs.console.log import log_message
from jobs.console.result import ExitCode
from jobs.console.rows import RowFormat, RowPrinter
from jobs.query import Message, json_text, mqadmin
from jobs.query.source import Answer, Reason
from jobs.storage.local import explaining_full_disk, make_directory
from rmq_formats.body import MAX_DECOMPRESSED_SIZE
from rmq_formats.commitlog.record import body_crc

_TAB = "\t"
_CRC_MASK = 0xFFFFFFFF
_LONGEST_NAME = 240  # bytes of a body's file, before a number
_NEW_OR_EMPTY = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
_TRACKS = "consumer-group status is omitted (requires a running broker)"


@dataclass(slots=True)
class AnswerPrinter:
    """Prints the answer of a query: messages and rows to standard output, notes to standard error."""

    zone: tzinfo | None = None
    form: RowFormat = RowFormat.TEXT
    quiet: bool = False
    body_directory: Path | None = None  # the directory that body files are written to
    charset: str | None = None  # the character set in which the body is printed
    has_damage: bool = False  # whether the body of a printed message is damaged
    has_printed: bool = False  # whether a row or line was printed, or will be at the end
    _rows: RowPrinter = field(init=False)
    _said: dict[str, None] = field(default_factory=dict)
    # By the name of a body's file: brokers and offsets of the messages.
    _named: dict[str, list[tuple[str | None, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rows = self.open_row_printer(self.form)

    @property
    def prints_rows(self) -> bool:
        """Whether rows are printed instead of mqadmin's layout."""
        return self.form is not RowFormat.TEXT

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Print the end of the format, and after a table its notes; after an error, the output stays incomplete."""
        if kind is not None and not issubclass(kind, click.exceptions.Exit):
            return
        self._rows.close()
        if self.form is RowFormat.TABLE:
            for sentence in self._said:
                log_message(f"rmq-lake: {printable_text(sentence)}")

    def write(self, output: str) -> None:
        """Write to standard output, in UTF-8 in any locale."""
        self.has_printed = True
        if sys.stdout.isatty():
            # mqadmin fills its columns with blanks, which a terminal would wrap; a pipe gets all of them.
            lines = [(line, line.lstrip(_TAB)) for line in output.removesuffix("\n").split("\n")]
            output = "".join(
                f"{'  ' * (len(line) - len(text))}{printable_text(text.rstrip())}\n" for line, text in lines
            )
        # In a notebook standard output takes text alone.
        takes_bytes = hasattr(sys.stdout, "buffer")
        click.echo(output.encode("utf-8", "replace") if takes_bytes else output, nl=False)

    def printable_message(self, message: Message) -> Message:
        """Return *message* in printable form; report a damaged body, which changes the exit code."""
        record = message.record
        body = f"the body of the message at offset {record.physical_offset:,} ({message.offset_id})"
        if message.has_right_body is False:
            self.has_damage = True
            stored, computed = record.body_crc & _CRC_MASK, body_crc(record.body)
            log_message(
                f"rmq-lake: {body} is damaged: its CRC is {computed:08x}, but the record contains {stored:08x}. The "
                "body is shown as stored"
            )
        elif (self.body_directory or self.charset) and message.has_body and message.body is None:
            self.note(
                f"{body} cannot be decompressed: it is invalid, or larger than {MAX_DECOMPRESSED_SIZE:,} bytes. Only "
                "its stored form exists"
            )
        is_shown_raw = self.prints_rows or not sys.stdout.isatty()
        return message if is_shown_raw else replace(message, to_printable=printable_text)

    def note(self, sentence: str) -> None:
        """Print a note on the answer, once."""
        if not self.quiet:
            self._say_once(sentence)

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said[sentence] = None
            if self.form is not RowFormat.TABLE:
                log_message(f"rmq-lake: {printable_text(sentence)}")

    def finish(self, answer: Answer) -> ExitCode:
        """Print the remarks on a printed answer, and return the exit code."""
        for sentence in answer.notes:
            self.note(sentence)
        for reason in answer.warnings:
            self._say_once(f"messages may be missing from this answer: {reason}")
        if answer.reason:
            return self.print_reason(answer.reason)
        return ExitCode.DAMAGE if self.has_damage or answer.warnings else ExitCode.CLEAN

    def print_reason(self, reason: Reason) -> ExitCode:
        """Print why the answer is empty."""
        if self.form in {RowFormat.JSON, RowFormat.NDJSON}:
            self.print_object("empty", {"reason": str(reason.kind), "text": reason.text})
        log_message(f"rmq-lake: {printable_text(reason.text)}")
        return ExitCode.NOT_FOUND

    def print_row(self, kind: str, value: Mapping[str, object], row_text: str) -> None:
        """Print one row: *row_text* in mqadmin's layout, or else its values."""
        if self.prints_rows:
            self.print_object(kind, value)
        else:
            self.write(row_text)

    def print_mqadmin_line(self, line: str) -> None:
        """Print a line that exists only in mqadmin's layout."""
        if not self.prints_rows:
            self.write(line)

    def print_object(self, kind: str, value: Mapping[str, object]) -> None:
        """Print one row."""
        self.has_printed = True
        row = {"version": json_text.JSON_VERSION, "type": kind, **value}
        is_for_people = self.form in {RowFormat.TABLE, RowFormat.CSV}
        self._rows.add(value if is_for_people else row)

    def open_row_printer(self, form: RowFormat) -> RowPrinter:
        """Return a printer for rows other than messages, which prints the end of the format after its block."""
        return RowPrinter(form, self.write, is_terminal=sys.stdout.isatty())

    def print_details(self, answer: Answer, *, has_offset_id: bool = True) -> None:
        """Print messages in full."""
        for stored in answer.messages:
            path = self._write_body(stored)
            message = self.printable_message(stored)
            if self.prints_rows:
                self._print_message(message, path, answer.offsets)
                continue
            self.write(
                mqadmin.message_detail_text(
                    message,
                    self.zone,
                    has_offset_id=has_offset_id,
                    offsets=answer.offsets,
                    body_path=path,
                    charset=self.charset,
                )
            )
            self.note(_TRACKS)

    def print_rows(  # noqa: PLR0913 - the query, and how it is answered
        self, answer: Answer, topic: str, key_type: str, key: str, *, has_index_key: bool, writes_bodies: bool = True
    ) -> None:
        """Print messages like queryMsgByKey: one line each."""
        paths = [self._write_body(message) if writes_bodies else None for message in answer.messages]
        messages = map(self.printable_message, answer.messages)
        if self.prints_rows:
            for message, path in zip(messages, paths, strict=True):
                self._print_message(message, path)
        elif answer.messages:
            asked = f"{topic}@{key_type}@{key}" if has_index_key else None
            for line in mqadmin.query_by_key_lines(messages, asked, self.charset):
                self.write(line)

    def _print_message(self, message: Message, path: Path | None, offsets: mqadmin.OffsetRange | None = None) -> None:
        shown = json_text.message_object(message, offsets, with_body=self.charset is not None)
        self.print_object("message", {**shown, **({"body_path": str(path)} if path else {})})

    def _write_body(self, message: Message) -> Path | None:
        if self.body_directory is None or not message.has_body:
            return None
        make_directory(self.body_directory)
        # An id may be any text: it must not lead out of the directory, and a name has at most 255 bytes.
        name = quote(message.message_id, safe="").replace(".", "%2E")
        if len(name) > _LONGEST_NAME:
            from hashlib import sha256  # lazy import: it loads OpenSSL

            name = f"{name[: _LONGEST_NAME - 65]}-{sha256(name.encode()).hexdigest()}"
        same, place = self._named.setdefault(name, []), (message.broker, message.record.physical_offset)
        if place not in same:  # several messages may have one id
            same.append(place)
        number = same.index(place)
        path = self.body_directory / (f"{name}_{number}" if number else name)
        descriptor = os.open(path, _NEW_OR_EMPTY, 0o666)
        with explaining_full_disk(str(path)):
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(message.body_or_stored_bytes)
            except OSError:
                path.unlink(missing_ok=True)  # part of a body would look like a body
                raise
        return path
