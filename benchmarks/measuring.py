"""
Every benchmark's options, measuring and answer.

What a block of work costs: wall time, CPU of all processes, the largest worker; and what it was measured on.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any, TypeVar
from unittest.mock import patch

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(slots=True)
class Measured:
    """What a block cost."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_worker_mib: float = 0.0  # of any Python process below this one: Spark's workers, idle ones as well


@contextmanager
def measured() -> Iterator[Measured]:
    """Measure wall and CPU seconds of the block, those of every process below this one included, and peak memory."""
    figures = Measured()
    over = threading.Event()
    cpu = _cpu_by_process()
    before = sum(cpu.values())
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(_watch, figures, cpu, over)
        began = time.perf_counter()
        try:
            yield figures
        finally:
            figures.wall_s = round(time.perf_counter() - began, 2)
            over.set()
            watched = watching.result()
            cpu |= _cpu_by_process()
            figures.cpu_s = round(sum(cpu.values()) - before - watched, 2)


def in_turns(peers: Mapping[_Key, Callable[[], object]], runs: int) -> dict[_Key, dict[str, float]]:
    """Return the medians of what each peer costs; they take turns, after a run of each that warms up."""
    seen: dict[_Key, list[Measured]] = {name: [] for name in peers}
    for turn in range(runs + 1):
        for name, work in peers.items():
            with measured() as figures:
                work()
            if turn:
                seen[name].append(figures)
    return {name: medians(costs) for name, costs in seen.items()}


def medians(runs: Sequence[Measured]) -> dict[str, float]:
    """Return the median of each figure by its name."""
    return {field.name: round(median(getattr(run, field.name) for run in runs), 3) for field in fields(Measured)}


def _cpu_by_process() -> dict[int, float]:
    """Return the CPU seconds of this process and of each one below it, without those of children that ended."""
    own = {0: time.process_time()}
    return own | {process: cpu for process in processes_below(os.getpid()) if (cpu := cpu_of(process)) is not None}


def cpu_of(process: int) -> float | None:
    """Return the CPU seconds of a process; None of one that has ended."""
    try:
        values = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return sum(map(int, values[11:13])) / os.sysconf("SC_CLK_TCK")


def processes_below(parent: int) -> list[int]:
    """Return the processes that one has started, and those that they have."""
    children = children_of(parent)
    return [*children, *(grandchild for child in children for grandchild in processes_below(child))]


def children_of(parent: int) -> list[int]:
    """Return the processes that one has started."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{parent}/task").iterdir():
            with suppress(OSError):  # a thread may just have ended
                found += map(int, (task / "children").read_text().split())
    return found


def _watch(figures: Measured, cpu: dict[int, float], over: threading.Event) -> float:
    """
    Note what each process has used so far, for it may end, and the largest memory of a Python process below this one.

    Return the CPU seconds that it took to look.
    """
    while not over.wait(0.1):
        cpu |= _cpu_by_process()
        for process in cpu:
            try:
                status = Path(f"/proc/{process}/status").read_text()
            except OSError:
                continue
            if "Name:\tpython" in status and "RssAnon:" in status:  # it may just have ended
                anonymous = int(status.partition("RssAnon:")[2].split()[0]) / 1024
                figures.peak_worker_mib = max(figures.peak_worker_mib, round(anonymous, 1))
    return time.thread_time()


@dataclass(slots=True)
class LogBytes:
    """The bytes that this process has read from segments of a log."""

    total: int = 0


@contextmanager
def count_log_bytes() -> Iterator[LogBytes]:
    """Count what the block reads from files in a folder `commitlog`, in this process."""
    counted, preadv = LogBytes(), os.preadv

    def counting(descriptor: int, *arguments: Any) -> int:  # noqa: ANN401 - those of os.preadv
        count = preadv(descriptor, *arguments)
        if "/commitlog/" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            counted.total += count
        return count

    with patch.object(os, "preadv", counting):
        yield counted


def provenance() -> dict[str, str]:
    """Return what every result says of itself: the machine, the commit, and the command that makes it again."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=False)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "commit": commit.stdout.strip(),
    }


def asked(description: str | None, **options: object) -> argparse.Namespace:
    """
    Return the options of the command line, each of its default's type.

    A list takes several values, False is a switch, and a type is that of an option without a default.
    """
    parser = argparse.ArgumentParser(description=description)
    for name, default in options.items():
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


def answer(figures: Mapping[str, object]) -> None:
    """Print a result as JSON, after what it says of its own making."""
    print(json.dumps({**provenance(), **figures}, indent=2))
