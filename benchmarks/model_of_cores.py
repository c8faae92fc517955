"""
Model how well an `ingest` of a large log uses many cores, from task times measured on this machine.

    python -m benchmarks.model_of_cores [--mib N] [--log-gb N] [--cores N ...] [--directory DIR]

1. Task times: one process ingests a store of --mib, and records the time of each task with its phase.
2. Serial time of the driver: one process ingests a store of the same size, with as many segments as the large log has
   ranges. The time outside of tasks is that of planning, checking and committing these ranges. The time that Spark
   needs for an empty task is also measured.
3. Plan: `ingest` plans the large log for each number of cores, from sparse segments of 1 GiB.
4. Model: tasks start in order, each on the first free core. A task that reads the log has the speed of a measured task,
   drawn at random. The work of the other phases grows with the log and is divided among their tasks.

The baseline is `work_s`, the time of all tasks on one core. `use` is this time, divided by the number of cores and the
modelled time of the command.
"""

import heapq
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree

from benchmarks.lakes import ingest_into_new_lake, start_spark_workers
from benchmarks.measuring import parse_options, print_result
from benchmarks.stores import DIRECTORY, Recipe, add_queues, make_healthy_store, make_store
from jobs.store.ranges import balance_ranges, plan_ranges
from jobs.store.store import list_store
from jobs.store.workers import Item, Result, SerialWorkers, Sizes, Task

_SEGMENT = 1 << 30
_RECORD_SIZE = 1024
_TABLES = frozenset({"messages", "consume_queue", "index"})
_LOG = "reading"  # the label of the tasks that read the log
_EMPTY_TASKS = 2000


@dataclass(frozen=True, slots=True)
class TimedWorkers(SerialWorkers):
    """Runs tasks in this process, and records the time and the size of each task by the label of its phase."""

    tasks: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))

    def map(self, items: Sequence[Item], task: Task[Item, Result], label: str, sizes: Sizes = ()) -> list[Result]:
        """Run *task* on one item after the other, and record its time."""
        results = []
        for number, item in enumerate(items):
            began = time.perf_counter()
            results.append(task(item))
            self.tasks[label].append((time.perf_counter() - began, sizes[number] if sizes else 0))
        return results

    def total_s(self) -> float:
        """Return the time of all tasks in seconds."""
        return sum(seconds for tasks in self.tasks.values() for seconds, _ in tasks)


def time_ingest(store: Path, lake: Path) -> tuple[TimedWorkers, float]:
    """Ingest a store into a new lake; return the task times, and the seconds outside of tasks."""
    workers = TimedWorkers()
    began = time.perf_counter()
    ingest_into_new_lake(store, lake, workers, _TABLES)
    return workers, time.perf_counter() - began - workers.total_s()


def plan_sizes(log_bytes: int, cores: int, directory: Path) -> list[int]:
    """Return the sizes of the ranges that `ingest` plans for a log of *log_bytes*, with sparse files as segments."""
    rmtree(directory, ignore_errors=True)
    (directory / "commitlog").mkdir(parents=True)
    for offset in range(0, log_bytes, _SEGMENT):
        with (directory / "commitlog" / f"{offset:020}").open("wb") as file:
            file.truncate(_SEGMENT)
    ranges = plan_ranges(list_store(str(directory)))
    rmtree(directory)
    return balance_ranges(ranges, [range_.size for range_ in ranges], cores)[1]


def compute_makespan(times: Sequence[float], cores: int) -> float:
    """Return the time until the last of these tasks ends, if each starts on the first free core."""
    busy_until = [0.0] * cores
    for seconds in times:
        heapq.heapreplace(busy_until, busy_until[0] + seconds)
    return max(busy_until)


def model_run(
    measured: TimedWorkers, sizes: Sequence[int], cores: int, driver_s: float, task_s: float
) -> dict[str, float]:
    """Return the time of a command on a number of cores, and their use."""
    random.seed(4711)
    measured_sizes = [size for _, size in measured.tasks[_LOG]]
    seconds_per_byte = [seconds / size for seconds, size in measured.tasks[_LOG]]
    growth = sum(sizes) / sum(measured_sizes)
    wall, work = driver_s, 0.0
    for label, tasks in measured.tasks.items():
        if label == _LOG:
            chosen = random.choices(seconds_per_byte, weights=measured_sizes, k=len(sizes))
            times = [size * factor for size, factor in zip(sizes, chosen, strict=True)]
        else:
            part = growth * sum(seconds for seconds, _ in tasks) / len(tasks)
            repeats = max(1, round(4 * cores / len(tasks)))
            times = [part / repeats] * (len(tasks) * repeats)
        work += sum(times)
        wall += compute_makespan(times, cores) + task_s * len(times)
    return {"ranges": len(sizes), "work_s": round(work), "wall_s": round(wall), "use": round(work / wall / cores, 3)}


def main() -> None:
    """Print the model as JSON."""
    options = parse_options(__doc__, mib=2046, log_gb=500, cores=[16, 32, 64, 128], directory=DIRECTORY)
    log_bytes = options.log_gb * 10**9
    lake, planned = options.directory / "lake-for-model", options.directory / "planned-store"
    sizes = {cores: plan_sizes(log_bytes, cores, planned) for cores in options.cores}
    total = options.mib << 20
    large_segments = make_healthy_store(Recipe(total, _RECORD_SIZE, compressible=True), options.directory)
    segment = total // len(sizes[options.cores[0]]) // _RECORD_SIZE * _RECORD_SIZE
    recipe = Recipe(total, _RECORD_SIZE, compressible=True, segment_size=segment)
    small_segments = make_store(recipe, options.directory)
    add_queues(recipe, small_segments)
    time_ingest(large_segments, lake)  # a warm-up
    measured, driver_few_s = time_ingest(large_segments, lake)
    measured_many, driver_many_s = time_ingest(small_segments, lake)
    rmtree(lake)
    spark, empty = start_spark_workers(), list(range(_EMPTY_TASKS))
    spark.map(empty, abs, "")  # a warm-up
    began = time.perf_counter()
    spark.map(empty, abs, "")
    task_s = (time.perf_counter() - began) / len(empty)
    print_result(
        {
            "mib": options.mib,
            "log_gb": options.log_gb,
            "phases": {
                label: {"tasks": len(tasks), "total_s": round(sum(seconds for seconds, _ in tasks), 2)}
                for label, tasks in measured.tasks.items()
            },
            "driver_s": {
                "few ranges": round(driver_few_s, 2),
                f"{len(measured_many.tasks[_LOG])} ranges": round(driver_many_s, 2),
            },
            "empty_task_ms": round(1000 * task_s, 2),
            "models": {
                cores: model_run(measured, sizes[cores], cores, driver_many_s, task_s) for cores in options.cores
            },
        }
    )


if __name__ == "__main__":
    main()
