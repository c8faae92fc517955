"""The option `--engine` of verbs that run jobs, and the workers of the chosen engine."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

import click

from jobs.command.options import StorePlace, option
from jobs.command.places import named_places
from jobs.console.log import log_message
from jobs.launch.arguments import effective_spark_settings, file_system_options, given_spark_options
from jobs.launch.engine import (
    AUTO_ENGINE,
    LOCAL,
    SPARK,
    VERBS_WITH_THREADS,
    EngineChoice,
    choose_engine,
    count_cores,
    count_memory,
    is_spark_requested,
    usable_threads,
    why_spark_cannot_start,
)
from jobs.storage import AnyStorage
from jobs.storage.local import identify_enclosing_folders
from jobs.storage.locations import S3_SCHEMES, is_local, local_path, normalise_location, scheme_of
from jobs.store.running_broker import limit_load_beside_broker

if TYPE_CHECKING:
    from jobs.lake.lake import Lake
    from jobs.store.workers import Workers

# In click's context: the choice, for the answer, and the places to read, which the broker's configuration may name.
_CHOICE, _READ = f"{__name__}.choice", f"{__name__}.read"
# Files are counted in at most this many folders, because the size only decides between the engines.
_MOST_FOLDERS = 10_000
_WITHOUT_LOG = {"consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "config"}
_BLOCK = 512  # bytes: the unit of `st_blocks`


class _EngineType(click.Choice[str]):
    """The engines; 1.0.0 called this process `here`."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name of the engine."""
        return super().convert(LOCAL if value == "here" else value, param, ctx)


engine_option = option(
    None,
    "Run in this process (local) or on Spark. auto: Spark above the size limit (see --show-config), or with a Spark "
    "option.",
    _EngineType([AUTO_ENGINE, LOCAL, SPARK]),
    default=AUTO_ENGINE,
    show_default=True,
)


class StoreCommand:
    """A command that reads a store: the broker's configuration, the read settings, and workers (`start_workers`)."""

    def __init__(self, place: StorePlace, engine: str, max_rate: int | None) -> None:
        self.conf = place.read_conf()
        self.commitlog = place.log_directories(self.conf)  # empty if the log is below the store's root
        self.read_limits = limit_load_beside_broker(place.store, max_rate)
        places = self.commitlog or (place.store,)
        half = self.read_limits is not None
        self.workers = start_workers(engine, *places, half=half, is_deep=not self.commitlog)

    def open_lake(self, location: str) -> "Lake":
        """Return a lake with the workers' file system settings."""
        from jobs.lake.lake import Lake

        return Lake(location, self.workers.options)


def start_workers(
    engine: str, *places: str, size: Callable[[], int | None] | None = None, half: bool = False, is_deep: bool = True
) -> "Workers":
    """
    Choose the engine by the size of *places* (as *size* counts it), and return its workers.

    If only the run itself can determine the size, this process begins, and Spark takes over from the first large plan.
    *half*: a broker runs on this machine and keeps half of the cores. *is_deep*: files in subdirectories count as well.
    """
    context = click.get_current_context()
    context.meta[_READ] = places
    is_decided = engine != AUTO_ENGINE or is_spark_requested()
    to_read = None if is_decided else size() if size is not None else count_stored_bytes(*places, is_deep=is_deep)
    is_remote = not all(map(is_local, places))
    choice = choose_engine(context.info_name or "", to_read, engine, half=half, is_remote=is_remote)
    context.meta[_CHOICE] = choice
    if is_decided or to_read is not None:
        workers = make_workers(choice.engine, half=half)
        if choice.missing_part and not _use_all_cores(workers, to_read or 0):
            log_message(f"rmq-lake: {choice.spark_benefit_text()}")
        return workers
    from jobs.store.workers import WorkersOnDemand

    local = make_workers(LOCAL, half=half)

    @cache
    def start_spark() -> "Workers":
        lacking = why_spark_cannot_start()
        changed = choice._replace(engine=LOCAL if lacking else SPARK, missing_part=lacking)
        context.meta[_CHOICE] = changed
        if lacking:
            if not _use_all_cores(local, choice.limit):
                log_message(f"rmq-lake: {changed.spark_benefit_text()}")
            return local
        return make_workers(SPARK, half=half)

    return WorkersOnDemand(start_spark, local, choice.limit)


def _use_all_cores(workers: "Workers", size: int) -> bool:
    """Return whether workers that are not Spark's read *size* bytes with all cores."""
    from jobs.store.worker_processes import ProcessWorkers

    return isinstance(workers, ProcessWorkers) and workers.is_large(size)


def uses_s3(context: click.Context) -> bool:
    """Return whether this command, or a Spark setting, names a location on S3."""
    settings = effective_spark_settings(given_spark_options()).values()
    named = (place for place, _, _ in named_places(context))
    return any(scheme_of(place) in S3_SCHEMES for place in (*named, *context.meta.get(_READ, ()), *settings))


def make_workers(engine: str, *, half: bool = False) -> "Workers":
    """Return the workers of an engine; for Spark, start the session if none is running."""
    context = click.get_current_context()
    if engine == LOCAL:
        from jobs.store.worker_processes import ProcessWorkers, count_worker_processes
        from jobs.store.workers import InProcessWorkers

        is_threaded = context.info_name in VERBS_WITH_THREADS
        threads = usable_threads(half=half) if is_threaded else 1
        # Next to a broker, one process limits the rate, and leaves cores idle.
        processes = count_worker_processes(count_cores(), count_memory()) if is_threaded and not half else 0
        if processes:
            return ProcessWorkers(file_system_options(), threads, processes)
        return InProcessWorkers(file_system_options(), threads)
    from jobs.launch.session import spark_session
    from jobs.store.spark_workers import SparkWorkers

    return SparkWorkers(spark_session(f"rmq-lake {context.info_name}", half=half, s3=uses_s3(context)))


def get_chosen_engine() -> EngineChoice | None:
    """Return the engine that this command has chosen; None if it has not chosen one."""
    choice: EngineChoice | None = click.get_current_context().meta.get(_CHOICE)
    return choice


def count_stored_bytes(*places: str, is_deep: bool = True) -> int:
    """
    Return the bytes on disk below *places*, without a store's queues and index; 0 where nothing exists.

    Without *is_deep*, files in subdirectories of local places are not counted: segments are never in subdirectories.
    """
    size = 0
    for place in places:
        if is_local(place):
            size += sum(_sizes(local_path(place), _MOST_FOLDERS if is_deep else 1))
        else:
            with suppress(OSError):  # no such place, or no access: the verb itself reports it
                size += sum(
                    info.size for info in AnyStorage(file_system_options()).list_files(normalise_location(place))
                )
    return size


def _sizes(root: str, max_folders: int) -> Iterator[int]:
    """Yield the bytes that each file below *root* occupies on disk: brokers create files before they fill them."""
    pending, seen = [root], identify_enclosing_folders(root)
    max_seen = len(seen) + max_folders
    while pending and len(seen) < max_seen:
        with suppress(OSError), os.scandir(pending.pop()) as entries:  # no access, or no directory: the verb reports it
            for entry in entries:
                try:
                    status = entry.stat()
                except OSError:  # the broker's retention has deleted it since, or a link leads nowhere
                    continue
                if not stat.S_ISDIR(status.st_mode):
                    yield min(status.st_size, status.st_blocks * _BLOCK)
                elif (status.st_dev, status.st_ino) not in seen and entry.name not in _WITHOUT_LOG:
                    seen.add((status.st_dev, status.st_ino))
                    pending.append(entry.path)
