"""
Run the benchmarks and record their results: `make bench`, or `make bench SCALE=small`, which takes only minutes.

Each benchmark is a module that prints JSON, with a baseline that it measures in the same run. At full scale the JSON is
written to `benchmarks/results`, with the command, the commit and the machine.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parents[1]
_RESULTS = Path(__file__).parent / "results"

# Benchmarks with many writes use memory, because a disk would be slower than the code that is measured.
_MEMORY = Path("/dev/shm")  # noqa: S108 - benchmarks create their own directory in it
_SCRATCH_IN_MEMORY = ("--scratch", str(_MEMORY)) if _MEMORY.is_dir() else ()
_IN_MEMORY = ("--directory", str(_MEMORY / "rocketmq-lake-benchmark")) if _MEMORY.is_dir() else ()


class Arguments(NamedTuple):
    """The arguments of a benchmark at each scale."""

    full: tuple[str, ...] = ()  # for recorded results
    small: tuple[str, ...] = ()  # all benchmarks take minutes
    tiny: tuple[str, ...] = ()  # only shows that the benchmark runs; its figures mean nothing


BENCHMARKS = {
    "ingest": Arguments(_SCRATCH_IN_MEMORY, ("--mib", "1023", "--runs", "1"),
                        ("--mib", "4", "--runs", "1", "--no-spark")),
    "engines": Arguments(_SCRATCH_IN_MEMORY, ("--mib", "64", "256", "1023"), ("--mib", "4")),
    "verify": Arguments((), ("--mib", "1023", "--runs", "1"),
                        ("--mib", "4", "--runs", "1")),
    "rebuild-index": Arguments((), ("--gib", "0.25"), ("--gib", "0.01", "--no-broker", "--no-spark")),
    "rebuild-queues": Arguments(("--million-units", "50"), ("--million-units", "1"),
                                ("--million-units", "0.01", "--queues", "8", "--no-broker")),
    "query-lake": Arguments((), ("--entries", "1000000"), ("--entries", "10000", "--no-baselines")),
    "follow": Arguments(("--rates", "500", "5000", "100000", "--seconds", "60"), ("--seconds", "30"),
                        ("--rates", "50", "--seconds", "5")),
    "model-of-cores": Arguments(("--mib", "256"), ("--mib", "256"), ("--mib", "4", "--log-gb", "8", "--cores", "4")),
    "configuration-growth": Arguments(_IN_MEMORY, ("--offsets", "2000", "--runs", "16"),
                                      ("--offsets", "80", "--runs", "2")),
    "files-on-disk": Arguments(_IN_MEMORY, ("--runs", "50"), ("--runs", "3")),
    "topic-layout": Arguments(_IN_MEMORY, ("--messages", "250000"), ("--messages", "2000")),
    "many-queues": Arguments(_IN_MEMORY, ("--queues", "500", "1000", "2000"), ("--queues", "50")),
    "plan-of-log": Arguments(_IN_MEMORY, ("--segments", "250", "500", "1000"), ("--segments", "20")),
    "object-store-requests": Arguments(_IN_MEMORY, ("--runs", "5", "10", "20", "--segments", "10", "20", "40"),
                                       ("--runs", "2", "--segments", "10")),
    "missing-key": Arguments(_IN_MEMORY, ("--messages", "20000", "40000", "80000"), ("--messages", "2000")),
    "lost-queue": Arguments((), ("--queues", "20", "40", "80"), ("--queues", "20")),
    "file-opens": Arguments((), ("--segments", "50", "100", "200"), ("--segments", "10")),
    "index-settings": Arguments((), ("--files", "20", "40", "80"), ("--files", "4")),
    "recreated-topic": Arguments((), ("--messages", "20000", "50000", "100000"), ("--messages", "1000")),
    "rocksdb-index": Arguments((), ("--rows", "100000", "200000"), ("--rows", "3000")),
    "first-run": Arguments((), ("--kib", "64"), ("--kib", "16", "--environments", "nothing")),
    "small-commands": Arguments((), ("--runs", "1"), ("--runs", "1", "--engines", "here")),
}  # fmt: skip


def command_line(name: str, scale: str) -> list[str]:
    """Return the command line of a benchmark."""
    return [sys.executable, "-m", f"benchmarks.{name.replace('-', '_')}", *getattr(BENCHMARKS[name], scale)]


def main() -> None:
    """Run the named benchmarks one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=("full", "small", "tiny"), default="full")
    parser.add_argument("names", nargs="*", default=list(BENCHMARKS), help=", ".join(BENCHMARKS))
    options = parser.parse_args()
    if unknown := set(options.names) - BENCHMARKS.keys():
        parser.error(f"unknown benchmarks: {', '.join(sorted(unknown))}. Choose from {', '.join(BENCHMARKS)}")
    for name in options.names:
        command = command_line(name, options.scale)
        print(f"{name}: {' '.join(command)}", file=sys.stderr)
        process = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)
        result = json.dumps(json.loads(process.stdout), indent=2)
        print(result)
        if options.scale == "full":
            (_RESULTS / f"{name}.json").write_text(f"{result}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
