"""Spark's tasks as workers: one partition an item, so that a lost one is made again by itself."""

import gc
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from jobs.console.progress import Work, of_spark_job
from jobs.launch.session import await_workers, hadoop_options
from jobs.storage.locations import is_local
from jobs.store.chain import Outcome, Task, chained, compile_first, run_range
from jobs.store.ranges import Range
from jobs.store.store import Segment
from jobs.store.tally import Tally
from jobs.store.workers import Item, Result
from rmq_formats.compiled import IS_FIRST_USE
from rmq_formats.errors import FormatError


class Counts(NamedTuple):
    """The number of tasks and ranges that Spark ran for this process."""

    tasks: int = 0
    ranges: int = 0  # of the log, each read by a task


_counts = [Counts()]  # since somebody has taken them


def taken_counts() -> Counts:
    """Return the counts since the last call, and start again at zero."""
    counts, _counts[0] = _counts[0], Counts()
    return counts


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

    def ranges(
        self, ranges: Sequence[Range], task: Task[Result], discard: Callable[[Result], object] = id
    ) -> list[Outcome[Result]]:
        """Run *task* on ranges side by side; progress is in bytes, of tasks that are at work, too."""
        await_workers()
        size = sum(range_.end - range_.start for range_ in ranges)
        if IS_FIRST_USE and (self.spark.sparkContext.master or "").startswith("local"):
            compile_first()
        records = self.spark.sparkContext.accumulator(0)
        with Tally.of(len(ranges)) as tally:

            def run(some: Sequence[Range]) -> list[Outcome[Result]]:
                def work(numbered: tuple[int, Range]) -> Outcome[Result]:
                    number, range_ = numbered
                    outcome = run_range(range_, task, partial(tally.noted, number, range_) if is_first else iter)
                    records.add(outcome.seen.records)
                    return outcome

                is_first = some is ranges  # what is read again is counted already
                return self._run(list(enumerate(some)), work)

            _counts[0] = _counts[0]._replace(ranges=_counts[0].ranges + len(ranges))
            work = Work("reading", size, tasks=len(ranges))
            with of_spark_job(self.spark, work, lambda: tally.sums()[0], lambda: max(records.value, tally.sums()[1])):
                return chained(ranges, run, discard)

    def map(self, items: Sequence[Item], task: Callable[[Item], Result], label: str = "working") -> list[Result]:
        """Run *task* on items side by side."""
        if not items:
            return []
        with of_spark_job(self.spark, Work(label, len(items), "parts")):
            return self._run(items, task)

    def unseen(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments that the executors do not see: Spark is asked for each, if they are elsewhere."""
        if is_one_process(self.spark):  # whose first query would take seconds to say what the driver sees
            return []
        return unseen(segments, seen_by_executors(self.spark, segments))

    def _run(self, items: Sequence[Item], task: Callable[[Item], Result]) -> list[Result]:
        """Run *task* on each item, one Spark task an item; what fails twice is raised as it was there."""
        if not items:
            return []

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

        _counts[0] = _counts[0]._replace(tasks=_counts[0].tasks + len(items))
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
    Have Python's collector pass over what is here after a worker's first task: modules and compiled code.

    Spark collects after each task, and went through 180,000 objects that nobody ever lets go of.
    """
    if not _spared:
        _spared.append(True)
        gc.collect()
        gc.freeze()


# Segments as executors see them, through Spark's source `binaryFile`. Its content is pruned: a segment of a gigabyte
# does not fit a row. Paths are explicit and escaped, so that no name is taken for a pattern.
_GLOB = re.compile(r"([\[\]{}*?\\])")
_MANY = 64  # paths: beyond, whole directories are listed, which costs one look each


def seen_by_executors(spark: SparkSession, segments: Sequence[Segment]) -> set[str]:
    """Return the locations of segments that executors can see; of a store elsewhere, there is one view alone."""
    segments = [segment for segment in segments if is_local(segment.location)]
    if not segments:
        return set()
    locations = [segment.location for segment in segments]
    if len(locations) > _MANY:
        locations = sorted({location.rpartition("/")[0] for location in locations})
    try:
        paths = [_GLOB.sub(r"\\\1", location) for location in locations]
        # A segment may be deleted between Spark's own listing and its look at the file.
        files = spark.read.format("binaryFile").option("ignoreMissingFiles", "true").load(paths)
    except AnalysisException as error:
        # Retention may have deleted the oldest segments since the driver listed them.
        left = _existing(segments)
        if error.getCondition() != "PATH_NOT_FOUND" or len(left) == len(segments):
            raise
        return seen_by_executors(spark, left)
    return {_location(path) for path in files.select("path").toArrow()["path"].to_pylist()}


def is_one_process(spark: SparkSession) -> bool:
    """Return whether executors are in the driver's own process."""
    return re.match(r"local(\[|$)", spark.sparkContext.master or "") is not None


def _location(path: str) -> str:
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:/") else path


def unseen(segments: Sequence[Segment], seen: AbstractSet[str]) -> list[Segment]:
    """Return the segments that the driver sees and the executors do not."""
    return _existing([segment for segment in segments if segment.location not in seen])


def _existing(segments: Sequence[Segment]) -> list[Segment]:
    """Leave out segments that retention has deleted since the driver listed them."""
    return [segment for segment in segments if Path(segment.location).exists()]
