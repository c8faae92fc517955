"""
Queues rebuilt from a log, then verified against it: rate, CPU and memory.

    python benchmarks/queues.py [MILLION UNITS [QUEUES [FOLDER]]]

A real broker, its index switched off, makes the same queues of the same log in the same run (`NO_BROKER=1`: it does
not). Also: how many bytes a run reads of many queues that each have one new unit.
"""

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.broker import RELEASE, hashes_below, rebuilt_by_broker
from benchmarks.stores import Recipe, make_store
from jobs.queues.files import stored_queues
from jobs.queues.looking import look
from jobs.queues.settings import known_releases, queue_rules
from jobs.rebuild_consumequeue import Request, rebuild
from jobs.source.listing import StoreListing, list_store
from jobs.source.workers import OneByOne, SparkWorkers, Workers
from jobs.storage.local import LocalReader
from jobs.verification.queues import verify_queues
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.consumequeue.layout import UNIT

_RECORD_SIZE = 256
_MANY = 50_000


@dataclass(slots=True)
class _Measured:
    seconds: float = 0
    cpu_seconds: float = 0
    result: dict[str, Any] = field(default_factory=dict)


@contextmanager
def _measured() -> Iterator[_Measured]:
    measured = _Measured()
    begun, cpu = time.perf_counter(), _cpu()
    yield measured
    measured.seconds = round(time.perf_counter() - begun, 2)
    measured.cpu_seconds = round(_cpu() - cpu, 2)


def _cpu() -> float:
    """Return the CPU seconds of this process and of what it has waited for; Spark's workers are neither."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def _workers() -> Workers:
    if os.environ.get("ONE_BY_ONE"):
        return OneByOne()
    from jobs.session import spark_session

    return SparkWorkers(spark_session("queues"))


def _verify(workers: Workers, listing: StoreListing) -> dict[str, Any]:
    rules = queue_rules(listing, known_releases(listing, RELEASE).value, BrokerConf())
    report = verify_queues(workers, listing, rules)
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


def _many_queues(folder: Path) -> dict[str, Any]:
    """Count the bytes that are read of queues with one new unit each."""
    store = folder / "many"
    if not store.exists():
        for number in range(_MANY):
            queue = store / "consumequeue" / f"T{number}" / "0"
            queue.mkdir(parents=True)
            with (queue / "00000000000000000000").open("wb") as file:
                file.write(b"".join(UNIT.pack(unit * 300, 300, 1) for unit in range(100)) + UNIT.pack(30_000, 300, 1))
                file.truncate(6_000_000)
        (store / "commitlog").mkdir()
        (store / "checkpoint").write_bytes(bytes(4096))
        (store / "abort").touch()
    listing = list_store(str(store))
    marks = {queue.name: 100 for queue in stored_queues(listing)}
    counted = 0
    read = LocalReader.read

    def counting(self: LocalReader, position: int, length: int) -> bytes:
        nonlocal counted
        data = read(self, position, length)
        counted += len(data)
        return data

    LocalReader.read = counting  # type: ignore[method-assign]
    try:
        with _measured() as measured:
            seen = look(OneByOne(), listing, marks)
    finally:
        LocalReader.read = read  # type: ignore[method-assign]
    if sum(seen.ends) != 101 * _MANY:
        raise SystemExit("a unit was not seen")
    return {"queues": _MANY, "bytes_read": counted, "seconds": measured.seconds, "cpu_seconds": measured.cpu_seconds}


def main() -> None:
    """Print one JSON document."""
    given = dict(enumerate(sys.argv))
    queues = int(given.get(2, "1000"))
    folder = Path(given.get(3) or Path(tempfile.gettempdir()) / "rocketmq-lake-bench")
    units = int(float(given.get(1, "5")) * 1_000_000)
    store = make_store(Recipe(units * _RECORD_SIZE, _RECORD_SIZE, topics=max(queues // 4, 1)), folder)
    workers = _workers()
    out = folder / "queues"
    shutil.rmtree(out, ignore_errors=True)
    with _measured() as rebuilt:
        summary = rebuild(Request(str(store), out, release=RELEASE), workers, {})
    peer = {} if os.environ.get("NO_BROKER") else _broker(store, out, folder)
    shutil.rmtree(store / "consumequeue", ignore_errors=True)
    out.rename(store / "consumequeue")
    (store / "consumequeue" / "MANIFEST.json").unlink()
    with _measured() as verified:
        numbers = _verify(workers, list_store(str(store)))
    document: dict[str, Any] = {
        "units": summary.units,
        "queues": summary.queues,
        "record_bytes": _RECORD_SIZE,
        "workers": type(workers).__name__,
        "rebuild": {"seconds": rebuilt.seconds, "units_per_second": round(summary.units / rebuilt.seconds)},
        "broker": peer,
        "verify": {"seconds": verified.seconds, "units_per_second": round(summary.units / verified.seconds), **numbers},
        "peak_memory_mib": {
            "driver": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            "children": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
        },
        "load": os.getloadavg(),
        "one_new_unit_each": _many_queues(folder),
    }
    if isinstance(workers, OneByOne):
        document["rebuild"]["cpu_seconds"] = rebuilt.cpu_seconds
        document["verify"]["cpu_seconds"] = verified.cpu_seconds
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
