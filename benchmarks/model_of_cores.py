"""
Model how well many cores are used by an `ingest` of a large log, from task times that are measured on this machine.

    python -m benchmarks.model_of_cores [--mib N] [--log-gb N] [--cores N ...] [--folder DIR]

1. Task times: a store of --mib is ingested by one process, and the time of each task is recorded with its phase.
2. The driver's serial time: a store of the same size with as many segments as the large log has ranges is ingested;
   the time outside of tasks is that of a plan, of checks and of commits of that many ranges. The time of an empty task
   on Spark, with as many tasks, is measured as well.
3. The plan of the large log for each number of cores is our own, made from empty segments of 1 GiB.
4. Model: tasks start in order, each on the first free core. A task of the log takes as long per byte as a measured
   one, drawn at random; the work of the other phases grows with the log and is divided among their tasks.

`use` is the time of all tasks, divided by the time of the command on all cores.
"""

import heapq
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree

from benchmarks.lakes import ingest_into_new_lake, spark_workers
from benchmarks.measuring import answer, asked
from benchmarks.stores import FOLDER, Recipe, add_queues, make_healthy_store, make_store
from jobs.store.ranges import balance_ranges, plan_ranges
from jobs.store.store import list_store
from jobs.store.workers import Item, Result, SerialWorkers

_SEGMENT = 1 << 30
_RECORD_SIZE = 1024
_TABLES = frozenset({"messages", "consume_queue", "index"})
_LOG = "reading"  # the label of the tasks that read the log


@dataclass(frozen=True, slots=True)
class TimedWorkers(SerialWorkers):
    """This process; the time of each task is recorded with the label of its phase and its size."""

    tasks: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))

    def map(
        self,
        items: Sequence[Item],
        task: Callable[[Item], Result],
        label: str = "working",
        sizes: Sequence[int] = (),
    ) -> list[Result]:
        """Run *task* on one item after the other."""
        results = []
        for number, item in enumerate(items):
            began = time.perf_counter()
            results.append(task(item))
            self.tasks[label].append((time.perf_counter() - began, sizes[number] if sizes else 0))
        return results

    def total_s(self) -> float:
        """Return the time of all tasks."""
        return sum(seconds for tasks in self.tasks.values() for seconds, _ in tasks)


def ingest_timed(store: Path, lake: Path) -> tuple[TimedWorkers, float]:
    """Ingest a store into a new lake; return its task times, and the time outside of tasks."""
    workers = TimedWorkers()
    began = time.perf_counter()
    ingest_into_new_lake(store, lake, workers, _TABLES)
    return workers, time.perf_counter() - began - workers.total_s()


def plan_sizes(log_bytes: int, cores: int, folder: Path) -> list[int]:
    """Return the sizes of the ranges that `ingest` plans for a log of that size; its segments are empty files."""
    rmtree(folder, ignore_errors=True)
    (folder / "commitlog").mkdir(parents=True)
    for offset in range(0, log_bytes, _SEGMENT):
        with (folder / "commitlog" / f"{offset:020}").open("wb") as file:
            file.truncate(_SEGMENT)
    ranges = plan_ranges(list_store(str(folder)))
    rmtree(folder)
    return balance_ranges(ranges, [one.size for one in ranges], cores)[1]


def makespan(times: Sequence[float], cores: int) -> float:
    """Return the time until the last of these tasks ends, if each starts on the first free core."""
    free = [0.0] * cores
    for seconds in times:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def model(measured: TimedWorkers, sizes: Sequence[int], cores: int, driver_s: float, task_s: float) -> dict[str, float]:
    """Return the time of a command on *cores*, and their use."""
    random.seed(4711)
    measured_sizes = [size for _, size in measured.tasks[_LOG]]
    speeds = [seconds / size for seconds, size in measured.tasks[_LOG]]
    growth = sum(sizes) / sum(measured_sizes)
    wall, work = driver_s, 0.0
    for label, tasks in measured.tasks.items():
        if label == _LOG:
            drawn = random.choices(speeds, weights=measured_sizes, k=len(sizes))
            times = [size * speed for size, speed in zip(sizes, drawn, strict=True)]
        else:
            part = growth * sum(seconds for seconds, _ in tasks) / len(tasks)
            repeats = max(1, round(4 * cores / len(tasks)))
            times = [part / repeats] * (len(tasks) * repeats)
        work += sum(times)
        wall += makespan(times, cores) + task_s * len(times)
    return {"ranges": len(sizes), "work_s": round(work), "wall_s": round(wall), "use": round(work / wall / cores, 3)}


def main() -> None:
    """Print the model as JSON."""
    given = asked(__doc__, mib=2046, log_gb=500, cores=[16, 32, 64, 128], folder=FOLDER)
    log_bytes = given.log_gb * 10**9
    lake, planned = given.folder / "lake-of-model", given.folder / "planned-store"
    sizes = {cores: plan_sizes(log_bytes, cores, planned) for cores in given.cores}
    total = given.mib << 20
    whole = make_healthy_store(Recipe(total, _RECORD_SIZE, compressible=True), given.folder)
    segment = total // len(sizes[given.cores[0]]) // _RECORD_SIZE * _RECORD_SIZE
    recipe = Recipe(total, _RECORD_SIZE, compressible=True, segment_size=segment)
    parts = make_store(recipe, given.folder)
    add_queues(recipe, parts)
    ingest_timed(whole, lake)  # a warm-up
    measured, few_s = ingest_timed(whole, lake)
    counted, driver_s = ingest_timed(parts, lake)
    rmtree(lake)
    spark, empty = spark_workers(), list(range(2000))
    spark.map(empty, abs)  # a warm-up
    began = time.perf_counter()
    spark.map(empty, abs)
    task_s = (time.perf_counter() - began) / len(empty)
    answer(
        {
            "mib": given.mib,
            "log_gb": given.log_gb,
            "phases": {
                label: {"tasks": len(tasks), "total_s": round(sum(seconds for seconds, _ in tasks), 2)}
                for label, tasks in measured.tasks.items()
            },
            "driver_s": {"few ranges": round(few_s, 2), f"{len(counted.tasks[_LOG])} ranges": round(driver_s, 2)},
            "empty_task_ms": round(1000 * task_s, 2),
            "models": {cores: model(measured, sizes[cores], cores, driver_s, task_s) for cores in given.cores},
        }
    )


if __name__ == "__main__":
    main()
