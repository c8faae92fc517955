"""
Measure what `verify` reads to detect the settings of index files, and to find their places in the log.

    python -m benchmarks.index_settings [--files N N N] [--directory DIR]

The files have many slots and few entries, so that many of them fit on a disk. The baseline is the size of all slots.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.broker import RELEASE
from benchmarks.measuring import parse_options, print_result
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


@contextmanager
def count_index_reads() -> Iterator[dict[str, int]]:
    """Count the reads of index files in the block, and their bytes."""
    counts, preadv = {"reads": 0, "bytes": 0}, os.preadv

    def counting_preadv(descriptor: int, *arguments: Any) -> int:  # noqa: ANN401 - the arguments of os.preadv
        size = preadv(descriptor, *arguments)
        if "/index/" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            counts["reads"] += 1
            counts["bytes"] += size
        return size

    with patch.object(os, "preadv", counting_preadv):
        yield counts


def measure(directory: Path, files: int) -> dict[str, Any]:
    """Return the figures for one number of index files."""
    shutil.rmtree(directory, ignore_errors=True)
    store = list_store(str(make_store_with_index_files(directory, files)))
    listed, figures = list_index_files(store), dict[str, Any]()
    with count_index_reads() as counts:
        before = time.process_time()
        settings = determine_index_settings(store, listed, GivenSettings(*_GEOMETRY))
        figures["settings"] = {"cpu_s": round(time.process_time() - before, 2), **counts}
    with open_scratch(str(directory), {}) as scratch:
        keys = collect_keys(SerialWorkers(), store, plan_ranges(store), settings.rules.value.rules, scratch)
        with count_index_reads() as counts:
            before = time.process_time()
            FilePlacer(keys, _GEOMETRY, store).place_all(listed)
            figures["places"] = {"cpu_s": round(time.process_time() - before, 2), **counts}
    return {"files": len(listed), "baseline_bytes_of_slots": len(listed) * _GEOMETRY.hash_slots * SLOT.size, **figures}


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, files=[100, 200, 400], directory=DIRECTORY)
    directory = options.directory / "index-settings"
    figures = [measure(directory, files) for files in options.files]
    shutil.rmtree(directory)
    print_result({"sizes": figures})


if __name__ == "__main__":
    main()
