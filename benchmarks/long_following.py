"""
What lies in a lake that is followed for a day, or for a year: files, Delta's logs, the time to open a table.

    python -m benchmarks.long_following [--steps N] [--every SECONDS] [--faster TIMES] [--pace SECONDS]

A step is a run as `ingest --follow` does it, five messages into all tables. The clock runs *faster*: what is kept is
kept for so much shorter a time, so that the lake reaches the size at which it stays. *pace* is the command's `--every`
by that clock, and *every* what a step takes in fact. `kept_steps` are the steps that fell into the time for which
replaced files are kept. Each sample also looks whether files are gone that a reader who had begun less than that time
ago still reads.

The broker does what brokers do in a year: it keeps the log of some days, and the queues of that log; its consumers
read on, topics are added, index files fill up, now and then a body rots.
"""

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from deltalake import DeltaTable

from benchmarks.incremental_runs import sizes
from benchmarks.measuring import answer, asked
from jobs.ingest import follow
from jobs.ingest.follow import Follower, Pace, Stop
from jobs.ingest.request import IngestRequest, Summary
from jobs.lake import upkeep
from jobs.lake.commit import FILES_KEPT
from jobs.lake.lake import Lake
from jobs.lake.tables import WRITTEN_BY_RUNS
from jobs.store.workers import OneByOne
from rmq_formats.consumequeue.layout import UNIT
from tests.rmq_formats.builders import STORED, a_record
from tests.support.broker import QUEUE_FILE_SIZE, Broker, some_records

_MESSAGES = 5
_SAMPLED = 73  # steps, or a multiple: not of those between two merges, checkpoints or deletions
_SAMPLES = 40  # at most
_SEGMENT_SIZE = 1 << 15
_LOG_STEPS = 72  # whose log the broker keeps: hours, by default
_TOPIC_STEPS = 168  # between new topics
_DAMAGE_STEPS = 700
_GROUPS = 8
_SLOTS, _ENTRIES = 500, 2000  # of an index file: full after a hundred steps
_READ = ("messages", "consume_queue", "index_entries")  # what a query that takes long reads
Sample = dict[str, Any]


@dataclass(slots=True)
class LivingBroker:
    """A broker whose store does not only grow."""

    broker: Broker
    pace_ms: int
    ends: list[int] = field(default_factory=list)  # of the log, by step
    progress: dict[str, dict[int, int]] = field(default_factory=dict)  # of each group, by topic and queue

    def live(self, number: int) -> None:
        """Store the messages of a step, note how far the consumers are, and delete what has expired."""
        stored = STORED + number * self.pace_ms
        records = some_records(_MESSAGES - 1, seed=number, stored=stored)
        if number % _DAMAGE_STEPS == 0:
            records[0] = records[0]._replace(body=b"rotten"[: records[0].body_length], body_crc=0)
        topic = f"Topic{number // _TOPIC_STEPS}"
        for record in self.broker.append([*records, a_record(topic=topic, store_timestamp=stored + _MESSAGES)]):
            self.progress.setdefault(record.topic, {})[record.queue_id] = record.queue_offset + 1
        self._write_progress()
        self.ends.append(self.broker.offset)
        if number > _LOG_STEPS:
            self._expire(self.ends[number - _LOG_STEPS])

    def _write_progress(self) -> None:
        table = {f"{topic}@group{of}": read for of in range(_GROUPS) for topic, read in self.progress.items()}
        folder = self.broker.root / "config"
        folder.mkdir(exist_ok=True)
        (folder / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))

    def _expire(self, offset: int) -> None:
        """Delete the files of the log that end before *offset*, and full files of queues that lead to them alone."""
        folder = self.broker.root / "commitlog"
        for path in folder.iterdir():
            if int(path.name) + _SEGMENT_SIZE <= offset:
                path.unlink()
        start = min(int(path.name) for path in folder.iterdir())
        for path in self.broker.root.glob("consumequeue/*/*/*"):
            last, size, _ = UNIT.unpack(path.read_bytes(), QUEUE_FILE_SIZE - UNIT.size)
            if size and int(last) < start:
                path.unlink()


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


