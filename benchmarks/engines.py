"""
Compare `ingest` on this machine and on Spark, as commands with their start, at three sizes of the log.

    python -m benchmarks.engines [--mib N N N] [--directory DIR] [--scratch DIR]

Each variant runs once, after one run on the smallest store. `cpu_s` includes worker processes, the JVM and its Python
workers; `peak_mib` is the memory of the command with all of them, in which shared pages count several times. The
baseline is the local engine.
"""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.broker import RELEASE
from benchmarks.measuring import list_descendants, measure_cost, parse_options, print_result
from benchmarks.stores import DIRECTORY, Recipe, make_healthy_store

_RECORD_SIZE = 1024
_TABLES = {"messages": ["--tables", "messages"], "all tables": []}
_ENGINES = ("local", "spark")
_SAMPLED_S = 0.2


def measure(directory: Path, scratch: Path, mib: int) -> dict[str, Any]:
    """Return the costs of each engine for a log of this size."""
    store = make_healthy_store(Recipe(mib << 20, _RECORD_SIZE, compressible=True), directory)
    figures: dict[str, Any] = {"mib": mib}
    for name, options in _TABLES.items():
        figures[name] = {engine: _run(store, scratch / "lake-of-engine", engine, options) for engine in _ENGINES}
    return figures


def _run(store: Path, lake: Path, engine: str, options: list[str]) -> dict[str, float]:
    shutil.rmtree(lake, ignore_errors=True)
    words = ["ingest", str(store), "--lake", str(lake), "--broker", "b", "--release", RELEASE, "--engine", engine]
    with measure_cost() as cost:
        peak = _sample_memory(
            lambda: subprocess.run(
                [sys.executable, "-m", "jobs.main", *words, *options, "--quiet"], check=True, stdout=subprocess.DEVNULL
            )
        )
    shutil.rmtree(lake)
    return {"wall_s": cost.wall_s, "cpu_s": cost.cpu_s, "peak_mib": peak}


def _sample_memory(work: Callable[[], object]) -> int:
    """Do *work*, and return the most memory that the processes below this one had at a time, in MiB."""
    peak, has_ended = [0], threading.Event()

    def sample() -> None:
        while not has_ended.wait(_SAMPLED_S):
            peak[0] = max(peak[0], sum(map(_read_resident_mib, list_descendants(os.getpid()))))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        work()
    finally:
        has_ended.set()
        thread.join()
    return peak[0]


def _read_resident_mib(process: int) -> int:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return int(status.partition("VmRSS:")[2].split()[0]) >> 10 if "VmRSS:" in status else 0


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, mib=[1023, 4092, 16_368], directory=DIRECTORY, scratch=Path)
    scratch = options.scratch or options.directory
    store = make_healthy_store(Recipe(options.mib[0] << 20, _RECORD_SIZE, compressible=True), options.directory)
    for engine in _ENGINES:  # a warm-up: compiled code and JARs
        _run(store, scratch / "lake-of-engine", engine, [])
    sizes = [measure(options.directory, scratch, mib) for mib in options.mib]
    print_result({"load": os.getloadavg(), "sizes": sizes})


if __name__ == "__main__":
    main()
