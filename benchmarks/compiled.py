"""
What compiling costs a first run, and what the chain of a full index file costs.

    python -m benchmarks.compiled [--runs N] [--keys N]

Compiling: from an empty cache in one process (the anchor), and in the two processes of `rmq_formats.warm_up`. Chaining:
keys with the hashes of a real file, whose slots are at random places, and beside it keys of 1,000 slots, which fit the
processor's cache: as fast as a chain could be that never waits. In parts, one after the other: what all of them cost,
and the longest of each round, which is what as many cores would wait for. Everything takes turns; the best run of each
counts.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from benchmarks.measuring import answer, asked
from jobs.products.index.key_row import KEYS_AT_ONCE
from rmq_formats.indexfile.build import PACKED_KEY, FileBuilder
from rmq_formats.indexfile.divided import Division
from rmq_formats.indexfile.kernels import RuleTable
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.release import NEWEST, rules_of

_ONE_PROCESS = ("-c", "from rmq_formats import warm_up as w; w.compile_messages(); w.compile_queues_and_index()")
_TWO_PROCESSES = ("-m", "rmq_formats.warm_up")
Found = TypeVar("Found")
_BLOCK = 1 << 16  # keys that are chained with one call


def compile_from_nothing(command: tuple[str, ...]) -> dict[str, float]:
    """Return what *command* costs where nothing was compiled before."""
    with TemporaryDirectory() as cache:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, *command], env={**os.environ, "NUMBA_CACHE_DIR": cache}, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"wall_s": round(time.perf_counter() - began, 2), "cpu_s": round(cpu_s, 2)}


def chain(count: int, slots: int) -> dict[str, float]:
    """Return the costs of a chain of so many keys whose hashes lead to so many slots."""
    keys = np.zeros(count, PACKED_KEY)
    keys["key_hash"] = np.random.default_rng(4711).integers(0, slots, count)
    keys["physical_offset"] = np.arange(count)
    builder = FileBuilder(Geometry(), RuleTable.of(rules_of((0, NEWEST))), None)
    began = time.process_time()
    for at in range(0, count, _BLOCK):
        builder.add(keys[at : at + _BLOCK])
    return {"cpu_s": round(time.process_time() - began, 3)}


class _OneByOne(Executor):
    """In place of threads: notes what each piece of work costs, as if it had a core for itself."""

    def __init__(self) -> None:
        self.longest_s = 0.0  # the longest piece of each round, summed up

    def map(self, fn: Callable[..., Found], *iterables: Iterable[Any], **_: Any) -> Iterator[Found]:  # noqa: ANN401
        """Return the results of the function, one for each item."""
        results, costs = [], []
        for items in zip(*iterables, strict=True):
            began = time.process_time()
            results.append(fn(*items))
            costs.append(time.process_time() - began)
        self.longest_s += max(costs)
        return iter(results)


def chain_in_parts(count: int, parts: int) -> dict[str, float]:
    """Return the costs of a chain of so many keys in parts: all of them, and the longest of each round."""
    threads = _OneByOne()
    keys = np.zeros(count, PACKED_KEY)
    keys["key_hash"] = np.random.default_rng(4711).integers(0, Geometry().hash_slots, count)
    keys["physical_offset"] = np.arange(count)
    table = RuleTable.of(rules_of((0, NEWEST)))
    builder = FileBuilder(Geometry(), table, None, None, Division(threads, parts))
    began = time.process_time()
    for at in range(0, count, KEYS_AT_ONCE):
        builder.add(keys[at : at + KEYS_AT_ONCE])
    return {"cpu_s": round(time.process_time() - began, 3), "longest_s": round(threads.longest_s, 3)}


def main() -> None:
    """Measure, and print the figures as JSON."""
    given = asked(__doc__, runs=3, keys=19_999_999)
    chain(1, 1)  # compiles, or loads
    cases: dict[str, Callable[[], dict[str, float]]] = {
        "compiled_in_one_process": lambda: compile_from_nothing(_ONE_PROCESS),
        "compiled_in_two": lambda: compile_from_nothing(_TWO_PROCESSES),
        "chain_of_1000_slots": lambda: chain(given.keys, 1000),
        "chain_of_all_slots": lambda: chain(given.keys, Geometry().hash_slots),
    }
    cases |= {f"chain_in_{parts}_parts": partial(chain_in_parts, given.keys, parts) for parts in (1, 2, 4, 8)}
    runs = [{name: measure() for name, measure in cases.items()} for _ in range(given.runs)]
    best = {name: min((run[name] for run in runs), key=lambda figures: figures["cpu_s"]) for name in cases}
    answer({"runs": given.runs, "keys": given.keys, **best})


if __name__ == "__main__":
    main()
