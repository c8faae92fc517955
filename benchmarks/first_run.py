"""
Measure the first run of commands in a new environment, in which no compiled code is cached.

    python -m benchmarks.first_run [--kib N N N] [--directory DIR]

The stores have records of 1 KiB. The baseline is the second run of the same command, with the code that the first run
has cached, if any. `cpu_s` includes the processes that compile.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.broker import RELEASE
from benchmarks.measuring import measure_cost, parse_options, print_result
from benchmarks.stores import DIRECTORY, Recipe, add_queues, make_store


def measure(directory: Path, kib: int) -> dict[str, Any]:
    """Return the costs of each command for a log of this size."""
    recipe = Recipe(kib << 10, 1024)
    store, cache, lake = make_store(recipe, directory), directory / "compiled", directory / "lake-of-first-run"
    if not (store / "consumequeue").exists():
        add_queues(recipe, store)
    figures: dict[str, Any] = {"kib": kib}
    commands: dict[str, list[str | Path]] = {
        "inspect": ["inspect", store],
        "verify": ["verify", store, "--release", RELEASE],
        "ingest": ["ingest", store, "--lake", lake, "--release", RELEASE],
    }
    for name, words in commands.items():
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir()
        first, second = (_run(words, cache, lake) for _ in range(2))
        figures[name] = {"first": first, "baseline_second": second, "compiled": len(list(cache.rglob("*.nbi")))}
    return figures


def _run(words: list[str | Path], cache: Path, lake: Path) -> dict[str, float]:
    shutil.rmtree(lake, ignore_errors=True)
    command = [sys.executable, "-m", "jobs.main", *words, "--quiet"]
    with measure_cost() as cost:
        done = subprocess.run(
            command, env={**os.environ, "NUMBA_CACHE_DIR": str(cache)}, stdout=subprocess.DEVNULL, check=False
        )
    if done.returncode:
        raise SystemExit(f"{command} ended with exit code {done.returncode}")
    return {"wall_s": cost.wall_s, "cpu_s": cost.cpu_s}


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, kib=[64, 240, 4096], directory=DIRECTORY)
    print_result({"sizes": [measure(options.directory, kib) for kib in options.kib]})


if __name__ == "__main__":
    main()
