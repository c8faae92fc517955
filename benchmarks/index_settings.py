"""
Measure what `verify` reads to detect the settings of index files, and to find their places in the log.

    python -m benchmarks.index_settings [--files N N N] [--directory DIR]

The files have many slots and few entries, so that many of them fit on a disk. The baseline is the size of all slots.
"""

import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.broker import RELEASE
from benchmarks.measuring import ReadCount, count_reads, parse_options, print_growth
from benchmarks.stores import DIRECTORY, Recipe, make_store
from jobs.products.index.key_sequence import collect_keys
from jobs.products.index.settings import determine_index_settings
from jobs.products.index.survivors import FilePlacer, list_index_files
from jobs.rebuild.index import rebuild_index
from jobs.requests.rebuild import RebuildIndexRequest
from jobs.storage.scratch import open_scratch
from jobs.store.ranges import plan_ranges
from jobs.store.request import GivenSettings
from jobs.store.store import list_store
from jobs.store.workers import SerialWorkers
from rmq_formats.indexfile.layout import SLOT, Geometry

_GEOMETRY = Geometry(1_000_000, 8001)
_RECORD_SIZE = 400


def make_store_with_index_files(directory: Path, files: int) -> Path:
    """Write a store with this number of full index files; return its root."""
    size = files * _GEOMETRY.capacity // 2 * _RECORD_SIZE  # a message has two keys
    store, out = make_store(Recipe(size, _RECORD_SIZE, compressible=True), directory), directory / "index-out"
    given = GivenSettings(*_GEOMETRY, release=RELEASE)
    rebuild_index(RebuildIndexRequest(str(store), str(out), given_settings=given), SerialWorkers())
    (store / "index").mkdir()
    for file in [path for path in out.iterdir() if path.name.isdigit()]:
        file.rename(store / "index" / file.name)
    return store


def measure(directory: Path, files: int) -> dict[str, Any]:
    """Return the figures for one number of index files."""
    shutil.rmtree(directory, ignore_errors=True)
    store = list_store(str(make_store_with_index_files(directory, files)))
    listed, figures = list_index_files(store), dict[str, Any]()
    with count_reads("index") as count:
        before = time.process_time()
        settings = determine_index_settings(store, listed, GivenSettings(*_GEOMETRY))
        figures["settings"] = _describe_cost(time.process_time() - before, count)
    with open_scratch(str(directory), {}) as scratch:
        keys = collect_keys(SerialWorkers(), store, plan_ranges(store), settings.rules.value.rules, scratch)
        with count_reads("index") as count:
            before = time.process_time()
            FilePlacer(keys, _GEOMETRY, store).place_all(listed)
            figures["places"] = _describe_cost(time.process_time() - before, count)
    return {"files": len(listed), "baseline_bytes_of_slots": len(listed) * _GEOMETRY.hash_slots * SLOT.size, **figures}


def _describe_cost(cpu_s: float, count: ReadCount) -> dict[str, float]:
    return {"cpu_s": round(cpu_s, 2), "reads": count.reads, "bytes": count.total_bytes}


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, files=[100, 200, 400], directory=DIRECTORY)
    print_growth(options.files, options.directory / "index-settings", measure)


if __name__ == "__main__":
    main()
