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
    """Workers during whose work something happens: after the plan, before the first range, or before each range."""

    happens: Callable[[], object] = lambda: None
    before_range: Callable[[Range], object] = id

    def map(
        self, items: Sequence[Item], task: Callable[[Item], Result], label: str = "working", sizes: Sequence[int] = ()
    ) -> list[Result]:
        def with_it(item: Item) -> Result:
            if isinstance(item, Range):
                self.before_range(item)
            return task(item)

        if sizes:
            self.happens()
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
