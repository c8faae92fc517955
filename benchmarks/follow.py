"""
Measure the delay from a broker's write to disk until a reader of the lake sees the message, during `ingest --follow`.

    python -m benchmarks.follow [--rates MESSAGES ...] [--seconds N] [--every TIME] [--directory DIR]

A separate process writes log and queues as a broker does: every 20 ms it appends messages with the current time. The
baseline is the number of messages that it has written, which is lower than the rate if the machine cannot write faster.

This process polls the Delta table with the `deltalake` package. Whenever a new version appears, the delays of its new
messages are computed from their store timestamps. `ingest` is an ordinary command in a separate process.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from benchmarks.measuring import list_descendants, parse_options, print_result, read_cpu_s
from benchmarks.stores import DIRECTORY, LiveStore, Recipe

_TICK_S = 0.02
_MAX_TICKS = 10  # in one batch; a larger batch would contain messages that are dated long before they are written
_POLLING_INTERVAL_S = 0.05
_RECIPE = Recipe(0, record_size=400, compressible=True, segment_size=256 << 20)
_MESSAGES_PER_VERSION = 20  # evenly distributed messages of each version, whose delays are computed
_SAMPLES = 20  # of memory and number of files
_TIMEOUT_S = 120  # for a process that was asked to stop
_WRITTEN = "written"  # a file next to the store, with the number of messages written so far


def write_messages(store: Path, rate: int, seconds: float) -> None:
    """Append messages to a new store at a steady rate, and record their number."""
    live = LiveStore(store, _RECIPE)
    began = time.monotonic()
    with (store.parent / _WRITTEN).open("wb", buffering=0) as file:
        while (elapsed := time.monotonic() - began) < seconds:
            live.append(min(int(elapsed * rate) - live.written, int(_MAX_TICKS * _TICK_S * rate) + 1))
            os.pwrite(file.fileno(), b"%020d" % live.written, 0)
            time.sleep(_TICK_S)


@dataclass(slots=True)
class LakeReader:
    """Polls the table of messages, and collects delays and samples of memory and files."""

    lake: Path
    delays: list[float] = field(default_factory=list)  # seconds from the write of a message until it was visible
    commits: int = 0
    rows: int = 0
    samples: list[dict[str, float]] = field(default_factory=list)
    _table: DeltaTable | None = None
    _version: int = -1
    _newest: float = 0.0  # store timestamp of the newest message in the previous version

    def wait_for_table(self, process: "subprocess.Popen[bytes]") -> None:
        """Poll until the table exists."""
        while self._version < 0:
            self._poll(process)

    def watch(self, process: "subprocess.Popen[bytes]", seconds: float) -> None:
        """Poll the table for some seconds; sample the memory of the process and the number of files in the lake."""
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < seconds:
            self._poll(process)
            if elapsed > len(self.samples) * seconds / _SAMPLES:
                files = sum(path.is_file() for path in self.lake.rglob("*"))
                memory = _read_memory_mib(process.pid)
                self.samples.append({"second": round(elapsed), "rss_mib": memory, "files": files})

    def _poll(self, process: "subprocess.Popen[bytes]") -> None:
        _raise_if_ended(process)
        self._read_new_version()
        time.sleep(_POLLING_INTERVAL_S)

    def _read_new_version(self) -> None:
        """Record the number of rows and the delays of the messages that a new version contains for the first time."""
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
            step = (newest - self._newest) / _MESSAGES_PER_VERSION
            self.delays += [now - newest + number * step for number in range(_MESSAGES_PER_VERSION)]
            self.commits += 1
        self._newest = newest


def _raise_if_ended(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is not None:
        raise subprocess.CalledProcessError(process.returncode, process.args)


def _read_memory_mib(process: int) -> float:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    return round(int(status.partition("VmRSS:")[2].split()[0]) / 1024, 1)


def _read_total_cpu_s(process: int) -> float:
    """Return the CPU seconds of a process and all processes below it, including ended children."""
    return sum(read_cpu_s(one, with_ended_children=True) or 0.0 for one in (process, *list_descendants(process)))


@contextmanager
def stop_after_block(process: "subprocess.Popen[bytes]", number: int) -> Iterator[None]:
    """Send a signal to a process after the block; kill the process if it does not end."""
    try:
        yield
    finally:
        process.send_signal(number)
        try:
            process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()


def follow_store(command: Sequence[str], reader: LakeReader, seconds: float, count: Path) -> tuple[float, int]:
    """Let the reader watch the lake of a command with --follow; return its CPU seconds, and *count* at the end."""
    following = subprocess.Popen([*command, "--follow"], stdout=subprocess.DEVNULL)
    with stop_after_block(following, signal.SIGTERM):
        reader.wait_for_table(following)
        before = _read_total_cpu_s(following.pid)
        reader.watch(following, seconds)
        cpu_s, written = _read_total_cpu_s(following.pid) - before, int(count.read_bytes())
    if following.returncode:
        raise subprocess.CalledProcessError(following.returncode, "ingest --follow")
    return cpu_s, written


def measure_delays(directory: Path, rate: int, seconds: float, every: str) -> dict[str, Any]:
    """Follow a growing store for some seconds; return the figures."""
    store, lake = directory / "store", directory / "lake"
    LiveStore(store, _RECIPE).append(100)
    command = [sys.executable, "-m", "jobs.main", "ingest", str(store), "--lake", str(lake), "--broker", "b", "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # a warm-up
    shutil.rmtree(lake)
    shutil.rmtree(store)
    reader = LakeReader(lake)
    writing = [sys.executable, "-m", "benchmarks.follow", "--write", str(store), "--rates", str(rate)]
    writer = subprocess.Popen([*writing, "--seconds", str(seconds + _TIMEOUT_S)])
    with stop_after_block(writer, signal.SIGKILL):
        while not any(store.rglob("consumequeue")):
            _raise_if_ended(writer)
            time.sleep(_POLLING_INTERVAL_S)
        cpu_s, written = follow_store([*command, "--every", every], reader, seconds, directory / _WRITTEN)
        _raise_if_ended(writer)
    percentiles = quantiles(reader.delays, n=100) if len(reader.delays) > 1 else [0.0] * 99
    return {
        "rate": rate,
        "baseline_messages_written": written,
        "messages_seen": reader.rows,
        "commits": reader.commits,
        "visible_after_s": {f"p{number}": round(percentiles[number - 1], 2) for number in (50, 95, 99)},
        "cores": round(cpu_s / seconds, 2),
        "cpu_s_per_commit": round(cpu_s / max(reader.commits, 1), 2),
        "load": round(os.getloadavg()[0], 1),  # includes other work on the machine
        "samples": reader.samples,
    }


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, rates=[500, 5000], seconds=120.0, every="1s", directory=DIRECTORY, write=Path)
    if options.write is not None:  # this is the writing process
        write_messages(options.write, options.rates[0], options.seconds)
        return
    directory, figures = options.directory / "follow", []
    for rate in options.rates:
        shutil.rmtree(directory, ignore_errors=True)
        figures.append(measure_delays(directory, rate, options.seconds, options.every))
        shutil.rmtree(directory)  # not after a failure, so that the lake can be examined
    print_result({"every": options.every, "seconds": options.seconds, "rates": figures})


if __name__ == "__main__":
    main()
