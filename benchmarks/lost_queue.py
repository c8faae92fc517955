"""
Count what `rebuild-consumequeue --lost-only` and `repair` write, if one of many queues is lost.

    python -m benchmarks.lost_queue [--queues N N N] [--directory DIR]

The baseline is a rebuild of all queues. Each written file costs at least one fsync.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.broker import RELEASE
from benchmarks.measuring import measure_cost, parse_options, print_result
from benchmarks.stores import DIRECTORY, Recipe, make_healthy_store
from jobs.rebuild.queue_run import rebuild_queues
from jobs.repair.run import repair
from jobs.requests.rebuild import RebuildQueuesRequest
from jobs.requests.repair import RepairRequest
from jobs.store.request import GivenSettings
from jobs.store.workers import SerialWorkers
from rmq_formats.indexfile.layout import Geometry

_QUEUES_PER_TOPIC = 20
_MESSAGES_PER_QUEUE = 20
_RECORD_SIZE = 400
_NAME_LENGTH = 20  # of queue files
_GEOMETRY = Geometry(1000, 2000)  # small index files


@contextmanager
def _count_fsyncs() -> Iterator[list[int]]:
    synced, fsync = list[int](), os.fsync

    def count_and_sync(descriptor: int) -> None:
        synced.append(descriptor)
        fsync(descriptor)

    with patch.object(os, "fsync", count_and_sync):
        yield synced


def measure(directory: Path, queues: int) -> dict[str, Any]:
    """Return the figures of a store with this number of queues."""
    topics = max(queues // _QUEUES_PER_TOPIC, 1)
    size = queues * _MESSAGES_PER_QUEUE * _RECORD_SIZE
    recipe = Recipe(size, _RECORD_SIZE, topics=topics, queues=_QUEUES_PER_TOPIC, segment_size=16 << 20)
    healthy = make_healthy_store(recipe, directory, _GEOMETRY)
    store, out = directory / "store-without-a-queue", directory / "rebuilt"
    shutil.rmtree(store, ignore_errors=True)
    shutil.copytree(healthy, store)
    lost = store / "consumequeue" / "Bench000" / "0"
    shutil.rmtree(lost)
    settings = GivenSettings(release=RELEASE)
    request = RebuildQueuesRequest(str(store), out, given_settings=settings)
    lost_only = RebuildQueuesRequest(str(store), out, given_settings=settings, lost_only=True)
    repaired = RepairRequest(str(store), out, given_settings=settings)
    figures = {
        "queues": topics * _QUEUES_PER_TOPIC,
        "lost_only": _measure(out, lambda: rebuild_queues(lost_only, SerialWorkers())),
        "repair": _measure(out, lambda: repair(repaired, SerialWorkers())),
        "baseline_all": _measure(out, lambda: rebuild_queues(request, SerialWorkers())),
    }
    shutil.rmtree(store)
    shutil.rmtree(out)
    return figures


def _measure(out: Path, run: Callable[[], object]) -> dict[str, float]:
    shutil.rmtree(out, ignore_errors=True)
    with _count_fsyncs() as synced, measure_cost() as cost:
        run()
    files = sum(len(path.name) == _NAME_LENGTH and path.name.isdigit() for path in out.rglob("*"))
    return {"fsyncs": len(synced), "queue_files": files, "cpu_s": cost.cpu_s}


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, queues=[100, 200, 400], directory=DIRECTORY)
    print_result({"sizes": [measure(options.directory, queues) for queues in options.queues]})


if __name__ == "__main__":
    main()
