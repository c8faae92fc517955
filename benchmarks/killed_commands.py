"""
A first run and a restore of a large log, whole commands, killed again and again: what that costs, and every byte back.

    python -m benchmarks.killed_commands [--gib 16] [--kills 20] [--restore-kills 20] [--step-mib 512] [--folder DIR]

A command is given again whenever it was killed, as a scheduler would; all its processes are killed, at a moment drawn
so that the kills spread over all of its work. Restores read what the killed runs have written: their log must be the
store's. Time is compared with the same command that nobody kills; `starting_s` is what a command takes
that has next to nothing to do, so that many of it are in the time of the killed ones. `read_gib` is what all processes
of all attempts have read, and what a start reads: what is done twice of the rest depends neither on how busy the
machine is nor on how fast a JVM starts.
"""

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from filecmp import cmp
from pathlib import Path
from random import Random

from benchmarks.broker import RELEASE
from benchmarks.measuring import answer, asked
from benchmarks.stores import FOLDER, Recipe, drop_from_cache, make_store
from tests.support.killing_commands import kill, session

_ROOT = Path(__file__).parents[1]
_RECORD_SIZE = 1024
_SMALL_MIB = 1
_STARTS = 4
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, and what makes it go on after a kill."""

    words: tuple[str, ...]
    again: tuple[str, ...] = ()

    def start(self, *, is_again: bool) -> "subprocess.Popen[bytes]":
        """Start it with all its processes in a session."""
        words = [*self.words, *(self.again if is_again else ())]
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        return subprocess.Popen(
            [sys.executable, "-m", "jobs.main", *words, "--quiet"], cwd=_ROOT, env=environment, start_new_session=True
        )

    def ended(self, *, is_again: bool = False) -> "Outcome":
        """Let it end, and everything it wrote be on the disk."""
        began, bytes_read = time.monotonic(), 0
        process = self.start(is_again=is_again)
        while process.poll() is None:
            bytes_read = max(bytes_read, bytes_read_by(process))
            time.sleep(_LOOK_S)
        os.sync()
        if process.returncode:
            raise SystemExit(f"exit code {process.returncode}: {self.words}")
        return Outcome(0, time.monotonic() - began, bytes_read)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command cost, with so many kills."""

    kills: int
    seconds: float
    bytes_read: int


def bytes_read_by(process: "subprocess.Popen[bytes]") -> int:
    """Return what the processes of a command have read, from a disk or not, with those that they waited for."""
    total = 0
    for one in session(process.pid):
        with suppress(OSError):
            total += int(Path(f"/proc/{one}/io").read_text().partition("rchar:")[2].split()[0])
    return total


def killed(command: Command, kills: int, undisturbed: Outcome, starting: Outcome) -> Outcome:
    """Kill a command so often, then let it end."""
    random = Random(kills)
    share = (undisturbed.seconds - starting.seconds) / (kills + 1)
    began, done, bytes_read = time.monotonic(), 0, 0
    while done < kills:
        process = command.start(is_again=done > 0)
        try:
            code = process.wait(starting.seconds + share * random.uniform(0.5, 1.5))
        except subprocess.TimeoutExpired:
            bytes_read += bytes_read_by(process)
            kill(process)
            done += 1
            continue
        if code:
            raise SystemExit(f"exit code {code}: {command.words}")
        return Outcome(done, time.monotonic() - began, bytes_read)
    last = command.ended(is_again=True)
    return Outcome(done, time.monotonic() - began, bytes_read + last.bytes_read)


def bring(store: Path, lake: Path, step_mib: int) -> Command:
    """Return the command of a run in steps."""
    shutil.rmtree(lake, ignore_errors=True)
    drop_from_cache(store)
    words = (
        "ingest",
        str(store),
        "--lake",
        str(lake),
        "--broker",
        "b",
        "--release",
        RELEASE,
        "--tables",
        "config_files",
    )
    return Command((*words, "--max-bytes-per-step", str(step_mib << 20)))


def give_back(lake: Path, out: Path) -> Command:
    """Return the command of a restore of the log."""
    shutil.rmtree(out, ignore_errors=True)
    drop_from_cache(lake)
    return Command(("restore", str(lake), "--out", str(out), "--no-queues", "--no-index"), ("--resume",))


def check(store: Path, out: Path) -> None:
    """Compare each byte of a restored log."""
    for segment in sorted((store / "commitlog").iterdir()):
        if not cmp(segment, out / "commitlog" / segment.name, shallow=False):
            raise SystemExit(f"{segment}: not the same bytes")


def _figures(undisturbed: Outcome, starting: Outcome, outcome: Outcome) -> dict[str, object]:
    work = outcome.seconds - outcome.kills * starting.seconds
    read_again = outcome.bytes_read - outcome.kills * starting.bytes_read - undisturbed.bytes_read
    read = {"undisturbed": undisturbed, "killed": outcome, "a start": starting}
    return {
        "undisturbed_s": round(undisturbed.seconds, 1),
        "starting_s": round(starting.seconds, 1),
        "kills": outcome.kills,
        "killed_s": round(outcome.seconds, 1),
        "ratio": round(outcome.seconds / undisturbed.seconds, 2),
        "ratio_without_starting": round(work / undisturbed.seconds, 2),
        "read_gib": {name: round(one.bytes_read / (1 << 30), 2) for name, one in read.items()},
        "ratio_read_without_starting": round(1 + read_again / undisturbed.bytes_read, 2),
    }


def _seconds(outcome: Outcome) -> float:
    return outcome.seconds


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, gib=16.0, kills=20, restore_kills=20, step_mib=512, folder=FOLDER)
    lake, out = given.folder / "killed-lake", given.folder / "killed-store"
    small = make_store(Recipe(_SMALL_MIB << 20, _RECORD_SIZE, compressible=True), given.folder)
    os.sync()  # what was deleted before
    # The first one compiles; a disk or a machine that is busy for a moment makes none shorter.
    starting = min((bring(small, lake, given.step_mib).ended() for _ in range(_STARTS)), key=_seconds)
    starting_to_restore = min((give_back(lake, out).ended() for _ in range(_STARTS)), key=_seconds)

    store = make_store(Recipe(int(given.gib * 1024) << 20, _RECORD_SIZE, compressible=True), given.folder)
    run = bring(store, lake, given.step_mib).ended()
    runs = killed(bring(store, lake, given.step_mib), given.kills, run, starting)
    restore = give_back(lake, out).ended()
    check(store, out)
    found = {"ingest": _figures(run, starting, runs)}
    if given.restore_kills:
        restores = killed(give_back(lake, out), given.restore_kills, restore, starting_to_restore)
        check(store, out)
        found["restore"] = _figures(restore, starting_to_restore, restores)
    for folder in (store, lake, out):
        shutil.rmtree(folder)
    sizes = {"gib": given.gib, "step_mib": given.step_mib, "same_bytes": True}
    answer({**sizes, **found})


if __name__ == "__main__":
    main()
