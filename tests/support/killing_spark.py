"""
Whole commands, with their JVM and Python workers, killed by the dozen beside a broker that writes and deletes.

Every second kill comes when the lake shows the next of the effects that a run has, one after the other; the others come
at any moment of a run, and every eighth takes the Python workers alone. Run it as a program, so that the broker can be
forked before anything has started a thread: `python -m tests.support.killing_spark FOLDER KILLS`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.support.killing import ended, forked, judge, new_store, write_for_ever

ROOT = Path(__file__).parents[2]
LONGEST_S = 300  # of one command: beyond, it hangs
LOOK_S = 0.001
WORKERS_EVERY = 8  # kills
STOPPED_S = 10.0
FIRST_SHARE = 0.5  # of a run: before, the JVM starts and nothing of ours has happened
KEPT_SEGMENTS = 60
PAUSE_S = 1.0  # of the broker, between bursts, at most
CLEAN = (0, 3)  # a gap or damage is said by 3


def started(root: Path) -> "subprocess.Popen[bytes]":
    command = [
        "./spark-submit.sh",
        "--master",
        "local[*,4]",
        "ingest",
        str(root / "store"),
        "--lake",
        str(root / "lake"),
        "--quiet",
    ]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONFAULTHANDLER": "1"}
    with (root / "errors.txt").open("ab") as errors:
        return subprocess.Popen(command, cwd=ROOT, start_new_session=True, env=environment, stderr=errors)


def session(leader: int) -> Iterator[int]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] != "Z":
                    yield int(path.name)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill every process of a command, also those that it starts meanwhile, and wait for the end."""
    while processes := list(session(process.pid)):
        for one in processes:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
    process.wait()


def workers_of(process: "subprocess.Popen[bytes]") -> list[int]:
    """Return the Python workers of a command: what Spark's daemon has forked."""
    found = []
    for one in session(process.pid):
        with suppress(OSError):
            parent = int(Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[1])
            if b"pyspark.daemon" in Path(f"/proc/{parent}/cmdline").read_bytes():
                found.append(one)
    return found


def effects(lake: Path) -> set[str]:
    """Return what a run has left in a lake so far; a lock that is held counts."""
    found = set()
    for folder in (lake, *(table / "_delta_log" for table in lake.glob("*"))):
        with suppress(OSError):
            found |= {str(entry.path) for entry in os.scandir(folder)}
    for folder in lake.glob("*"):
        with suppress(OSError):
            found |= {entry.path for entry in os.scandir(folder) if folder.name != "_locks" or entry.stat().st_size}
    return found


def stage_of(before: set[str], after: set[str]) -> str:
    """Say how far a run came that has turned one lake into the other."""
    new = {path for path in after - before if "#" not in path and "/." not in path}
    commits = {path for path in new if path.endswith(".json") and "_delta_log" in path}
    reached = {
        "done, or about to be": any("/runs/" in path and "-done-" in path for path in new),
        "some tables committed": any("/runs/" not in path for path in commits),
        "prepared, or about to be": any("/runs/" in path and "-prepared-" in path for path in new),
        "manifest written": any("/_manifests/" in path for path in new),
        "files written": any(path.endswith(".parquet") for path in new),
        "lock held": any("/_locks/" in path for path in new),
    }
    return next((stage for stage, is_reached in reached.items() if is_reached), "before the lock")


@dataclass(slots=True)
class Campaign:
    """Kills, and where they hit."""

    root: Path
    random: Random
    stages: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)  # of runs that nobody killed
    workers: int = 0
    stopped: int = 0
    longest_s: float = 0.0

    def whole(self) -> None:
        began = time.monotonic()
        self.codes[started(self.root).wait(LONGEST_S)] += 1
        self.longest_s = time.monotonic() - began

    def at_effect(self, number: int) -> bool:
        """Kill a run when it has left *number* things in the lake; False when it ended before."""
        lake = self.root / "lake"
        before = effects(lake)
        process = started(self.root)
        while process.poll() is None and len(effects(lake) - before) < number:
            time.sleep(LOOK_S)
        return self._killed(process, before)

    def at_any_moment(self) -> bool:
        before = effects(self.root / "lake")
        process = started(self.root)
        time.sleep(self.longest_s * (FIRST_SHARE + (1 - FIRST_SHARE) * self.random.random()))
        was_killed = self._killed(process, before)
        self.longest_s *= 1.02 if was_killed else 0.8  # it ended before: runs have become faster
        return was_killed

    def _killed(self, process: "subprocess.Popen[bytes]", before: set[str]) -> bool:
        if process.poll() is not None:
            self.codes[process.returncode] += 1
            return False
        kill(process)
        self.stages[stage_of(before, effects(self.root / "lake"))] += 1
        return True

    def workers_stopped(self, seconds: float) -> None:
        """Stop the Python workers of a run as soon as there are some, and continue them after some seconds."""
        process = started(self.root)
        found: list[int] = []
        while process.poll() is None and not found:
            time.sleep(LOOK_S)
            found = workers_of(process)
        for name in (signal.SIGSTOP, signal.SIGCONT):
            for one in found:
                with suppress(ProcessLookupError):
                    os.kill(one, name)
            if name is signal.SIGSTOP:
                time.sleep(seconds)
        self.stopped += bool(found)
        self.codes[process.wait(LONGEST_S)] += 1

    def workers_alone(self) -> None:
        """Kill the Python workers of a run once, as soon as there are some; Spark makes new ones."""
        process = started(self.root)
        found: list[int] = []
        while process.poll() is None and not found:
            time.sleep(LOOK_S)
            found = workers_of(process)
        for one in found:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        self.workers += bool(found)
        self.codes[process.wait(LONGEST_S)] += 1


def campaign(root: Path, kills: int, seed: int = 1) -> dict[str, Any]:
    """Kill *kills* commands while the broker writes and deletes; then run to the end and judge."""
    broker = new_store(root)
    writer = forked(partial(write_for_ever, broker, seed, crashes=False, pause_s=PAUSE_S, kept=KEPT_SEGMENTS))
    state = Campaign(root, Random(seed))
    began = time.monotonic()
    for _ in range(2):  # the first one may have to compile what no run before had
        state.whole()
    killed, effect = 0, 0
    while killed < kills:
        if state.workers < (killed + 1) // WORKERS_EVERY or (not state.workers and killed == kills - 1):
            state.workers_alone()
        if killed % 2:
            killed += state.at_any_moment()
            continue
        effect += 1
        if state.at_effect(effect):
            killed += 1
        else:
            effect = 0  # a run has no more of them
    state.workers_stopped(STOPPED_S)
    os.kill(writer, signal.SIGTERM)
    assert ended(writer) == 0
    state.whole()
    state.whole()
    return {
        "kills": killed,
        "workers_killed": state.workers,
        "workers_stopped": state.stopped,
        "stages": dict(state.stages),
        "codes": {str(code): count for code, count in state.codes.items()},
        "seconds": round(time.monotonic() - began),
        **judge(root),
    }


if __name__ == "__main__":
    print(json.dumps(campaign(Path(sys.argv[1]), int(sys.argv[2]))))
