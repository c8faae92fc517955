"""
Workers: this process, processes of our own (`worker_processes`), or Spark's tasks; all give the same results.

The workers that use Spark are in `jobs.store.spark_workers`, because this module must not import pyspark.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from threading import Event
from typing import Protocol, TypeAlias, TypeVar

from jobs.console.process import stop_thread_on_event
from jobs.console.progress import Work, announce_one_time_work, show_progress
from jobs.store.ranges import SMALL_LOG_SIZE
from rmq_formats.compiled import compile_large_work
from rmq_formats.warm_up import Part, find_missing_parts, warm_up

Item = TypeVar("Item")
Result = TypeVar("Result")
Task: TypeAlias = Callable[[Item], Result]
Sizes: TypeAlias = Sequence[int]  # the number of bytes of each item
_COMPILING = "rmq-lake: compiling the log reader (first run only) …"


class Workers(Protocol):
    """Runs tasks and returns their results, in order."""

    @property
    def options(self) -> Mapping[str, str]:
        """Settings of the file systems that they read and write."""

    @property
    def width(self) -> int:
        """The number of tasks that run in parallel."""

    @property
    def processes(self) -> int:
        """The number of processes in which they run, each with its share of `--max-rate`."""

    @property
    def has_repeated(self) -> bool:
        """Whether a task took more than one attempt, so that files of a failed attempt may remain."""

    def map(self, items: Sequence[Item], task: Task[Item, Result], label: str, sizes: Sizes = ()) -> list[Result]:
        """Run *task* on each item. Progress shows *label*; it counts bytes if there are *sizes*."""


@dataclass(frozen=True, slots=True)
class SerialWorkers:
    """This process, one item after the other, without progress."""

    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    width: int = 1
    processes: int = 1
    has_repeated: bool = False

    def map(self, items: Sequence[Item], task: Task[Item, Result], label: str, sizes: Sizes = ()) -> list[Result]:
        """Run *task* on one item after the other."""
        del label, sizes
        return [task(item) for item in items]


@dataclass(frozen=True, slots=True)
class InProcessWorkers(SerialWorkers):
    """This process, with progress, in as many threads as the workers are wide."""

    def map(self, items: Sequence[Item], task: Task[Item, Result], label: str, sizes: Sizes = ()) -> list[Result]:
        """Run *task* on items in parallel."""
        if sizes:
            prepare_compiled_code(sum(sizes))
        done = [0, *(accumulate(sizes) if sizes else range(1, len(items) + 1))]
        work = Work(label, done[-1]) if sizes else Work(label, done[-1], "parts")
        results: list[Result] = []
        threads = min(self.width, len(items))
        with show_progress(work, lambda: done[len(results)], lambda: sum(map(record_count, results))):
            results.extend(map_in_threads(task, items, threads))
        return results


class WorkersOnDemand:
    """Workers that cost nothing to start for small plans, and others for large plans."""

    def __init__(
        self,
        start: Callable[[], Workers],
        in_process: Workers | None = None,
        min_large_size: int | None = None,
    ) -> None:
        """*start* is called for the first plan of at least *min_large_size* bytes; *in_process* executes the others."""
        self._small: Workers = in_process or SerialWorkers()
        self._workers: Workers = self._small
        self._start = start
        self._min_large_size = SMALL_LOG_SIZE if min_large_size is None else min_large_size

    @property
    def options(self) -> Mapping[str, str]:
        """Settings of the file systems that they read and write."""
        return self._workers.options

    @property
    def width(self) -> int:
        """The number of tasks that run in parallel."""
        return self._workers.width

    @property
    def processes(self) -> int:
        """The number of processes in which they run."""
        return self._workers.processes

    @property
    def has_repeated(self) -> bool:
        """Whether a task took more than one attempt."""
        return self._workers.has_repeated

    def map(self, items: Sequence[Item], task: Task[Item, Result], label: str, sizes: Sizes = ()) -> list[Result]:
        """Run *task* on each item; the last items with *sizes* decide which workers do it."""
        if sizes and sum(sizes) < self._min_large_size:
            self._workers = self._small
        elif sizes and self._workers is self._small:
            self._workers = self._start()
        return self._workers.map(items, task, label, sizes)


def record_count(result: object) -> int:
    """Return the number of records in a task's result; 0 if the task did not read a range of the log."""
    return int(getattr(getattr(result, "facts", None), "records", 0))


def prepare_compiled_code(size: int) -> bool:
    """
    Compile the readers of a log before their first use on this machine, if they are to read many bytes.

    Return False if functions still run as Python.
    """
    if not compile_large_work(size):
        return False
    missing = find_missing_parts()
    if missing:
        _compile_once(missing)
    return True


@cache
def _compile_once(parts: tuple[Part, ...]) -> None:
    with announce_one_time_work(_COMPILING):
        warm_up(parts)


def map_in_threads(task: Task[Item, Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """
    Yield the result for each item, in order, while *threads* threads work on the next ones.

    The first error in the order of the items is raised, whichever task fails first; the other threads are stopped. If
    the caller is interrupted, all of them are.
    """
    if threads <= 1:
        yield from map(task, items)
        return
    stop = Event()
    pool = ThreadPoolExecutor(threads, initializer=stop_thread_on_event, initargs=(stop,))
    working: deque[Future[Result]] = deque()
    try:
        for item in items:
            working.append(pool.submit(task, item))
            if len(working) > threads:
                yield working.popleft().result()
        while working:
            yield working.popleft().result()
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
