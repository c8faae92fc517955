"""
What lies in a lake that is followed at one commit a second for days: files, Delta's logs, the time to open a table.

    python -m benchmarks.long_following [--steps N] [--every SECONDS] [--faster TIMES]

A step is a run as `ingest --follow` does it, five messages into all tables. The clock runs *faster*: what is kept is
kept for so much shorter a time, so that the lake reaches the size at which it stays. `kept_steps` are the steps that
fell into that time. Each sample also looks whether files are gone that a reader who had begun less than that time ago
still reads.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from unittest.mock import patch

from deltalake import DeltaTable

from benchmarks.incremental_runs import sizes
from benchmarks.measuring import provenance
from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.lake import upkeep
from jobs.lake.lake import Lake
from jobs.lake.snapshots import kept_snapshots
from jobs.products.index.kept_slots import kept_slots
from jobs.store.workers import OneByOne
from tests.support.broker import Broker, some_records

_MESSAGES = 5
_KEPT_STEPS = 3600  # at one commit a second
_SAMPLED = 60  # steps: not a multiple of those between two merges
_READ = ("messages", "consume_queue", "index_entries")  # what a query that takes long reads
Sample = dict[str, float]


@dataclass(slots=True)
class Readers:
    """Files of versions that somebody may still be reading."""

    lake: Path
    kept_s: float
    begun: list[tuple[float, set[Path]]] = field(default_factory=list)

    def begin(self) -> float:
        """Begin to read the newest version; return the median of what opening a table took, in ms."""
        took, files = [], set()
        for name in _READ:
            began = time.perf_counter()
            table = DeltaTable(self.lake / name)
            took.append(time.perf_counter() - began)
            files |= {self.lake / name / str(path) for path in table.get_add_actions().column("path").to_pylist()}
        self.begun.append((time.monotonic(), files))
        return 1000 * median(took)

    def missing(self) -> int:
        """Count files that are gone though a reader has them."""
        self.begun = [one for one in self.begun if time.monotonic() - one[0] < self.kept_s]
        return sum(not path.exists() for _, files in self.begun for path in files)


def measure(folder: Path, steps: int, every_s: float, faster: float) -> Iterator[Sample]:
    """Follow a store; yield what lies in the lake every so many steps."""
    broker = Broker(folder / "store", segment_size=1 << 24, dispatches=True)
    request = IngestRequest(str(broker.root), str(folder / "lake"), broker="b")
    lake = folder / "lake"
    kept_s = _KEPT_STEPS / faster
    readers = Readers(lake, kept_s)
    ends: list[float] = []
    with ExitStack() as stack:
        stack.enter_context(
            patch.object(upkeep, "minutes", lambda count: f"interval {round(count * 60 / faster)} seconds")
        )
        snapshots = stack.enter_context(kept_snapshots())
        stack.enter_context(kept_slots())
        cpu = time.process_time()
        for number in range(1, steps + 1):
            began = time.monotonic()
            snapshots.renew()
            broker.append(some_records(_MESSAGES, seed=number))
            if ingest(request, OneByOne()).messages != _MESSAGES:
                raise SystemExit(f"step {number} brought other messages")
            if number == 1:
                upkeep.expect_many_commits(Lake(str(lake)), 1.0)
            ends.append(time.monotonic())
            if number % _SAMPLED == 0 or number == steps:
                used = time.process_time() - cpu
                yield {
                    "step": number,
                    "kept_steps": sum(end > ends[-1] - kept_s for end in ends),
                    "cpu_s_a_step": round(used / _SAMPLED, 3),
                    "missing_for_readers": readers.missing(),
                    "open_ms": round(readers.begin(), 1),
                    **sizes(lake),
                }
                cpu = time.process_time()
            time.sleep(max(every_s - (time.monotonic() - began), 0))


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--every", type=float, default=0.5)
    parser.add_argument("--faster", type=float, default=20)
    given = parser.parse_args()
    samples = []
    with tempfile.TemporaryDirectory() as folder:
        for sample in measure(Path(folder), given.steps, given.every, given.faster):
            samples.append(sample)
            print(sample, file=sys.stderr, flush=True)
    print(json.dumps({**provenance(), "samples": samples}, indent=1))


if __name__ == "__main__":
    main()
