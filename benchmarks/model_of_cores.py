"""
Model how well commands use many cores for a large log without Spark, from task times measured on this machine.

    python -m benchmarks.model_of_cores [--mib N] [--log-gb N ...] [--cores N ...] [--directory DIR]

The commands are `ingest`, `verify`, `rebuild-index` and `rebuild-consumequeue`. All times are CPU seconds, which other
work on the machine changes little.

1. Task times: one process runs a command on a store of --mib, and records the time of each task with its phase.
2. Serial time of the driver, outside of tasks: of the same run, of one on half of the log, and of one on a store of the
   same size that has as many segments as the largest log has ranges. So the parts that grow with bytes and ranges are
   known. The time that processes need for an empty task is also measured, and that for their start, as if nothing else
   was done meanwhile: `ingest` starts a new interpreter, the other commands fork their workers themselves.
3. Plan: the ranges of each large log for each number of cores, from sparse segments of 1 GiB.
4. Model: tasks start in order, each on the first free core. A task that reads the log has the speed of a measured task,
   drawn at random. The work of the other phases grows with the log and is divided among their tasks.

The baseline is `work_s`, the time of all tasks and the driver on one core. `times_faster` is this time, divided by the
modelled time of the command, and `use` is that, divided by the number of cores.
"""

import argparse
import heapq
import random
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

from benchmarks.broker import RELEASE
from benchmarks.lakes import ingest_into_new_lake
from benchmarks.measuring import parse_options, print_result, run_in_child
from benchmarks.stores import DIRECTORY, Recipe, make_healthy_store
from jobs.rebuild.index import rebuild_index
from jobs.rebuild.queue_run import rebuild_queues
from jobs.requests.rebuild import RebuildIndexRequest, RebuildQueuesRequest
from jobs.requests.verify import VerifyRequest
from jobs.store.ranges import balance_ranges, plan_ranges
from jobs.store.request import GivenSettings
from jobs.store.store import list_store
from jobs.store.worker_processes import ProcessWorkers
from jobs.store.workers import Item, Result, SerialWorkers, Sizes, Task
from jobs.verify.run import verify
from rmq_formats.warm_up import load_compiled_parts

_SEGMENT = 1 << 30
_RECORD_SIZE = 1024
_TABLES = frozenset({"messages", "consume_queue", "index"})
_LOG = "reading"  # the label of the tasks that read the log
_EMPTY_TASKS = 2000
_STARTS = 3
_COMMANDS = ("ingest", "verify", "rebuild-index", "rebuild-consumequeue")


@dataclass(frozen=True, slots=True)
class TimedWorkers(SerialWorkers):
    """Runs tasks in this process, and records the time and the size of each task by the label of its phase."""

    tasks: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))

    def map(self, items: Sequence[Item], task: Task[Item, Result], label: str, sizes: Sizes = ()) -> list[Result]:
        """Run *task* on one item after the other, and record its time."""
        results = []
        for number, item in enumerate(items):
            began = time.process_time()
            results.append(task(item))
            self.tasks[label].append((time.process_time() - began, sizes[number] if sizes else 0))
        return results

    def total_s(self) -> float:
        """Return the time of all tasks in seconds."""
        return sum(seconds for tasks in self.tasks.values() for seconds, _ in tasks)


class Timed(NamedTuple):
    """The tasks of a run of a command, and its time outside of tasks."""

    workers: TimedWorkers
    driver_s: float


def time_command(command: str, store: Path, out: Path) -> Timed:
    """Run a command on a store; return the task times, and the seconds outside of tasks."""
    rmtree(out, ignore_errors=True)
    workers, settings = TimedWorkers(), GivenSettings(release=RELEASE)
    began = time.process_time()
    match command:
        case "ingest":
            ingest_into_new_lake(store, out, workers, _TABLES)
        case "verify":
            verify(VerifyRequest(str(store), given_settings=settings), workers)
        case "rebuild-index":
            rebuild_index(RebuildIndexRequest(str(store), str(out), given_settings=settings), workers)
        case _:
            rebuild_queues(RebuildQueuesRequest(str(store), out, given_settings=settings), workers)
    driver_s = time.process_time() - began - workers.total_s()
    rmtree(out, ignore_errors=True)
    return Timed(workers, driver_s)


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
    work += driver_s
    return {
        "ranges": len(sizes),
        "work_s": round(work),
        "wall_s": round(wall, 1),
        "times_faster": round(work / wall, 1),
        "use": round(work / wall / cores, 3),
    }