def by_table(lake: Path) -> dict[str, dict[str, float]]:
    """Return the amounts in the newest version of each table, and the time to open it."""
    found = {}
    for table in WRITTEN_BY_RUNS:
        if not (lake / table.name / "_delta_log").is_dir():
            continue
        began = time.perf_counter()
        snapshot = DeltaTable(lake / table.name)
        took = time.perf_counter() - began
        files = snapshot.get_add_actions(flatten=True)
        found[table.name] = {
            "open_ms": round(1000 * took, 1),
            "files": files.num_rows,
            "rows": sum(files.column("num_records").to_pylist()),
            "kib": round(sum(files.column("size_bytes").to_pylist()) / 1024),
            "log_files": len(list((lake / table.name / "_delta_log").iterdir())),
        }
    return found


@dataclass(slots=True)
class Following:
    """A command that follows the store, and what it leaves, step by step."""

    broker: LivingBroker
    lake: Path
    steps: int
    every_s: float
    readers: Readers
    samples: list[Sample] = field(default_factory=list)
    stop: Stop = field(default_factory=Stop)
    number: int = 0  # of steps
    ended: list[float] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)  # the step
    cpu_s: float = 0.0  # of the steps since the last sample
    cpu_at: float = field(default_factory=time.process_time)

    def run(self, request: IngestRequest) -> None:
        """Follow for so many steps."""
        self.broker.live(1)
        Follower(request, OneByOne(), Pace(0), self.stop, self.note).run()

    def note(self, summary: Summary) -> None:
        """Note what a step has left, and have the broker do what the next one will find."""
        self.number += 1
        self.cpu_s += time.process_time() - self.cpu_at
        if summary.to_offset != self.broker.broker.offset:
            raise SystemExit(f"step {self.number} did not bring all messages")
        self.ended.append(time.monotonic())
        every = _SAMPLED * max(self.steps // (_SAMPLED * _SAMPLES), 1)
        if self.number % every == 0 or self.number == self.steps:
            self.samples.append(self._sample())
            print(self.samples[-1], file=sys.stderr, flush=True)
            self.cpu_s = 0.0
        if self.number == self.steps:
            self.stop.wish()
            return
        time.sleep(max(self.every_s - (time.monotonic() - self.began), 0))
        self.began = time.monotonic()
        self.broker.live(self.number + 1)
        self.cpu_at = time.process_time()

    def _sample(self) -> Sample:
        kept = DeltaTable(self.lake / "messages").metadata().configuration[FILES_KEPT]
        self.readers.kept_s = float(kept.split()[1])
        steps = self.number - (int(self.samples[-1]["step"]) if self.samples else 0)
        manifest = max((self.lake / "_manifests").iterdir(), key=lambda path: path.stat().st_mtime)
        return {
            "step": self.number,
            "days": round(self.number * self.broker.pace_ms / 86_400_000, 1),
            "kept_steps": sum(end > self.ended[-1] - self.readers.kept_s for end in self.ended),
            "cpu_s_a_step": round(self.cpu_s / steps, 3),
            "missing_for_readers": self.readers.missing(),
            "open_ms": round(self.readers.begin(), 1),
            **sizes(self.lake),
            "manifest_bytes": manifest.stat().st_size,
            "rss_mib": resident_mib(),
            "load": round(os.getloadavg()[0], 1),
            **({"tables": by_table(self.lake)} if len(self.samples) % (_SAMPLES // 4) == _SAMPLES // 4 - 1 else {}),
        }


def measure(folder: Path, steps: int, every_s: float, faster: float, pace_s: float) -> list[Sample]:
    """Follow a store; return what lies in the lake every so many steps."""
    store, lake = folder / "store", folder / "lake"
    broker = LivingBroker(Broker(store, segment_size=_SEGMENT_SIZE, dispatches=True), round(pace_s * 1000))
    following = Following(broker, lake, steps, every_s, Readers(lake, 0))

    def expect(where: Lake, _: float) -> None:
        upkeep.expect_many_commits(where, pace_s)

    with (
        patch.object(upkeep, "minutes", lambda count: f"interval {round(count * 60 / faster)} seconds"),
        patch.object(follow, "expect_many_commits", expect),
    ):
        following.run(IngestRequest(str(store), str(lake), broker="b", hash_slots=_SLOTS, index_num=_ENTRIES))
    return following.samples


def resident_mib() -> int:
    """Return the memory that this process has resident."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, steps=1200, every=0.5, faster=20.0, pace=1.0)
    with tempfile.TemporaryDirectory() as folder:
        samples = measure(Path(folder), given.steps, given.every, given.faster, given.pace)
    answer({"samples": samples})


if __name__ == "__main__":
    main()
