"""Create the lakes and Spark sessions of the benchmarks."""

import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks.broker import RELEASE
from jobs.ingest import Summary
from jobs.ingest.run import ingest
from jobs.requests.ingest import IngestRequest
from jobs.store.spark_workers import SparkWorkers
from jobs.store.workers import Workers


def ingest_into_new_lake(store: Path, lake: Path, workers: Workers, tables: frozenset[str] = frozenset()) -> Summary:
    """Ingest a store into a new lake; delete an existing one first."""
    shutil.rmtree(lake, ignore_errors=True)
    return ingest(IngestRequest(str(store), str(lake), broker="b", tables=tables, release=RELEASE), workers)


def start_spark_workers(cores: int | None = None) -> SparkWorkers:
    """Start a Spark session on a number of cores (None: all cores), and return its workers."""
    from jobs.launch.session import spark_session

    options = None if cores is None else ["--master", f"local[{cores}]"]
    return SparkWorkers(spark_session("benchmark", spark_options=options))


def create_once(path: Path, create: Callable[[Path], object]) -> Path:
    """Return *path*. If it does not exist, *create* it under a temporary name, so that a killed call leaves nothing."""
    if not path.exists():
        unfinished = path.with_name(f"unfinished-{path.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        create(unfinished)
        unfinished.rename(path)
    return path
