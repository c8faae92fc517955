"""
Time every verb on a small store from the typed command to the next prompt, in its own process and on Spark.

    python -m benchmarks.small_commands [--mib N] [--engines here,spark] [--runs N]

The store is the demo's, 56 KiB that a real broker wrote; with --mib one of so many MiB in records of 1 KiB.
Each run is a process of its own, with modules compiled to files, as they are where it is installed. Processor
time is the command's, without that of a JVM, which ends by itself after the command.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.measuring import answer, asked
from benchmarks.stores import Recipe, make_store
from jobs.demo import unpack
from jobs.launch.engine import VERBS_WITH_ENGINE

_COMMANDS = {
    "inspect": "inspect {store}",
    "dump": "dump {store}/checkpoint",
    "query on a store": "query by-key -t T1 -k k1 --store {store}",
    "ingest": "ingest {store} --lake {new}",
    "query on a lake": "query by-key -t T1 -k k1 --lake {lake}",
    "ingest, nothing new": "ingest {store} --lake {lake}",
    "verify": "verify {store}",
    "rebuild-index": "rebuild-index {store} --out {new}",
    "rebuild-consumequeue": "rebuild-consumequeue {store} --out {new}",
    "repair": "repair {store} --out {new} --lake {lake}",
    "restore": "restore {lake} --out {new}",
    "diff": "diff {store} {lake}",
    "export": "export --store {store} --out {new}",
    "optimize": "optimize --dry-run {lake}",
    "demo": "demo {new}",
}
_TELLS_RELEASE = ("rebuild-index", "rebuild-consumequeue", "repair", "restore")
_ROOT = Path(__file__).parents[1]


class Run(NamedTuple):
    """What one command took."""

    wall_s: float
    core_s: float
    code: int


class _Places(NamedTuple):
    """What the commands work on."""

    store: Path
    lake: Path
    folder: Path  # of all that is made
    told: tuple[str, ...]  # options that say the store's release


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, mib=0, engines="here,spark", runs=3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = make_store(Recipe(given.mib << 20, 1024), folder) if given.mib else unpack(folder).store
        lake = folder / "lake"
        _run(f"ingest {store} --lake {lake}".split())
        told = ("--release", "5.3.3") if given.mib else ()  # a made store does not tell its release
        places = _Places(store, lake, folder, told)
        result = {engine: dict(_measured(places, engine, given.runs)) for engine in given.engines.split(",")}
    answer({"store_mib": given.mib, "runs": given.runs} | result)


def _measured(places: _Places, engine: str, runs: int) -> Iterator[tuple[str, dict[str, float]]]:
    for label, command in _COMMANDS.items():
        verb = command.partition(" ")[0]
        option = ["--engine", engine] if verb in VERBS_WITH_ENGINE else []
        if engine == "spark" and not option:
            continue
        seen = []
        for number in range(runs):
            words = command.format(
                store=places.store, lake=places.lake, new=places.folder / f"{engine}-{verb}-{number}"
            ).split()
            seen.append(_run([*words, *option, *(places.told if verb in _TELLS_RELEASE else ())]))
        yield (
            label,
            {
                "wall_s": round(median(one.wall_s for one in seen), 2),
                "fastest_s": round(min(one.wall_s for one in seen), 2),
                "core_s": round(median(one.core_s for one in seen), 2),
                "code": seen[0].code,
            },
        )


def _run(words: list[str]) -> Run:
    """Run one command line."""
    began, before = time.perf_counter(), os.times()
    command = [sys.executable, "-m", "jobs.main", *words]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    quiet = subprocess.DEVNULL
    done = subprocess.run(command, cwd=_ROOT, env=environment, stdout=quiet, stderr=quiet, check=False)
    wall, after = time.perf_counter() - began, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(wall, cpu, done.returncode)


if __name__ == "__main__":
    main()
