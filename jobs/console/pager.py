"""
A pager where git has one: answers that are longer than a terminal, at a terminal alone.

It is started by the first byte, so that what prints nothing starts nothing. RMQ_LAKE_PAGER names another one than PAGER
does, and an empty name none; `less` gets LESS=FRX as git gives it: an answer that fits ends at once.
"""

import io
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_DEFAULT = "less"
_SETTINGS = {"LESS": "FRX", "LV": "-c"}  # git's


@contextmanager
def paged() -> Iterator[None]:
    """Send standard output through the user's pager while the block runs, if somebody watches it."""
    command = _command()
    if command is None or not sys.stdout.isatty():
        yield
        return
    sys.stdout.flush()
    terminal = sys.stdout
    pipe = _Pipe(command)
    output = _Terminal(io.BufferedWriter(pipe), encoding="utf-8", errors="backslashreplace", line_buffering=False)
    sys.stdout = output
    try:
        yield
    except (BrokenPipeError, SystemExit):  # the latter is what click makes of the former
        if not pipe.is_left:
            raise
    finally:
        sys.stdout = terminal
        with suppress(BrokenPipeError):  # the reader has seen enough
            output.close()
        pipe.wait()


def _command() -> list[str] | None:
    """Return the pager's words; None where there is none."""
    named = next((os.environ[name] for name in ("RMQ_LAKE_PAGER", "PAGER") if name in os.environ), _DEFAULT)
    words = shlex.split(named)
    if not words or words == ["cat"] or os.environ.get("TERM", "dumb") == "dumb" or shutil.which(words[0]) is None:
        return None
    return words


class _Terminal(io.TextIOWrapper):
    """What is written is seen at a terminal all the same."""

    def isatty(self) -> bool:
        return True


class _Pipe(io.RawIOBase):
    """What leads to a pager that the first byte starts."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self.is_left = False  # by its reader

    def writable(self) -> bool:
        return True

    def write(self, data: "Buffer") -> int:
        try:
            return self._input().write(data)
        except BrokenPipeError:
            self.is_left = True
            raise

    def _input(self) -> IO[bytes]:
        if self._process is None:
            environment = {**_SETTINGS, **os.environ}
            self._process = subprocess.Popen(  # noqa: S603 - the user's own
                self._command, stdin=subprocess.PIPE, env=environment, bufsize=0
            )
        if self._process.stdin is None:
            raise BrokenPipeError
        return self._process.stdin

    def wait(self) -> None:
        """Wait until the reader is done: Ctrl-C is the pager's then."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        while True:
            with suppress(KeyboardInterrupt):
                self._process.wait()
                return
