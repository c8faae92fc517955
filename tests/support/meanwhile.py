"""Changes of a store at a certain moment of a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

from jobs.store.ranges import Range
from jobs.store.workers import Item, Result, SerialWorkers

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Meanwhile(SerialWorkers):
    """
    Workers during whose work something happens: after the plan, before the first range, or before each range.

    Each task goes to *attempt* first, with whether it is one of a pass over the log: it may do it, and die.
    """

    happens: Callable[[], object] = lambda: None
    before_range: Callable[[Range], object] = id
    attempt: Callable[[Callable[[], object], bool], object] = lambda _work, _is_of_pass: None

    def map(
        self, items: Sequence[Item], task: Callable[[Item], Result], label: str = "working", sizes: Sequence[int] = ()
    ) -> list[Result]:
        def with_it(item: Item) -> Result:
            if isinstance(item, Range):
                self.before_range(item)
            self.attempt(partial(task, item), bool(sizes))
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
