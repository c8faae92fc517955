"""Changes of a store at a certain moment of a run."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar
from unittest.mock import patch

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


@contextmanager
def reads_of_the_first_segment_fail(error: int, when: Callable[[int, int], bool]) -> Iterator[None]:
    """Let reads of the first segment of a log fail that *when* selects by their position and length."""
    original = os.preadv

    def preadv(descriptor: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.match(f"commitlog/{0:020}") and when(offset, buffers[0].nbytes):
            raise OSError(error, os.strerror(error), str(path))
        return original(descriptor, buffers, offset, flags)

    with patch("os.preadv", preadv):
        yield


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
