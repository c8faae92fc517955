"""The option `--engine` of commands that run jobs, and the workers of the chosen engine."""

from typing import TYPE_CHECKING, TypeVar

import click

from jobs.launch.arguments import effective_spark_settings, file_system_options, given_spark_options
from jobs.launch.engine import (
    AUTO_ENGINE,
    COMMANDS_WITH_THREADS,
    LOCAL,
    SPARK,
    EngineChoice,
    choose_engine,
    count_worker_processes,
    usable_cores,
    usable_threads,
)
from jobs.options.declaration import option
from jobs.options.places import named_places
from jobs.storage.locations import S3_SCHEMES, scheme_of
from jobs.store.request import StoreRequest

if TYPE_CHECKING:
    from jobs.storage.local import ReadLimits
    from jobs.store.workers import Workers

# Keys in click's context: the chosen engine, which the answer states, and the places that the command reads.
_CHOICE, _READ = f"{__name__}.choice", f"{__name__}.read"


class _EngineType(click.Choice[str]):
    """The engines; 1.0.0 called this process `here`."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name of the engine."""
        return super().convert(LOCAL if value == "here" else value, param, ctx)


engine_option = option(
    None,
    "Run on this machine (local) or on Spark. auto: local, or Spark if a Spark option is given.",
    _EngineType([AUTO_ENGINE, LOCAL, SPARK]),
    default=AUTO_ENGINE,
    show_default=True,
    is_shared=True,
)


_Request = TypeVar("_Request", bound=StoreRequest)


def start_store_command(request: _Request, engine: str) -> "tuple[_Request, Workers]":
    """Return the request with the broker's configuration and read limits, and workers of the chosen engine."""
    resolved = request.resolve()
    places = resolved.commitlog or (resolved.store,)  # empty if the log is below the store's root
    return resolved, start_workers(engine, *places, limits=resolved.read_limits)


def start_workers(engine: str, *places: str, limits: "ReadLimits | None" = None) -> "Workers":
    """Return workers of *engine*, which read *places*."""
    context = click.get_current_context()
    context.meta[_READ] = places
    context.meta[_CHOICE] = choice = choose_engine(engine, half=limits is not None)
    return make_workers(choice.engine, limits)


def uses_s3(context: click.Context) -> bool:
    """Return whether this command, or a Spark setting, names a location on S3."""
    settings = effective_spark_settings(given_spark_options()).values()
    named = (place for place, _, _ in named_places(context))
    return any(scheme_of(place) in S3_SCHEMES for place in (*named, *context.meta.get(_READ, ()), *settings))


def make_workers(engine: str, limits: "ReadLimits | None" = None) -> "Workers":
    """
    Return the workers of an engine; start Spark if it is the engine and is not running.

    *limits*: how to read next to a running broker, which keeps half of the cores; also `--max-rate`.
    """
    context = click.get_current_context()
    half = limits is not None
    if engine == SPARK:
        from jobs.launch.session import spark_context
        from jobs.store.spark_workers import SparkWorkers

        return SparkWorkers(spark_context(f"rmq-lake {context.info_name}", half=half, s3=uses_s3(context)))
    from jobs.store.worker_processes import ProcessWorkers
    from jobs.store.workers import InProcessWorkers

    threads = usable_threads(half=half) if context.info_name in COMMANDS_WITH_THREADS else 1
    cores = usable_cores(half=half)
    # One process keeps to a rate. Threads use as many cores as there are threads.
    is_enough = (limits is not None and limits.max_rate) or threads >= cores
    processes = 0 if is_enough else count_worker_processes(cores)
    if processes:
        return ProcessWorkers(file_system_options(), threads, processes)
    return InProcessWorkers(file_system_options(), threads)


def get_chosen_engine() -> EngineChoice | None:
    """Return the engine that this command has chosen; None if it has not chosen one."""
    choice: EngineChoice | None = click.get_current_context().meta.get(_CHOICE)
    return choice
