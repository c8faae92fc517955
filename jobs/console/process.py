"""
This process: its command line, standard streams, exit and threads; prevents the import of pandas.

Arrow imports pandas to check whether a list is a pandas object; that import takes as long as a query.
"""

import os
import select
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from shlex import quote
from types import SimpleNamespace
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from importlib.abc import MetaPathFinder

    from _typeshed import ReadableBuffer


_ARENA_MAX = -8  # M_ARENA_MAX of glibc's malloc.h
STANDARD_OUTPUT = "standard output"  # replaces a file's name in errors
ABANDONED_THREAD = "left behind"  # prefix of the name of a thread that cannot be stopped and ends with the process

_left: list[str] = []
_stop: ContextVar[threading.Event | None] = ContextVar("stop", default=None)  # the stop request of this thread


def set_resumption_text(sentence: str) -> None:
    """Set the *sentence* that an interrupted command ends with; empty: the general sentence of this command."""
    _left[:] = [sentence]


def exit_process(code: int) -> None:
    """
    Exit; immediately if a thread is still running, because the interpreter would abort.

    After an interrupt in code that was compiled from text, as `dataclass` does, `python -m` would end by SIGINT,
    without the exit code. Running other code from text makes Python forget the interrupt.
    """
    exec("")  # noqa: S102 (a constant)
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


class CommandEndedError(BaseException):
    """The command ends early, but not because of an error, so handlers of errors must not catch this."""


class OutputClosedError(CommandEndedError):
    """The reader of standard output has closed it, and the output is the command's only result."""


class _MainThreadInterrupt:
    """An error that another thread may raise in the main thread, until the block to which it belongs has ended."""

    pending: CommandEndedError | None = None
    _lock = threading.Lock()

    def __init__(self, error: CommandEndedError) -> None:
        self.error = error
        self._is_armed = True

    def send(self) -> None:
        """Raise the error in the main thread, even if it waits in a system call."""
        with self._lock:
            if self._is_armed:
                repeat_main_thread_error(self.error)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def disarm(self) -> None:
        """Let `send` do nothing."""
        with self._lock:
            self._is_armed = False


def repeat_main_thread_error(error: CommandEndedError) -> None:
    """Let the next SIGTERM raise *error*."""
    _MainThreadInterrupt.pending = error


def take_main_thread_error() -> CommandEndedError | None:
    """Return the error for which this process has sent SIGTERM to its main thread; None if another process sent it."""
    error, _MainThreadInterrupt.pending = _MainThreadInterrupt.pending, None
    return error


@contextmanager
def time_limit(seconds: float | None, error: CommandEndedError) -> Iterator[None]:
    """Raise *error* in the block after *seconds*, even while it waits for a slow reader; only in the main thread."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupt = _MainThreadInterrupt(error)
    timer = threading.Timer(seconds, interrupt.send)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        interrupt.disarm()
        timer.cancel()


class _DiscardingPipe(FileIO):
    """A standard stream that discards output once it cannot be written: its reader is gone, or its disk is full."""

    interrupt: _MainThreadInterrupt | None = None  # of a command that ends when the reader leaves

    def write(self, data: "ReadableBuffer", /) -> int:
        """
        Write *data*; without a reader (`verify … | head`) the command continues, because its exit code is the verdict.

        A command whose output is its result ends with `OutputClosedError`. Errors of standard error are ignored.
        Any other error of standard output is raised once.
        """
        try:
            return super().write(data)
        except OSError as error:  # any: the stream cannot be written; raised below unless it is expected
            self.discard_output()
            if self.fileno() == 1 and not isinstance(error, BrokenPipeError):
                raise OSError(error.errno, error.strerror, STANDARD_OUTPUT) from error
            if self.interrupt is not None:
                self.interrupt.disarm()
                raise self.interrupt.error from error
            return super().write(data)

    def discard_output(self) -> None:
        """Discard all later output."""
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self.fileno())
        os.close(nothing)


def _standard_output_pipe() -> _DiscardingPipe | None:
    """Return the file below standard output; None where it belongs to a notebook or a test."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw if isinstance(raw, _DiscardingPipe) else None


def discard_unwritten_output() -> None:
    """Discard output that has not been read, so that an interrupted command does not wait for the reader."""
    pipe = _standard_output_pipe()
    if pipe is not None:
        pipe.discard_output()


@contextmanager
def end_without_reader() -> Iterator[None]:
    """
    End the block with `OutputClosedError` once the reader of standard output has closed it.

    A thread waits for this, because a command may work for long before it writes the next line.
    """
    pipe = _standard_output_pipe()
    if pipe is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupt = pipe.interrupt = _MainThreadInterrupt(OutputClosedError())
    with ExitStack() as stack:
        stack.callback(setattr, pipe, "interrupt", None)
        stack.callback(interrupt.disarm)
        if _has_reader(pipe.fileno()):
            over = stack.enter_context(_pipe_that_ends())
            arguments = (pipe.fileno(), over, interrupt.send)
            threading.Thread(target=_wait_until_reader_leaves, args=arguments, daemon=True).start()
        yield
        sys.stdout.flush()


def _has_reader(descriptor: int) -> bool:
    """Return whether a descriptor belongs to a pipe or a socket, and not to a file or a terminal."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


@contextmanager
def _pipe_that_ends() -> Iterator[int]:
    """Return a descriptor that becomes readable when the block ends; the user closes it."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(writing)


def _wait_until_reader_leaves(output: int, over: int, leave: Callable[[], None]) -> None:
    """Call *leave* when the reader of *output* has closed it; return when *over* ends."""
    poll = select.poll()
    poll.register(output, 0)  # only errors
    poll.register(over, select.POLLIN)
    changed = dict(poll.poll())
    os.close(over)
    if over not in changed:
        leave()


def prepare_standard_streams() -> None:
    """Open standard streams that are closed; if a pipe is closed later, only the output stops."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # EBADF: closed (`>&-`); the first files of a lake would otherwise get these numbers
            _open_in_place_of_closed_stream(number)
    sys.stdout = _open_discarding_stream(1, sys.stdout)
    sys.stderr = _open_discarding_stream(2, sys.stderr)


def _open_in_place_of_closed_stream(number: int) -> None:
    """Open the null device as standard input or standard error, and a pipe whose reader has left as standard output."""
    if number == 1:
        reading, writing = os.pipe()
        os.close(reading)
        os.dup2(writing, number)
        os.close(writing)
    else:
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - as the others are


def _open_discarding_stream(descriptor: int, stream: TextIO | None) -> TextIO:
    raw = _DiscardingPipe(descriptor, "wb", closefd=False)
    errors = stream.errors if stream is not None else None
    return TextIOWrapper(
        BufferedWriter(raw),
        encoding=stream.encoding if stream is not None else None,
        errors="backslashreplace" if errors == "strict" else errors,  # an encoding may lack a character of the text
        line_buffering=descriptor == 2 or raw.isatty(),  # noqa: PLR2004 - standard error
    )


def save_address_space() -> None:
    """
    Let this process reserve less address space if it is limited (`ulimit -v`); call this before pyarrow is imported.

    The allocator of glibc reserves 64 MiB for each thread, and that of Arrow a gigabyte. Without address space, the
    engine of `deltalake` aborts the process, or waits for a thread that could not be started.
    """
    import resource

    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY or not sys.platform.startswith("linux"):
        return
    import ctypes

    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    with suppress(AttributeError):  # another C library, which reserves less
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


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
