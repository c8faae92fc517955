"""
This process: its command line, standard streams, exit and threads, and the import of pandas, which it prevents.

Arrow imports pandas to check whether a list is a pandas object; that import takes as long as a query.
"""

import os
import shutil
import sys
import threading
from contextlib import suppress
from contextvars import ContextVar
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from shlex import quote
from types import SimpleNamespace
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from importlib.abc import MetaPathFinder

    from _typeshed import ReadableBuffer


STANDARD_OUTPUT = "standard output"  # replaces a file's name in errors
ABANDONED_THREAD = "left behind"  # prefix of the name of a thread that cannot be stopped and ends with the process

_left: list[str] = []
_stop: ContextVar[threading.Event | None] = ContextVar("stop", default=None)  # the stop request of this thread


def set_resumption_text(sentence: str) -> None:
    """Set the *sentence* that an interrupted command ends with; empty: the verb's general one."""
    _left[:] = [sentence]


def exit_process(code: int) -> None:
    """Exit; immediately if a thread is still running, because the interpreter would abort."""
    with suppress(OSError):  # this command has failed already, or the error would have been reported
        sys.stdout.flush()
    if any(thread.name.startswith(ABANDONED_THREAD) for thread in threading.enumerate()):
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


class ThreadStoppedError(Exception):
    """The result of this thread is not needed, because another thread has failed or the command was interrupted."""


def stop_thread_on_event(event: threading.Event) -> None:
    """Let `raise_if_stopped` raise in this thread once *event* is set."""
    _stop.set(event)


def raise_if_stopped() -> None:
    """Raise `ThreadStoppedError` if this thread was asked to stop; long tasks call this between two steps."""
    stop = _stop.get()
    if stop is not None and stop.is_set():
        raise ThreadStoppedError


def get_resumption_text() -> str | None:
    """Return the last sentence passed to `set_resumption_text`."""
    return _left[-1] if _left else None


class _DiscardingPipe(FileIO):
    """A standard stream that discards output once it cannot be written: its reader is gone, or its disk is full."""

    def write(self, data: "ReadableBuffer", /) -> int:
        """
        Write *data*; without a reader (`verify … | head`) the command continues, because its exit code is the verdict.

        The same applies to any error of standard error. Any other error of standard output is raised once.
        """
        try:
            return super().write(data)
        except OSError as error:  # any: the stream cannot be written; raised below unless it is expected
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            if self.fileno() == 1 and not isinstance(error, BrokenPipeError):
                raise OSError(error.errno, error.strerror, STANDARD_OUTPUT) from error
            return super().write(data)


def prepare_standard_streams() -> None:
    """Open standard streams that are closed; if a pipe is closed later, only the output stops."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # EBADF: closed (`>&-`); the first files of a lake would otherwise get these numbers
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - as the others are
    sys.stdout = _discarding(1, sys.stdout)
    sys.stderr = _discarding(2, sys.stderr)


def _discarding(descriptor: int, stream: TextIO | None) -> TextIO:
    raw = _DiscardingPipe(descriptor, "wb", closefd=False)
    errors = stream.errors if stream is not None else None
    return TextIOWrapper(
        BufferedWriter(raw),
        encoding=stream.encoding if stream is not None else None,
        errors="backslashreplace" if errors == "strict" else errors,  # an encoding may lack a character of the text
        line_buffering=descriptor == 2 or raw.isatty(),  # noqa: PLR2004 - standard error
    )


def hide_pandas() -> None:
    """Let imports of pandas fail in this process, as if it was not installed: this program does not use it."""

    # None in `sys.modules` would be shorter: Python's import refuses it, Cython's, which Arrow uses, returns the None.
    def find_spec(name: str, path: object, target: object = None) -> None:
        del path, target
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)

    sys.meta_path.insert(0, cast("MetaPathFinder", SimpleNamespace(find_spec=find_spec)))


_TYPED = "RMQ_LAKE_PROGRAM"  # set by spark-submit.sh and the console script of its environment: their own names
CONSOLE_SCRIPT = "rmq-lake"


def tool_command() -> str:
    """
    Return the words with which this user starts the tool.

    In a checkout this is `./spark-submit.sh`. Otherwise it is `rmq-lake` if that is on the path, the path that was
    typed, or Spark's own `spark-submit jobs/main.py`. For callers from Python it is `rmq-lake`.
    """
    typed = os.environ.get(_TYPED) or sys.argv[0]
    path = Path(typed)
    if path.name == CONSOLE_SCRIPT:
        found = shutil.which(CONSOLE_SCRIPT)
        is_on_path = found is not None and path.exists() and Path(found).samefile(path)
        return CONSOLE_SCRIPT if is_on_path else quote(typed)
    if _TYPED in os.environ:
        return quote(typed)
    if path.parts[-2:] == ("jobs", "main.py"):
        return f"spark-submit {quote(typed)}" if "PYSPARK_GATEWAY_PORT" in os.environ else "python -m jobs.main"
    return CONSOLE_SCRIPT
