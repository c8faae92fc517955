"""Spark's tasks as workers: one partition an item, so that Spark repeats a lost one alone."""

import gc
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from jobs.console.progress import Work, of_spark_job
from jobs.launch.session import await_workers, hadoop_options
from jobs.storage.locations import is_local
from jobs.store.ranges import Range
from jobs.store.workers import Item, Result, compile_first, record_count
from rmq_formats.compiled import IS_FIRST_USE
from rmq_formats.errors import FormatError

_counts = [0, 0]  # of tasks and of ranges of the log that Spark ran for this process since `taken_counts`


def taken_counts() -> tuple[int, int]:
    """Return the numbers of tasks and ranges since the last call, and start again at zero."""
    tasks, ranges = _counts
    _counts[:] = 0, 0
    return tasks, ranges


@dataclass(slots=True)
class SparkWorkers:
    """A Spark session."""

    spark: SparkSession
    has_repeated: bool = False

    @property
    def options(self) -> Mapping[str, str]:
        """Hadoop's settings of the session."""
        return hadoop_options(self.spark)

    @property
    def width(self) -> int:
        """The cores of the session."""
        return self.spark.sparkContext.defaultParallelism

    def map(
        self,
        items: Sequence[Item],
        task: Callable[[Item], Result],
        label: str = "working",
        sizes: Sequence[int] = (),
    ) -> list[Result]:
        """Run *task* on items side by side, one Spark task an item."""
        if not items:
            return []
        records = self.spark.sparkContext.accumulator(0)
        if sizes:
            await_workers()
            self._require_visible([item for item in items if isinstance(item, Range)])
            if IS_FIRST_USE and (self.spark.sparkContext.master or "").startswith("local"):
                compile_first()
            _counts[1] += len(items)

        def counted(item: Item) -> Result:
            result = task(item)
            records.add(record_count(result))
            return result

        work = Work(label, sum(sizes), tasks=len(items)) if sizes else Work(label, len(items), "parts")
        with of_spark_job(self.spark, work, lambda: records.value):
            return self._run(items, counted if sizes else task)

    def _require_visible(self, ranges: Sequence[Range]) -> None:
        """Raise `OSError` if executors on other machines do not see a segment that the driver sees."""
        if not is_one_process(self.spark):  # whose first query would take seconds
            locations = list(dict.fromkeys(range_.location for range_ in ranges))
            hidden = unseen(locations, seen_by_executors(self.spark, locations))
            if hidden:
                raise OSError(f"{hidden[0]}: the driver sees this file, the executors do not")

    def _run(self, items: Sequence[Item], task: Callable[[Item], Result]) -> list[Result]:
        """Run *task* on each item; an error of the second attempt is raised as it was there."""

        def work(part: Iterable[Item]) -> Iterator[tuple[bool, Result | FormatError | OSError]]:
            context = TaskContext.get()
            is_first = context is not None and context.attemptNumber() == 0
            for item in part:
                try:
                    yield is_first, task(item)
                    spare_collector()
                except (FormatError, OSError) as error:
                    if is_first:
                        raise  # Spark tries once more
                    yield is_first, error  # as it is: a failed job would wrap it in pages of traces

        _counts[0] += len(items)
        results: list[Result] = []
        for is_first, result in self.spark.sparkContext.parallelize(items, len(items)).mapPartitions(work).collect():
            self.has_repeated |= not is_first
            if isinstance(result, FormatError | OSError):
                raise result
            results.append(result)
        return results


_spared: list[bool] = []  # one, once this worker has done a task


def spare_collector() -> None:
    """
    Exclude the objects of a worker's first task, modules and compiled code, from Python's garbage collection.

    Spark collects after each task, and went through 180,000 objects that are never freed.
    """
    if not _spared:
        _spared.append(True)
        gc.collect()
        gc.freeze()


# Segments as executors see them, through Spark's source `binaryFile`. Its content is pruned: a segment of a gigabyte
# does not fit a row. Paths are explicit and escaped, so that no name is taken for a pattern.
_GLOB = re.compile(r"([\[\]{}*?\\])")
_MANY = 64  # paths: beyond, whole directories are listed, which costs one look each


def seen_by_executors(spark: SparkSession, locations: Sequence[str]) -> set[str]:
    """Return the locations of segments that executors can see; a store elsewhere looks the same to all."""
    remote = {location for location in locations if not is_local(location)}
    segments = [location for location in locations if location not in remote]
    if not segments:
        return remote
    looked_at = segments if len(segments) <= _MANY else sorted({location.rpartition("/")[0] for location in segments})
    try:
        paths = [_GLOB.sub(r"\\\1", location) for location in looked_at]
        # A segment may be deleted between Spark's own listing and its look at the file.
        files = spark.read.format("binaryFile").option("ignoreMissingFiles", "true").load(paths)
    except AnalysisException as error:
        # Retention may have deleted the oldest segments since the driver listed them.
        left = _existing(segments)
        if error.getCondition() != "PATH_NOT_FOUND" or len(left) == len(segments):
            raise
        return remote | seen_by_executors(spark, left)
    return remote | {_location(path) for path in files.select("path").toArrow()["path"].to_pylist()}


def is_one_process(spark: SparkSession) -> bool:
    """Return whether executors are in the driver's own process."""
    return re.match(r"local(\[|$)", spark.sparkContext.master or "") is not None


def _location(path: str) -> str:
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:/") else path


def unseen(locations: Sequence[str], seen: AbstractSet[str]) -> list[str]:
    """Return the locations of segments that the driver sees and the executors do not."""
    return _existing([location for location in locations if location not in seen])


def _existing(locations: Sequence[str]) -> list[str]:
    """Leave out segments that retention has deleted since the driver listed them."""
    return [location for location in locations if Path(location).exists()]
