"""The option `--engine` of verbs that run jobs, and the workers that come of it."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import click

from jobs.launch.arguments import file_system_options
from jobs.launch.engine import AUTO, THREADED, Choice, Engine, choose, usable_cores
from jobs.storage import AnyStorage
from jobs.storage.locations import is_local, local_path, normalise

if TYPE_CHECKING:
    from jobs.store.workers import Workers

_CHOICE = f"{__name__}.choice"  # in click's context, for the answer
_WITHOUT_LOG = {"consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "config"}
_BLOCK = 512  # bytes: what `st_blocks` counts

engine_option = click.option(
    "--engine",
    type=click.Choice([AUTO, *(engine.value for engine in Engine)]),
    default=AUTO,
    show_default=True,
    help="Work in this process (here) or in Spark's tasks (spark). auto: Spark if one of its options is given, or for "
    "data above the limit that --show-config shows; else here.",
)


def start_workers(asked: str, *places: str, half: bool = False, warm: str) -> "Callable[[], Workers]":
    """
    Choose the engine for the bytes at *places*, and return a function that returns its workers.

    If it is Spark, its session begins to start, and the function waits for it: import meanwhile what the run needs.
    *half* and *warm* are those of `begin_session`.
    """
    is_remote = not all(map(is_local, places))
    engine = start_engine(asked, stored_bytes(*places), half=half, is_remote=is_remote, warm=warm)
    return partial(workers_of, engine, half=half)


def start_engine(asked: str, size: int | None, *, half: bool, is_remote: bool = False, warm: str) -> Engine:
    """Choose the engine of this command for so many bytes; if it is Spark, its session begins to start."""
    context = click.get_current_context()
    verb = context.info_name or ""
    choice = choose(verb, size, asked, half=half, is_remote=is_remote)
    context.meta[_CHOICE] = choice
    if choice.engine is Engine.SPARK:
        from jobs.launch.session import begin_session

        begin_session(_application(), half=half, warm=warm)
    return choice.engine


def _application() -> str:
    return f"rmq-lake {click.get_current_context().info_name}"


def workers_of(engine: Engine, *, half: bool = False) -> "Workers":
    """Return the workers of an engine; those of Spark wait for the session, or start it."""
    if engine is Engine.HERE:
        from jobs.store.workers import InProcessWorkers

        is_threaded = click.get_current_context().info_name in THREADED
        return InProcessWorkers(file_system_options(), usable_cores(half=half) if is_threaded else 1)
    from jobs.launch.session import spark_session
    from jobs.store.spark_workers import SparkWorkers

    return SparkWorkers(spark_session(_application(), half=half))


def chosen() -> Choice | None:
    """Return the choice of this command; None where it runs no jobs, or has not chosen yet."""
    choice: Choice | None = click.get_current_context().meta.get(_CHOICE)
    return choice


def stored_bytes(*places: str) -> int:
    """Return how many bytes lie on disk below *places*, without a store's queues and index; 0 of what is not there."""
    size = 0
    for place in places:
        if is_local(place):
            size += sum(_sizes(local_path(place)))
        else:
            with suppress(OSError):  # the verb itself says what is wrong
                size += sum(info.size for info in AnyStorage(file_system_options()).list_files(normalise(place)))
    return size


def _sizes(root: str) -> Iterator[int]:
    """Yield the bytes that each file below *root* has on disk: a broker makes files before it fills them."""
    pending, seen = [root], set[tuple[int, int]]()
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                status = entry.stat()
                if not entry.is_dir():
                    yield min(status.st_size, status.st_blocks * _BLOCK)
                elif (status.st_dev, status.st_ino) not in seen and entry.name not in _WITHOUT_LOG:
                    seen.add((status.st_dev, status.st_ino))
                    pending.append(entry.path)
