"""
Measure the plan of a log's segments and files from a lake, with which `restore`, `diff` and `repair --lake` begin.

    python -m benchmarks.plan_of_log [--segments N N N] [--directory DIR]

A log of 10 TB has 10,000 segments and 40,000 files of messages. Here, segments have 16 KiB with 15 messages, and each
fourth of a segment is a range, so that all numbers except those of messages are those of a large log. Files of messages
are not merged, because those of a large log are not small. The baseline is the time to list the table's files from
Delta's log.
"""

import pickle
import shutil
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.measuring import parse_options, print_result
from benchmarks.stores import DIRECTORY, Recipe, make_store
from jobs.ingest.run import ingest
from jobs.lake import upkeep
from jobs.lake.commit import open_table
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import list_lake_stores
from jobs.lake.snapshot_files import list_snapshot_files
from jobs.lake.tables import MESSAGES
from jobs.requests.ingest import IngestRequest
from jobs.restore.plan import plan_log
from jobs.store.workers import SerialWorkers

_SEGMENT_SIZE, _RECORD_SIZE = 16 << 10, 1024
_RANGES_PER_SEGMENT = 4
_TB = 10**12
_LARGE_SEGMENT = 1 << 30


def measure(directory: Path, segments: int) -> dict[str, Any]:
    """Return the figures for one number of segments."""
    messages = segments * (_SEGMENT_SIZE // _RECORD_SIZE - 1)
    recipe = Recipe(messages * _RECORD_SIZE, _RECORD_SIZE, segment_size=_SEGMENT_SIZE)
    store, lake = make_store(recipe, directory), Lake(str(directory / f"lake-of-{segments}-segments"))
    shutil.rmtree(lake.location, ignore_errors=True)
    request = IngestRequest(
        str(store), lake.location, broker="b", tables=frozenset({"messages"}),
        range_size=_SEGMENT_SIZE // _RANGES_PER_SEGMENT,
    )  # fmt: skip
    is_small = upkeep.is_small_file
    began = time.process_time()
    with patch.object(upkeep, "is_small_file", lambda file, table: table is not MESSAGES and is_small(file, table)):
        ingest(request, SerialWorkers())
    ingest_s = time.process_time() - began
    (known,) = list_lake_stores(lake)
    snapshot = open_table(lake, MESSAGES.name)
    if snapshot is None:
        raise SystemExit(f"{lake.location}: no table of messages")
    began = time.process_time()
    files = list_snapshot_files(lake, snapshot)
    listed_s = time.process_time() - began
    began = time.process_time()
    plan = plan_log(lake, known)
    planned_s = time.process_time() - began
    if len(plan.segments) != segments or plan.lost_files:
        raise SystemExit(f"{lake.location}: {len(plan.segments)} segments are planned instead of {segments}")
    shutil.rmtree(lake.location)
    return {
        "segments": segments,
        "files": len(files),
        "tb_with_segments_of_1_gib": round(segments * _LARGE_SEGMENT / _TB, 1),
        "plan_s": round(planned_s, 2),
        "kib_of_tasks": round(sum(len(pickle.dumps(segment)) for segment in plan.segments) / 1024),
        "files_in_the_fullest_task": max(len(segment.message_files) for segment in plan.segments),
        "baseline_list_files_s": round(listed_s, 2),
        "ingest_s": round(ingest_s, 2),
    }


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, segments=[1000, 2000, 4000], directory=DIRECTORY)
    print_result({"sizes": [measure(options.directory, segments) for segments in options.segments]})


if __name__ == "__main__":
    main()
