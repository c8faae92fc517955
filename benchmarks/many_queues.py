"""
Measure what runs cost that depends on the number of queues, not on the number of messages.

    python -m benchmarks.many_queues [--queues N N N] [--directory DIR]

For each number of queues: `ingest` without new messages, as a command and without the note of an earlier one, and one
step of `--follow` with 20 new messages. The baseline is the run without a note, which examines every queue. The CPU
time of a step is measured in this process, its memory in that of a command.
"""

import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.measuring import parse_options, print_growth
from benchmarks.stores import DIRECTORY, LiveStore, Recipe
from jobs.ingest import Summary
from jobs.ingest.run import FollowedStore, run_steps
from jobs.lake.snapshots import cache_snapshots
from jobs.products.index.entries import cache_open_slots
from jobs.requests.ingest import IngestRequest
from jobs.store.workers import SerialWorkers

_QUEUES_PER_TOPIC = 50
_NEW_MESSAGES = 20
_STEPS = 3  # the first one examines every queue
_SAMPLED_S = 0.02
_SETTLING_S = 3  # a note has the queue directories only if none has changed in the last two seconds


def measure(directory: Path, queues: int) -> dict[str, Any]:
    """Return the figures for one number of queues."""
    shutil.rmtree(directory, ignore_errors=True)
    recipe = Recipe(0, 400, compressible=True, topics=queues // _QUEUES_PER_TOPIC, queues=_QUEUES_PER_TOPIC)
    store, lake = LiveStore(directory / "store", recipe), directory / "lake"
    store.append(queues)
    time.sleep(_SETTLING_S)
    command = ["ingest", str(store.root), "--lake", str(lake), "--broker", "b"]
    _measure_command(command)
    (note_s, note_mib), (no_note_s, _) = _measure_command(command), _measure_command([*command, "--min-age", "1ms"])
    followed, steps = FollowedStore(), []
    request = IngestRequest(str(store.root), str(lake), broker="b")
    with cache_snapshots(), cache_open_slots():
        for _ in range(_STEPS):
            store.append(_NEW_MESSAGES)
            before = _cpu_s(resource.RUSAGE_SELF)
            (summary,) = run_steps(request, SerialWorkers(), followed)
            steps.append(_cpu_s(resource.RUSAGE_SELF) - before)
            _refuse_wrong(summary)
    peak_mib = _measure_peak_of_step([*command, "--follow", "--every", "1s"], store, lake)
    manifests = (lake / "_manifests").glob("*.json")
    return {
        "queues": queues,
        "ingest_nothing_new_s": note_s,
        "ingest_nothing_new_peak_mib": note_mib,
        "baseline_without_note_s": no_note_s,
        "baseline_first_step_s": round(steps[0], 2),
        "step_of_follow_s": round(steps[-1], 2),
        "step_of_follow_peak_mib": peak_mib,
        "manifest_kib": round(max(path.stat().st_size for path in manifests) / 1024, 1),
    }


def _refuse_wrong(summary: Summary) -> None:
    if (summary.messages, summary.units["matched"], summary.behind) != (_NEW_MESSAGES, _NEW_MESSAGES, 0):
        raise ValueError(f"the step has not ingested the new messages: {summary}")


def _measure_command(words: list[str]) -> tuple[float, int]:
    """Run a command, and return its CPU seconds and its peak memory in MiB."""
    before = _cpu_s(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen([sys.executable, "-m", "jobs.main", *words, "--quiet"], stdout=subprocess.DEVNULL)
    peak = 0  # `ru_maxrss` would include the memory of this process, which has started the command
    while process.poll() is None:
        peak = max(peak, _read_peak_mib(process.pid))
        time.sleep(_SAMPLED_S)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)}: exit code {process.returncode}")
    return round(_cpu_s(resource.RUSAGE_CHILDREN) - before, 2), peak


def _measure_peak_of_step(words: list[str], store: LiveStore, lake: Path) -> int:
    """Return the peak memory, in MiB, of the last of some steps of a command that follows the store."""
    commits = lake / "messages" / "_delta_log"
    process = subprocess.Popen([sys.executable, "-m", "jobs.main", *words, "--quiet"])
    for _ in range(_STEPS):
        time.sleep(_SETTLING_S)
        Path(f"/proc/{process.pid}/clear_refs").write_text("5", encoding="ascii")  # the peak begins again
        before = len([*commits.glob("*.json")])
        store.append(_NEW_MESSAGES)
        while len([*commits.glob("*.json")]) == before and process.poll() is None:
            time.sleep(_SAMPLED_S)
    time.sleep(_SETTLING_S)
    peak = _read_peak_mib(process.pid)
    process.terminate()
    if process.wait():
        raise SystemExit(f"{' '.join(words)}: exit code {process.returncode}")
    return peak


def _read_peak_mib(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10 if "VmHWM:" in status else 0  # it has just ended


def _cpu_s(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, queues=[2000, 10_000, 50_000], directory=DIRECTORY)
    print_growth(options.queues, options.directory / "many-queues", measure)


if __name__ == "__main__":
    main()
