"""Lakes that benchmarks make of their stores, and sessions to make them with."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks.broker import RELEASE
from benchmarks.stores import Recipe, make_store
from jobs.ingest.request import IngestRequest, Summary
from jobs.ingest.run import ingest
from jobs.products.registry import PRODUCT_NAMES
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


def make_large_lake(folder: Path, messages: int) -> Path:
    """Ingest a generated store with consumer offsets into every table, unless its lake exists; delete the store."""

    def make(lake: Path) -> None:
        recipe = Recipe(messages * 448, 448, compressible=True, topics=8, keys=9)
        store = make_store(recipe, folder)
        (store / "config").mkdir(exist_ok=True)
        half_read = {str(queue): messages // recipe.topics // recipe.queues // 2 for queue in range(recipe.queues)}
        progress = {f"Bench{topic:03}@billing": half_read for topic in range(recipe.topics)}
        (store / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": progress}))
        ingest_into_new_lake(store, lake, spark_workers(), PRODUCT_NAMES)
        shutil.rmtree(store)

    return make_once(folder / f"large-lake-{messages}", make)
