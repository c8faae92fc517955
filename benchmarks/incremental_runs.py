"""
What a run costs after hundreds of runs before it: time, files and size of Delta's logs must stay flat.

    python -m benchmarks.incremental_runs [--runs 1000]

Every run brings a few new messages. The runs follow each other within minutes, not months: so that retention can be
seen at all, Delta's logs are kept for one minute here and replaced files not at all, instead of for seven days. Tasks
run in this process; Spark adds its constant part to each run.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measuring import answer, asked
from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.lake import commit, compaction
from jobs.report.model import Bars
from jobs.store.workers import OneByOne
from tests.support.broker import Broker, some_records

MESSAGES_A_RUN = 5
SAMPLED = 50  # runs: more than lie between two merges of small files
PLOTTED = {
    "cpu_s": "CPU seconds, median of the runs since the bar before",
    "log_kib": "KiB of Delta's logs",
    "files": "files",
}


def measure(folder: Path, runs: int) -> list[dict[str, float]]:
    """Make the runs; return the figures of every fiftieth."""
    commit.CONFIGURATION["delta.logRetentionDuration"] = "interval 1 minutes"
    commit.CONFIGURATION["delta.deletedFileRetentionDuration"] = "interval 0 hours"
    compaction.RETENTION_HOURS = 0
    broker = Broker(folder / "store", segment_size=1 << 20)
    lake = folder / "lake"
    samples, seconds = [], []
    for number in range(1, runs + 1):
        broker.append(some_records(MESSAGES_A_RUN, seed=number))
        began = time.process_time()
        summary = ingest(IngestRequest(str(broker.root), str(lake), broker="b"), OneByOne())
        seconds.append(time.process_time() - began)
        if summary.messages != MESSAGES_A_RUN:
            raise SystemExit(f"run {number} brought {summary.messages} messages")
        if number % SAMPLED == 0 or number == runs:
            samples.append({"run": number, "cpu_s": round(statistics.median(seconds[-SAMPLED:]), 3),
                            "slowest_cpu_s": round(max(seconds[-SAMPLED:]), 3), **sizes(lake)})  # fmt: skip
            print(samples[-1], file=sys.stderr, flush=True)
    return samples


def sizes(lake: Path) -> dict[str, float]:
    """Count what lies in a lake."""
    files = [path for path in lake.rglob("*") if path.is_file()]
    logs = [path for path in files if "_delta_log" in path.parts]
    return {
        "files": len(files),
        "log_files": len(logs),
        "log_kib": round(sum(_size(path) for path in logs) / 1024),
        "manifests": sum("_manifests" in path.parts for path in files),
        "data_files": sum(path.suffix == ".parquet" and "_delta_log" not in path.parts for path in files),
    }


def _size(path: Path) -> int:
    """Return how many bytes a file has; none when it is gone, as what is made beside its place is after its rename."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def main() -> None:
    """Measure, and write the result."""
    arguments = asked(__doc__, runs=1000)
    with tempfile.TemporaryDirectory() as folder:
        samples = measure(Path(folder), arguments.runs)
    result = {
        "runs": arguments.runs,
        "messages_a_run": MESSAGES_A_RUN,
        "last_over_first_cpu": round(samples[-1]["cpu_s"] / samples[0]["cpu_s"], 2),
        "samples": samples,
    }
    answer(result)


def bars(samples: list[dict[str, float]]) -> list[Bars]:
    """Return one plot a figure, over the number of runs."""
    return [
        Bars(f"incremental runs: {unit}", unit, {f"run {sample['run']}": sample[name] for sample in samples})
        for name, unit in PLOTTED.items()
    ]


if __name__ == "__main__":
    main()
