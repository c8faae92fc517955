"""Changes of a store at a certain moment of a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from jobs.store.ranges import Range
from jobs.store.workers import Item, Result, SerialWorkers

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Meanwhile(SerialWorkers):
    """Workers before whose first range something happens: after the plan, in front of the tasks."""

    happens: Callable[[], object] = lambda: None

    def map(
        self,
        items: Sequence[Item],
        task: Callable[[Item], Result],
        label: str = "working",
        sizes: Sequence[int] = (),
    ) -> list[Result]:
        if sizes:
            self.happens()
        return SerialWorkers.map(self, items, task, label, sizes)


@dataclass(frozen=True, slots=True)
class BetweenRanges(SerialWorkers):
    """Workers before each of whose ranges something happens."""

    happens: Callable[[Range], object] = id

    def map(
        self,
        items: Sequence[Item],
        task: Callable[[Item], Result],
        label: str = "working",
        sizes: Sequence[int] = (),
    ) -> list[Result]:
        def with_it(item: Item) -> Result:
            if isinstance(item, Range):
                self.happens(item)
            return task(item)

        return SerialWorkers.map(self, items, with_it, label, sizes)


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
