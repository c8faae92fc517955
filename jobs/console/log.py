"""
Lines on standard error, next to a command's data, on request each a JSON object; and secrets masked in all output.

`in_json` puts a stream in the place of standard error that makes an object of every line, from any writer: ours,
libraries', the JVM's. What has more to tell than its text (`say` with fields) keeps it.
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

from jobs.console.lines import fitted, printable_lines, width_of

_NAME = r"(?:secret|passw(?:or)?d|token|credential|access[._-]?key|account[._-]?key)"
_SETTING = re.compile(rf"(?i)({_NAME}[\w.-]*[\"']?\s*[=:]\s*[\"']?)[^\s\"',;]+")
# `://KEY:SECRET@`, where a secret may have slashes; not `://HOST:PORT/…@`
_IN_URI = re.compile(r"(://)(?![^/\s@:\"']*:\d+/)[^/\s@:\"']+:[^\s@\"']+@")
_HIDDEN = "***"
_SHORTEST = 8  # a shorter text is in too many others

_known: set[str] = set()


def is_secret(setting: str) -> bool:
    """Return whether a setting is named like a secret."""
    return re.search(f"(?i){_NAME}", setting) is not None


def remember(value: str | None) -> None:
    """Mask *value* from now on, wherever it is printed."""
    if value is not None and len(value) >= _SHORTEST:
        _known.add(value)


def masked(text: str) -> str:
    """Return *text*, plain or JSON, with stars for remembered values and for passwords in URIs."""
    for value in _known:
        text = text.replace(value, _HIDDEN)
    return _IN_URI.sub(rf"\g<1>{_HIDDEN}@", text)


def masked_output(text: str) -> str:
    """
    Return output of another program, such as a JVM, with stars also for what looks like the value of a secret setting.

    Text of our own never passes here: `/data/token=7/store` is a path, which a user pastes.
    """
    return _SETTING.sub(rf"\g<1>{_HIDDEN}", masked(text))


def masked_settings(words: list[str]) -> list[str]:
    """Return Spark's options with stars for the values of secret settings (`--conf`, `fs.s3a.secret.key=…`)."""
    pairs = [word.partition("=") for word in words]
    return [
        f"{name}={_HIDDEN}" if equals and is_secret(name) else word
        for word, (name, equals, _) in zip(words, pairs, strict=True)
    ]


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
