"""
Lines on standard error, next to a command's data; on request each is a JSON object.

`in_json` puts a stream in the place of standard error that makes an object of every line, from any writer: ours,
libraries', the JVM's. What has more to tell than its text (`say` with fields) keeps it.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from io import TextIOBase
from typing import TextIO

from jobs.console.lines import fitted, printable_lines, width_of
from jobs.console.secrets import masked

Field = str | int | float | None


class JsonLines(TextIOBase):
    """A text stream; every line that is written to it becomes a JSON object on another stream."""

    def __init__(self, stream: TextIO, verb: str | None) -> None:
        super().__init__()
        self._stream = stream
        self._verb = verb
        self._begun = ""

    def write(self, text: str) -> int:
        """Pass on the lines that are whole now."""
        *whole, self._begun = (self._begun + text).split("\n")
        for line in whole:
            if line.strip():
                self.event(line.rstrip())
        return len(text)

    def event(self, message: str, level: str = "info", **fields: Field) -> None:
        """Write one object."""
        head = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "level": level, "verb": self._verb}
        self._stream.write(masked(json.dumps({**head, "message": message, **fields}, ensure_ascii=False)) + "\n")
        self._stream.flush()

    def flush(self) -> None:
        """Pass nothing on: a line that is begun waits for its end."""
        self._stream.flush()


def say(message: str, level: str = "info", **fields: Field) -> None:
    """Write a message to standard error; *fields* are added to it in JSON output only."""
    if isinstance(sys.stderr, JsonLines):
        sys.stderr.event(message, level, **fields)
    else:
        width = width_of(sys.stderr)
        lines = [piece for line in printable_lines(masked(message)).split("\n") for piece in fitted(line, width)]
        wiped = "\r\x1b[K" if width is not None and os.environ.get("TERM", "dumb") != "dumb" else ""  # of progress
        sys.stderr.write("".join([wiped, *(f"{line}\n" for line in lines)]))
        sys.stderr.flush()


@contextmanager
def in_json(verb: str | None) -> Iterator[None]:
    """Make every line on standard error a JSON object while the block runs."""
    plain = sys.stderr
    sys.stderr = JsonLines(plain, verb)
    try:
        yield
    finally:
        sys.stderr.write("\n")  # ends an unfinished line
        sys.stderr = plain
