"""
What `ingest --inflate` costs: one process brings the same log into a lake without `body_inflated`, and with it.

    python -m benchmarks.inflation [--messages N] [--runs N] [--folder DIR]

Every body is JSON that its client has compressed, and no two are the same. Both ways take turns after one run each that
does not count; of the others the median does. The lake has messages alone.
"""

import json
import shutil
import time
import zlib
from pathlib import Path
from random import Random
from statistics import median

from benchmarks.broker import RELEASE
from benchmarks.measuring import answer, asked
from benchmarks.stores import FOLDER
from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.store.selection import Selection
from jobs.store.workers import OneByOne
from rmq_formats.flags import COMPRESSED
from tests.rmq_formats.builders import a_record
from tests.support.broker import Broker

_SEGMENT = 64 << 20
_ITEMS = 100  # of an order: some 5 KB


def an_order(random: Random) -> bytes:
    """Return a body as a shop would send it."""
    items = [
        {"item": random.randrange(10**6), "quantity": random.randrange(1, 10), "price": random.randrange(10**5) / 100}
        for _ in range(_ITEMS)
    ]
    return json.dumps({"order": random.randrange(10**9), "currency": "EUR", "items": items}).encode()


def measure(folder: Path, messages: int, runs: int) -> dict[str, dict[str, float]]:
    """Return what each way costs, and what the bodies are."""
    random = Random(4711)
    bodies = [an_order(random) for _ in range(messages)]
    stored = [zlib.compress(body) for body in bodies]
    Broker(folder / "store", segment_size=_SEGMENT).append(a_record(body, sys_flag=COMPRESSED) for body in stored)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    mib: dict[bool, float] = {}
    for _ in range(runs + 1):
        for inflated, times in seconds.items():
            lake = folder / "lake"
            shutil.rmtree(lake, ignore_errors=True)
            selection = Selection(with_inflated=inflated)
            asked = IngestRequest(
                str(folder / "store"), str(lake), broker="b", release=RELEASE, tables=frozenset(), selection=selection
            )
            began = time.process_time()
            ingest(asked, OneByOne())
            times.append(time.process_time() - began)
            mib[inflated] = _mib(sum(path.stat().st_size for path in lake.rglob("*") if path.is_file()))
    costs = {
        inflated: {"cpu_s": round(median(times[1:]), 2), "lake_mib": mib[inflated]}
        for inflated, times in seconds.items()
    }
    return {
        "bodies": {"sent_mib": _mib(sum(map(len, bodies))), "stored_mib": _mib(sum(map(len, stored)))},
        "as_stored": costs[False],
        "inflated": costs[True],
        "times": {name: round(costs[True][name] / costs[False][name], 2) for name in ("cpu_s", "lake_mib")},
    }


def _mib(size: int) -> float:
    return round(size / (1 << 20), 2)


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, messages=50_000, runs=5, folder=FOLDER)
    folder = given.folder / "inflation"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        found = measure(folder, given.messages, given.runs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    answer({"messages": given.messages, "runs": given.runs, **found})


if __name__ == "__main__":
    main()
