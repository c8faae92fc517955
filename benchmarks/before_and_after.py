"""
Compare two checkouts of this project: passes over the log, wall time and memory of their commands on the same stores.

    python -m benchmarks.before_and_after --before CHECKOUT [--mib N] [--million-units N] [--runs N] [--folder DIR]

Each command runs in a process of its own, in one process (`--engine here`), by turns with the other checkout. `strace`
counts the bytes that a command reads from segments; `passes` is that number divided by the size of the log.

- ingest: `messages` alone, and all tables, into an empty lake;
- verify: a healthy store, and the same store without all but the newest queue files of its only topic;
- repair: a store with one damaged page, from its lake, without `--apply`.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.broker import RELEASE
from benchmarks.measuring import Measured, answer, asked, measured, medians
from benchmarks.stores import FOLDER, Recipe, make_healthy_store

_ROOT = Path(__file__).parents[1]
_CALL = re.compile(
    r"^(\d+) +(\w+\(\d+<[^>]*/commitlog/\d+>|<\.\.\. \w+ resumed>).*?(?: = (-?\d+)( .*)?| <unfinished \.\.\.>)$"
)
_PAGE = 4096
_DONE = (0, 3, 4)  # success, damage, mismatch


class Checkout:
    """A checkout whose commands run with the interpreter and the packages of this process."""

    def __init__(self, root: Path) -> None:
        self._environment = {**os.environ, "PYTHONPATH": str(root)}
        self._root = root

    def run(self, *words: object) -> Measured:
        """Run a command and return its cost."""
        with measured() as figures:
            self._run([], words)
        return figures

    def log_bytes(self, trace: Path, *words: object) -> int:
        """Run a command and return the bytes that it read from segments."""
        calls = "trace=read,pread64,preadv,preadv2,copy_file_range,sendfile"
        self._run(["strace", "-f", "-y", "-qq", "-e", calls, "-e", "signal=none", "-o", str(trace)], words)
        total, unfinished = 0, set[str]()  # threads whose read of a segment is continued on a later line
        with trace.open(errors="replace") as lines:
            for thread, call, size, _ in (found.groups() for line in lines if (found := _CALL.match(line.rstrip()))):
                is_resumed = call.startswith("<")
                if size is None:
                    unfinished.add(thread)
                elif not is_resumed or thread in unfinished:
                    total += max(int(size), 0)
                    unfinished.discard(thread)
        trace.unlink()
        return total

    def _run(self, prefix: Sequence[str], words: Sequence[object]) -> None:
        command = [*prefix, sys.executable, "-m", "jobs.main", *map(str, words)]
        done = subprocess.run(
            command, cwd=self._root, env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode not in _DONE:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def damage_page(store: Path, copy: Path) -> Path:
    """Return a copy of a store in which one page of the first segment is zeros."""
    subprocess.run(["cp", "--recursive", "--sparse=always", f"{store}/.", copy], check=True)
    segment = min((copy / "commitlog").iterdir())
    with segment.open("r+b") as file:
        file.seek(min(segment.stat().st_size, _written(store)) // 3 // _PAGE * _PAGE)
        file.write(bytes(_PAGE))
    return copy


def lose_queue_files(store: Path, copy: Path) -> Path:
    """Return a copy of a store that has only the newest file of each queue; log and index are links."""
    copy.mkdir(exist_ok=True)
    for name in ("commitlog", "index"):
        (copy / name).symlink_to(store / name)
    shutil.copy(store / "checkpoint", copy)
    shutil.copytree(store / "consumequeue", copy / "consumequeue")
    for queue in (copy / "consumequeue").glob("*/*"):
        for file in sorted(queue.iterdir())[:-1]:
            file.unlink()
    return copy


def _written(store: Path) -> int:
    return sum(512 * file.stat().st_blocks for file in (store / "commitlog").iterdir())


def _commands(store: Path, damaged: Path, scratch: Path) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield the name and the arguments of each command; the caller deletes what earlier commands have created."""
    here = ("--engine", "here", "--release", RELEASE)
    ingest = ("ingest", store, "--lake", scratch / "new-lake", *here)
    yield "ingest, messages", (*ingest, "--tables", "messages")
    yield "ingest, all tables", ingest
    yield "verify", ("verify", store, *here)
    yield "repair", ("repair", damaged, "--lake", scratch / "lake", "--out", scratch / "out", *here)


def _compare_store(checkouts: dict[str, Checkout], store: Path, scratch: Path, runs: int) -> dict[str, Any]:
    damaged = damage_page(store, scratch / "damaged")
    log = _written(store)
    peers: dict[str, dict[str, Any]] = {name: {} for name in checkouts}
    for command, words in _commands(store, damaged, scratch):
        costs: dict[str, list[Measured]] = {name: [] for name in checkouts}
        for turn in range(runs + 1):
            for name, checkout in checkouts.items():
                if command == "repair":
                    _renew(scratch / "lake")
                    checkout.run("ingest", store, "--lake", scratch / "lake", "--engine", "here")
                for used in ("new-lake", "out"):
                    _renew(scratch / used)
                if turn:
                    costs[name].append(checkout.run(*words))
                else:
                    passes = checkout.log_bytes(scratch / "trace", *words) / log
                    peers[name][command] = {"passes": round(passes, 2)}
        for name in checkouts:
            peers[name][command] |= medians(costs[name])
    for figures in peers.values():
        ratio = figures["ingest, all tables"]["wall_s"] / figures["ingest, messages"]["wall_s"]
        figures["all tables over messages"] = round(ratio, 2)
    return peers


def _compare_lost_files(checkouts: dict[str, Checkout], units: int, folder: Path, scratch: Path) -> dict[str, Any]:
    size = 256
    store = make_healthy_store(Recipe(units * size, size, topics=1), folder)
    lost = lose_queue_files(store, scratch / "lost")
    peers: dict[str, dict[str, Any]] = {}
    for name, checkout in checkouts.items():
        words = ("--engine", "here", "--release", RELEASE)
        checkout.run("verify", store, *words)  # a warm-up
        healthy, damaged = (medians([checkout.run("verify", each, *words)]) for each in (store, lost))
        ratio = round(damaged["wall_s"] / healthy["wall_s"], 2)
        peers[name] = {"healthy": healthy, "lost queue files": damaged, "lost over healthy": ratio}
    return peers


def _renew(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Print the figures of both checkouts as JSON."""
    given = asked(__doc__, before=Path, mib=4092, million_units=5.0, runs=3, folder=FOLDER)
    if not given.before:
        raise SystemExit("--before: name a checkout of an earlier version")
    checkouts = {"before": Checkout(given.before.absolute()), "after": Checkout(_ROOT)}
    store = make_healthy_store(Recipe(given.mib << 20, 1024, compressible=True), given.folder)
    scratch = given.folder / "before-and-after"
    _renew(scratch)
    scratch.mkdir(parents=True)
    try:
        figures = _compare_store(checkouts, store, scratch, given.runs)
        lost = _compare_lost_files(checkouts, int(given.million_units * 1e6), given.folder, scratch)
    finally:
        _renew(scratch)
    answer(
        {
            "before": given.before.name,
            "mib": given.mib,
            "million_units": given.million_units,
            "runs": given.runs,
            "load": os.getloadavg(),
            "store": figures,
            "queue files": lost,
        }
    )


if __name__ == "__main__":
    main()
