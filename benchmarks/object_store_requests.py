"""
Count the requests to an S3 server: of a run of `ingest` without new messages after many runs, and of a `verify`.

    python -m benchmarks.object_store_requests [--runs N N N] [--segments N N N] [--directory DIR]

S3Proxy serves local files; a proxy in front of it counts requests. Most runs are made on a local copy of the lake,
which is then put on the server. The last 20 are made there: the first 4 are not counted, and one of the others merges
files. The baseline is a run with new messages, and for `verify` one request for each segment and each queue file.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.broker import RELEASE
from benchmarks.measuring import parse_options, print_result
from benchmarks.stores import DIRECTORY, LiveStore, Recipe, add_queues, make_store
from jobs.ingest.run import ingest
from jobs.requests.ingest import IngestRequest
from jobs.store.workers import SerialWorkers
from tests.scale.servers import S3Server, hadoop_options, s3_server
from tests.support.http_server import forward_request, read_body, run_http_server

_MESSAGES = 60
_RUNS_COUNTED = 16
_RUNS_BEFORE = 4  # on the server, which get its more frequent checkpoints
_SEGMENT_SIZE, _RECORD_SIZE, _QUEUES_PER_TOPIC = 64 << 10, 1024, 10


@dataclass
class _CountingServer:
    """Forwards requests to a server, and counts them by method and path."""

    server: S3Server
    port: int = 0
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Count a request and forward it."""
        self.requests[request.command, request.path] += 1
        forward_request(request, self.server.port, read_body(request))

    def run(self, *words: str, **environment: str) -> dict[str, Any]:
        """Run a command, which must succeed, and return the number of its requests."""
        self.requests.clear()
        settings = self.server._replace(port=self.port).options
        command = [sys.executable, "-m", "jobs.main", *hadoop_options(settings), *words, "--engine", "local", "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **environment})
        return {"requests": self.requests.total(), **Counter(method for method, _ in self.requests.elements())}


@contextmanager
def _start_server(directory: Path) -> Iterator[_CountingServer]:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    with s3_server(directory) as server:
        counting = _CountingServer(server)
        with run_http_server(counting.answer, "HTTP/1.1") as address:
            counting.port = int(address.rpartition(":")[2])
            yield counting
    shutil.rmtree(directory)


def measure_runs(counting: _CountingServer, directory: Path, runs: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the figures after each number of runs."""
    store = LiveStore(directory / "store", Recipe(0, 400, compressible=True, topics=4, queues=4))
    lake = directory / "lake"
    done = 0
    for number in runs:
        while done < number - _RUNS_BEFORE - _RUNS_COUNTED:
            store.append(_MESSAGES)
            ingest(IngestRequest(str(store.root), str(lake), broker="b"), SerialWorkers())
            done += 1
        name = f"lake-{number}"
        if lake.exists():
            counting.server.upload(lake, name)
        command = ["ingest", str(store.root), "--lake", counting.server.uri(name), "--broker", "b"]
        with_messages = []
        for _ in range(_RUNS_BEFORE + _RUNS_COUNTED):
            store.append(_MESSAGES)
            with_messages.append(counting.run(*command)["requests"])
        counted = with_messages[_RUNS_BEFORE:]
        idle = counting.run(*command)
        elsewhere = counting.run(*command, RMQ_LAKE_CACHE=str(directory / "another-machine"))
        without_note = counting.run(*command, "--min-age", "1ms")
        yield {
            "runs": number,
            "idle": idle,
            "idle_on_another_machine": elsewhere,
            "idle_without_note": without_note,
            "baseline_with_new_messages": {
                "median": median(counted),
                "mean": round(mean(counted)),
                "most": max(counted),
            },
        }


def measure_verify(counting: _CountingServer, directory: Path, segments: int) -> dict[str, Any]:
    """Return the requests of one `verify` for each segment and each queue file."""
    topics = max(segments // _QUEUES_PER_TOPIC, 1)
    recipe = Recipe(segments * (_SEGMENT_SIZE - 1024), _RECORD_SIZE, topics=topics, queues=_QUEUES_PER_TOPIC,
                    segment_size=_SEGMENT_SIZE)  # fmt: skip
    store = make_store(recipe, directory)
    if not (store / "consumequeue").exists():
        add_queues(recipe, store)
    counting.server.upload(store, store.name)
    requests = counting.run("verify", counting.server.uri(store.name), "--release", RELEASE)
    by_kind = Counter[str]()
    for (_, path), count in counting.requests.items():
        by_kind[next((kind for kind in ("/commitlog/", "/consumequeue/") if kind in path), "others")] += count
    return {
        "segments": segments,
        "queue_files": topics * _QUEUES_PER_TOPIC,
        **requests,
        "requests_per_segment": round(by_kind["/commitlog/"] / segments, 2),
        "requests_per_queue_file": round(by_kind["/consumequeue/"] / (topics * _QUEUES_PER_TOPIC), 2),
        "others": by_kind["others"],
    }


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, runs=[20, 100, 500], segments=[20, 40, 80], directory=DIRECTORY)
    directory = options.directory / "object-store-requests"
    with _start_server(directory) as counting:
        print_result(
            {
                "runs": list(measure_runs(counting, directory, options.runs)),
                "verify": [measure_verify(counting, directory, segments) for segments in options.segments],
            }
        )


if __name__ == "__main__":
    main()
