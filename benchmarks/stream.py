"""
A store's messages as a stream into a Delta table of one's own, beside `ingest` of the same log into `messages`.

    python -m benchmarks.stream [--mib N] [--runs N] [--batch-mib N] [--folder DIR]

One session for all, started before the clock, and the log is in the page cache. Peers, interleaved: `ingest`; the
source with `Trigger.AvailableNow` in one batch; the same in batches of `--batch-mib`; the source read as a batch. All
of them write every column of `messages` that the source has, as Delta, and have as many rows.
"""

import argparse
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from benchmarks.measuring import Measured, measured, medians, provenance
from benchmarks.stores import FOLDER, Recipe, make_store
from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.launch.session import spark_session
from jobs.source.format import register
from jobs.source.options import NAME
from jobs.store.spark_workers import SparkWorkers

_RECORD_SIZE = 1024
_OURS = "ingest"
_ATTEMPTS = 6  # on a busy machine


def bring(spark: SparkSession, store: Path, place: Path) -> Path:
    """Ingest the log into `messages`."""
    ingest(IngestRequest(str(store), str(place), broker="b", tables=frozenset({"messages"})), SparkWorkers(spark))
    return place / "messages"


def stream(spark: SparkSession, store: Path, place: Path, batch_size: int) -> Path:
    """Stream the log, in batches of so many bytes."""
    messages = spark.readStream.format(NAME).option("maxBytesPerTrigger", batch_size).load(str(store))
    writing = messages.writeStream.format("delta").option("checkpointLocation", str(place / "checkpoint"))
    for _ in range(_ATTEMPTS):
        try:
            writing.trigger(availableNow=True).start(str(place / "table")).awaitTermination()
        except StreamingQueryException as error:  # Spark waits ten seconds for the process that plans, and no longer
            if "failed to connect back" not in str(error):
                raise
        else:
            break
    return place / "table"


def read(spark: SparkSession, store: Path, place: Path) -> Path:
    """Read the log as a batch."""
    spark.read.format(NAME).load(str(store)).write.format("delta").save(str(place))
    return place


def _once(work: Callable[[Path], Path], place: Path, rows: int) -> Measured:
    """Do it in an empty place, and count what came."""
    shutil.rmtree(place, ignore_errors=True)
    with measured() as figures:
        table = work(place)
    if _rows(table) != rows:
        raise SystemExit(f"{table}: {_rows(table)} rows of {rows}")
    return figures


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--batch-mib", type=int, default=64)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args()
    size = given.mib << 20
    store = make_store(Recipe(size, _RECORD_SIZE, compressible=True), given.folder)
    spark = spark_session("stream")
    register(spark)
    peers: dict[str, Callable[[Path], Path]] = {
        _OURS: partial(bring, spark, store),
        "stream, one batch": partial(stream, spark, store, batch_size=size * 2),
        f"stream, batches of {given.batch_mib} MiB": partial(stream, spark, store, batch_size=given.batch_mib << 20),
        "batch": partial(read, spark, store),
    }
    place = given.folder / "stream"
    rows = _rows(peers[_OURS](place))
    for name, work in peers.items():
        if name != _OURS:
            _once(work, place, rows)  # compilers, and classes of the JVM
    seen: dict[str, list[Measured]] = {name: [] for name in peers}
    for _ in range(given.runs):
        for name, work in peers.items():
            seen[name].append(_once(work, place, rows))
    shutil.rmtree(place)
    found = {name: medians(runs) for name, runs in seen.items()}
    for figures in found.values():
        figures["mib_per_second"] = round(given.mib / figures["wall_s"], 1)
    print(json.dumps({**provenance(), "mib": given.mib, "messages": rows, "peers": found}, indent=2))


def _rows(table: Path) -> int:
    return sum(DeltaTable(table).get_add_actions(flatten=True)["num_records"].to_pylist())


if __name__ == "__main__":
    main()
