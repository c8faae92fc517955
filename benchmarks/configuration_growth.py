"""
Measure how a lake grows by consumer offsets, if a run every five minutes finds that every group has moved everywhere.

    python -m benchmarks.configuration_growth [--offsets N N N] [--runs N] [--directory DIR]

For each number of offsets (queues times groups), runs are measured for their bytes; then their states are thinned out
as if they were old. A year has too many runs for a benchmark: its bytes are the states that the lake keeps, counted by
the rule itself, times the measured bytes of a state. The baseline keeps all states, as each run writes them.
"""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.measuring import parse_options, print_growth
from benchmarks.stores import DIRECTORY, LiveStore, Recipe
from jobs.ingest.run import ingest
from jobs.lake.commit import open_table
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import list_lake_stores
from jobs.lake.snapshot_files import list_snapshot_files
from jobs.lake.tables import CONFIG_FILES, CONSUMER_OFFSETS
from jobs.lake.thinning import RunPeriods
from jobs.lake.upkeep import thin_states
from jobs.requests.ingest import IngestRequest
from jobs.store.workers import SerialWorkers

_GROUPS, _QUEUES_PER_TOPIC = 4, 8
_APART_MS, _DAY_MS = 300_000, 86_400_000
_NOW_MS = 20_000 * _DAY_MS
_TABLES = (CONFIG_FILES, CONSUMER_OFFSETS)
_MIB = 1 << 20


def measure(directory: Path, offsets: int, runs: int) -> dict[str, Any]:
    """Return the figures for one number of offsets."""
    shutil.rmtree(directory, ignore_errors=True)
    store, lake = LiveStore(directory / "store", Recipe(0, 400, compressible=True)), Lake(str(directory / "lake"))
    positions, random = np.full(offsets, 1_000_000), np.random.default_rng(1)
    rates = np.exp(random.normal(3, 1.5, offsets))
    (store.root / "config").mkdir(parents=True, exist_ok=True)
    written = 0
    for _ in range(runs):
        positions = positions + random.poisson(rates)
        _write_offsets(store.root / "config" / "consumerOffset.json", positions.tolist())
        store.append(1)
        known = {path for table in _TABLES for path in Path(lake.locate(table.name)).glob("*.parquet")}
        ingest(IngestRequest(str(store.root), lake.location, broker="b"), SerialWorkers())
        new = {path for table in _TABLES for path in Path(lake.locate(table.name)).glob("*-config-*")} - known
        written += sum(path.stat().st_size for path in new)
    recent = _count_live_bytes(lake) / runs
    (store_id,) = (lake_store.store_id for lake_store in list_lake_stores(lake))
    # Every second run is the newest one of its hour.
    hour_ms = 3_600_000
    times = {run: _NOW_MS - 10 * _DAY_MS + run // 2 * hour_ms + run % 2 for run in range(2, runs + 2)}
    periods = RunPeriods.from_times(store_id, {run - 1: time for run, time in times.items()}, _NOW_MS)
    with patch.object(RunPeriods, "read", lambda *_: periods):
        for table in _TABLES:
            thin_states(lake, table, [store_id])
    thinned = _count_live_bytes(lake) / periods.count_states(1, runs)[1]
    manifests = Path(lake.locate("_manifests"))
    return {
        "offsets": offsets,
        "manifest_kib": round(max(path.stat().st_size for path in manifests.glob("*.json")) / 1024, 1),
        "kib_per_run": round(written / runs / 1024, 1),
        "kib_per_recent_state": round(recent / 1024, 1),
        "kib_per_old_state": round(thinned / 1024, 1),
        "mib_after_days": {days: _estimate_mib(days, recent, thinned) for days in (30, 365, 3 * 365)},
        "baseline_mib_after_days": {
            days: round(days * _DAY_MS / _APART_MS * written / runs / _MIB) for days in (30, 365, 3 * 365)
        },
    }


def _estimate_mib(days: int, recent: float, thinned: float) -> int:
    count = days * _DAY_MS // _APART_MS
    times = {run: _NOW_MS - (count - run) * _APART_MS for run in range(count)}
    periods = RunPeriods.from_times("", times, _NOW_MS)
    _, kept = periods.count_states(0, count)
    _, recently = periods.count_states(count - 3 * _DAY_MS // _APART_MS, count)
    return round(((kept - recently) * thinned + recently * recent) / _MIB)


def _write_offsets(path: Path, positions: list[int]) -> None:
    table = {}
    for start in range(0, len(positions), _QUEUES_PER_TOPIC):
        number = start // _QUEUES_PER_TOPIC
        name = f"orders-topic-{number // _GROUPS:04}@billing-group-{number % _GROUPS}"
        table[name] = {str(queue): one for queue, one in enumerate(positions[start : start + _QUEUES_PER_TOPIC])}
    path.write_text(json.dumps({"offsetTable": table}, separators=(",", ":")))


def _count_live_bytes(lake: Lake) -> int:
    size = 0
    for table in _TABLES:
        snapshot = open_table(lake, table.name)
        size += sum(file.size for file in list_snapshot_files(lake, snapshot)) if snapshot is not None else 0
    return size


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, offsets=[2000, 6000, 20_000], runs=48, directory=DIRECTORY)
    print_growth(options.offsets, options.directory / "configuration-growth", partial(measure, runs=options.runs))


if __name__ == "__main__":
    main()
