"""
Queues rebuilt from a log, then verified against it: rate, CPU and memory.

    python -m benchmarks.queues [MILLION_UNITS [QUEUES]] [--no-broker] [--one-process] [--folder DIR]

A real broker, its index switched off, makes the same queues of the same log in the same run; the files must be the
same, byte for byte. The same queues as a database of RocksDB, made and verified. Also: how many bytes a run reads of
many queues that each have one new unit.
"""

import argparse
import os
import resource
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.broker import RELEASE, hashes_below, rebuilt_by_broker
from benchmarks.measuring import Measured, answer, measured
from benchmarks.stores import FOLDER, Recipe, make_store
from jobs.launch.engine import cores
from jobs.products.queues.settings import known_releases, queue_rules
from jobs.rebuild.queue_run import RebuildQueuesRequest, rebuild
from jobs.rebuild.queues import Target
from jobs.storage.local import LocalReader
from jobs.store.queue_ends import look
from jobs.store.queue_files import stored_queues
from jobs.store.spark_workers import SparkWorkers
from jobs.store.store import Store, list_store
from jobs.store.workers import InProcessWorkers, OneByOne, Workers
from jobs.verify.queues import compare_queues
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.consumequeue.layout import UNIT

_RECORD_SIZE = 256
_MANY = 50_000
_TAKEN = 100  # units of each of them, before the new one


def _rate(units: int, figures: Measured) -> dict[str, float]:
    return {
        "seconds": figures.wall_s,
        "cpu_seconds": figures.cpu_s,
        "units_per_second": round(units / figures.wall_s),
        "peak_worker_mib": figures.peak_worker_mib,
    }


def _workers(*, one_process: bool) -> Workers:
    if one_process:
        return InProcessWorkers(width=cores())
    from jobs.launch.session import spark_session

    return SparkWorkers(spark_session("queues"))


def _verify(workers: Workers, store: Store) -> dict[str, Any]:
    rules = queue_rules(store, known_releases(store, RELEASE).value.rules, BrokerConf())
    report = compare_queues(workers, store, rules).report
    if report.findings:
        raise SystemExit(report.findings[0].text)
    return dict(report.numbers)


def _broker(store: Path, out: Path, folder: Path) -> dict[str, Any]:
    """Let a broker make the queues, which must be those that lie in *out*."""
    with rebuilt_by_broker(store, folder, settings={"messageIndexEnable": "false"}) as (copy, seconds):
        theirs = hashes_below(copy / "consumequeue")
    ours = hashes_below(out)
    ours.pop("MANIFEST.json")
    if ours != theirs:
        raise SystemExit(f"{len(ours.items() ^ theirs.items())} of the broker's files and of ours differ")
    return {"release": RELEASE, "rebuild_s": round(seconds, 2), "equal_files": len(theirs)}


def _as_database(workers: Workers, store: Path, out: Path) -> dict[str, Any]:
    """Make the queues as a database and verify it in place of the files."""
    shutil.rmtree(out, ignore_errors=True)
    with measured() as rebuilt:
        summary = rebuild(RebuildQueuesRequest(str(store), out, release=RELEASE, to=Target.ROCKSDB), workers)
    shutil.rmtree(store / "consumequeue")
    (out / "consumequeue").rename(store / "consumequeue")
    size = sum(path.stat().st_size for path in (store / "consumequeue").iterdir())
    with measured() as verified:
        numbers = _verify(workers, list_store(str(store)))
    return {
        "bytes": size,
        "rebuild": _rate(summary.units, rebuilt),
        "verify": _rate(summary.units, verified) | numbers,
    }


def _many_queues(folder: Path) -> dict[str, Any]:
    """Count the bytes that are read of queues with one new unit each."""
    root = folder / "many"
    if not (root / "abort").exists():
        for number in range(_MANY):
            queue = root / "consumequeue" / f"T{number}" / "0"
            queue.mkdir(parents=True, exist_ok=True)
            with (queue / "00000000000000000000").open("wb") as file:
                file.write(b"".join(UNIT.pack(at * _RECORD_SIZE, _RECORD_SIZE, 1) for at in range(_TAKEN + 1)))
                file.truncate(6_000_000)
        (root / "commitlog").mkdir(exist_ok=True)
        (root / "checkpoint").write_bytes(bytes(4096))
        (root / "abort").touch()
    store = list_store(str(root))
    marks = {queue.name: _TAKEN for queue in stored_queues(store)}
    counted = 0
    read = LocalReader.read

    def counting(self: LocalReader, position: int, length: int) -> bytes:
        nonlocal counted
        data = read(self, position, length)
        counted += len(data)
        return data

    with patch.object(LocalReader, "read", counting), measured() as looked:
        seen = look(OneByOne(), store, marks, _TAKEN * _RECORD_SIZE)
    if sum(seen.ends) != (_TAKEN + 1) * _MANY:
        raise SystemExit("a unit was not seen")
    return {"queues": _MANY, "bytes_read": counted, "seconds": looked.wall_s, "cpu_seconds": looked.cpu_s}


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("million_units", nargs="?", type=float, default=5)
    parser.add_argument("queues", nargs="?", type=int, default=1000)
    parser.add_argument("--no-broker", action="store_true")
    parser.add_argument("--one-process", action="store_true")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args()
    size = int(given.million_units * 1_000_000) * _RECORD_SIZE
    store = make_store(Recipe(size, _RECORD_SIZE, topics=max(given.queues // 4, 1)), given.folder)
    workers = _workers(one_process=given.one_process)
    out = given.folder / "queues"
    for made_before in (out, store / "consumequeue"):
        shutil.rmtree(made_before, ignore_errors=True)
    with measured() as rebuilt:
        summary = rebuild(RebuildQueuesRequest(str(store), out, release=RELEASE), workers)
    peer = {} if given.no_broker else _broker(store, out, given.folder)
    out.rename(store / "consumequeue")
    (store / "consumequeue" / "MANIFEST.json").unlink()
    with measured() as verified:
        numbers = _verify(workers, list_store(str(store)))
    document = {
        "units": summary.units,
        "queues": summary.queues,
        "record_bytes": _RECORD_SIZE,
        "workers": type(workers).__name__,
        "rebuild": _rate(summary.units, rebuilt),
        "broker": peer,
        "verify": _rate(summary.units, verified) | numbers,
        "rocksdb": _as_database(workers, store, out),
        "peak_memory_mib": {
            "driver": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            "children": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,  # that have ended: the broker
        },
        "load": os.getloadavg(),
        "one_new_unit_each": _many_queues(given.folder),
    }
    answer(document)


if __name__ == "__main__":
    main()
