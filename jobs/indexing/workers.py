"""Who does the work: Spark's tasks, or this process one item after the other, which gives the same."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pyspark import TaskContext
from pyspark.sql import SparkSession

from jobs.source.distribute import Outcome, Task, run_range, run_ranges
from jobs.source.planning import Range
from rmq_formats.errors import FormatError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers(Protocol):
    """Runs tasks and returns what they return, in order."""

    def ranges(
        self, ranges: Sequence[Range], task: Task[Result], discard: Callable[[Result], object]
    ) -> list[Outcome[Result]]:
        """Run *task* on ranges of the log, and give those that chain."""
        ...

    def map(self, items: Sequence[Item], task: Callable[[Item], Result]) -> list[Result]:
        """Run *task* on each item."""
        ...


class OneByOne:
    """This process, without Spark. Ranges must begin at segments."""

    def ranges(
        self, ranges: Sequence[Range], task: Task[Result], discard: Callable[[Result], object] = id
    ) -> list[Outcome[Result]]:
        """Run *task* on one range after the other."""
        del discard
        return [run_range(range_, task) for range_ in ranges]

    def map(self, items: Sequence[Item], task: Callable[[Item], Result]) -> list[Result]:
        """Run *task* on one item after the other."""
        return [task(item) for item in items]


@dataclass(frozen=True, slots=True)
class SparkWorkers:
    """A Spark session: one partition an item, so that a lost one is made again by itself."""

    spark: SparkSession

    def ranges(
        self, ranges: Sequence[Range], task: Task[Result], discard: Callable[[Result], object] = id
    ) -> list[Outcome[Result]]:
        """Run *task* on ranges side by side."""
        return run_ranges(self.spark, ranges, task, discard)

    def map(self, items: Sequence[Item], task: Callable[[Item], Result]) -> list[Result]:
        """Run *task* on items side by side."""
        if not items:
            return []

        def work(part: Iterable[Item]) -> Iterator[Result | FormatError | OSError]:
            for item in part:
                try:
                    yield task(item)
                except (FormatError, OSError) as error:
                    context = TaskContext.get()
                    if context is not None and context.attemptNumber() == 0:
                        raise  # Spark tries once more
                    yield error

        results: list[Result] = []
        for result in self.spark.sparkContext.parallelize(items, len(items)).mapPartitions(work).collect():
            if isinstance(result, FormatError | OSError):
                raise result
            results.append(result)
        return results
