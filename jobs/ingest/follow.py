"""
One run after the other, in one process: a message is in the lake seconds after a broker has written it.

Each step is a normal run, with its own transaction. Small steps are read by this process itself, large ones (catching
up, a first run) by Spark's tasks. Between two steps the log's directory is listed and a few bytes are read where the
next record would begin: while nothing changes there, no run begins.
"""

import gc
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from math import inf
from posixpath import dirname
from time import monotonic

from jobs.console.log import log_message
from jobs.console.result import OtherRunActiveError
from jobs.ingest import Summary
from jobs.ingest.run import FollowedStore, run_steps
from jobs.lake.lake import Lake
from jobs.lake.lock import hold_lock_for_process
from jobs.lake.snapshots import cache_snapshots
from jobs.lake.upkeep import merge_in_background, shorten_file_retention
from jobs.launch.engine import jvm_death_text
from jobs.launch.failures import one_line_message
from jobs.products.index.entries import cache_open_slots
from jobs.requests.ingest import IngestRequest
from jobs.storage import AnyStorage
from jobs.storage.locations import join_location
from jobs.store.workers import Workers
from rmq_formats.errors import FormatError
from rmq_formats.store import parse_offset_name

_LOOK_AT_ALL_S = 60.0  # a run begins at least this often: queues, topics or the lake may change without the log
_AROUND_END = 4096  # bytes before and after the end of the log that are compared
_FAILURES = 5  # consecutive failures that end following
_PAUSE_S = 5.0  # the pause after a failure
_SAME_REQUEST_S = 1.0
_LOOKS = 8  # probes of the log during the longest wait of a message


