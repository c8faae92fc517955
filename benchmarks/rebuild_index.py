"""
Rebuild the index of a log of default geometry, and let a real broker do the same.

    python -m benchmarks.rebuild_index [--gib N] [--folder DIR] [--release X.Y.Z | --no-broker] [--no-spark] [--cores N]

Both read the log from the page cache and write full-size files; the start of either JVM is not counted. The broker
cannot make its index without its queues: loading, starting and dispatching are one figure. It runs once; ours is the
best of three runs, of which all are given, in one process and on Spark. The files must be the same, byte for byte,
before they are compared. CPU seconds are those of all processes: a shared machine lengthens wall times more than these.
"""

import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.broker import RELEASE, hashes_below, rebuilt_by_broker
from benchmarks.lakes import spark_workers
from benchmarks.measuring import Measured, answer, asked, measured
from benchmarks.stores import FOLDER, Recipe, make_store
from jobs.launch.engine import count_cores
from jobs.products.index.settings import GivenSettings
from jobs.rebuild.index import IndexRebuildSummary, RebuildIndexRequest, rebuild_index
from jobs.store.workers import SerialWorkers, Workers

_RECORD_SIZE = 256
_RUNS = 3


def ours(store: Path, out: Path, workers: Workers) -> tuple[IndexRebuildSummary, Measured]:
    """Rebuild all files; return what was made, and what it cost."""
    shutil.rmtree(out, ignore_errors=True)
    with measured() as figures:
        result = rebuild_index(RebuildIndexRequest(str(store), str(out), GivenSettings(release=RELEASE)), workers)
    return result, figures


def _best(store: Path, out: Path, workers: Workers) -> dict[str, Any]:
    runs = [ours(store, out, workers)[1] for _ in range(_RUNS)]
    return asdict(min(runs, key=lambda run: run.wall_s)) | {"runs_wall_s": [run.wall_s for run in runs]}


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, gib=5.5, folder=FOLDER, release=RELEASE, no_broker=False, no_spark=False, cores=2)
    store = make_store(Recipe(int(given.gib * (1 << 30)), _RECORD_SIZE), given.folder)
    out = given.folder / "out"
    result, _ = ours(store, out, SerialWorkers())  # warms up
    figures: dict[str, Any] = {
        "log_gib": given.gib,
        "messages": result.records,
        "keys": result.log_key_count,
        "one_process": _best(store, out, SerialWorkers()) | {"cores": count_cores()},
    }
    if not given.no_spark:
        figures["spark"] = _best(store, out, spark_workers(given.cores)) | {"cores": given.cores}
    figures["load"] = os.getloadavg()
    print(json.dumps(figures), file=sys.stderr)
    if not given.no_broker:
        with rebuilt_by_broker(store, given.folder, given.release) as (copy, seconds):
            hashes = list(hashes_below(copy / "index").values())
        made = [file.sha256 for file in result.files]
        if made != hashes:
            raise SystemExit(f"the broker's files differ: {hashes}, ours {made}")
        figures["broker"] = {"release": given.release, "rebuild_s": round(seconds, 2), "equal_files": len(hashes)}
        for way in {"one_process", "spark"} & figures.keys():
            figures[way]["times_faster"] = round(seconds / figures[way]["wall_s"], 1)
    answer(figures)


if __name__ == "__main__":
    main()
