"""
Complete commands, with their JVM and Python workers, killed next to a broker that writes and deletes.

`python -m tests.support.killing_commands FOLDER KILLS WAY…`. With the way `follow`, commands follow the store next to
`optimize`; otherwise each runs once. With `crashes` the broker sometimes truncates the end of its log, and deletes
nothing. A kill comes at any moment of a command, or once Spark has workers; it hits all processes, or only the driver,
the JVM or the workers, which may also be stopped for some seconds. This is a program of its own so that the broker is
forked before any thread has started.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.support.commands import ROOT
from tests.support.killing import ended, forked, judge, new_store, optimize_for_ever, optimized, write_for_ever
from tests.support.waiting import wait_until

# As `python -m jobs.main`, with a lower limit for the data that the driver reads itself, because the simulated broker's
# segments are small: Spark's tasks read the data that exists at the start, the driver reads the data that follows.
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
_LATER_S: Final = 5.0  # at most: some steps
_STOPPED_S: Final = 10.0

CLEAN: Final = (0, 3)
"""Exit codes of commands that were not killed; 3 reports a gap or damage."""

_DAEMONS: Final = (b"-m\0jobs.store.spark_workers", b"-m\0pyspark.daemon")  # the JVM has the first name as a setting
VICTIMS: Final = ("everything", "driver", "JVM", "workers")
_VICTIMS_OF_ONCE: Final = ("everything", "workers", "stopped workers")


def _session(leader: int) -> Iterator[int]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):  # it has ended
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] != "Z":
                    yield int(path.name)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    while processes := list(_session(process.pid)):
        _signal(processes, signal.SIGKILL)
    process.wait()


def _signal(processes: Iterable[int], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _parts(process: "subprocess.Popen[bytes]", part: str) -> list[int]:
    """Return the processes of a command that are its driver, its JVM or its workers."""
    if part == "driver":
        return [process.pid]
    found = []
    for one in _session(process.pid):
        with suppress(OSError):  # it has ended
            parent = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[1]
            above = Path(f"/proc/{parent}/cmdline").read_bytes()
            is_jvm = Path(f"/proc/{one}/comm").read_text().strip() == "java"
            if is_jvm if part == "JVM" else any(name in above for name in _DAEMONS):
                found.append(one)
    return found


class _Campaign:
    """Commands that are killed one after the other."""

    def __init__(self, root: Path, random: Random, *, follows: bool) -> None:
        self.root, self.random, self.follows = root, random, follows
        self.kills, self.codes = Counter[str](), Counter[int]()  # by their victim; of commands that ended by themselves
        self._before: list[subprocess.Popen[bytes]] = []  # whose driver alone was killed
        self._seconds = 10.0  # of a command

    def whole(self) -> int:
        began = time.monotonic()
        code = self._start(*(("--until", "+0s") if self.follows else ())).wait(_LONGEST_S)
        self._seconds = time.monotonic() - began
        return code

    def _start(self, *more: str) -> "subprocess.Popen[bytes]":
        words = (*_FOLLOW, *_STEP) if self.follows else _ONCE
        command = [*words, str(self.root / "store"), "--lake", str(self.root / "lake"), "--quiet", *more]
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONFAULTHANDLER": "1"}
        with (self.root / "errors.txt").open("ab") as errors:
            return subprocess.Popen(command, cwd=ROOT, start_new_session=True, env=environment, stderr=errors)

    def one(self, victim: str) -> None:
        process = self._start()
        until = time.monotonic() + self.random.random() * (self._seconds + _LATER_S * self.follows)
        awaits_workers = self.random.random() < 0.5
        while process.poll() is None and time.monotonic() < until:
            if awaits_workers and _parts(process, "workers"):
                break
            time.sleep(0.01)
        if process.poll() is not None:
            self.codes[process.returncode] += 1
            return
        parts = [] if victim == "everything" else _parts(process, victim.rpartition(" ")[2])
        self.kills[victim if parts else "everything"] += 1
        if not parts:
            _kill(process)
        elif victim == "stopped workers":
            _signal(parts, signal.SIGSTOP)
            time.sleep(_STOPPED_S)
            _signal(parts, signal.SIGCONT)
            self.codes[process.wait(_LONGEST_S)] += 1
        else:
            _signal(parts, signal.SIGKILL)
            if victim == "driver":  # its children must end by themselves, and may still write
                process.wait()
                self._before.append(process)
            else:
                with suppress(subprocess.TimeoutExpired):  # it follows
                    self.codes[process.wait(self.random.random() * 2 * _LATER_S if self.follows else _LONGEST_S)] += 1
                _kill(process)

    def await_orphans(self) -> None:
        """Wait until nothing is left of commands whose driver was killed."""
        wait_until(lambda: not [*chain(*(_session(one.pid) for one in self._before))], lambda: "orphans do not end")


def campaign(root: Path, kills: int, *ways: str) -> dict[str, Any]:
    state = _Campaign(root, Random(1), follows="follow" in ways)
    pause_s, kept = (2.0, 300) if state.follows else (1.0, 60)  # between bursts, at most; segments
    write = partial(write_for_ever, new_store(root), 1, crashes="crashes" in ways, pause_s=pause_s, kept=kept)
    others = [forked(write)]
    ends = [state.whole()]
    if state.follows:
        others.append(forked(partial(optimize_for_ever, root, 1)))
    waiting: list[str] = []
    while state.kills.total() < kills:
        waiting = waiting or state.random.sample(VICTIMS if state.follows else _VICTIMS_OF_ONCE, k=3 + state.follows)
        state.one(waiting.pop())
    for other in others:
        os.kill(other, signal.SIGTERM)
        assert ended(other) == 0
    state.await_orphans()
    ends += [state.whole() for _ in range(2)]
    verdict = judge(root)
    codes = {str(code): count for code, count in state.codes.items()}
    found = {"kills": state.kills.total(), "victims": dict(state.kills), "codes": codes, "ends": ends, **verdict}
    return found | (optimized(root, verdict) if state.follows else {})


if __name__ == "__main__":
    print(json.dumps(campaign(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])))
