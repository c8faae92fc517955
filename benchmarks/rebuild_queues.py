"""
Rebuild the queues of a log, and let a real broker do the same.

    python -m benchmarks.rebuild_queues [--million-units N] [--queues N] [--cores N] [--no-broker] [--folder DIR]

The broker, its index switched off, makes the same queues of the same log in the same run; the files must be equal, byte
for byte.
"""

import os
import shutil
from typing import Any

from benchmarks.broker import RELEASE, hashes_below, rebuilt_by_broker
from benchmarks.measuring import answer, asked, measured
from benchmarks.stores import FOLDER, Recipe, make_store
from jobs.rebuild.queue_run import RebuildQueuesRequest, rebuild_queues
from jobs.store.workers import InProcessWorkers

_RECORD_SIZE = 256


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, million_units=5.0, queues=1000, cores=2, no_broker=False, folder=FOLDER)
    size = int(given.million_units * 1_000_000) * _RECORD_SIZE
    store = make_store(Recipe(size, _RECORD_SIZE, topics=max(given.queues // 4, 1)), given.folder)
    out = given.folder / "queues"
    shutil.rmtree(out, ignore_errors=True)
    with measured() as figures:
        summary = rebuild_queues(
            RebuildQueuesRequest(str(store), out, release=RELEASE), InProcessWorkers(width=given.cores)
        )
    found: dict[str, Any] = {
        "units": summary.units,
        "queues": summary.queues,
        "wall_s": figures.wall_s,
        "cpu_s": figures.cpu_s,
        "units_per_second": round(summary.units / figures.wall_s),
        "peak_worker_mib": figures.peak_worker_mib,
        "load": os.getloadavg(),
    }
    if not given.no_broker:
        with rebuilt_by_broker(store, given.folder, settings={"messageIndexEnable": "false"}) as (copy, seconds):
            theirs = hashes_below(copy / "consumequeue")
        ours = hashes_below(out)
        ours.pop("MANIFEST.json")
        if ours != theirs:
            raise SystemExit(f"{len(ours.items() ^ theirs.items())} files of the broker differ")
        found["broker"] = {"release": RELEASE, "rebuild_s": round(seconds, 2), "equal_files": len(theirs)}
        found["times_faster"] = round(seconds / figures.wall_s, 1)
    shutil.rmtree(out)
    answer(found)


if __name__ == "__main__":
    main()
