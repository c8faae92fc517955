"""
Measure `rebuild-consumequeue` of a log.

    python -m benchmarks.rebuild_queues [--million-units N] [--queues N] [--cores N] [--no-broker] [--directory DIR]

The baseline is a real broker that rebuilds the same queues from the same log, without index files. Each runs once, and
the queue files must be equal, byte for byte. Each topic has four queues, so --queues must be a multiple of four.
"""

import os
import shutil
from typing import Any

from benchmarks.broker import RELEASE, hash_files, store_rebuilt_by_broker
from benchmarks.measuring import measure_cost, parse_options, print_result
from benchmarks.stores import DIRECTORY, Recipe, make_store
from jobs.rebuild.queue_run import rebuild_queues
from jobs.requests.rebuild import RebuildQueuesRequest
from jobs.store.request import GivenSettings
from jobs.store.workers import InProcessWorkers

_RECORD_SIZE = 256
_QUEUES_PER_TOPIC = 4


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, million_units=5.0, queues=1000, cores=2, no_broker=False, directory=DIRECTORY)
    topics, rest = divmod(options.queues, _QUEUES_PER_TOPIC)
    if rest or not topics:
        raise SystemExit(f"--queues {options.queues} is not a multiple of {_QUEUES_PER_TOPIC}")
    size = int(options.million_units * 1_000_000) * _RECORD_SIZE
    store = make_store(Recipe(size, _RECORD_SIZE, topics=topics, queues=_QUEUES_PER_TOPIC), options.directory)
    out = options.directory / "queues"
    shutil.rmtree(out, ignore_errors=True)
    with measure_cost() as cost:
        summary = rebuild_queues(
            RebuildQueuesRequest(str(store), out, given_settings=GivenSettings(release=RELEASE)),
            InProcessWorkers(width=options.cores),
        )
    figures: dict[str, Any] = {
        "units": summary.units,
        "queues": summary.queues,
        "wall_s": cost.wall_s,
        "cpu_s": cost.cpu_s,
        "units_per_second": round(summary.units / cost.wall_s),
        "load": os.getloadavg(),
    }
    if not options.no_broker:
        settings = {"messageIndexEnable": "false"}
        with store_rebuilt_by_broker(store, options.directory, settings=settings) as (rebuilt, seconds):
            brokers_files = hash_files(rebuilt / "consumequeue")
        our_files = hash_files(out)
        our_files.pop("MANIFEST.json")
        if our_files != brokers_files:
            paths = sorted({path for path, _ in our_files.items() ^ brokers_files.items()})
            raise SystemExit(f"{len(paths)} queue files differ from the broker's: {', '.join(paths[:5])}, …")
        figures["broker"] = {"release": RELEASE, "rebuild_s": round(seconds, 2), "equal_files": len(brokers_files)}
        figures["times_faster"] = round(seconds / cost.wall_s, 1)
    shutil.rmtree(out)
    print_result(figures)


if __name__ == "__main__":
    main()
