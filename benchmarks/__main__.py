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
from typing import NamedTuple

from benchmarks.broker import RELEASE
from benchmarks.plots import draw

_ROOT = Path(__file__).parents[1]
_RESULTS = Path(__file__).parent / "results"

# Where it is processors that are timed, what is written goes to memory; a disk would be the slower one.
_MEMORY = Path("/dev/shm")  # noqa: S108 - benchmarks make a folder of their own in it
_IN_MEMORY = ["--scratch", str(_MEMORY)] if _MEMORY.is_dir() else []


class Program(NamedTuple):
    """A benchmark: its module, and its arguments at each scale."""

    module: str
    full: tuple[str, ...] = ()  # a recorded result
    small: tuple[str, ...] = ()  # some minutes for all of them
    tiny: tuple[str, ...] = ()  # proves that it runs, measures nothing

    def command(self, scale: str) -> list[str]:
        """Return what to run."""
        return [sys.executable, "-m", f"benchmarks.{self.module}", *getattr(self, scale)]


_BESIDE_SMALL = ("--mib", "128", "--seconds", "5", "--rate", "200")
_BESIDE_TINY = ("--mib", "8", "--seconds", "2", "--rate", "50")

PROGRAMS: dict[str, Program] = {
    "ingest": Program(
        "ingest",
        full=("--broker", *_IN_MEMORY),
        small=("--mib", "256", "--runs", "1"),
        tiny=("--mib", "4", "--runs", "1"),
    ),
    "verbs": Program("verbs", small=("--runs", "1"), tiny=("--runs", "1", "--engines", "here")),
    "small-run": Program("small_run", small=("--runs", "2"), tiny=("--runs", "1")),
    "stages": Program(
        "stages", full=(*_IN_MEMORY,), small=("--mib", "128", "--runs", "1"), tiny=("--mib", "4", "--runs", "1")
    ),
    "rebuild-index": Program("rebuild_index", small=("--gib", "0.25"), tiny=("--gib", "0.01", "--no-broker")),
    "queues": Program("queues", full=("50", "1000"), small=("1", "100"), tiny=("0.01", "8", "--no-broker")),
    "beside-broker": Program("beside_broker", small=_BESIDE_SMALL, tiny=_BESIDE_TINY),
    "beside-broker-cold": Program(
        "beside_broker",
        full=("--cold",),
        small=("--cold", *_BESIDE_SMALL),
        tiny=("--cold", *_BESIDE_TINY),
    ),
    "query-store": Program("query_store", tiny=("--records", "900", "--entries", "1000")),
    "query-lake": Program("query_lake", small=("--entries", "1000000"), tiny=("--entries", "10000", "--no-peers")),
    "browse": Program(
        "browse",
        small=("--entries", "1000000", "--mib", "64"),
        tiny=("--entries", "200000", "--mib", "8"),
    ),
    "growth": Program("growth", small=("--gib", "1"), tiny=("--gib", "0.004", "0.008", "--cores", "1")),
    "costs": Program(
        "costs", full=(*_IN_MEMORY,), small=("--mib", "128", "--runs", "1"), tiny=("--mib", "4", "--runs", "1")
    ),
    "stream": Program("stream", small=("--mib", "64", "--runs", "1"), tiny=("--mib", "4", "--runs", "1")),
    "restore": Program("restore", small=("--gib", "0.5"), tiny=("--gib", "0.004")),
    "killed-commands": Program(
        "killed_commands",
        small=("--gib", "0.5", "--kills", "3", "--restore-kills", "3", "--step-mib", "64"),
        tiny=("--gib", "0.004", "--kills", "1", "--restore-kills", "1", "--step-mib", "1"),
    ),
    "killed-ingest": Program(
        "killed_commands",
        full=("--step-mib", "256", "--restore-kills", "0"),
        small=("--gib", "0.5", "--kills", "3", "--restore-kills", "0", "--step-mib", "64"),
        tiny=("--gib", "0.004", "--kills", "1", "--restore-kills", "0", "--step-mib", "1"),
    ),
    "verify": Program("verify", small=("--mib", "64", "--runs", "2"), tiny=("--mib", "4", "--runs", "1")),
    "damage": Program("damage", small=("--mib", "256", "--runs", "1"), tiny=("--mib", "4", "--runs", "1")),
    "incremental-runs": Program("incremental_runs", small=("--runs", "100"), tiny=("--runs", "2")),
    "follow": Program(
        "follow",
        full=("--rates", "500", "5000", "100000", "--seconds", "60"),
        small=("--seconds", "30"),
        tiny=("--rates", "50", "--seconds", "5"),
    ),
    "follow-broker": Program(
        "follow",
        full=("--release", RELEASE, "--rates", "500", "--seconds", "7200"),
        small=("--release", RELEASE, "--seconds", "30"),
        tiny=("--release", RELEASE, "--rates", "50", "--seconds", "5"),
    ),
    "follow-broker-idle": Program(
        "follow",
        full=("--release", RELEASE, "--seconds", "60"),
        small=("--release", RELEASE, "--seconds", "15"),
        tiny=("--release", RELEASE, "--rates", "50", "--seconds", "5"),
    ),
    "long-following": Program(
        "long_following",
        full=("--steps", "300", "--every", "0.1", "--faster", "45"),
        small=("--steps", "100", "--every", "0"),
        tiny=("--steps", "2", "--every", "0"),
    ),
    "long-following-year": Program(
        "long_following",
        full=("--steps", "4380", "--every", "0.72", "--faster", "10000", "--pace", "7200"),
        small=("--steps", "100", "--every", "0", "--faster", "10000", "--pace", "7200"),
        tiny=("--steps", "2", "--every", "0"),
    ),
    "commits": Program("commits", small=("--commits", "5"), tiny=("--commits", "1", "--files", "1")),
    "inflation": Program("inflation", small=("--runs", "1"), tiny=("--messages", "100", "--runs", "1")),
    "memory": Program("memory", small=("64",), tiny=("8",)),
    "typed": Program("typed", full=("--from-avro",), small=("--runs", "1"), tiny=("--messages", "500", "--runs", "1")),
    "planning": Program("planning", small=("1000", "2000"), tiny=("10", "20")),
}


def main() -> None:
    """Run the chosen benchmarks one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=("full", "small", "tiny"), default="full")
    parser.add_argument("names", nargs="*", default=list(PROGRAMS), help=", ".join(PROGRAMS))
    given = parser.parse_args()
    results = {}
    for name in given.names:
        command = PROGRAMS[name].command(given.scale)
        print(f"{name}: {' '.join(command)}", file=sys.stderr)
        done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)
        results[name] = json.loads(done.stdout)
        if given.scale == "full":
            (_RESULTS / f"{name}.json").write_text(json.dumps(results[name], indent=2) + "\n", encoding="utf-8")
    if given.scale == "full":
        draw()
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
