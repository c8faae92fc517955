"""Changes of a store at a certain moment of a run."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar
from unittest.mock import patch

import pytest

from jobs.store.ranges import Range
from jobs.store.workers import Item, Result, SerialWorkers, Sizes, Task

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DisturbedWorkers(SerialWorkers):
    """
    Workers that call *happens* after the plan and before the first range, and *before_range* before each range.

    Each task is passed to *attempt* first, with whether it is part of a pass over the log.
    """

    happens: Callable[[], object] = lambda: None
    before_range: Callable[[Range], object] = id
    attempt: Callable[[Callable[[], object], bool], object] = lambda _work, _is_of_pass: None

    def map(self, items: Sequence[Item], task: Task[Item, Result], label: str, sizes: Sizes = ()) -> list[Result]:
        def disturbed(item: Item) -> Result:
            if isinstance(item, Range):
                self.before_range(item)
            self.attempt(partial(task, item), bool(sizes))
            return task(item)

        if sizes:
            self.happens()
        return SerialWorkers.map(self, items, disturbed, label, sizes)


@contextmanager
def fail_reads_of_first_segment(error: int, when: Callable[[int, int], bool]) -> Iterator[None]:
    """Let the reads of a log's first segment fail that *when* selects by position and length."""
    original = os.preadv

    def preadv(descriptor: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.match(f"commitlog/{0:020}") and when(offset, buffers[0].nbytes):
            raise OSError(error, os.strerror(error), str(path))
        return original(descriptor, buffers, offset, flags)

    with patch("os.preadv", preadv):
        yield


def call_before(step: Callable[P, T], happens: Callable[[], object]) -> Callable[P, T]:
    def disturbed(*arguments: P.args, **options: P.kwargs) -> T:
        happens()
        return step(*arguments, **options)

    return disturbed


def call_after(step: Callable[P, T], happens: Callable[[], object]) -> Callable[P, T]:
    def disturbed(*arguments: P.args, **options: P.kwargs) -> T:
        result = step(*arguments, **options)
        happens()
        return result

    return disturbed


def refuse_to_open(part: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each attempt to open a file fail if its path contains *part*."""
    opened = os.open

    def refuse(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if part in str(path):
            raise OSError(code, os.strerror(code), str(path))
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