class StopRequest:
    """
    A request to stop after the current step: SIGTERM, SIGHUP, or the first Ctrl-C; the second one interrupts.

    `timeout` signals a process and then its group: a second signal within a second is the same request.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._requested_at = inf

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Treat signals as stop requests while the block runs."""
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        # Under `nohup`, SIGHUP stays ignored. A shell starts background processes with SIGINT ignored, but an explicit
        # SIGINT must still stop the run.
        before = {
            number: handler
            for number, handler in handlers.items()
            if number != signal.SIGHUP or handler is not signal.SIG_IGN
        }

        def handle(number: int, _frame: object) -> None:
            if monotonic() > self._requested_at + _SAME_REQUEST_S:
                signal.signal(number, before[signal.Signals(number)])
                signal.raise_signal(number)
            self.request()

        for number in before:
            signal.signal(number, handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def request(self) -> None:
        """Request a stop."""
        self._requested_at = min(self._requested_at, monotonic())
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Wait *seconds*, or until a stop is requested; return whether one is."""
        return self._event.wait(min(max(seconds, 0), threading.TIMEOUT_MAX))


def _ignore(_summary: Summary | None = None) -> None:
    """Ignore a step or a probe without a listener."""


@dataclass(frozen=True, slots=True)
class Follower:
    """
    Repeated runs of one store, until a stop is requested.

    The store's lock is held throughout: another run ends immediately. After an error the step is retried, as by a
    scheduler. *every_s* is the longest time that a message waits, not a period: a step begins that long after the last
    probe that found nothing new, and reads all new messages.
    """

    request: IngestRequest
    workers: Workers
    every_s: float
    stop: StopRequest
    on_step: Callable[[Summary], object] = _ignore  # called with the summary of each step
    on_probe: Callable[[], object] = _ignore  # called after each probe of the log
    max_seconds: float | None = None  # time limit of following
    probe_interval_s: float | None = None  # between two probes; None: an eighth of *every_s*

    def run(self) -> Summary:
        """Return the sum of all steps; there is at least one, or its error."""
        return reduce(Summary.plus_next_run, self._run_with_retries())

    def _run_with_retries(self) -> Iterator[Summary]:
        """Yield the summary of each step; errors between two steps are retried."""
        ends = inf if self.max_seconds is None else monotonic() + self.max_seconds
        trials = 0  # attempts left; an error of the first step is raised
        has_begun = False
        while True:
            try:
                for step in self._steps(ends):
                    trials, has_begun = _FAILURES - 1, True
                    self.on_step(step)
                    yield step
            except (OSError, FormatError) as error:
                # The JVM cannot be restarted.
                if not trials or (isinstance(error, ConnectionError) and jvm_death_text()):
                    raise
                trials -= 1
                if self._is_stopped_after(error):
                    raise  # new messages are not in the lake
                continue
            except OtherRunActiveError as error:  # another run began after our error; wait until it ends
                if not has_begun:
                    raise
                if not self._is_stopped_after(error):
                    continue
            return

    def _is_stopped_after(self, error: Exception) -> bool:
        """Report an error and wait; return whether a stop was requested meanwhile."""
        log_message(f"rmq-lake: {one_line_message(error)}; retrying in {_PAUSE_S:.0f} s", "error")
        return self.stop.wait(_PAUSE_S)

    def _seconds_to_next_probe(self, began: float, now: float, waits_since: float | None) -> float:
        """Return the seconds from *now* to the next probe, or to the step once messages wait since *waits_since*."""
        if waits_since is not None:
            return max(waits_since + self.every_s - now, 0)
        return max(began + (self.every_s / _LOOKS if self.probe_interval_s is None else self.probe_interval_s) - now, 0)

    def _steps(self, ends: float) -> Iterator[Summary]:
        """Start a run whenever there may be new data; hold the store's lock, starting with the first run."""
        place: _LogEnd | None = None
        is_kept = False
        tables = set[str]()  # tables to which this process has committed
        before, listed_all = 0.0, monotonic()
        waits_since: float | None = None  # the time of the probe before the one that found something
        # After an error the lock keeps its note, so that the next run deletes leftover files.
        request, followed = self.request, FollowedStore()
        with cache_snapshots(), cache_open_slots(), ExitStack() as stack, merge_in_background():
            while True:
                began = monotonic()
                if place is not None and waits_since is None and place.has_changed():
                    waits_since = before
                before = began
                is_due = waits_since is not None and began >= waits_since + self.every_s
                followed.lists_all = began - listed_all >= _LOOK_AT_ALL_S
                if place is None or is_due or followed.lists_all:
                    waits_since = None
                    examines_all = place is None or followed.lists_all
                    for summary in run_steps(request, self.workers, followed):
                        request = replace(request, acknowledge=False)  # damage found by steps stays open
                        if summary.store_id is not None and not (is_kept and tables.issuperset(summary.versions)):
                            lake = Lake(self.request.lake, self.workers.options)
                            if not is_kept:
                                stack.enter_context(hold_lock_for_process(lake, summary.store_id))
                                is_kept = True
                            shorten_file_retention(lake, self.every_s)
                            tables |= summary.versions.keys()
                        yield summary  # before the log is read again: an error must not hide a commit
                        place = _LogEnd.after(summary, self.request, self.workers, place)
                        listed_all = began if followed.lists_all else listed_all
                        self.on_probe()
                        if self.stop.wait(0):
                            return
                    if examines_all:
                        return_free_memory()
                self.on_probe()
                now = monotonic()
                left = self._seconds_to_next_probe(began, now, waits_since)
                if now + left >= ends or self.stop.wait(left):
                    return


def return_free_memory() -> None:
    """
    Return the unused memory of this process to the system.

    A run that examines every queue of a large store needs more memory than the many small runs that follow, and its
    last objects refer to each other.
    """
    import ctypes

    import pyarrow as pa

    gc.collect()
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc
    if trim is not None:
        trim(0)


@dataclass(frozen=True, slots=True)
class _LogEnd:
    """The end of the log, and the bytes around it."""

    storage: AnyStorage
    directories: tuple[str, ...]  # the directories of the log
    files: Mapping[str, int]  # the sizes of the segments, by location
    to_offset: int
    before: bytes
    is_settled: bool  # the run left nothing to do

    @classmethod
    def after(cls, summary: Summary, request: IngestRequest, workers: Workers, earlier: "_LogEnd | None") -> "_LogEnd":
        """Read the end of the log after a run."""
        if earlier is None or not earlier.directories:  # an empty store's log may have no directory yet
            store = request.list_store(workers.options)
            found = dict.fromkeys(dirname(segment.location) for segment in store.segments)
            directories = tuple(request.commitlog) or tuple(found)
            earlier = cls(store.storage, directories, {}, 0, b"", is_settled=False)
        settled = summary.store_id is not None and not (summary.behind or summary.bytes_left)
        place = replace(earlier, files=earlier.files_now(), to_offset=summary.to_offset, is_settled=settled)
        return replace(place, before=place.read_bytes_around()[0])

    def files_now(self) -> Mapping[str, int]:
        found = ((directory, info) for directory in self.directories for info in self.storage.list_files(directory))
        return {join_location(directory, info.name): info.size for directory, info in found}

    def read_bytes_around(self) -> tuple[bytes, bytes]:
        before = after = b""
        for location, size in self.files.items():
            base_offset = parse_offset_name(location.rpartition("/")[2])
            if base_offset is None or not base_offset <= self.to_offset <= base_offset + size:
                continue
            at = self.to_offset - base_offset
            count = min(at, _AROUND_END)
            data = self.storage.read(location, at - count, count + min(_AROUND_END, size - at))
            # At the end of a full segment the next record is at the beginning of another file.
            before, after = before or data[:count], after or data[count:]
        return before, after

    def has_changed(self) -> bool:
        if not self.is_settled:
            return True
        try:
            before, after = self.read_bytes_around()
            return not before or before != self.before or any(after) or self.files_now() != self.files
        except FileNotFoundError:  # retention
            return True
