"""
Progress of long work on standard error.

In a terminal it is one live line; elsewhere a plain line every ten seconds. Code in this process reports its own
progress (`Progress`); the progress of other processes is polled by a thread (`show_progress`), which does not slow them
down. The remaining time is estimated from bytes if the unit is bytes.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, TextIO

import click

from jobs.console.amounts import count_text
from jobs.console.log import log_message

if TYPE_CHECKING:
    from pyspark import SparkContext

_LIVE_INTERVAL = 0.25
_PLAIN_INTERVAL = 10.0
_DELAY = 1.0  # seconds: a line that is cleared sooner would flash in a terminal
_MIB = 1 << 20
_FEW = 10 * _MIB  # bytes: fewer have a decimal
# The part of the work and the time after which the remaining time is estimated.
_FIRST_SHARE, _FIRST_SECONDS = 0.05, 2.0
BYTES_UNIT = "bytes"

_announced: set[str] = set()
_once: list[float] = []  # seconds of work that was done once, in this command
_later: list[int] = []  # bytes of later steps


class Work(NamedTuple):
    """A long operation, and the unit in which its progress is counted."""

    label: str
    total: int = 0  # 0: not known
    unit: str = BYTES_UNIT
    tasks: int = 0  # the number of Spark tasks, if it is not the total


class Progress:
    """A progress line: rewritten in a terminal, otherwise repeated."""

    def __init__(self, work: Work, stream: TextIO | None = None, *, delay: float = 0) -> None:
        is_step = work.unit == BYTES_UNIT and work.total > 0
        self.work = work._replace(total=work.total + sum(_later)) if is_step else work
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._quiet = _is_quiet()
        self._began = monotonic()
        self._next = self._began + (delay if self._live else _PLAIN_INTERVAL)
        self._advanced = (0, 0.0)  # the amount done at the last advance, and the elapsed seconds at that time
        self._shown = False
        self.show(0)

    def show(self, done: int, messages: int = 0) -> None:
        """Print the progress, if the last output is old enough."""
        now = monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + (_LIVE_INTERVAL if self._live else _PLAIN_INTERVAL)
        text = self.line_text(done, messages, now - self._began)
        if self._live:
            self._stream.write(f"\r{text}\x1b[K")
            self._stream.flush()
        else:
            seconds = round(now - self._began, 3)
            log_message(text, done=done, total=self.work.total, unit=self.work.unit, messages=messages, seconds=seconds)
        self._shown = True

    def line_text(self, done: int, messages: int, seconds: float) -> str:
        """Format the amount done, the speed, and the remaining time."""
        work = self.work
        if (not work.total and not done) or (work.total == 1 and work.unit != BYTES_UNIT):
            return f"{work.label} …"
        if work.unit == BYTES_UNIT:
            of_total = f" of {_format_mib(work.total)}" if work.total else ""
            parts = [f"{work.label}: {_format_mib(done)}{of_total} MiB"]
        else:
            parts = [f"{work.label}: {done:,} of {work.total:,} {work.unit}"]
        if messages:
            parts.append(count_text(messages, "message"))
        if work.unit == BYTES_UNIT and done and seconds > 0:
            parts.append(f"{_format_mib(done / seconds)} MiB/s")
        left = self._seconds_left(done, seconds)
        if left >= 1:
            parts.append(f"about {left:,.0f} s left")
        return " · ".join(parts)

    def _seconds_left(self, done: int, seconds: float) -> float:
        """Estimate from the pace at the last advance; between two advances the estimate only counts down."""
        if done != self._advanced[0]:
            self._advanced = (done, seconds)
        advanced = self._advanced[1]
        if done < self.work.total * _FIRST_SHARE or advanced < _FIRST_SECONDS:
            return 0  # too early: the first tasks of many cores end together
        return advanced / done * (self.work.total - done) - (seconds - advanced)

    def close(self) -> None:
        """Clear the line in a terminal."""
        if self._live and self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


@contextmanager
def create_delayed_progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Return a function that shows the progress of work that takes longer than a second, until all of it is done."""
    line: Progress | None = None

    def show(done: int, total: int) -> None:
        nonlocal line
        if done < total:
            line = line or Progress(Work(label, total), delay=_DELAY)
            line.show(done)
        elif line is not None:
            line.close()
            line = None

    try:
        yield show
    finally:
        if line is not None:
            line.close()


def _format_mib(size: float) -> str:
    return f"{size / _MIB:,.{1 if size < _FEW else 0}f}"


def _is_quiet() -> bool:
    command = click.get_current_context(silent=True)
    return command is not None and bool(command.params.get("quiet"))


def announce_once(message: str) -> None:
    """Announce long work once per process, unless the command is quiet."""
    if message not in _announced and not _is_quiet():
        _announced.add(message)
        log_message(message)


@contextmanager
def announce_one_time_work(message: str) -> Iterator[None]:
    """Announce work that is needed once per machine, such as compiling, and exclude its time from rates."""
    announce_once(message)
    began = monotonic()
    try:
        yield
    finally:
        _once.append(monotonic() - began)


def seconds_of_one_time_work() -> float:
    """Return the seconds that `announce_one_time_work` took in this command."""
    return sum(_once)


def reset_one_time_work() -> None:
    """Reset the time of `announce_one_time_work` for the next command in this process."""
    _once.clear()


@contextmanager
def add_bytes_of_later_phase(later: int) -> Iterator[None]:
    """Add the bytes of a *later* phase to the remaining work that progress lines in the block show."""
    _later.append(later)
    try:
        yield
    finally:
        _later.pop()


@contextmanager
def show_progress(work: Work, done: Callable[[], int] = int, messages: Callable[[], int] = int) -> Iterator[None]:
    """Show the progress of *work* while the block runs, unless the command is quiet; *done* returns the amount."""
    if _is_quiet():
        yield
        return
    progress = Progress(work)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LIVE_INTERVAL):
            progress.show(done(), messages())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        progress.close()


@contextmanager
def show_spark_progress(context: "SparkContext", work: Work, messages: Callable[[], int] = int) -> Iterator[None]:
    """Show the progress of the Spark jobs that the block starts, as the share of finished tasks."""
    group = f"rmq-lake {work.label} {id(object())}"
    context.setJobGroup(group, work.label, interruptOnCancel=True)
    tracker = context.statusTracker()
    tasks = work.tasks or work.total

    def so_far() -> int:
        ended = 0
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            stages = [tracker.getStageInfo(stage) for stage in info.stageIds] if info else []
            ended += sum(stage.numCompletedTasks for stage in stages if stage)
        return min(ended, tasks) * work.total // max(tasks, 1)

    with show_progress(work, so_far, messages):
        yield
    # Not after an error: an interrupted call to the JVM must not be followed by another one.
    context.setJobGroup("rmq-lake", "")
