"""
Measure `query by-key` of a lake for a key that no message has, at three sizes.

    python -m benchmarks.missing_key [--messages N N N] [--directory DIR]

`full_scans` counts the statements on `messages` without a limit of offsets or time, and `statements` all statements of
the query in a process that has opened the lake. The baseline is a key that one message has.
"""

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any
from unittest.mock import patch

from benchmarks.broker import RELEASE
from benchmarks.measuring import parse_options, print_result
from benchmarks.stores import DIRECTORY, Recipe, make_healthy_store
from jobs.ingest.run import ingest
from jobs.library import by_key, open_source
from jobs.query.lake_tables import LakeTables
from jobs.requests.ingest import IngestRequest
from jobs.store.workers import SerialWorkers

_TOPIC, _MISSING = "Bench000", "order-that-no-message-has"
_LIMITS = ("physical_offset >=", "physical_offset <", "physical_offset IN", "store_timestamp", "LIMIT 0")
_NOT_FOUND = 5


def measure(directory: Path, messages: int) -> dict[str, Any]:
    """Return the figures of a lake with this number of messages."""
    store = make_healthy_store(Recipe(messages * 1024, 1024, compressible=True), directory)
    lake = directory / f"lake-of-missing-key-{messages}"
    rmtree(lake, ignore_errors=True)
    ingest(IngestRequest(str(store), str(lake), broker="b", release=RELEASE), SerialWorkers())
    present = f"order-{messages // 2:012d}"
    topic = f"Bench{messages // 2 % 8:03}"
    with open_source(lake=lake) as source, _record_statements() as statements:
        by_key(source, _TOPIC, _MISSING)
    on_messages = [one for one in statements if "FROM messages " in one]
    figures = {
        "messages": messages,
        "statements": len(statements),
        "on_messages": len(on_messages),
        "full_scans": sum(not any(limit in one for limit in _LIMITS) for one in on_messages),
        "missing_s": _measure_command(lake, _TOPIC, _MISSING, _NOT_FOUND),
        "baseline_present_s": _measure_command(lake, topic, present, 0),
    }
    rmtree(lake)
    return figures


@contextmanager
def _record_statements() -> Iterator[list[str]]:
    statements = list[str]()

    def record(name: str) -> Any:  # noqa: ANN401 - a method
        method = getattr(LakeTables, name)

        def call(self: LakeTables, sql: str, *arguments: Any) -> Any:  # noqa: ANN401 - those of the method
            statements.append(sql)
            return method(self, sql, *arguments)

        return call

    with patch.multiple(LakeTables, rows=record("rows"), read_integers=record("read_integers")):
        yield statements


def _measure_command(lake: Path, topic: str, key: str, code: int) -> float:
    """Run a query, and return its CPU seconds."""
    before = _cpu_s()
    words = ["query", "by-key", "-t", topic, "-k", key, "--lake", str(lake)]
    done = subprocess.run([sys.executable, "-m", "jobs.main", *words], check=False, capture_output=True, text=True)
    if done.returncode != code:
        raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return round(_cpu_s() - before, 2)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, messages=[125_000, 250_000, 500_000], directory=DIRECTORY)
    print_result({"sizes": [measure(options.directory, messages) for messages in options.messages]})


if __name__ == "__main__":
    main()
