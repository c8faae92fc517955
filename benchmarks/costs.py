"""
What a run costs: `messages` alone and all tables, in one process and in two tasks of Spark.

    python -m benchmarks.costs [--mib N] [--runs N] [--folder DIR] [--scratch DIR]

The store has queues and an index, as a broker leaves them; the log is in the page cache, and the session is started
before the clock. Peers, interleaved, each into an empty lake. `steps_s` are the steps of the run with all tables in two
tasks, as it says them itself.
"""

import shutil
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.broker import RELEASE
from benchmarks.damage import add_queues
from benchmarks.lakes import bring
from benchmarks.measuring import answer, asked, in_turns
from benchmarks.stores import FOLDER, Recipe, make_store
from jobs.launch.session import spark_session
from jobs.products.index.settings import Wanted
from jobs.rebuild.index import RebuildIndexRequest, rebuild
from jobs.store.spark_workers import SparkWorkers
from jobs.store.workers import OneByOne, Workers

_RECORD_SIZE = 1024
_TABLES = {
    "messages": frozenset({"messages"}),
    "all tables": frozenset({"messages", "consume_queue", "index"}),
}
_ONE, _TWO = "one process", "two tasks"


def make(recipe: Recipe, folder: Path) -> Path:
    """Make a store with its queues and its index, unless it is there."""
    store = make_store(recipe, folder)
    if not (store / "index").exists():
        add_queues(recipe, store)
        out = folder / "index"
        shutil.rmtree(out, ignore_errors=True)
        rebuild(RebuildIndexRequest(str(store), str(out), Wanted(release=RELEASE)), OneByOne())
        (store / "index").mkdir()
        for file in out.rglob("*"):
            if file.is_file() and file.name.isdigit():
                file.rename(store / "index" / file.name)
        shutil.rmtree(out)
    return store


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, mib=2048, runs=3, folder=FOLDER, scratch=Path)
    recipe = Recipe(given.mib << 20, _RECORD_SIZE, compressible=True)
    store = make(recipe, given.folder)
    lake = (given.scratch or given.folder) / "rocketmq-lake-costs"
    workers: dict[str, Workers] = {_ONE: OneByOne(), _TWO: SparkWorkers(spark_session("costs"))}
    steps: dict[str, list[dict[str, float]]] = {}

    def run(name: str, tables: frozenset[str], worker: Workers) -> None:
        steps.setdefault(name, []).append(bring(store, lake, worker, tables).seconds)

    names = {f"{what}, {who}": (tables, worker) for what, tables in _TABLES.items() for who, worker in workers.items()}
    found = in_turns({name: partial(run, name, *of_name) for name, of_name in names.items()}, given.runs)
    shutil.rmtree(lake)
    for figures in found.values():
        figures["core_s_per_gib"] = round(figures["cpu_s"] * 1024 / given.mib, 2)
    last = steps[f"all tables, {_TWO}"][1:]  # the first one compiles, and reads the log from the disk
    ratios = {
        "all tables over messages, wall": _ratio(found, "wall_s", f"all tables, {_TWO}", f"messages, {_TWO}"),
        "two tasks over one process, messages, cores": _ratio(found, "cpu_s", f"messages, {_TWO}", f"messages, {_ONE}"),
        "two tasks over one process, all, cores": _ratio(found, "cpu_s", f"all tables, {_TWO}", f"all tables, {_ONE}"),
    }
    steps_s = {step: round(median(one.get(step, 0.0) for one in last), 2) for step in last[0]}
    answer({"mib": given.mib, "peers": found, "ratios": ratios, "steps_s": steps_s})


def _ratio(found: dict[str, dict[str, float]], figure: str, above: str, below: str) -> float:
    return round(found[above][figure] / found[below][figure], 2)


if __name__ == "__main__":
    main()
