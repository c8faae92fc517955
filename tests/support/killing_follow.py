"""
Commands that follow a store, killed by the dozen beside a broker that writes and deletes, and beside `optimize`.

What a command finds when it starts is more than its driver reads itself: Spark's tasks catch up. What comes later, the
driver reads. A third of the kills comes when the lake shows some of the effects that a command has, a third when Spark
has workers, a third when a step is done and others follow; they take everything, or the driver, the JVM or the workers
alone. Run it as a program: `python -m tests.support.killing_follow FOLDER KILLS [crashes]`; with `crashes` the broker
cuts off the end of its log now and then, and deletes nothing.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from tests.support.killing import ended, forked, judge, new_store, optimize_for_ever, optimized, write_for_ever
from tests.support.killing_spark import LONGEST_S, effects, kill, session, stage_of, workers_of
from tests.support.recorded import ROOT

# As `python -m jobs.main`, but that much is small for a driver: the double's segments are, too.
PROGRAM = """
from functools import partial
from jobs.store import workers
workers.AsNeeded = partial(workers.AsNeeded, small=16384)
from jobs.main import main
main()
"""
STEP_BYTES = 1 << 17
KEPT_SEGMENTS = 300
PAUSE_S = 2.0  # of the broker, between bursts, at most
PATIENCE_S = 60.0  # until a moment has come, or what is left of a killed command has ended
LOOK_S = 0.01
EFFECTS = 40  # of some steps
LATER_S = 5.0  # at most: some steps
MOMENTS = ("at an effect", "catching up", "following")
VICTIMS = ("everything", "driver", "JVM", "workers")


def followed(root: Path, *more: str) -> "subprocess.Popen[bytes]":
    arguments = [str(root / "store"), "--lake", str(root / "lake"), "--max-bytes-per-step", str(STEP_BYTES), "--quiet"]
    command = [sys.executable, "-c", PROGRAM, "ingest", *arguments, "--follow", "--every", "100ms", *more]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONFAULTHANDLER": "1"}
    with (root / "errors.txt").open("ab") as errors:
        return subprocess.Popen(command, cwd=ROOT, start_new_session=True, env=environment, stderr=errors)


def jvms_of(process: "subprocess.Popen[bytes]") -> list[int]:
    found = []
    for one in session(process.pid):
        with suppress(OSError):
            if Path(f"/proc/{one}/comm").read_text().strip() == "java":
                found.append(one)
    return found


@dataclass(slots=True)
class Campaign:
    """Kills, and where they hit."""

    root: Path
    random: Random
    kills: Counter[str] = field(default_factory=Counter)  # by their victim
    stages: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)  # of commands that ended by themselves
    catching_up: int = 0  # kills while Spark's tasks were at work
    before: "list[subprocess.Popen[bytes]]" = field(default_factory=list)  # whose driver alone was killed

    def one(self, moment: str, victim: str) -> None:
        there = effects(self.root / "lake")
        process = followed(self.root)
        self._wait(process, moment, there)
        if process.poll() is not None:
            self.codes[process.returncode] += 1
            return
        workers = workers_of(process)
        parts = {"driver": [process.pid], "JVM": jvms_of(process), "workers": workers}.get(victim, [])
        self.stages[stage_of(there, effects(self.root / "lake"))] += 1
        self.catching_up += bool(workers)
        for part in parts:
            with suppress(ProcessLookupError):
                os.kill(part, signal.SIGKILL)
        self.kills[victim if parts else "everything"] += 1
        if victim == "driver":  # what it has started must end by itself, and may still write
            process.wait()
            self.before.append(process)
            return
        if parts:
            self._go_on(process)
        kill(process)

    def _wait(self, process: "subprocess.Popen[bytes]", moment: str, there: set[str]) -> None:
        effect = self.random.randrange(1, EFFECTS)
        until = time.monotonic() + PATIENCE_S
        while process.poll() is None and time.monotonic() < until:
            new = effects(self.root / "lake") - there
            if moment == "at an effect" and len(new) >= effect:
                return
            if (moment == "catching up" and workers_of(process)) or (
                moment == "following" and any("-done-" in path for path in new)
            ):
                time.sleep(self.random.random() * (LATER_S if moment == "following" else 1))
                return
            time.sleep(LOOK_S)

    def _go_on(self, process: "subprocess.Popen[bytes]") -> None:
        """Let a command go on that has lost a part; one that ends says so by its exit code."""
        with suppress(subprocess.TimeoutExpired):
            self.codes[process.wait(self.random.random() * 2 * LATER_S)] += 1

    def orphans(self) -> int:
        """Return how many processes are left of commands whose driver was killed, some time after."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and any(left(self.before)):
            time.sleep(1)
        return sum(left(self.before))


def left(processes: "Sequence[subprocess.Popen[bytes]]") -> list[int]:
    return [len(list(session(process.pid))) for process in processes]


def campaign(root: Path, kills: int, seed: int = 1, *, crashes: bool = False) -> dict[str, Any]:
    """Kill *kills* commands while others write and put in order; then run to the end and judge."""
    broker = new_store(root)
    writer = forked(partial(write_for_ever, broker, seed, crashes=crashes, pause_s=PAUSE_S, kept=KEPT_SEGMENTS))
    state = Campaign(root, Random(seed))
    began = time.monotonic()
    ends = [followed(root, "--until", "0s").wait(LONGEST_S)]
    optimizer = forked(partial(optimize_for_ever, root, seed))
    ways = list(product(MOMENTS, VICTIMS))
    while state.kills.total() < kills:
        state.random.shuffle(ways)
        for moment, victim in ways[: kills - state.kills.total()]:
            state.one(moment, victim)
    for other in (writer, optimizer):
        os.kill(other, signal.SIGTERM)
        assert ended(other) == 0
    orphans = state.orphans()
    ends += [followed(root, "--until", "0s").wait(LONGEST_S) for _ in range(2)]
    verdict = judge(root)
    return {
        "kills": state.kills.total(),
        "victims": dict(state.kills),
        "stages": dict(state.stages),
        "catching_up": state.catching_up,
        "codes": {str(code): count for code, count in state.codes.items()},
        "ends": ends,
        "orphans": orphans,
        "seconds": round(time.monotonic() - began),
        **verdict,
        **optimized(root, verdict),
    }


if __name__ == "__main__":
    print(json.dumps(campaign(Path(sys.argv[1]), int(sys.argv[2]), crashes="crashes" in sys.argv)))
