"""
How long a message takes from the broker's disk to a reader of the lake, while `ingest --follow` runs.

    python -m benchmarks.follow [--rates MESSAGES…] [--seconds N] [--every TIME] [--folder DIR]

A process of its own writes log and queues as a broker does, some messages every 20 ms, each stored at its own moment:
the anchor, which says how much the machine could write.

This one opens the Delta table again and again, with a reader that is not ours: what a version has for the first time
was written when its records say. `ingest` is a user's command, in a process of its own. The result says how many
messages were seen: where that is less than the rate asks for, the writer could do no more.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from benchmarks.measuring import answer, asked, processes_below
from benchmarks.stores import FOLDER, LiveStore, Recipe

_TICK_S = 0.02
_MOST_TICKS = 10  # whose messages are made at once: a writer that is late must not date them before they are written
_LOOK_S = 0.05
_RECIPE = Recipe(0, record_size=400, compressible=True, segment_size=256 << 20)
_POINTS = 20  # messages of a version whose ages are taken, evenly spaced
_SAMPLES = 20  # of memory and files
_PATIENCE_S = 120  # for a process that was asked to end


def write(store: Path, rate: int, seconds: float) -> int:
    """Append records at a steady rate; return how many."""
    growing = LiveStore(store, _RECIPE)
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        growing.append(min(int(passed * rate) - growing.written, int(_MOST_TICKS * _TICK_S * rate) + 1))
        time.sleep(_TICK_S)
    return growing.written


@dataclass(slots=True)
class Reader:
    """What a reader of the table has seen."""

    lake: Path
    ages: list[float] = field(default_factory=list)  # of messages when they could be read, seconds
    commits: int = 0
    rows: int = 0
    samples: list[dict[str, float]] = field(default_factory=list)
    _table: DeltaTable | None = None
    _version: int = -1
    _newest: float = 0.0  # when the newest message was stored that had been seen before

    def watch(self, process: "subprocess.Popen[bytes]", seconds: float) -> None:
        """Look again and again, once the table is there; note memory and files now and then."""
        while self._version < 0:
            self._look_at(process)
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            self._look_at(process)
            if passed > len(self.samples) * seconds / _SAMPLES:
                files = sum(path.is_file() for path in self.lake.rglob("*"))
                self.samples.append({"second": round(passed), "rss_mib": _memory(process.pid), "files": files})

    def _look_at(self, process: "subprocess.Popen[bytes]") -> None:
        if process.poll() is not None:
            raise subprocess.CalledProcessError(process.returncode, "ingest --follow")
        self._look()
        time.sleep(_LOOK_S)

    def _look(self) -> None:
        """Note what a new version has for the first time."""
        try:
            self._table = self._table or DeltaTable(self.lake / "messages")
        except TableNotFoundError:
            return
        self._table.update_incremental()
        if self._table.version() == self._version:
            return
        self._version, now = self._table.version(), time.time()
        files = pa.table(self._table.get_add_actions(flatten=True))
        if not files.num_rows:
            return
        newest = int(pc.max(files["max.store_timestamp"]).as_py()) / 1000
        self.rows = int(pc.sum(files["num_records"]).as_py())
        if self._newest and newest > self._newest:
            step = (newest - self._newest) / _POINTS
            self.ages += [now - newest + number * step for number in range(_POINTS)]
            self.commits += 1
        self._newest = newest


def _memory(process: int) -> float:
    """Return the resident memory of a process, MiB."""
    status = Path(f"/proc/{process}/status").read_text()
    return round(int(status.partition("VmRSS:")[2].split()[0]) / 1024, 1)


def _cpu_s(process: int) -> float:
    """Return the processor time of a process, of those below it, and of those that they have waited for."""
    ticks = 0
    for one in (process, *processes_below(process)):
        with suppress(OSError):  # it may just have ended
            values = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, values[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def ended(process: "subprocess.Popen[bytes]", number: int) -> Iterator[None]:
    """Ask a process to end after the block, and do not wait for ever."""
    try:
        yield
    finally:
        process.send_signal(number)
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()


def watched(command: Sequence[str], reader: Reader, seconds: float) -> float:
    """Follow a store that grows, and look at the lake; return the command's processor time of these seconds."""
    following = subprocess.Popen([*command, "--follow"], stdout=subprocess.DEVNULL)
    with ended(following, signal.SIGTERM):
        reader.watch(following, 0)
        before = _cpu_s(following.pid)
        reader.watch(following, seconds)
        used = _cpu_s(following.pid) - before
    if following.returncode:
        raise subprocess.CalledProcessError(following.returncode, "ingest --follow")
    return used


def measure(folder: Path, rate: int, seconds: float, every: str) -> dict[str, Any]:
    """Follow a store for some seconds; return how long messages took."""
    store, lake = folder / "store", folder / "lake"
    LiveStore(store, _RECIPE).append(100)
    command = [sys.executable, "-m", "jobs.main", "ingest", str(store), "--lake", str(lake), "--broker", "b", "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # compiles, and fills caches
    shutil.rmtree(lake)
    shutil.rmtree(store)
    reader = Reader(lake)
    writing = [sys.executable, "-m", "benchmarks.follow", "--write", str(store), "--rates", str(rate)]
    writer = subprocess.Popen([*writing, "--seconds", str(seconds + _PATIENCE_S)])
    with ended(writer, signal.SIGKILL):
        while not any(store.rglob("consumequeue")):
            time.sleep(_LOOK_S)
        used = watched([*command, "--every", every], reader, seconds)
    at = quantiles(reader.ages, n=100) if len(reader.ages) > 1 else [0.0] * 99
    return {
        "rate": rate,
        "messages_seen": reader.rows,
        "commits": reader.commits,
        "visible_after_s": {"p50": round(at[49], 2), "p95": round(at[94], 2), "p99": round(at[98], 2)},
        "cores": round(used / seconds, 2),
        "cpu_s_a_commit": round(used / max(reader.commits, 1), 2),
        "load": round(os.getloadavg()[0], 1),  # of the machine, other work included
        "samples": reader.samples,
    }


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, rates=[500, 5000], seconds=120.0, every="1s", folder=FOLDER, write=Path)
    if given.write is not None:
        write(given.write, given.rates[0], given.seconds)
        return
    folder, found = given.folder / "follow", []
    for rate in given.rates:
        shutil.rmtree(folder, ignore_errors=True)
        found.append(measure(folder, rate, given.seconds, given.every))
        shutil.rmtree(folder)  # a lake that a failure left is looked at
    answer({"every": given.every, "seconds": given.seconds, "rates": found})


if __name__ == "__main__":
    main()
