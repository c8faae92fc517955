"""
Ingest ever larger logs, on one core and on two: whether time grows no faster than the log, and memory not at all.

    python -m benchmarks.growth [--gib 1 4 16] [--cores 1 2] [--folder DIR]

Every size is ingested so often that it comes to the same bytes, in a process of its own whose session has ingested a
small log before; times are the mean of its runs, memory is the most of any. The best of a few would be unfair: a short
run finds a quiet moment of the machine, a long one does not. Records have 1 KB; their bodies are text.
"""

import argparse
import json
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.lakes import bring, spark_workers
from benchmarks.measuring import answer, measured
from benchmarks.stores import FOLDER, Recipe, make_store

_RECORD_SIZE = 1024
_WARM_UP_MIB = 256


def repeated(store: Path, warm_up: Path, lake: Path, cores: int, times: int) -> dict[str, float]:
    """Ingest *store* here so many times."""
    workers = spark_workers(cores)
    runs = []
    for source in (warm_up, *[store] * times):
        shutil.rmtree(lake, ignore_errors=True)
        with measured() as figures:
            bring(source, lake, workers)
        runs.append(figures)
    shutil.rmtree(lake)
    seconds = {name: round(fmean(getattr(run, name) for run in runs[1:]), 2) for name in ("wall_s", "cpu_s")}
    return {**seconds, "peak_worker_mib": max(run.peak_worker_mib for run in runs[1:])}


def _recipe(mib: int) -> Recipe:
    return Recipe(mib << 20, _RECORD_SIZE, compressible=True)


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, nargs="+", default=[1, 4, 16])
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        store, warm_up, lake, cores, times = given.one
        print(json.dumps(repeated(Path(store), Path(warm_up), Path(lake), int(cores), int(times))))
        return
    warm_up = make_store(_recipe(min(_WARM_UP_MIB, int(given.gib[0] * 1024))), given.folder)
    found: list[dict[str, Any]] = []
    for gib, cores in product(given.gib, sorted(given.cores)):
        store = make_store(_recipe(int(gib * 1024)), given.folder)
        times = int(max(given.gib) // gib)
        arguments = [str(store), str(warm_up), str(given.folder / "growth"), str(cores), str(times)]
        command = [sys.executable, "-m", "benchmarks.growth", "--one", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found.append({"gib": gib, "cores": cores, "runs": times, **json.loads(done.stdout)})
        print(found[-1], file=sys.stderr)
        if cores == max(given.cores) and gib > 1:
            shutil.rmtree(store)
    answer({"runs": found, **_ratios(found)})


def _ratios(found: list[dict[str, Any]]) -> dict[str, float]:
    """Return the growth of time and memory over the sizes, and what another core brings at the largest one."""
    cores = max(run["cores"] for run in found)
    sizes = [run for run in found if run["cores"] == cores]
    largest = [run for run in found if run["gib"] == sizes[-1]["gib"]]
    return {
        "log_times": round(sizes[-1]["gib"] / sizes[0]["gib"], 2),
        "wall_times": round(sizes[-1]["wall_s"] / sizes[0]["wall_s"], 2),
        "peak_memory_times": round(sizes[-1]["peak_worker_mib"] / sizes[0]["peak_worker_mib"], 2),
        "cores_times": round(largest[0]["wall_s"] / largest[-1]["wall_s"], 2),
    }


if __name__ == "__main__":
    main()
