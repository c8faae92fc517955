"""
A log into a lake and back, beside `cp`: rates, memory, and whether every byte is the same.

    python -m benchmarks.restore [--gib 16] [--cores 2] [--folder DIR]

Records have 1 KB, with text in their bodies. Ingest makes messages and what restores the log besides; restore makes the
log alone. Both run in one session that has done both with a small log before.
"""

import os
import shutil
from collections.abc import Callable
from filecmp import cmp
from pathlib import Path

from benchmarks.broker import RELEASE
from benchmarks.lakes import bring, spark_workers
from benchmarks.measuring import Measured, answer, asked, measured
from benchmarks.stores import FOLDER, Recipe, drop_from_cache, make_store
from jobs.lake.lake import Lake
from jobs.products.index.settings import Wanted
from jobs.restore.run import RestoreRequest, restore
from jobs.store.spark_workers import SparkWorkers

_RECORD_SIZE = 1024
_WARM_UP_MIB = 64


def _measured(work: Callable[[], object]) -> Measured:
    """Do *work* and wait until all of it is on the disk."""
    with measured() as figures:
        work()
        os.sync()
    return figures


def _there_and_back(store: Path, folder: Path, workers: SparkWorkers) -> dict[str, Measured]:
    """Copy, ingest and restore a store; every byte of the log must come back."""
    lake, out, copy = folder / "lake", folder / "restored", folder / "copy"
    for path in (lake, out, copy):
        shutil.rmtree(path, ignore_errors=True)
    wanted = RestoreRequest(
        Lake(str(lake)), out, wanted=Wanted(release=RELEASE), with_queues=False, with_index=False
    )  # fmt: skip
    drop_from_cache(store)
    figures = {"cp": _measured(lambda: shutil.copytree(store, copy))}
    shutil.rmtree(copy)
    drop_from_cache(store)
    figures["ingest"] = _measured(lambda: bring(store, lake, workers))
    drop_from_cache(lake)
    figures["restore"] = _measured(lambda: restore(wanted, workers))
    for segment in sorted((store / "commitlog").iterdir()):
        if not cmp(segment, out / "commitlog" / segment.name, shallow=False):
            raise SystemExit(f"{segment}: not the same bytes")
    shutil.rmtree(lake)
    shutil.rmtree(out)
    return figures


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, gib=16.0, cores=2, folder=FOLDER)
    workers = spark_workers(given.cores)
    mib = int(given.gib * 1024)
    warm_up = make_store(Recipe(min(_WARM_UP_MIB, mib) << 20, _RECORD_SIZE, compressible=True), given.folder)
    _there_and_back(warm_up, given.folder / "restore", workers)
    store = make_store(Recipe(mib << 20, _RECORD_SIZE, compressible=True), given.folder)
    figures = _there_and_back(store, given.folder / "restore", workers)
    found = {
        name: {
            "wall_s": one.wall_s,
            "cpu_s": one.cpu_s,
            "mib_a_second": round(mib / one.wall_s),
            "peak_worker_mib": one.peak_worker_mib,
        }
        for name, one in figures.items()
    }
    if mib > _WARM_UP_MIB:
        shutil.rmtree(store)
    answer({"gib": given.gib, "cores": given.cores, "same_bytes": True, **found})


if __name__ == "__main__":
    main()
