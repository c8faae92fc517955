"""
Messages on standard error, optionally as JSON objects; and masking of secrets in all output.

`log_as_json` replaces standard error by a stream that turns every line into an object, from any writer: this program, a
library or the JVM. Lines with additional fields are written by `log_message`.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from io import TextIOBase
from typing import TextIO

from jobs.console.lines import line_width_limit, printable_lines, wrap_line

_NAME = r"(?:secret|passw(?:or)?d|token|credential|access[._-]?key|account[._-]?key)"
_SETTING = rf"(?i)({_NAME}[\w.-]*[\"']?\s*[=:]\s*[\"']?)[^\s\"',;]+"
# `://KEY:SECRET@`, where a secret may have slashes; not `://HOST:PORT/…@`
_IN_URI = re.compile(r"(://)(?![^/\s@:\"']*:\d+/)[^/\s@:\"']+:[^\s@\"']+@")
_HIDDEN = "***"
_SHORTEST = 8  # shorter secrets are not masked, because they are part of too many other texts

_known: set[str] = set()


def is_secret(setting: str) -> bool:
    """Return whether a setting's name indicates a secret."""
    return re.search(f"(?i){_NAME}", setting) is not None


def remember_secret(value: str | None) -> None:
    """Mask *value* in all later output."""
    if value is not None and len(value) >= _SHORTEST:
        _known.add(value)


def mask_secrets(text: str) -> str:
    """Return *text*, plain or JSON, with remembered values and passwords in URIs replaced by stars."""
    for value in _known:
        text = text.replace(value, _HIDDEN)
    return _IN_URI.sub(rf"\g<1>{_HIDDEN}@", text)


def mask_program_output(text: str) -> str:
    """
    Return another program's output (such as a JVM's), with possible values of secret settings masked as well.

    Our own messages are not passed here: a user must be able to paste a path like `/data/token=7/store`.
    """
    return re.sub(_SETTING, rf"\g<1>{_HIDDEN}", mask_secrets(text))


def mask_settings(words: list[str]) -> list[str]:
    """Return Spark options with the values of secret settings masked (`--conf`, `fs.s3a.secret.key=…`)."""
    pairs = [word.partition("=") for word in words]
    return [
        f"{name}={_HIDDEN}" if equals and is_secret(name) else word
        for word, (name, equals, _) in zip(words, pairs, strict=True)
    ]


Field = str | int | float | None


class JsonLines(TextIOBase):
    """A text stream that writes every line as a JSON object to another stream."""

    def __init__(self, stream: TextIO, command: str | None) -> None:
        super().__init__()
        self._stream = stream
        self._command = command
        self._begun = ""

    def write(self, text: str) -> int:
        """Write the lines that are complete."""
        *whole, self._begun = (self._begun + text).split("\n")
        for line in whole:
            if line.strip():
                self.write_event(line.rstrip())
        return len(text)

    def write_event(self, message: str, level: str = "info", **fields: Field) -> None:
        """Write one object."""
        head = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "level": level, "command": self._command}
        self._stream.write(mask_secrets(json.dumps({**head, "message": message, **fields}, ensure_ascii=False)) + "\n")
        self._stream.flush()

    def flush(self) -> None:
        """Do nothing: an incomplete line waits for its end."""
        self._stream.flush()


def log_message(message: str, level: str = "info", **fields: Field) -> None:
    """Write a message to standard error; *fields* are added to it in JSON output only."""
    if isinstance(sys.stderr, JsonLines):
        sys.stderr.write_event(message, level, **fields)
    else:
        width = line_width_limit(sys.stderr)
        lines = [
            piece for line in printable_lines(mask_secrets(message)).split("\n") for piece in wrap_line(line, width)
        ]
        # Erases the progress line.
        wiped = "\r\x1b[K" if width is not None and os.environ.get("TERM", "dumb") != "dumb" else ""
        sys.stderr.write("".join([wiped, *(f"{line}\n" for line in lines)]))
        sys.stderr.flush()


@contextmanager
def log_as_json(command: str | None) -> Iterator[None]:
    """Write every line on standard error as a JSON object while the block runs."""
    plain = sys.stderr
    sys.stderr = JsonLines(plain, command)
    try:
        yield
    finally:
        sys.stderr.write("\n")  # ends an unfinished line
        sys.stderr = plain
