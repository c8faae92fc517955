"""
Run the benchmarks and keep their results: `make bench`, or `make bench SCALE=small` in a few minutes.

Each one is a program that prints JSON, with an anchor that it measures in the same run. At full scale the JSON goes to
`benchmarks/results`, with the command, the commit and the machine.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parents[1]
_RESULTS = Path(__file__).parent / "results"

# Where processors are timed, results are written to memory; a disk would be slower.
_MEMORY = Path("/dev/shm")  # noqa: S108 - benchmarks make a folder of their own in it
_IN_MEMORY = ("--scratch", str(_MEMORY)) if _MEMORY.is_dir() else ()


class Program(NamedTuple):
    """The arguments of a benchmark at each scale."""

    full: tuple[str, ...] = ()  # a recorded result
    small: tuple[str, ...] = ()  # minutes for all benchmarks
    tiny: tuple[str, ...] = ()  # shows that it runs, measures nothing


PROGRAMS = {
    "ingest": Program(_IN_MEMORY, ("--mib", "256", "--runs", "1"), ("--mib", "4", "--runs", "1", "--no-spark")),
    "verify": Program((), ("--mib", "64", "--runs", "2"), ("--mib", "4", "--runs", "1")),
    "rebuild-index": Program((), ("--gib", "0.25"), ("--gib", "0.01", "--no-broker", "--no-spark")),
    "rebuild-queues": Program(("--million-units", "50"), ("--million-units", "1"),
                              ("--million-units", "0.01", "--queues", "8", "--no-broker")),
    "query-lake": Program((), ("--entries", "1000000"), ("--entries", "10000", "--no-peers")),
    "follow": Program(("--rates", "500", "5000", "100000", "--seconds", "60"), ("--seconds", "30"),
                      ("--rates", "50", "--seconds", "5")),
    "model-of-cores": Program((), ("--mib", "256"), ("--mib", "4", "--log-gb", "8", "--cores", "4")),
    "small-commands": Program((), ("--runs", "1"), ("--runs", "1", "--engines", "here")),
}  # fmt: skip


def command(name: str, scale: str) -> list[str]:
    """Return the command line of a benchmark."""
    return [sys.executable, "-m", f"benchmarks.{name.replace('-', '_')}", *getattr(PROGRAMS[name], scale)]


def main() -> None:
    """Run the chosen benchmarks one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=("full", "small", "tiny"), default="full")
    parser.add_argument("names", nargs="*", default=list(PROGRAMS), help=", ".join(PROGRAMS))
    given = parser.parse_args()
    for name in given.names:
        words = command(name, given.scale)
        print(f"{name}: {' '.join(words)}", file=sys.stderr)
        done = subprocess.run(words, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)
        result = json.dumps(json.loads(done.stdout), indent=2)
        print(result)
        if given.scale == "full":
            (_RESULTS / f"{name}.json").write_text(f"{result}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
