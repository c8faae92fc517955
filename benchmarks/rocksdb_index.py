"""
Measure `verify` of an index in RocksDB, which a store has instead of index files, at several sizes.

    python -m benchmarks.rocksdb_index [--rows N N N] [--directory DIR]

The baseline only reads the rows. The records have 256 bytes and three rows each: of a key, a tag and a unique key.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

from rocksdict import Options, Rdict

from benchmarks.measuring import measure_cost, parse_options, print_result
from benchmarks.stores import DIRECTORY, FIRST_TIMESTAMP, Recipe, compute_offsets, make_store
from jobs.products.index.key_sequence import collect_keys
from jobs.storage.scratch import Scratch
from jobs.store.ranges import plan_ranges
from jobs.store.release import determine_writers
from jobs.store.rocksdb import StoredDatabase
from jobs.store.store import list_store
from jobs.store.workers import SerialWorkers
from jobs.verify.rocksdb_index import compare_rows, sort_rows
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.rocksdb.layout import INDEX_FAMILY, INDEX_VALUE, key_prefix
from rmq_formats.store import ROCKSDB_STORE_DIRECTORY

_RELEASE = "5.5.1"  # releases before 5.4.0 have no index in RocksDB
_RECORD_SIZE = 256
_ROWS = 3  # of a record
_HOUR_MS = 3_600_000


def make_store_with_index(rows: int, directory: Path) -> Path:
    """Write a store whose index has that many rows, unless it exists; return its root."""
    recipe = Recipe(rows // _ROWS * _RECORD_SIZE, _RECORD_SIZE)
    store = make_store(recipe, directory)
    path = store / ROCKSDB_STORE_DIRECTORY
    if (path / "CURRENT").exists():
        return store
    database = Rdict(str(path), Options(raw_mode=True))
    for number, offset in enumerate(compute_offsets(recipe).tolist()):
        time, topic = FIRST_TIMESTAMP + number // 10, f"Bench{number % recipe.topics:03}"
        unique_key = f"0A0000078C3C18B4AAC2{number:012}"
        hour, end = (value.to_bytes(8, "big") for value in (time // _HOUR_MS * _HOUR_MS, offset))
        for kind, key in ((KeyKind.KEY, f"order-{number:012}"), (KeyKind.TAG, "TagA")):
            database[hour + key_prefix(topic, kind, key) + unique_key.encode() + b"@" + end] = INDEX_VALUE.pack(time)
        database[hour + key_prefix(topic, KeyKind.UNIQUE, unique_key) + end] = INDEX_VALUE.pack(time)
    database.flush()
    database.close()
    return store


def measure(rows: int, directory: Path) -> dict[str, Any]:
    """Return the costs of reading and of comparing that many rows."""
    root, workers = str(make_store_with_index(rows, directory)), SerialWorkers()
    store = list_store(root)
    stored = StoredDatabase.in_directory(store, ROCKSDB_STORE_DIRECTORY)
    with measure_cost() as reading:
        count = sum(len(keys) for keys, _ in stored.database.rows(INDEX_FAMILY))
    with tempfile.TemporaryDirectory() as location:
        scratch = Scratch(location)
        rules = determine_writers(store, _RELEASE).value.rules
        keys = collect_keys(workers, store, plan_ranges(store), rules, scratch)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # begin a new peak
        before = _read_peak_mib()
        with measure_cost() as comparing:
            key_count, differences = compare_rows(workers, sort_rows(workers, stored, scratch), keys, scratch)
        peak = _read_peak_mib()
    if differences or key_count != count:
        raise SystemExit(f"{root}: a generated index must be healthy, but differs from the log: {differences}")
    return {
        "rows": count,
        "baseline_read_us_per_row": round(reading.cpu_s / count * 1e6, 2),
        "compare_us_per_row": round(comparing.cpu_s / count * 1e6, 2),
        "more_peak_mib": round(peak - before, 1),
    }


def _read_peak_mib() -> float:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, rows=[500_000, 1_000_000, 2_000_000], directory=DIRECTORY)
    measure(min(options.rows), options.directory)  # loads compiled code
    print_result({"load": os.getloadavg(), "sizes": [measure(rows, options.directory) for rows in options.rows]})


if __name__ == "__main__":
    main()
