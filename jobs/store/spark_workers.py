"""Spark's tasks as workers: one partition per item, so that Spark repeats only the lost ones."""

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from pyspark import SparkContext, TaskContext
from pyspark.sql import SparkSession

from jobs.console.progress import Work, show_spark_progress
from jobs.launch.session import hadoop_options
from jobs.store.workers import Item, Result, Sizes, Task, prepare_compiled_code, record_count
from rmq_formats.errors import FormatError

_counts = [0, 0]  # tasks and ranges of the log that Spark has processed for this process since `pop_task_counts`


def pop_task_counts() -> tuple[int, int]:
    """Return the numbers of tasks and ranges since the last call, and start again at zero."""
    tasks, ranges = _counts
    _counts[:] = 0, 0
    return tasks, ranges


@dataclass(slots=True)
class SparkWorkers:
    """A Spark context, or the context of a session."""

    spark: SparkContext | SparkSession
    has_repeated: bool = False

    @property
    def context(self) -> SparkContext:
        """The Spark context."""
        return self.spark.sparkContext if isinstance(self.spark, SparkSession) else self.spark

    @property
    def options(self) -> Mapping[str, str]:
        """Hadoop's settings of the context."""
        return hadoop_options(self.context)

    @property
    def width(self) -> int:
        """The cores of the context."""
        return self.context.defaultParallelism

    @property
    def processes(self) -> int:
        """The Python workers of these cores."""
        return self.width

    def map(self, items: Sequence[Item], task: Task[Item, Result], label: str, sizes: Sizes = ()) -> list[Result]:
        """Run *task* on items in parallel, one Spark task per item."""
        if not items:
            return []
        records = self.context.accumulator(0)
        if sizes:
            if (self.context.master or "").startswith("local"):
                prepare_compiled_code(sum(sizes))
            _counts[1] += len(items)

        def run_and_count(item: Item) -> Result:
            result = task(item)
            records.add(record_count(result))
            return result

        work = Work(label, sum(sizes), tasks=len(items)) if sizes else Work(label, len(items), "parts")
        with show_spark_progress(self.context, work, lambda: records.value):
            return self._run(items, run_and_count if sizes else task)

    def _run(self, items: Sequence[Item], task: Task[Item, Result]) -> list[Result]:
        """Run *task* on each item; an error of the second attempt is raised unchanged."""

        def work(part: Iterable[Item]) -> Iterator[tuple[bool, Result | FormatError | OSError]]:
            context = TaskContext.get()
            is_first = context is not None and context.attemptNumber() == 0
            for item in part:
                try:
                    yield is_first, task(item)
                    freeze_collected_objects()
                except (FormatError, OSError) as error:
                    if is_first:
                        raise  # Spark retries
                    yield is_first, error  # a failed job would wrap it in pages of traces

        _counts[0] += len(items)
        results: list[Result] = []
        for is_first, result in self.context.parallelize(items, len(items)).mapPartitions(work).collect():
            self.has_repeated |= not is_first
            if isinstance(result, FormatError | OSError):
                raise result
            results.append(result)
        return results


@cache
def freeze_collected_objects() -> None:
    """
    Exclude the objects of a worker's first task, modules and compiled code, from Python's garbage collection, once.

    Spark collects after each task, and went through 180,000 objects that are never freed.
    """
    gc.collect()
    gc.freeze()
