"""
The page of plots of the recorded results: `python -m benchmarks.plots` draws it again without running anything.

What was not reached is on it, too: where a figure is worse than what it is compared with, the page says so.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import follow
from benchmarks.incremental_runs import bars
from jobs.report.model import Bars, Grid, Part, Report
from jobs.report.page import page

RESULTS = Path(__file__).parent / "results"
_OURS = "rocketmq-lake"
_CORES = 2  # one and two are compared
_ALL_OVER_ONE = "all tables over messages, wall"
_GOAL_OF_ALL = 1.25
_GOAL_OF_TYPING = 5
Results = Mapping[str, Mapping[str, Any]]


def parts(results: Results) -> Iterator[Part]:
    """Yield the plots of what is recorded, by name of the record."""
    for draw in (_ingest, _costs, _growth, _rebuilds, _queries, _beside_broker, _memory, _small):
        yield from draw(results)
    yield _not_reached(results)
    yield Grid("Records", ("record", "commit", "machine", "command"), [_record(*item) for item in results.items()])


def _ingest(results: Results) -> Iterator[Part]:
    per_gib = results.get("ingest", {}).get("per_gib", {})
    if per_gib:
        note = f"{results['ingest'].get('record_size', '')} bytes a record; less is better."
        walls = {peer: figures["wall_s"] for peer, figures in per_gib.items()}
        cpus = {peer: figures["cpu_s"] for peer, figures in per_gib.items()}
        yield Bars("Ingest against others: time", "seconds per GiB of log", walls, note=note)
        yield Bars("Ingest against others: processor", "core-seconds per GiB of log", cpus, note=note)


def _costs(results: Results) -> Iterator[Part]:
    peers = results.get("costs", {}).get("peers", {})
    if peers:
        cores = {name: figures["core_s_per_gib"] for name, figures in peers.items()}
        yield Bars("What a run costs", "core-seconds per GiB of log", cores)
    streams = results.get("stream", {}).get("peers", {})
    if streams:
        rates = {name: figures["mib_per_second"] for name, figures in streams.items()}
        yield Bars("A stream of one's own beside ingest", "MiB of log a second", rates)


def _growth(results: Results) -> Iterator[Part]:
    runs = results.get("growth", {}).get("runs", ())
    if runs:
        names = {f"{run['gib']} GiB, {run['cores']} cores": run for run in runs}
        yield Bars("Growth: time of an ingest", "seconds", {name: run["wall_s"] for name, run in names.items()})
        memory = {name: run["peak_worker_mib"] for name, run in names.items()}
        yield Bars("Growth: memory of a worker", "MiB", memory)
    samples = results.get("incremental-runs", {}).get("samples")
    if samples:
        yield from bars(samples)
    for name in ("follow", "follow-broker-idle", "follow-broker"):
        yield from follow.bars(results.get(name, {}))


def _rebuilds(results: Results) -> Iterator[Part]:
    index, queues = results.get("rebuild-index", {}), results.get("queues", {})
    if {"one_process", "spark", "broker"} <= set(index):
        seconds = {
            _OURS: index["one_process"]["wall_s"],
            f"{_OURS}, on Spark": index["spark"]["wall_s"],
            f"RocketMQ {index['broker']['release']}": index["broker"]["rebuild_s"],
        }
        yield Bars("Rebuilding the index of one log", "seconds", seconds)
    if {"rebuild", "broker"} <= set(queues):
        broker = queues["broker"]
        seconds = {_OURS: queues["rebuild"]["seconds"], f"RocketMQ {broker['release']}": broker["rebuild_s"]}
        yield Bars(f"Rebuilding {queues['units']:,} units of queues", "seconds", seconds)


def _queries(results: Results) -> Iterator[Part]:
    lake, store = results.get("query-lake", {}), results.get("query-store", {})
    seconds = {name.removesuffix("_s").replace("_", " "): lake[name] for name in lake if name.endswith("_s")}
    if seconds:
        yield Bars(f"Queries in a lake of {lake['entries']:,} index entries", "seconds", seconds)
    if {"warm", "cold"} <= set(store):
        title = f"One key in an index file of {store['entries']:,} entries"
        yield Bars(title, "seconds", {name: store[name]["wall_s"] for name in ("warm", "cold")})


def _beside_broker(results: Results) -> Iterator[Part]:
    phases = results.get("beside-broker", {}).get("phases", {})
    if phases:
        sends = {name: phase["p99_ms"] for name, phase in phases.items()}
        yield Bars("Beside a broker: one send in a hundred (p99)", "milliseconds", sends)


def _memory(results: Results) -> Iterator[Part]:
    bodies = results.get("memory", {}).get("bodies", {})
    peaks = {f"bodies of {size}: {what}": run["peak_MB"] for size, runs in bodies.items() for what, run in runs.items()}
    if peaks:
        yield Bars("Memory of one worker by size of bodies and tables made", "MB", peaks)


def _small(results: Results) -> Iterator[Part]:
    steps = results.get("small-run", {}).get("steps_s")
    if steps:
        yield Bars("A run of three messages: where the time goes", "seconds", steps)
    stages = results.get("kills", {}).get("stages")
    if stages:
        rows = f"{results['kills']['rows']:,} rows, as many as messages were written"
        yield Bars("Killed runs, by the stage in which they were killed", "runs", stages, note=rows)


def _not_reached(results: Results) -> Grid:
    """Return where another way is faster, smaller or cheaper than ours."""
    rows: list[tuple[str, str, str, str]] = []
    per_gib = results.get("ingest", {}).get("per_gib", {})
    ours = per_gib.get(_OURS, {})
    for name, unit in (("wall_s", "seconds per GiB"), ("cpu_s", "core-seconds per GiB")):
        for peer, figures in per_gib.items():
            if peer != _OURS and ours and figures[name] < ours[name]:
                rows.append((f"ingest, {unit}", f"{ours[name]:.2f}", peer, f"{figures[name]:.2f}"))
    growth = results.get("growth", {})
    if growth.get("cores_times", _CORES) < _CORES:
        rows.append(("a second core", f"{growth['cores_times']} times faster", "twice the cores", "2 times faster"))
    costs = results.get("costs", {})
    if costs.get("ratios", {}).get(_ALL_OVER_ONE, 0.0) > _GOAL_OF_ALL:
        walls = {name: f"{figures['wall_s']} s" for name, figures in costs["peers"].items()}
        all_tables, messages = walls["all tables, two tasks"], walls["messages, two tasks"]
        rows.append(("all tables", all_tables, f"{_GOAL_OF_ALL} times `messages` alone", messages))
    typed = results.get("typed", {})
    for name, times in typed.get("times_as_fast", {}).items():
        if times < _GOAL_OF_TYPING:
            ours_of, theirs = (
                typed["peers"][peer]["messages_per_core_second"] for peer in (f"type {name}", f"from_{name}")
            )
            goal = f"{_GOAL_OF_TYPING} times Spark's from_{name}"
            rows.append((f"bodies of {name}, messages per core-second", f"{ours_of:,}", goal, f"{theirs:,}"))
    columns = ("what", _OURS, "compared with", "figure")
    note = "A floor does less than a run: it only checks sums, or writes rows that are in memory."
    return Grid("What was not reached", columns, rows, note=note)


def _record(name: str, result: Mapping[str, Any]) -> tuple[str, str, str, str]:
    commit, machine, command = (str(result.get(key, "")) for key in ("commit", "machine", "command"))
    return f"{name}.json", commit, machine, command


def draw(folder: Path = RESULTS) -> None:
    """Draw every result that is kept, whenever it was made."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    report = Report("bench", "benchmarks", "healthy", "", "Benchmarks: recorded runs", list(parts(results)))
    (folder / "plots.html").write_text(page(report), encoding="utf-8")


if __name__ == "__main__":
    draw()