def measure_task() -> float:
    """Return the CPU seconds of an empty task in the driver."""
    workers = ProcessWorkers({}, threads=1, processes=2, patience_s=0)
    workers.map([-1, -2], abs, "")
    used = time.process_time()
    workers.map(list(range(_EMPTY_TASKS)), abs, "")
    task_s = (time.process_time() - used) / _EMPTY_TASKS
    workers.close()
    return task_s


def measure_start(processes: int, *, is_forked: bool) -> float:
    """Return the CPU seconds that the start of processes takes at least, by one of the two ways."""

    def start() -> None:
        workers = ProcessWorkers({}, 1, processes, patience_s=0, large_log_size=0 if is_forked else _SEGMENT)
        workers.map([-1] * processes, abs, "", [1] * processes)
        workers.close()

    load_compiled_parts()  # each command needs them before its processes
    return min(_cpu_s_of(start) - _cpu_s_of(lambda: None) for _ in range(_STARTS))


def _cpu_s_of(run: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_in_child(run)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Stores(NamedTuple):
    """The stores on which commands are measured, and the sizes of the ranges of large logs, by gigabytes and cores."""

    half: Path
    whole: Path
    many_segments: Path
    sizes: dict[tuple[int, int], list[int]]


def model_command(
    command: str, options: argparse.Namespace, stores: Stores, task_s: float, starts_s: dict[int, float]
) -> dict[str, Any]:
    """Return the measured figures of a command, and its models by gigabytes of log and cores."""
    out = options.directory / "out-of-model"
    time_command(command, stores.half, out)  # a warm-up
    half, whole, many = (
        time_command(command, store, out) for store in (stores.half, stores.whole, stores.many_segments)
    )
    per_byte = max(whole.driver_s - half.driver_s, 0) / (options.mib << 19)
    few_ranges, many_ranges = len(whole.workers.tasks[_LOG]), len(many.workers.tasks[_LOG])
    per_range = max(many.driver_s - whole.driver_s, 0) / max(many_ranges - few_ranges, 1)
    fixed = max(half.driver_s - per_byte * (options.mib << 19) - per_range * few_ranges, 0)
    models: dict[int, Any] = {}
    for gigabytes in options.log_gb:
        models[gigabytes] = {}
        for cores in options.cores:
            sizes = stores.sizes[gigabytes, cores]
            driver_s = starts_s[cores] + fixed + per_byte * gigabytes * 10**9 + per_range * len(sizes)
            models[gigabytes][cores] = model_run(whole.workers, sizes, cores, driver_s, task_s)
    return {
        "phases": {
            label: {"tasks": len(tasks), "total_s": round(sum(seconds for seconds, _ in tasks), 2)}
            for label, tasks in whole.workers.tasks.items()
        },
        "driver_s": {
            "half": round(half.driver_s, 2),
            "whole": round(whole.driver_s, 2),
            f"{many_ranges} ranges": round(many.driver_s, 2),
        },
        "models": models,
    }


def main() -> None:
    """Print the models as JSON."""
    options = parse_options(__doc__, mib=2046, log_gb=[16, 100, 500], cores=[16, 32, 64, 128], directory=DIRECTORY)
    planned = options.directory / "planned-store"
    sizes = {
        (gigabytes, cores): plan_sizes(gigabytes * 10**9, cores, planned)
        for gigabytes in options.log_gb
        for cores in options.cores
    }
    total = options.mib << 20
    segment = total // len(sizes[options.log_gb[-1], options.cores[0]]) // _RECORD_SIZE * _RECORD_SIZE
    recipes = (
        Recipe(total // 2, _RECORD_SIZE, compressible=True),
        Recipe(total, _RECORD_SIZE, compressible=True),
        Recipe(total, _RECORD_SIZE, compressible=True, segment_size=segment),
    )
    half, whole, many_segments = (make_healthy_store(recipe, options.directory) for recipe in recipes)
    stores = Stores(half, whole, many_segments, sizes)
    task_s = measure_task()
    starts_s = {cores: measure_start(cores, is_forked=True) for cores in options.cores}
    interpreters_s = {cores: measure_start(cores, is_forked=False) for cores in options.cores}
    commands = {
        command: model_command(command, options, stores, task_s, interpreters_s if command == "ingest" else starts_s)
        for command in _COMMANDS
    }
    print_result(
        {
            "mib": options.mib,
            "empty_task_ms": round(1000 * task_s, 3),
            "start_s": {cores: round(seconds, 2) for cores, seconds in starts_s.items()},
            "start_s_of_interpreter": {cores: round(seconds, 2) for cores, seconds in interpreters_s.items()},
            "commands": commands,
        }
    )


if __name__ == "__main__":
    main()
