"""Something that happens to a store at a certain moment of a run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from jobs.store.chain import Outcome, Task
from jobs.store.ranges import Range
from jobs.store.workers import OneByOne
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Meanwhile(OneByOne):
    """Workers before whose first range something happens: after the plan, in front of the tasks."""

    happens: Callable[[], object] = lambda: None

    def ranges(self, ranges: Sequence[Range], task: Task[T], discard: Callable[[T], object] = id) -> list[Outcome[T]]:
        self.happens()
        return OneByOne.ranges(self, ranges, task, discard)


@dataclass(frozen=True, slots=True)
class BetweenRanges(OneByOne):
    """Workers before each of whose ranges something happens."""

    happens: Callable[[Range], object] = id

    def ranges(self, ranges: Sequence[Range], task: Task[T], discard: Callable[[T], object] = id) -> list[Outcome[T]]:
        return OneByOne.ranges(self, ranges, self._preceded(task), discard)

    def _preceded(self, task: Task[T]) -> Task[T]:
        def with_it(range_: Range, pieces: Iterator[Records | Piece]) -> T:
            self.happens(range_)
            return task(range_, pieces)

        return with_it


def preceded(step: Callable[P, T], happens: Callable[[], object]) -> Callable[P, T]:
    def with_it(*arguments: P.args, **options: P.kwargs) -> T:
        happens()
        return step(*arguments, **options)

    return with_it


def followed(step: Callable[P, T], happens: Callable[[], object]) -> Callable[P, T]:
    def with_it(*arguments: P.args, **options: P.kwargs) -> T:
        result = step(*arguments, **options)
        happens()
        return result

    return with_it
