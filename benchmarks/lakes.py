"""Lakes that benchmarks make of their stores, and sessions to make them with."""

import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks.broker import RELEASE
from jobs.ingest import IngestRequest, Summary
from jobs.ingest.run import ingest
from jobs.store.spark_workers import SparkWorkers
from jobs.store.workers import Workers


def ingest_into_new_lake(store: Path, lake: Path, workers: Workers, tables: frozenset[str] = frozenset()) -> Summary:
    """Ingest a store into a new lake."""
    shutil.rmtree(lake, ignore_errors=True)
    return ingest(IngestRequest(str(store), str(lake), broker="b", tables=tables, release=RELEASE), workers)


def spark_workers(cores: int | None = None) -> SparkWorkers:
    """Return the workers of a session on so many cores, which leaves no archive of classes for later sessions."""
    from jobs.launch.session import spark_session

    options = None if cores is None else ["--master", f"local[{cores}]"]
    return SparkWorkers(spark_session("benchmark", spark_options=options))


def make_once(place: Path, make: Callable[[Path], object]) -> Path:
    """Return *place*; call *make* first if it does not exist, also if an earlier call was killed half-way."""
    if not place.exists():
        unfinished = place.with_name(f"unfinished-{place.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        make(unfinished)
        unfinished.rename(place)
    return place
