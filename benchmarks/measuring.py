"""What a block of work costs: wall time, CPU of all processes, the largest worker."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Measured:
    """What a block cost."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_worker_mib: float = 0.0


@contextmanager
def measured() -> Iterator[Measured]:
    """Measure wall and CPU seconds of the block, those of every process below this one included, and peak memory."""
    figures = Measured()
    over = threading.Event()
    cpu = _cpu_by_process()
    before = sum(cpu.values())
    watcher = threading.Thread(target=_watch, args=(figures, cpu, over), daemon=True)
    watcher.start()
    began = time.perf_counter()
    try:
        yield figures
    finally:
        figures.wall_s = round(time.perf_counter() - began, 2)
        over.set()
        watcher.join()
        cpu |= _cpu_by_process()
        figures.cpu_s = round(sum(cpu.values()) - before, 2)


def _cpu_by_process() -> dict[int, float]:
    """Return the CPU seconds of this process and of each one below it, without those of children that ended."""
    own = {0: time.process_time()}
    return own | {process: cpu for process in _below(os.getpid()) if (cpu := _cpu_of(process)) is not None}


def _cpu_of(process: int) -> float | None:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _below(parent: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{parent}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return [*children, *(grandchild for child in children for grandchild in _below(child))]


def _watch(figures: Measured, cpu: dict[int, float], over: threading.Event) -> None:
    """Note what each process has used so far, for it may end, and the largest memory of a Python process of its own."""
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


def vars_of(figures: Measured) -> dict[str, float]:
    """Return the figures by name."""
    return {"wall_s": figures.wall_s, "cpu_s": figures.cpu_s, "peak_worker_mib": figures.peak_worker_mib}
