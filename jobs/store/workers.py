"""
Workers: this process, one item after the other, or Spark's tasks; both give the same results.

Results are the same. Spark's are in `jobs.store.spark_workers`, so that nothing here imports pyspark.
`WorkersOnDemand` is both: what is small is done before a task would have begun.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from jobs.console.progress import Work, shown
from jobs.store.chain import Outcome, Task, ahead, chained, run_here, run_range
from jobs.store.ranges import SMALL, Range, written_size
from jobs.store.store import Segment

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers(Protocol):
    """Runs tasks and returns what they return, in order."""

    @property
    def options(self) -> Mapping[str, str]:
        """Settings of the file systems that they read and write."""

    @property
    def width(self) -> int:
        """How many tasks run at once."""

    @property
    def has_repeated(self) -> bool:
        """Whether a task took more than one attempt: what another one wrote before it died is there still."""

    def ranges(
        self, ranges: Sequence[Range], task: Task[Result], discard: Callable[[Result], object]
    ) -> list[Outcome[Result]]:
        """Run *task* on ranges of the log, and give those that chain."""

    def map(self, items: Sequence[Item], task: Callable[[Item], Result], label: str = "working") -> list[Result]:
        """Run *task* on each item; *label* says what that does."""

    def unseen(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments that the driver sees and those who work do not."""


@dataclass(frozen=True, slots=True)
class OneByOne:
    """This process, without Spark."""

    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    width: int = 1
    has_repeated: bool = False

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
class InProcessWorkers(OneByOne):
    """This process, too, which shows how far it is; where tasks are mostly machine code, in as many threads."""

    def ranges(
        self, ranges: Sequence[Range], task: Task[Result], discard: Callable[[Result], object] = id
    ) -> list[Outcome[Result]]:
        """Run *task* on ranges, as many at once as the workers are wide."""
        return list(run_here(ranges, task, discard, self._threads))

    def map(self, items: Sequence[Item], task: Callable[[Item], Result], label: str = "working") -> list[Result]:
        """Run *task* on items, as many at once as the workers are wide."""
        results: list[Result] = []
        with shown(Work(label, len(items), "parts"), lambda: len(results)):
            results.extend(ahead(task, items, self._threads) if self._threads else map(task, items))
        return results

    @property
    def _threads(self) -> int:
        return self.width if self.width > 1 else 0


class DelegatingWorkers:
    """Workers that pass each task to others."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers

    @property
    def options(self) -> Mapping[str, str]:
        """Settings of the file systems that they read and write."""
        return self.workers.options

    @property
    def width(self) -> int:
        """How many tasks run at once."""
        return self.workers.width

    @property
    def has_repeated(self) -> bool:
        """Whether a task took more than one attempt."""
        return self.workers.has_repeated

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


class WorkersOnDemand(DelegatingWorkers):
    """This process while there is little to read, and from the first large plan on a session, until plans are small."""

    def __init__(self, spark: Callable[[], Workers], here: OneByOne | None = None, small: int = SMALL) -> None:
        """Start no session before *spark* is called for one; *here* does small tasks."""
        self._here = here or OneByOne()
        super().__init__(self._here)
        self._spark = spark
        self.small = small

    def ranges(
        self, ranges: Sequence[Range], task: Task[Result], discard: Callable[[Result], object] = id
    ) -> list[Outcome[Result]]:
        """Run *task* on ranges of the log: here where less than `small` bytes are written in them."""
        if written_size(ranges) < self.small:
            self.workers = self._here
        elif self.workers is self._here:
            self.workers = self._spark()
        return super().ranges(ranges, task, discard)
