"""
The most memory that a process takes which does a task's work, whatever the messages are like.

`python -m benchmarks.memory [MIB]` ingests one segment of MIB megabytes (1024) of messages with bodies of 100 bytes,
of 1 KB and of 4 MiB, each in a process of its own, into `messages` alone, with queues, and with index files that fill
up; it prints JSON. One process does every range, the joins and the index: no Python worker of Spark does more.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.broker import RELEASE
from benchmarks.measuring import peak_mb, provenance
from benchmarks.stores import Recipe, make_store
from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.store.workers import OneByOne

_RECORDS = {"100 bytes": 336, "1 KB": 1260, "4 MiB": (4 << 20) + 240}
_TABLES = {"messages": ["messages"], "queues": ["messages", "consume_queue"], "index": ["messages", "index"]}
_ENTRIES = 2_000_000  # of an index file: a segment fills several


def one(store: str, tables: str) -> dict[str, float]:
    """Ingest *store* here and tell what it took."""
    with tempfile.TemporaryDirectory() as lake:
        request = IngestRequest(
            store,
            lake,
            tables=frozenset(tables.split(",")),
            hash_slots=_ENTRIES // 4,
            index_num=_ENTRIES,
            release=RELEASE,
        )
        summary = ingest(request, OneByOne())
    return {"messages": summary.messages, "index_entries": summary.index_entries, "peak_MB": peak_mb()}


def measure(mib: int) -> dict[str, Any]:
    """Return the figures of every kind of message and step."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, size in _RECORDS.items():
            store = make_store(Recipe(mib << 20, size, segment_size=mib << 20), Path(folder))
            for step, tables in _TABLES.items():
                command = [sys.executable, "-m", "benchmarks.memory", str(store), ",".join(tables)]
                answer = subprocess.run(command, capture_output=True, text=True, check=True)
                found.setdefault(name, {})[step] = json.loads(answer.stdout)
                print(name, step, found[name][step], file=sys.stderr)
    return {**provenance(), "mib": mib, "bodies": found}


if __name__ == "__main__":
    arguments = sys.argv[1:]
    answer = one(*arguments) if len(arguments) > 1 else measure(int(arguments[0]) if arguments else 1024)
    print(json.dumps(answer, indent=1))
