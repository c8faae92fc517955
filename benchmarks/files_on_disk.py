"""
Count the files of a lake after many runs of a few messages, one every five minutes.

    python -m benchmarks.files_on_disk [--runs N N N] [--interval S] [--directory DIR]

The time between runs is simulated: each run's files and log entries are dated as if it had been made at its time, so
that the last run is made now. The baseline is the number of files that the runs have created.
"""

import os
import shutil
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.measuring import parse_options, print_growth
from benchmarks.stores import DIRECTORY, LiveStore, Recipe
from jobs.ingest.run import ingest
from jobs.lake import upkeep
from jobs.requests.ingest import IngestRequest
from jobs.store.workers import SerialWorkers

_MESSAGES = 60


def measure(directory: Path, runs: int, interval_s: int) -> dict[str, Any]:
    """Return the figures for one number of runs."""
    shutil.rmtree(directory, ignore_errors=True)
    store = LiveStore(directory / "store", Recipe(0, 400, compressible=True, topics=4, queues=4))
    lake = directory / "lake"
    created = set[Path]()
    cpu_s = time.process_time()
    for run in range(1, runs + 1):
        at = time.time_ns() / 1e9 - (runs - run) * interval_s
        store.append(_MESSAGES)
        with (
            patch("jobs.lake.commit.time.time", lambda at=at: at),
            patch.object(upkeep, "_measure_runs", lambda *_: upkeep.MAX_SMALL_FILES * interval_s),
        ):
            ingest(IngestRequest(str(store.root), str(lake), broker="b"), SerialWorkers())
        for path in _list_files(lake) - created:
            created.add(path)
            os.utime(path, (at, at))
    left = _list_files(lake)
    directories = Counter("/".join(path.relative_to(lake).parts[:-1]) for path in left)
    return {
        "runs": runs,
        "interval_s": interval_s,
        "files": len(left),
        "kib": round(sum(path.stat().st_size for path in left) / 1024),
        "log_kib": round(sum(path.stat().st_blocks for path in (store.root / "commitlog").iterdir()) / 2),
        "files_in_the_fullest_directories": dict(directories.most_common(4)),
        "baseline_files": len(created),
        "cpu_s_per_run": round((time.process_time() - cpu_s) / runs, 3),
    }


def _list_files(lake: Path) -> set[Path]:
    return {path for path in lake.rglob("*") if path.is_file()}


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, runs=[125, 250, 500], interval=300, directory=DIRECTORY)
    print_growth(options.runs, options.directory / "files-on-disk", partial(measure, interval_s=options.interval))


if __name__ == "__main__":
    main()
