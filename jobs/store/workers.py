"""
Who does the work: Spark's tasks, or this process one item after the other, which gives the same.

`AsNeeded` is both: what is small is done before a task would have begun.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from pyspark import TaskContext
from pyspark.sql import SparkSession

from jobs.console.progress import Work, of_spark_job
from jobs.launch.session import await_workers, hadoop_options
from jobs.store.chain import Outcome, Task, chained, run_here, run_range, run_ranges, spare_collector
from jobs.store.executor_view import seen_by_executors, unseen
from jobs.store.ranges import SMALL, Range, is_less_written
from jobs.store.store import Segment
from rmq_formats.errors import FormatError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers(Protocol):
    """Runs tasks and returns what they return, in order."""

    @property
    def options(self) -> Mapping[str, str]:
        """Settings of the file systems that they read and write."""
        ...

    @property
    def width(self) -> int:
        """How many tasks run at once."""
        ...

    def ranges(
        self, ranges: Sequence[Range], task: Task[Result], discard: Callable[[Result], object]
    ) -> list[Outcome[Result]]:
        """Run *task* on ranges of the log, and give those that chain."""
        ...

    def map(self, items: Sequence[Item], task: Callable[[Item], Result], label: str = "working") -> list[Result]:
        """Run *task* on each item; *label* says what that does."""
        ...

    def unseen(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments that the driver sees and those who work do not."""
        ...


@dataclass(frozen=True, slots=True)
class OneByOne:
    """This process, without Spark."""

    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    width: int = 1

    def ranges(
        self, ranges: Sequence[Range], task: Task[Result], discard: Callable[[Result], object] = id
    ) -> list[Outcome[Result]]:
        """Run *task* on one range after the other."""
        return chained(ranges, lambda some: [run_range(range_, task) for range_ in some], discard)

    def map(self, items: Sequence[Item], task: Callable[[Item], Result], label: str = "working") -> list[Result]:
        """Run *task* on one item after the other."""
        del label
        return [task(item) for item in items]

    def unseen(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return none: what the driver sees, this process sees."""
        del segments
        return []


@dataclass(frozen=True, slots=True)
class Here(OneByOne):
    """This process, too, which shows how far it is."""

    def ranges(
        self, ranges: Sequence[Range], task: Task[Result], discard: Callable[[Result], object] = id
    ) -> list[Outcome[Result]]:
        """Run *task* on one range after the other."""
        return run_here(ranges, task, discard)


@dataclass(frozen=True, slots=True)
class SparkWorkers:
    """A Spark session: one partition an item, so that a lost one is made again by itself."""

    spark: SparkSession

    @property
    def options(self) -> Mapping[str, str]:
        """Hadoop's settings of the session."""
        return hadoop_options(self.spark)

    @property
    def width(self) -> int:
        """The cores of the session."""
        return self.spark.sparkContext.defaultParallelism

    def ranges(
        self, ranges: Sequence[Range], task: Task[Result], discard: Callable[[Result], object] = id
    ) -> list[Outcome[Result]]:
        """Run *task* on ranges side by side."""
        await_workers()
        return run_ranges(self.spark, ranges, task, discard)

    def map(self, items: Sequence[Item], task: Callable[[Item], Result], label: str = "working") -> list[Result]:
        """Run *task* on items side by side."""
        if not items:
            return []

        def work(part: Iterable[Item]) -> Iterator[Result | FormatError | OSError]:
            for item in part:
                try:
                    yield task(item)
                    spare_collector()
                except (FormatError, OSError) as error:
                    context = TaskContext.get()
                    if context is not None and context.attemptNumber() == 0:
                        raise  # Spark tries once more
                    yield error

        results: list[Result] = []
        with of_spark_job(self.spark, Work(label, len(items), "parts")):
            outcomes = self.spark.sparkContext.parallelize(items, len(items)).mapPartitions(work).collect()
        for result in outcomes:
            if isinstance(result, FormatError | OSError):
                raise result
            results.append(result)
        return results

    def unseen(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments that the executors do not see: Spark is asked for each."""
        return unseen(segments, seen_by_executors(self.spark, segments))


class HandedOn:
    """Workers that hand on what they are asked to others."""

    def __init__(self, workers: Workers) -> None:
        """Hand on to *workers*."""
        self.workers = workers

    @property
    def options(self) -> Mapping[str, str]:
        """Settings of the file systems that they read and write."""
        return self.workers.options

    @property
    def width(self) -> int:
        """How many tasks run at once."""
        return self.workers.width

    def ranges(
        self, ranges: Sequence[Range], task: Task[Result], discard: Callable[[Result], object] = id
    ) -> list[Outcome[Result]]:
        """Run *task* on ranges of the log."""
        return self.workers.ranges(ranges, task, discard)

    def map(self, items: Sequence[Item], task: Callable[[Item], Result], label: str = "working") -> list[Result]:
        """Run *task* on each item."""
        return self.workers.map(items, task, label)

    def unseen(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments that the driver sees and those who work do not."""
        return self.workers.unseen(segments)


class AsNeeded(HandedOn):
    """This process while there is little to read, and from the first large plan on a session, until plans are small."""

    def __init__(self, session: Callable[[], SparkSession], here: OneByOne | None = None, small: int = SMALL) -> None:
        """Start no *session* before somebody needs it; what is small is done by *here*."""
        self._here = here or OneByOne()
        super().__init__(self._here)
        self._session = session
        self.small = small

    def ranges(
        self, ranges: Sequence[Range], task: Task[Result], discard: Callable[[Result], object] = id
    ) -> list[Outcome[Result]]:
        """Run *task* on ranges of the log: here where less than `small` bytes are written in them."""
        if is_less_written(ranges, self.small):
            self.workers = self._here
        elif self.workers is self._here:
            self.workers = SparkWorkers(self._session())
        return super().ranges(ranges, task, discard)
