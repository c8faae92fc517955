"""
Progress of long work on standard error: one live line in a terminal, one plain line per interval elsewhere.

Nothing is shown in the first two seconds. What is done is asked for by a thread, of Spark's own status: the work itself
is not slowed and knows nothing of it.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import NamedTuple, TextIO

import click
from pyspark.sql import SparkSession

from jobs.console.log import say

QUIET_SECONDS = 2.0
_LIVE_INTERVAL = 0.25
_PLAIN_INTERVAL = 10.0
_MIB = 1 << 20


class Work(NamedTuple):
    """What takes long, and how it is measured."""

    label: str
    total: int
    bytes: int = 0  # in all
    unit: str = "ranges"


class _Display:
    """One line, rewritten or written again."""

    def __init__(self, work: Work, stream: TextIO) -> None:
        self._work = work
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._began = monotonic()
        self._next = self._began + (QUIET_SECONDS if self._live else _PLAIN_INTERVAL)
        self._shown = False

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return _LIVE_INTERVAL

    def show(self, done: int, messages: int) -> None:
        """Show how far the work is, if it is time to."""
        now = monotonic()
        if now < self._next:
            return
        self._next = now + (_LIVE_INTERVAL if self._live else _PLAIN_INTERVAL)
        text = self.line(done, messages, now - self._began)
        if self._live:
            self._stream.write(f"\r{text}\x1b[K")
            self._stream.flush()
        else:
            seconds = round(now - self._began, 3)
            say(text, done=done, total=self._work.total, unit=self._work.unit, messages=messages, seconds=seconds)
        self._shown = True

    def line(self, done: int, messages: int, seconds: float) -> str:
        """Return how much is done, the speed, and what is left."""
        work = self._work
        parts = [f"{work.label}: {done}/{work.total} {work.unit}"]
        if messages:
            parts.append(f"{messages:,} messages")
        if work.bytes and done and seconds > 0:
            parts.append(f"{work.bytes * done / max(work.total, 1) / seconds / _MIB:.0f} MB/s")
        if 0 < done < work.total:
            parts.append(f"about {seconds / done * (work.total - done):.0f} s left")
        return " · ".join(parts)

    def close(self) -> None:
        """Leave the terminal's line to whatever comes next."""
        if self._live and self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _is_quiet() -> bool:
    command = click.get_current_context(silent=True)
    return command is not None and bool(command.params.get("quiet"))


def announce(message: str) -> None:
    """Say what is about to take long, unless the command was told to be quiet."""
    if not _is_quiet():
        say(message)


def _none() -> int:
    return 0


@contextmanager
def shown(work: Work, done: Callable[[], int], messages: Callable[[], int] = _none) -> Iterator[None]:
    """Show the progress of the block, how much of its *work* is *done*, unless the command was told to be quiet."""
    if _is_quiet():
        yield
        return
    display = _Display(work, sys.stderr)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(display.interval):
            display.show(done(), messages())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        display.close()


@contextmanager
def of_spark_job(spark: SparkSession, work: Work, messages: Callable[[], int] = _none) -> Iterator[None]:
    """Show the progress of the Spark jobs that the block starts; each range, or other unit, is a task."""
    context = spark.sparkContext
    group = f"rmq-lake {work.label} {id(object())}"
    context.setJobGroup(group, work.label, interruptOnCancel=True)
    tracker = context.statusTracker()

    def done() -> int:
        finished = 0
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            stages = [tracker.getStageInfo(stage) for stage in info.stageIds] if info else []
            finished += sum(stage.numCompletedTasks for stage in stages if stage)
        return min(finished, work.total)

    with shown(work, done, messages):
        yield
    # Not after an error: whoever interrupts a call to the JVM shall not wait for another one.
    context.setJobGroup("rmq-lake", "")
