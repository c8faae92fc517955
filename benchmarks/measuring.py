"""What all benchmarks share: options, measuring time and memory, and printing the result with its environment."""

import argparse
import json
import os
import platform
import resource
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any, TypeVar
from unittest.mock import patch

_Key = TypeVar("_Key", bound=Hashable)
_SAMPLING_INTERVAL_S = 0.1


@dataclass(slots=True)
class Cost:
    """The time and memory that a block used."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_worker_mib: float = 0.0  # of the largest Python process below this one, idle Spark workers included


@contextmanager
def measure_cost() -> Iterator[Cost]:
    """Measure the block: wall time, CPU time of this process and all processes below it, and peak memory of those."""
    cost = Cost()
    has_ended = threading.Event()
    before = _total_cpu_s()
    with ThreadPoolExecutor(1) as pool:
        sampling = pool.submit(_sample_processes, cost, has_ended)
        began = time.perf_counter()
        try:
            yield cost
        finally:
            cost.wall_s = round(time.perf_counter() - began, 2)
            has_ended.set()
            sampling_s = sampling.result()
            cost.cpu_s = round(_total_cpu_s() - before - sampling_s, 2)


def measure_alternately(variants: Mapping[_Key, Callable[[], object]], runs: int) -> dict[_Key, dict[str, float]]:
    """Run the variants alternately, after a warm-up run of each; return the medians of their costs."""
    costs: dict[_Key, list[Cost]] = {name: [] for name in variants}
    for turn in range(runs + 1):
        for name, run in variants.items():
            with measure_cost() as cost:
                run()
            if turn:
                costs[name].append(cost)
    return {name: median_cost(of_variant) for name, of_variant in costs.items()}


def median_cost(costs: Sequence[Cost]) -> dict[str, float]:
    """Return the median of each field of several costs, by its name."""
    return {field.name: round(median(getattr(cost, field.name) for cost in costs), 3) for field in fields(Cost)}


def run_in_child(run: Callable[[], object]) -> None:
    """Call *run* in a forked process, which has no threads, and all that this process has loaded."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(process, 0)[1]:
        raise SystemExit("a forked process of the benchmark failed")


def _total_cpu_s() -> float:
    """Return the CPU seconds of this process and of all processes below it, also of those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = (read_cpu_s(process, with_ended_children=True) for process in list_descendants(os.getpid()))
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(filter(None, running))


def read_cpu_s(process: int, *, with_ended_children: bool = False) -> float | None:
    """Return the CPU seconds of a process, or None if it has ended."""
    try:
        values = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return sum(map(int, values[11 : 15 if with_ended_children else 13])) / os.sysconf("SC_CLK_TCK")


def list_descendants(parent: int) -> list[int]:
    """Return the child processes of a process, and all processes below them."""
    children = _list_children(parent)
    return [*children, *(grandchild for child in children for grandchild in list_descendants(child))]


def _list_children(parent: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{parent}/task").iterdir():
            with suppress(OSError):  # a thread may have ended
                found += map(int, (task / "children").read_text().split())
    return found


def _sample_processes(cost: Cost, has_ended: threading.Event) -> float:
    """Record the largest memory of a Python process below this one; return the CPU seconds of the sampling itself."""
    while not has_ended.wait(_SAMPLING_INTERVAL_S):
        for process in list_descendants(os.getpid()):
            try:
                status = Path(f"/proc/{process}/status").read_text()
            except OSError:
                continue
            if "Name:\tpython" in status and "RssAnon:" in status:  # an ending process has no RssAnon
                anonymous = int(status.partition("RssAnon:")[2].split()[0]) / 1024
                cost.peak_worker_mib = max(cost.peak_worker_mib, round(anonymous, 1))
    return time.thread_time()


@dataclass(slots=True)
class ReadCount:
    """What this process has read from files."""

    reads: int = 0
    total_bytes: int = 0


@contextmanager
def count_reads(directory: str) -> Iterator[ReadCount]:
    """Count what the block reads from files in directories of this name, such as `commitlog`, in this process."""
    count, preadv = ReadCount(), os.preadv

    def counting_preadv(descriptor: int, *arguments: Any) -> int:  # noqa: ANN401 - the arguments of os.preadv
        size = preadv(descriptor, *arguments)
        if f"/{directory}/" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            count.reads += 1
            count.total_bytes += size
        return size

    with patch.object(os, "preadv", counting_preadv):
        yield count


def print_growth(sizes: Iterable[int], directory: Path, measure: Callable[[Path, int], dict[str, Any]]) -> None:
    """Print the figures of each size as JSON; *measure* works in the directory, which is deleted at the end."""
    figures = [measure(directory, size) for size in sizes]
    shutil.rmtree(directory)
    print_result({"sizes": figures})


def describe_environment() -> dict[str, str]:
    """Return the machine, the command and the commit, which every result contains."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=False)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "commit": commit.stdout.strip(),
    }


def parse_options(description: str | None, **defaults: object) -> argparse.Namespace:
    """
    Parse the command line; each option has the type of its default.

    A list as default makes an option with several values, and False a switch. A type instead of a default makes an
    option of this type without a default.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(option, action="store_true")
        elif isinstance(default, list):
            parser.add_argument(option, type=type(default[0]), nargs="+", default=default)
        elif isinstance(default, type):
            parser.add_argument(option, type=default)
        else:
            parser.add_argument(option, type=type(default), default=default)
    return parser.parse_args()


def print_result(figures: Mapping[str, object]) -> None:
    """Print the environment and the figures as JSON."""
    print(json.dumps({**describe_environment(), **figures}, indent=2))
