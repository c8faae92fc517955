"""
Compare two checkouts of this project: bytes read from the log, time and memory of their commands on the same stores.

    python -m benchmarks.before_and_after --before CHECKOUT [--mib N] [--million-units N] [--runs N] [--directory DIR]

The baseline is CHECKOUT. Each command runs in one process (`--engine here`), alternately in both checkouts. `passes` is
the number of bytes that a command reads from segments, counted by `strace`, divided by the size of the log.

- ingest: `messages` alone, and all tables, into an empty lake;
- verify: a healthy store;
- repair: a store with one damaged page, with its lake, without `--apply`.

`verify` also runs once on a store with a single topic, and once on a copy that has only the newest file of each queue.
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
from benchmarks.measuring import Cost, measure_cost, median_cost, parse_options, print_result
from benchmarks.stores import DIRECTORY, Recipe, make_healthy_store

_ROOT = Path(__file__).parents[1]
_CALL = re.compile(
    r"^(\d+) +(\w+\(\d+<[^>]*/commitlog/\d+>|<\.\.\. \w+ resumed>).*?(?: = (-?\d+)( .*)?| <unfinished \.\.\.>)$"
)
_PAGE = 4096
_EXPECTED_EXIT_CODES = (0, 3, 4)  # success, damage, mismatch


class Checkout:
    """A checkout whose commands run with the interpreter and the packages of this process."""

    def __init__(self, root: Path) -> None:
        self._environment = {**os.environ, "PYTHONPATH": str(root)}
        self._root = root

    def run(self, *words: object) -> Cost:
        """Run a command and return its cost."""
        with measure_cost() as cost:
            self._run([], words)
        return cost

    def count_log_bytes(self, trace: Path, *words: object) -> int:
        """Run a command and return the number of bytes that it read from segments."""
        calls = "trace=read,pread64,preadv,preadv2,copy_file_range,sendfile"
        self._run(["strace", "-f", "-y", "-qq", "-e", calls, "-e", "signal=none", "-o", str(trace)], words)
        total, unfinished = 0, set[str]()  # threads with a read of a segment that a later line completes
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
        process = subprocess.run(
            command, cwd=self._root, env=self._environment, capture_output=True, text=True, check=False
        )
        if process.returncode not in _EXPECTED_EXIT_CODES:
            raise SystemExit(f"{' '.join(command)}\n{process.stdout}{process.stderr}")


def damage_page(store: Path, copy: Path) -> Path:
    """Copy a store and overwrite one page of its first segment with zeros; return the copy."""
    subprocess.run(["cp", "--recursive", "--sparse=always", f"{store}/.", copy], check=True)
    segment = min((copy / "commitlog").iterdir())
    with segment.open("r+b") as file:
        file.seek(min(segment.stat().st_size, _written_bytes(store)) // 3 // _PAGE * _PAGE)
        file.write(bytes(_PAGE))
    return copy


def lose_queue_files(store: Path, copy: Path) -> Path:
    """Copy a store with only the newest file of each queue, and links to log and index; return the copy."""
    copy.mkdir(exist_ok=True)
    for name in ("commitlog", "index"):
        (copy / name).symlink_to(store / name)
    shutil.copy(store / "checkpoint", copy)
    shutil.copytree(store / "consumequeue", copy / "consumequeue")
    for queue in (copy / "consumequeue").glob("*/*"):
        for file in sorted(queue.iterdir())[:-1]:
            file.unlink()
    return copy


def _written_bytes(store: Path) -> int:
    return sum(512 * file.stat().st_blocks for file in (store / "commitlog").iterdir())


def _commands(store: Path, damaged: Path, scratch: Path) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield the name and the arguments of each command. The caller deletes the outputs of earlier commands."""
    here = ("--engine", "here", "--release", RELEASE)
    ingest = ("ingest", store, "--lake", scratch / "new-lake", *here)
    yield "ingest, messages", (*ingest, "--tables", "messages")
    yield "ingest, all tables", ingest
    yield "verify", ("verify", store, *here)
    yield "repair", ("repair", damaged, "--lake", scratch / "lake", "--out", scratch / "out", *here)


def _compare_commands(checkouts: dict[str, Checkout], store: Path, scratch: Path, runs: int) -> dict[str, Any]:
    damaged = damage_page(store, scratch / "damaged")
    log_bytes = _written_bytes(store)
    figures: dict[str, dict[str, Any]] = {name: {} for name in checkouts}
    for command, words in _commands(store, damaged, scratch):
        costs: dict[str, list[Cost]] = {name: [] for name in checkouts}
        for turn in range(runs + 1):
            for name, checkout in checkouts.items():
                if command == "repair":
                    _delete(scratch / "lake")
                    checkout.run("ingest", store, "--lake", scratch / "lake", "--engine", "here")
                for output in ("new-lake", "out"):
                    _delete(scratch / output)
                if turn:  # the first turn counts bytes, and is a warm-up
                    costs[name].append(checkout.run(*words))
                else:
                    passes = checkout.count_log_bytes(scratch / "trace", *words) / log_bytes
                    figures[name][command] = {"passes": round(passes, 2)}
        for name in checkouts:
            figures[name][command] |= median_cost(costs[name])
    for of_checkout in figures.values():
        ratio = of_checkout["ingest, all tables"]["wall_s"] / of_checkout["ingest, messages"]["wall_s"]
        of_checkout["all tables over messages"] = round(ratio, 2)
    return figures


def _compare_lost_files(checkouts: dict[str, Checkout], units: int, directory: Path, scratch: Path) -> dict[str, Any]:
    size = 256
    store = make_healthy_store(Recipe(units * size, size, topics=1), directory)
    lost = lose_queue_files(store, scratch / "lost")
    figures: dict[str, dict[str, Any]] = {}
    for name, checkout in checkouts.items():
        words = ("--engine", "here", "--release", RELEASE)
        checkout.run("verify", store, *words)  # a warm-up
        healthy, damaged = (median_cost([checkout.run("verify", each, *words)]) for each in (store, lost))
        ratio = round(damaged["wall_s"] / healthy["wall_s"], 2)
        figures[name] = {"healthy": healthy, "lost queue files": damaged, "lost over healthy": ratio}
    return figures


def _delete(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    """Print the figures of both checkouts as JSON."""
    options = parse_options(__doc__, before=Path, mib=4092, million_units=5.0, runs=3, directory=DIRECTORY)
    if not options.before:
        raise SystemExit("--before is missing: pass the directory of another checkout")
    checkouts = {"before": Checkout(options.before.absolute()), "after": Checkout(_ROOT)}
    store = make_healthy_store(Recipe(options.mib << 20, 1024, compressible=True), options.directory)
    scratch = options.directory / "before-and-after"
    _delete(scratch)
    scratch.mkdir(parents=True)
    try:
        commands = _compare_commands(checkouts, store, scratch, options.runs)
        lost_files = _compare_lost_files(checkouts, int(options.million_units * 1e6), options.directory, scratch)
    finally:
        _delete(scratch)
    print_result(
        {
            "before": options.before.name,
            "mib": options.mib,
            "million_units": options.million_units,
            "runs": options.runs,
            "load": os.getloadavg(),
            "store": commands,
            "queue files": lost_files,
        }
    )


if __name__ == "__main__":
    main()
