"""What a block of work costs: wall time, CPU of all processes, the largest worker."""

import os
import resource
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
    """Measure wall and CPU seconds of the block, those of its finished children included, and workers' peak memory."""
    figures = Measured()
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(figures, over), daemon=True)
    watcher.start()
    began, cpu = time.perf_counter(), _cpu()
    try:
        yield figures
    finally:
        figures.wall_s = round(time.perf_counter() - began, 2)
        over.set()
        watcher.join()
        figures.cpu_s = round(_cpu() - cpu, 2)


def _cpu() -> float:
    """Return the CPU seconds of this process and of every process below it, as far as the system still knows them."""
    own = time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    return own + sum(_cpu_of(process) for process in _below(os.getpid()))


def _cpu_of(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _below(parent: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{parent}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return [*children, *(grandchild for child in children for grandchild in _below(child))]


def _watch(figures: Measured, over: threading.Event) -> None:
    """Note the largest memory of any Python process below this one that is not shared with others."""
    while not over.wait(0.1):
        for process in _below(os.getpid()):
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
