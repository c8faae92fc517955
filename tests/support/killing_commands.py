"""
Whole commands, with their JVM and Python workers, killed by the dozen beside a broker that writes and deletes.

`python -m tests.support.killing_commands FOLDER KILLS WAY…`. Of the ways `follow` has commands that follow the store,
beside `optimize`; else each runs once. With `crashes` the broker cuts off the end of its log now and then, and deletes
nothing. A kill comes when the lake shows some of the effects that a command has, when Spark has workers, or when a step
is done and others follow; it takes everything, or the driver, the JVM or the workers alone, which may also be stopped
for some seconds. As a program it may fork the broker before anything has started a thread.
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
from itertools import chain, product
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.support.killing import ended, forked, judge, new_store, optimize_for_ever, optimized, write_for_ever
from tests.support.recorded import ROOT
from tests.support.waiting import wait_until

# As `python -m jobs.main`, but that much is small for a driver: the double's segments are, too. What a command finds
# when it starts is more, and Spark's tasks read it; what comes later, the driver reads.
_FOLLOWING: Final = """
from functools import partial
from jobs.store import workers
workers.WorkersOnDemand = partial(workers.WorkersOnDemand, small=16384)
from jobs.main import main
main()
"""
_ONCE: Final = ("./spark-submit.sh", "--master", "local[*,4]", "ingest")
_FOLLOW: Final = (sys.executable, "-c", _FOLLOWING, "ingest", "--follow", "--every", "100ms")
_STEP: Final = ("--max-bytes-per-step", str(1 << 17))
_LONGEST_S: Final = 300  # of one command: beyond, it hangs
_PATIENCE_S: Final = 60.0  # until a moment has come
_LOOK_S: Final = 0.01
_LATER_S: Final = 5.0  # at most: some steps
_STOPPED_S: Final = 10.0
_EFFECTS: Final = 40  # of a run, or of some steps

CLEAN: Final = (0, 3)
"""Exit codes of commands that nobody killed: a gap or damage is said by 3."""

_DAEMONS: Final = (b"-m\0jobs.launch.worker_daemon", b"-m\0pyspark.daemon")  # the JVM has the first name as a setting
VICTIMS: Final = ("everything", "driver", "JVM", "workers")
_VICTIMS_OF_ONCE: Final = ("everything", "workers", "stopped workers")


def session(leader: int) -> Iterator[int]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] != "Z":
                    yield int(path.name)


def kill(process: "subprocess.Popen[bytes]") -> None:
    while processes := list(session(process.pid)):
        _signal(processes, signal.SIGKILL)
    process.wait()


def _signal(processes: list[int], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _workers_of(process: "subprocess.Popen[bytes]") -> list[int]:
    found = []
    for one in session(process.pid):
        with suppress(OSError):
            parent = int(Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[1])
            command = Path(f"/proc/{parent}/cmdline").read_bytes()
            if any(name in command for name in _DAEMONS):
                found.append(one)
    return found


def _jvms_of(process: "subprocess.Popen[bytes]") -> list[int]:
    found = []
    for one in session(process.pid):
        with suppress(OSError):
            if Path(f"/proc/{one}/comm").read_text().strip() == "java":
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


def stage_of(new: set[str]) -> str:
    """Return the stage that a run has reached, from the paths of its new files."""
    new = {path for path in new if "#" not in path and "/." not in path}
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
    follows: bool
    kills: Counter[str] = field(default_factory=Counter)  # by their victim
    stages: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)  # of commands that ended by themselves
    catching_up: int = 0  # kills while Spark's tasks were at work
    before: "list[subprocess.Popen[bytes]]" = field(default_factory=list)  # whose driver alone was killed

    def whole(self) -> int:
        return self._start(*(("--until", "+0s") if self.follows else ())).wait(_LONGEST_S)

    def _start(self, *more: str) -> "subprocess.Popen[bytes]":
        words = (*_FOLLOW, *_STEP) if self.follows else _ONCE
        command = [*words, str(self.root / "store"), "--lake", str(self.root / "lake"), "--quiet", *more]
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONFAULTHANDLER": "1"}
        with (self.root / "errors.txt").open("ab") as errors:
            return subprocess.Popen(command, cwd=ROOT, start_new_session=True, env=environment, stderr=errors)

    def ways(self) -> list[tuple[str, str]]:
        if self.follows:
            return list(product(("at an effect", "catching up", "following"), VICTIMS))
        return list(product(("at an effect", "catching up"), _VICTIMS_OF_ONCE))

    def one(self, moment: str, victim: str) -> None:
        there = effects(self.root / "lake")
        process = self._start()
        self._wait(process, moment, there)
        if process.poll() is not None:
            self.codes[process.returncode] += 1
            return
        workers = _workers_of(process)
        parts = {"driver": [process.pid], "JVM": _jvms_of(process)}.get(victim, workers if "workers" in victim else [])
        self.stages[stage_of(effects(self.root / "lake") - there)] += 1
        self.catching_up += bool(workers)
        self.kills[victim if parts else "everything"] += 1
        if not parts:
            kill(process)
        elif victim == "stopped workers":
            _signal(parts, signal.SIGSTOP)
            time.sleep(_STOPPED_S)
            _signal(parts, signal.SIGCONT)
            self.codes[process.wait(_LONGEST_S)] += 1
        elif victim == "driver":  # what it has started must end by itself, and may still write
            _signal(parts, signal.SIGKILL)
            process.wait()
            self.before.append(process)
        else:
            _signal(parts, signal.SIGKILL)
            self._go_on(process)

    def _wait(self, process: "subprocess.Popen[bytes]", moment: str, there: set[str]) -> None:
        effect = self.random.randrange(1, _EFFECTS)
        until = time.monotonic() + _PATIENCE_S
        while process.poll() is None and time.monotonic() < until:
            new = effects(self.root / "lake") - there
            if moment == "at an effect" and len(new) >= effect:
                return
            if (moment == "catching up" and _workers_of(process)) or (
                moment == "following" and any("-done-" in path for path in new)
            ):
                time.sleep(self.random.random() * (_LATER_S if moment == "following" else 1))
                return
            time.sleep(_LOOK_S)

    def _go_on(self, process: "subprocess.Popen[bytes]") -> None:
        """Let a command go on that has lost a part: to its end, or for some seconds where it follows."""
        with suppress(subprocess.TimeoutExpired):
            self.codes[process.wait(self.random.random() * 2 * _LATER_S if self.follows else _LONGEST_S)] += 1
        kill(process)

    def await_orphans(self) -> None:
        """Wait until nothing is left of commands whose driver was killed."""
        wait_until(lambda: not [*chain(*(session(one.pid) for one in self.before))], lambda: "orphans do not end")


def campaign(root: Path, kills: int, *ways: str, seed: int = 1) -> dict[str, Any]:
    state = Campaign(root, Random(seed), "follow" in ways)
    broker = new_store(root)
    pause_s, kept = (2.0, 300) if state.follows else (1.0, 60)  # between bursts, at most; segments
    write = partial(write_for_ever, broker, seed, crashes="crashes" in ways, pause_s=pause_s, kept=kept)
    others = [forked(write)]
    began = time.monotonic()
    ends = [state.whole()]
    if state.follows:
        others.append(forked(partial(optimize_for_ever, root, seed)))
    waiting: list[tuple[str, str]] = []
    while state.kills.total() < kills:
        if not waiting:
            waiting = state.ways()
            state.random.shuffle(waiting)
        state.one(*waiting.pop())
    for other in others:
        os.kill(other, signal.SIGTERM)
        assert ended(other) == 0
    state.await_orphans()
    ends += [state.whole() for _ in range(2)]
    verdict = judge(root)
    return {
        "kills": state.kills.total(),
        "victims": dict(state.kills),
        "stages": dict(state.stages),
        "catching_up": state.catching_up,
        "codes": {str(code): count for code, count in state.codes.items()},
        "ends": ends,
        "seconds": round(time.monotonic() - began),
        **verdict,
        **(optimized(root, verdict) if state.follows else {}),
    }


if __name__ == "__main__":
    print(json.dumps(campaign(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])))
