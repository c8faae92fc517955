"""
Rebuild the index of a log of default geometry, and let a real broker do the same.

    python benchmarks/rebuild_index.py [--gib N] [--folder DIR] [--release X.Y.Z | --no-broker] [--cores N]

Both read the log from the page cache and write full-size files; the start of either JVM is not counted. The files must
be the same, byte for byte, before any time is printed. CPU seconds are those of all processes: a shared machine
stretches wall times, but not these.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.measuring import Measured, measured, vars_of
from benchmarks.stores import Recipe, make_store
from jobs.indexing.rebuilding import Request, Result, rebuild
from jobs.indexing.settings import Wanted
from jobs.source.workers import OneByOne, SparkWorkers, Workers

RECORD_SIZE = 256
_RUNS = 3
_PATIENCE = 3600  # seconds


def ours(store: Path, out: Path, workers: Workers) -> tuple[Result, Measured]:
    """Rebuild all files."""
    shutil.rmtree(out, ignore_errors=True)
    with measured() as figures:
        result = rebuild(Request(str(store), str(out), Wanted(release="5.3.3")), workers, {})
    return result, figures


def broker(store: Path, release: str, folder: Path) -> tuple[list[str], float]:
    """Let a broker build queues and index of the same log; return the files' hashes and its seconds of dispatching."""
    from tests.oracle import process
    from tests.oracle.sessions import rebuild_by_broker

    process._ANSWER_SECONDS = _PATIENCE  # type: ignore[misc]  # noqa: SLF001 - a machine may be busy
    copy = folder / "broker"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store, copy, ignore=shutil.ignore_patterns("checkpoint", "index", "consumequeue"))
    seconds = rebuild_by_broker(release, copy).dispatch_seconds
    hashes = [_hash(path) for path in sorted((copy / "index").iterdir())]
    shutil.rmtree(copy)
    return hashes, seconds


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        digest = sha256()
        while data := file.read(1 << 24):
            digest.update(data)
    return digest.hexdigest()


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=5.5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "rocketmq-lake-benchmark")
    parser.add_argument("--release", default="5.3.3")
    parser.add_argument("--no-broker", action="store_true")
    parser.add_argument("--cores", type=int, default=2)
    told = parser.parse_args()
    store = make_store(Recipe(int(told.gib * (1 << 30)), RECORD_SIZE), told.folder)
    out = told.folder / "out"
    figures: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "command": " ".join(["python", "benchmarks/rebuild_index.py", *sys.argv[1:]]),
        "log_gib": told.gib,
    }
    _, one = ours(store, out, OneByOne())
    result, one = ours(store, out, OneByOne())
    figures |= {"messages": result.records, "keys": result.row_keys, "one_process": vars_of(one)}

    from jobs.session import spark_session

    options = ["--master", f"local[{told.cores}]"]
    workers = SparkWorkers(spark_session("benchmark", spark_options=options, record_classes=False))
    runs = [ours(store, out, workers)[1] for _ in range(_RUNS)]
    best = min(runs, key=lambda run: run.wall_s)
    figures["spark"] = vars_of(best) | {"cores": told.cores, "runs_wall_s": [run.wall_s for run in runs]}
    print(json.dumps(figures), file=sys.stderr)
    if not told.no_broker:
        hashes, seconds = broker(store, told.release, told.folder)
        made = [file["sha256"] for file in result.files]
        if made != hashes:
            raise SystemExit(f"the broker's files differ: {hashes}, ours {made}")
        figures["broker"] = {"release": told.release, "dispatch_s": round(seconds, 2), "equal_files": len(hashes)}
        figures["times_faster"] = round(seconds / best.wall_s, 1)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
