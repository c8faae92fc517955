"""
Measure what the messages of a topic that was deleted and created again cost `verify` and `ingest`.

    python -m benchmarks.recreated_topic [--messages N N N] [--directory DIR]

The log has as many messages of the deleted topic as of the new one, in one queue, whose files have only units of the
new topic. The baseline is the same log with a queue that was never deleted. Each command runs in a separate process,
which reports its peak memory; `bytes_per_earlier_message` and `us_per_earlier_message` compare the two stores.
"""

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.broker import RELEASE
from benchmarks.measuring import parse_options, print_growth
from benchmarks.stores import DIRECTORY, Recipe, make_store_with_recreated_topic
from jobs.console.process import hide_pandas
from jobs.ingest.run import ingest
from jobs.products.queues.join_result import KINDS_OF_EARLIER_QUEUES
from jobs.requests.ingest import IngestRequest
from jobs.requests.verify import VerifyRequest
from jobs.store.request import GivenSettings
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify

_RECORD_SIZE = 320
_COMMANDS = ("verify", "ingest")


def make_stores(directory: Path, messages: int) -> dict[str, Path]:
    """Write a store without a deletion and one with *messages* of a deleted topic; return their roots."""
    stores = {"baseline": directory / "baseline", "recreated": directory / "recreated"}
    for name, root in stores.items():
        recipe = Recipe(2 * messages * _RECORD_SIZE, _RECORD_SIZE, compressible=True, topics=1, queues=1)
        make_store_with_recreated_topic(recipe, root, messages if name == "recreated" else 0)
    return stores


def run_command(command: str, store: Path, lake: Path, earlier: int) -> dict[str, float]:
    """Run one command in this process; return its CPU time and the peak memory of the process."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    settings = GivenSettings(release=RELEASE)
    if command == "verify":
        findings = verify(VerifyRequest(str(store), given_settings=settings), SerialWorkers()).findings
        found = sum(one.times for one in findings if one.kind in KINDS_OF_EARLIER_QUEUES.values())
        if found != earlier:
            raise SystemExit(f"{store}: {earlier} messages are of an earlier topic, but verify reports {found}")
    else:
        request = IngestRequest(str(store), str(lake), broker="b")
        summary = ingest(request, SerialWorkers())
        if summary.units["matched"] + earlier != summary.messages:
            raise SystemExit(f"{store}: {summary.units} of {summary.messages} messages, of which {earlier} are earlier")
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        "peak_mib": round(after.ru_maxrss / 1024, 1),
    }


def measure(directory: Path, messages: int) -> dict[str, Any]:
    """Return the figures for one number of messages."""
    shutil.rmtree(directory, ignore_errors=True)
    stores = make_stores(directory, messages)
    figures: dict[str, Any] = {"earlier_messages": messages}
    for command in _COMMANDS:
        costs = {
            name: _run_in_process(command, root, directory / name / "lake", messages) for name, root in stores.items()
        }
        more = {unit: costs["recreated"][unit] - costs["baseline"][unit] for unit in costs["baseline"]}
        figures[command] = costs | {
            "bytes_per_earlier_message": round(more["peak_mib"] * (1 << 20) / messages, 1),
            "us_per_earlier_message": round(more["cpu_s"] * 1e6 / messages, 2),
        }
    return figures


def _run_in_process(command: str, store: Path, lake: Path, messages: int) -> dict[str, float]:
    earlier = messages if store.name == "recreated" else 0
    words = [sys.executable, "-m", "benchmarks.recreated_topic", "--command", command, "--store", str(store)]
    words += ["--lake", str(lake), "--earlier", str(earlier)]
    cost: dict[str, float] = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
    return cost


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(
        __doc__,
        messages=[100_000, 300_000, 1_000_000],
        directory=DIRECTORY,
        command=str,
        store=Path,
        lake=Path,
        earlier=0,
    )
    if options.command is not None:  # this is the process of one command
        hide_pandas()
        print(json.dumps(run_command(options.command, options.store, options.lake, options.earlier)))
        return
    print_growth(options.messages, options.directory / "recreated-topic", measure)


if __name__ == "__main__":
    main()
