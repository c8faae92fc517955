"""
Measure `rebuild-index` of a log with segments of 1 GiB, in one process and on Spark.

    python -m benchmarks.rebuild_index [--gib N] [--directory DIR] [--release X.Y.Z | --no-broker]
        [--no-spark] [--cores N]

The baseline is a real broker that rebuilds index files and queues from the same log; it cannot rebuild the index alone.
The broker runs once. `rebuild-index` runs three times after a warm-up: the fastest run is compared, and all times are
printed. All read the log from the page cache and write index files of the default size, which must be equal, byte
for byte. The start of a JVM is not included. --cores applies to Spark only. On a shared machine, compare CPU
times, because other work increases them less than wall times.
"""

import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.broker import RELEASE, hash_files, store_rebuilt_by_broker
from benchmarks.lakes import start_spark_workers
from benchmarks.measuring import Cost, measure_cost, parse_options, print_result
from benchmarks.stores import DIRECTORY, Recipe, make_store
from jobs.rebuild.index import IndexRebuildSummary, rebuild_index
from jobs.requests.rebuild import RebuildIndexRequest
from jobs.store.request import GivenSettings
from jobs.store.workers import InProcessWorkers, Workers

_RECORD_SIZE = 256
_RUNS = 3


def measure_rebuild(store: Path, out: Path, workers: Workers, release: str) -> tuple[IndexRebuildSummary, Cost]:
    """Rebuild all index files into an empty directory; return the summary and the cost."""
    shutil.rmtree(out, ignore_errors=True)
    with measure_cost() as cost:
        summary = rebuild_index(
            RebuildIndexRequest(str(store), str(out), given_settings=GivenSettings(release=release)), workers
        )
    return summary, cost


def _measure_fastest(store: Path, out: Path, workers: Workers, release: str) -> dict[str, Any]:
    costs = [measure_rebuild(store, out, workers, release)[1] for _ in range(_RUNS)]
    return asdict(min(costs, key=lambda cost: cost.wall_s)) | {"runs_wall_s": [cost.wall_s for cost in costs]}


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(
        __doc__, gib=5.5, directory=DIRECTORY, release=RELEASE, no_broker=False, no_spark=False, cores=2
    )
    store = make_store(Recipe(int(options.gib * (1 << 30)), _RECORD_SIZE), options.directory)
    out, release = options.directory / "out", options.release
    threads = InProcessWorkers(width=options.cores)
    summary, _ = measure_rebuild(store, out, threads, release)  # a warm-up
    figures: dict[str, Any] = {
        "log_gib": options.gib,
        "messages": summary.records,
        "keys": summary.log_key_count,
        "one_process": _measure_fastest(store, out, threads, release) | {"cores": options.cores},
    }
    if not options.no_spark:
        workers = start_spark_workers(options.cores)
        figures["spark"] = _measure_fastest(store, out, workers, release) | {"cores": options.cores}
    figures["load"] = os.getloadavg()
    print(json.dumps(figures), file=sys.stderr)  # the broker may take minutes
    if not options.no_broker:
        with store_rebuilt_by_broker(store, options.directory, release) as (rebuilt, seconds):
            brokers_files = list(hash_files(rebuilt / "index").values())
        our_files = [file.sha256 for file in summary.files]
        if our_files != brokers_files:
            raise SystemExit(f"the index files differ from the broker's: {our_files}, the broker's {brokers_files}")
        figures["broker"] = {"release": release, "rebuild_s": round(seconds, 2), "equal_files": len(brokers_files)}
        for engine in {"one_process", "spark"} & figures.keys():
            figures[engine]["times_faster"] = round(seconds / figures[engine]["wall_s"], 1)
    shutil.rmtree(out)
    print_result(figures)


if __name__ == "__main__":
    main()
