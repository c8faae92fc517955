"""
Sequences of changes of a store: each step of `ingest --follow` reports and commits what a new process would.

A walk draws what the broker does between two steps. Before each step, a new run reads the same store into a copy of the
lake. Seeds that once failed are kept.
"""

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from jobs.ingest import Summary
from jobs.ingest.follow import Follower, StopRequest
from jobs.ingest.run import ingest
from jobs.requests.ingest import IngestRequest
from jobs.store.workers import SerialWorkers
from tests.support.broker import Broker, some_records
from tests.support.lakes import raw_rows

EVENTS = 9
_VARYING = ("lake", "seconds", "versions")  # the place, and what the process has done before


def _report(summary: Summary) -> dict[str, Any]:
    return {name: value for name, value in summary.to_dict().items() if name not in _VARYING}


class Walk:
    """A follower whose broker acts at each probe, with the report that a new process would give."""

    def __init__(self, root: Path, random: Random) -> None:
        self.root, self.random = root, random
        self.broker = Broker(root / "store", dispatches=random.random() < 0.5)
        self.written = self.broker.append(some_records(5))
        self.stop = StopRequest()
        self.expected: Summary | None = None
        self.compared = self.probes = 0

    def request(self, lake: str) -> IngestRequest:
        return IngestRequest(str(self.broker.root), str(self.root / lake), broker="b")

    def act(self) -> None:
        """Do something that a broker or a disk does between two runs."""
        act = self.random.choice(("grow", "grow", "cut", "truncate", "expire", "damage", "lose", "nothing"))
        if act == "grow":
            new = some_records(self.random.randrange(1, 30), seed=self.random.randrange(1 << 20))
            self.written += self.broker.append(new)
        elif act == "cut":  # a record that the broker is still writing
            self.broker.append(some_records(1, seed=self.random.randrange(1 << 20)), cut_at=40)
        elif act == "truncate":
            at = self.random.randrange(max(len(self.written) - 5, 0), len(self.written))
            self.broker.truncate(self.written[at].physical_offset)
            del self.written[at:]
            self.written += self.broker.append(some_records(3, seed=self.random.randrange(1 << 20)))
        elif act == "expire":
            self.broker.expire()
        elif act == "damage":
            (record, *_) = self.broker.append(some_records(3, seed=self.random.randrange(1 << 20)))
            self._overwrite(record.physical_offset + self.random.choice((4, 40, record.total_size - 9)))
        elif act == "lose":
            queues = sorted((self.broker.root / "consumequeue").glob("*/*/*"))
            for path in queues[:1]:
                path.unlink()

    def _overwrite(self, offset: int) -> None:
        logs = sorted((self.broker.root / "commitlog").iterdir())
        path = max(path for path in logs if int(path.name) <= offset)
        with path.open("r+b") as file:
            file.seek(offset - int(path.name))
            file.write(b"\xff")

    def probe(self) -> None:
        if self.probes == EVENTS:
            self.stop.request()
            return
        self.probes += 1
        self.act()
        fresh = self.root / "fresh"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(self.root / "lake", fresh)
        self.expected = ingest(self.request("fresh"), SerialWorkers())

    def compare(self, step: Summary) -> None:
        if self.expected is None:  # the first step
            return
        assert _report(self.expected) == _report(step), self.probes
        assert raw_rows(self.root / "fresh") == raw_rows(self.root / "lake")
        self.compared += 1

    def run(self) -> None:
        Follower(self.request("lake"), SerialWorkers(), 0, self.stop, self.compare, self.probe).run()


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(60))
def test_a_step_reports_what_a_new_process_reports(seed: int, tmp_path: Path) -> None:
    walk = Walk(tmp_path, Random(seed))
    walk.run()

    assert walk.compared > 0
