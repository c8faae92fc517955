"""
Run the benchmarks and keep their results: `make bench`, or `make bench SCALE=small` in a few minutes.

Each one is a program of its own that prints JSON; what it printed goes to `benchmarks/results`, with the commit, and a
page of plots beside it.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.incremental_runs import bars
from jobs.report.model import Bars, Facts, Part, Report
from jobs.report.page import page

_ROOT = Path(__file__).parents[1]
_RESULTS = Path(__file__).parent / "results"
_PLAIN = str | int | float

# Where it is processors that are timed, what is written goes to memory; a disk would be the slower one.
_MEMORY = Path("/dev/shm")  # noqa: S108 - benchmarks make a folder of their own in it
_IN_MEMORY = ["--scratch", str(_MEMORY)] if _MEMORY.is_dir() else []

# name → arguments at full and at small scale
_PROGRAMS: dict[str, tuple[list[str], list[str]]] = {
    "ingest": (["benchmarks.ingest", "--broker", *_IN_MEMORY], ["benchmarks.ingest", "--mib", "256", "--runs", "1"]),
    "ingest-256": (
        ["benchmarks.ingest", "--record-size", "256", "--mib", "1024", *_IN_MEMORY],
        ["benchmarks.ingest", "--record-size", "256", "--mib", "128", "--runs", "1"],
    ),
    "small-run": (["benchmarks.small_run"], ["benchmarks.small_run", "--runs", "2"]),
    "stages": (["benchmarks.stages", *_IN_MEMORY], ["benchmarks.stages", "--mib", "128", "--runs", "1"]),
    "rebuild-index": (
        ["benchmarks.rebuild_index"],
        ["benchmarks.rebuild_index", "--gib", "0.25"],
    ),
    "queues": (["benchmarks.queues", "50", "1000"], ["benchmarks.queues", "1", "100"]),
    "beside-broker": (
        ["benchmarks.beside_broker"],
        ["benchmarks.beside_broker", "--mib", "128", "--seconds", "5", "--rate", "200"],
    ),
    "beside-broker-cold": (
        ["benchmarks.beside_broker", "--cold"],
        ["benchmarks.beside_broker", "--cold", "--mib", "128", "--seconds", "5", "--rate", "200"],
    ),
    "query-store": (["benchmarks.query_store"], ["benchmarks.query_store"]),
    "query-lake": (["benchmarks.query_lake"], ["benchmarks.query_lake", "--entries", "1000000"]),
    "growth": (["benchmarks.growth"], ["benchmarks.growth", "--gib", "1"]),
    "damage": (["benchmarks.damage"], ["benchmarks.damage", "--mib", "256", "--runs", "1"]),
    "incremental-runs": (["benchmarks.incremental_runs"], ["benchmarks.incremental_runs", "--runs", "100"]),
    "memory": (["benchmarks.memory"], ["benchmarks.memory", "64"]),
    "planning": (["benchmarks.planning"], ["benchmarks.planning", "1000", "2000"]),
}


def main() -> None:
    """Run the chosen benchmarks one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=("full", "small"), default="full")
    parser.add_argument("names", nargs="*", default=list(_PROGRAMS), help=", ".join(_PROGRAMS))
    told = parser.parse_args()
    results = {}
    for name in told.names:
        arguments = _PROGRAMS[name][told.scale == "small"]
        print(f"{name}: python -m {' '.join(arguments)}", file=sys.stderr)
        results[name] = _run(arguments)
        if told.scale == "full":
            (_RESULTS / f"{name}.json").write_text(json.dumps(results[name], indent=2) + "\n", encoding="utf-8")
    if told.scale == "full":
        _plot()
    print(json.dumps(results, indent=2))


def _run(arguments: list[str]) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result | {"commit": _commit()}


def _commit() -> str:
    told = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    return told.stdout.strip()


def _plot() -> None:
    """Draw every result that is kept, whenever it was made."""
    parts: list[Part] = []
    for path in sorted(_RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        parts.append(Facts(path.stem, {key: value for key, value in result.items() if isinstance(value, _PLAIN)}))
        if "samples" in result:
            parts += bars(result["samples"])
        if "per_gib" in result:
            seconds = {peer: figures["cpu_s"] for peer, figures in result["per_gib"].items()}
            parts.append(Bars(f"{path.stem}: CPU of all processes", "core-seconds per GiB", seconds))
    report = Report("bench", "benchmarks", "good", "Benchmarks", parts)
    (_RESULTS / "plots.html").write_text(page(report), encoding="utf-8")


if __name__ == "__main__":
    main()
