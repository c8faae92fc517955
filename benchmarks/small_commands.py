"""
Measure commands on a small store, from the start of the process to its end, in one process and on Spark.

    python -m benchmarks.small_commands [--mib N] [--engines here,spark] [--runs N]

The baseline is the same command on Spark. The store is that of `demo`, 56 KiB written by a real broker; with --mib, it
is a generated store of that size, with records of 1 KiB. Modules are compiled to files, as in an installed package.
`core_s` is the CPU time of the command, without that of its JVM, which ends after the command.
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

from benchmarks.broker import RELEASE
from benchmarks.measuring import parse_options, print_result
from benchmarks.stores import Recipe, make_healthy_store
from jobs.command_line.table import COMMAND_TABLE
from jobs.demo.tour import unpack

_COMMANDS = {
    "inspect": "inspect {store}",
    "dump": "dump {store}/checkpoint",
    "query on a store": "query by-key -t {topic} -k {key} --store {store}",
    "ingest": "ingest {store} --lake {new}",
    "query on a lake": "query by-key -t {topic} -k {key} --lake {lake}",
    "ingest, nothing new": "ingest {store} --lake {lake}",
    "verify": "verify {store}",
    "rebuild-index": "rebuild-index {store} --out {new}",
    "rebuild-consumequeue": "rebuild-consumequeue {store} --out {new}",
    "repair": "repair {store} --out {new} --lake {lake}",
    "restore": "restore {lake} --out {new}",
    "diff": "diff {store} {lake}",
    "export": "export --store {store} --out {new}",
    "optimize": "optimize --dry-run {lake}",
    "catalog": "catalog {lake}",
    "demo": "demo {new}",
}
_COMMANDS_WITH_RELEASE = ("rebuild-index", "rebuild-consumequeue", "repair", "restore")
_ROOT = Path(__file__).parents[1]


class Run(NamedTuple):
    """The time of one command in seconds."""

    wall_s: float
    core_s: float


class _Inputs(NamedTuple):
    """The store and the lake that the commands read, and the values of their options."""

    store: Path
    lake: Path
    directory: Path  # for all outputs
    topic: str
    key: str
    release: tuple[str, ...]  # options; a generated store does not contain its release


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, mib=0, engines="here,spark", runs=3)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        lake = directory / "lake"
        if options.mib:
            store = make_healthy_store(Recipe(options.mib << 20, 1024), directory)
            inputs = _Inputs(store, lake, directory, "Bench000", f"order-{0:012d}", ("--release", RELEASE))
        else:
            unpack(directory)
            inputs = _Inputs(directory / "store", lake, directory, "T1", "k1", ())
        _run(["ingest", str(inputs.store), "--lake", str(lake)])
        figures = {engine: dict(_measure(inputs, engine, options.runs)) for engine in options.engines.split(",")}
    print_result({"store_mib": options.mib, "runs": options.runs} | figures)


def _measure(inputs: _Inputs, engine: str, runs: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the label and the figures of each command that can use *engine*."""
    for label, template in _COMMANDS.items():
        command = template.partition(" ")[0]
        engine_option = ["--engine", engine] if COMMAND_TABLE[command].uses_spark else []
        if engine == "spark" and not engine_option:
            continue
        finished = []
        for number in range(runs):
            new = inputs.directory / f"{engine}-{command}-{number}"
            words = template.format(**inputs._asdict(), new=new).split()
            finished.append(
                _run([*words, *engine_option, *(inputs.release if command in _COMMANDS_WITH_RELEASE else ())])
            )
        yield (
            label,
            {
                "wall_s": round(median(run.wall_s for run in finished), 2),
                "fastest_s": round(min(run.wall_s for run in finished), 2),
                "core_s": round(median(run.core_s for run in finished), 2),
            },
        )


def _run(words: list[str]) -> Run:
    """Run one command, which must succeed."""
    began, before = time.perf_counter(), os.times()
    command = [sys.executable, "-m", "jobs.main", *words]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - began, os.times()
    if process.returncode:
        raise SystemExit(f"{' '.join(words)}: exit code {process.returncode}\n{process.stdout}{process.stderr}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(wall, cpu)


if __name__ == "__main__":
    main()
