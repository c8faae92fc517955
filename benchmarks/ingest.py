"""
Ingest a log, and restore it from the lake, against what limits both.

    python -m benchmarks.ingest [--mib N] [--runs N] [--cores N] [--no-spark] [--folder DIR] [--scratch DIR]

The store is healthy, in messages of 1 KB, and in the page cache; sessions are started before the clock. Peers take
turns in one run:

- read: every byte of the log into a checksum, the physical limit of reading;
- floor: one process writes the rows of `messages` from memory with pyarrow; it neither reads, decodes nor checks;
- messages, all tables: `ingest` into an empty lake, in one process and in Spark's tasks;
- Spark's writer: the same Arrow batches, written by Spark as a Delta table (once: it takes minutes);
- cp and restore: the log copied, and the log restored from the lake; every byte must be equal.

`passes` is the number of bytes that one process reads from segments, divided by the size of the log.
"""

import argparse
import os
import shutil
import time
from collections.abc import Callable, Iterator
from filecmp import cmp
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.broker import RELEASE
from benchmarks.lakes import ingest_into_new_lake, spark_workers
from benchmarks.measuring import Measured, answer, asked, count_log_bytes, measured, medians
from benchmarks.stores import FOLDER, Recipe, make_healthy_store
from jobs.lake.lake import Lake
from jobs.lake.table_file import open_parquet_writer
from jobs.lake.tables import MESSAGES
from jobs.products.index.settings import GivenSettings
from jobs.restore.run import RestoreRequest, restore
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import Range, plan_ranges
from jobs.store.store import list_store
from jobs.store.workers import InProcessWorkers, SerialWorkers, Workers
from rmq_formats.arrow import MESSAGE_SCHEMA
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.properties import PropertyParser

_RECORD_SIZE = 1024
_TABLES = {"messages": frozenset({"messages"}), "all tables": frozenset({"messages", "consume_queue", "index"})}


def batches_of(range_: Range) -> Iterator[pa.RecordBatch]:
    """Decode one range."""
    for group in RangeReader(range_).pieces():
        if isinstance(group, RawRecords):
            yield message_batch(group, PropertyParser.SCAN)[0]


def checksum(store: Path) -> None:
    """Read every byte once."""
    for segment in sorted((store / "commitlog").iterdir()):
        with segment.open("rb", buffering=0) as file:
            value = 0
            while data := file.read(16 << 20):
                value = crc32(data, value)


def floor(store: Path, folder: Path) -> Measured:
    """Write the rows of a log from memory; preparing them is not timed."""
    figures = Measured()
    for number, range_ in enumerate(plan_ranges(list_store(str(store)))):
        batches = list(batches_of(range_))
        if not batches:
            continue  # the unwritten rest of a segment
        began, cpu = time.perf_counter(), time.process_time()
        with open_parquet_writer(
            folder / f"{number}.parquet", MESSAGE_SCHEMA, MESSAGES, batches[0].num_rows, ["body"]
        ) as writer:
            for batch in batches:
                writer.write_batch(batch)
        figures.wall_s += time.perf_counter() - began
        figures.cpu_s += time.process_time() - cpu
    return figures


def spark_writer(spark: SparkSession, store: Path, folder: Path) -> None:
    """Give our batches to Spark's own Delta writer."""
    ranges = plan_ranges(list_store(str(store)))
    plain = pa.schema([field for field in MESSAGE_SCHEMA if field.name not in {"properties", "keys"}])

    def rows(indices: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in indices:
            for number in batch.column(0).to_pylist():
                for made in batches_of(ranges[number]):
                    columns = [_without_dictionary(made.column(field.name)) for field in plain]
                    yield pa.RecordBatch.from_arrays(columns, names=plain.names)

    frame = spark.range(0, len(ranges), 1, len(ranges)).mapInArrow(rows, _ddl(plain))
    frame.write.format("delta").mode("overwrite").option("compression", "zstd").save(str(folder))


def _without_dictionary(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _ddl(schema: pa.Schema) -> str:
    names = {"int32": "int", "int64": "bigint", "bool": "boolean", "date32[day]": "date", "binary": "binary"}
    return ", ".join(
        f"{field.name} {names.get(str(field.type)) or ('timestamp' if pa.types.is_timestamp(field.type) else 'string')}"
        for field in schema
    )


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, mib=4096, runs=3, cores=2, no_spark=False, scratch=Path, folder=FOLDER)
    store = make_healthy_store(Recipe(given.mib << 20, _RECORD_SIZE, compressible=True), given.folder)
    scratch = (given.scratch or given.folder) / "rocketmq-lake-scratch"
    peers: dict[str, Callable[[], Measured | None]] = {
        "read": lambda: checksum(store),
        "floor": lambda: floor(store, scratch),
        **_ingests("one process", store, scratch, SerialWorkers()),
        **_ingests(f"{given.cores} processes", store, scratch, InProcessWorkers(width=given.cores)),
        "cp": lambda: _synced(lambda: shutil.copytree(store / "commitlog", scratch / "copy")),
    }
    once: dict[str, Callable[[], None]] = {}
    if not given.no_spark:
        spark_tasks = spark_workers(given.cores)
        peers |= _ingests(f"Spark, {given.cores} cores", store, scratch, spark_tasks)
        once["Spark's writer"] = lambda: spark_writer(spark_tasks.spark, store, scratch / "spark")
    seen: dict[str, list[Measured]] = {name: [] for name in [*peers, *once]}
    for turn in range(given.runs + 1):
        for name, run in [*peers.items(), *(once.items() if turn == 1 else ())]:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            with measured() as figures:
                own = run()
            if turn:  # the first turn warms up
                seen[name].append(own or figures)
    restored = _restored(store, scratch, InProcessWorkers(width=given.cores))
    with count_log_bytes() as read:
        ingest_into_new_lake(store, scratch / "lake", SerialWorkers(), _TABLES["all tables"])
    shutil.rmtree(scratch)
    answer(_result(given, {name: medians(runs) for name, runs in seen.items()} | {"restore": restored}, read.total))


def _ingests(where: str, store: Path, scratch: Path, workers: Workers) -> dict[str, Callable[[], None]]:
    def run(tables: frozenset[str]) -> None:
        if not ingest_into_new_lake(store, scratch / "lake", workers, tables).messages:
            raise SystemExit("nothing was ingested")

    return {f"{name}, {where}": lambda tables=tables: run(tables) for name, tables in _TABLES.items()}  # type: ignore[misc]  # a default binds each


def _synced(work: Callable[[], object]) -> None:
    """Do *work* and wait until all of it is on the disk."""
    work()
    os.sync()


def _restored(store: Path, scratch: Path, workers: Workers) -> dict[str, float]:
    """Restore the log from a lake and compare every byte."""
    lake, out = scratch / "lake", scratch / "restored"
    ingest_into_new_lake(store, lake, workers)
    wanted = RestoreRequest(
        Lake(str(lake)), out, given_settings=GivenSettings(release=RELEASE), with_queues=False, with_index=False
    )  # fmt: skip
    with measured() as figures:
        _synced(lambda: restore(wanted, workers))
    for segment in sorted((store / "commitlog").iterdir()):
        if not cmp(segment, out / "commitlog" / segment.name, shallow=False):
            raise SystemExit(f"{segment}: not the same bytes")
    shutil.rmtree(lake)
    shutil.rmtree(out)
    return medians([figures])


def _result(given: argparse.Namespace, middle: dict[str, dict[str, float]], log_bytes: int) -> dict[str, Any]:
    def wall(name: str) -> float:
        return middle[name]["wall_s"]

    own = f"{given.cores} processes"
    ratios = {
        "messages, one process, over floor": wall("messages, one process") / wall("floor"),
        f"all tables over messages, {own}": wall(f"all tables, {own}") / wall(f"messages, {own}"),
        f"messages, one process over {own}": wall("messages, one process") / wall(f"messages, {own}"),
        "restore over cp": wall("restore") / wall("cp"),
    }
    if not given.no_spark:
        spark = f"messages, Spark, {given.cores} cores"
        ratios["Spark's writer over messages on Spark"] = wall("Spark's writer") / wall(spark)
    return {
        "mib": given.mib,
        "runs": given.runs,
        "load": os.getloadavg(),
        "mib_per_second": {name: round(given.mib / figures["wall_s"]) for name, figures in middle.items()},
        "core_s_per_gib": {name: round(figures["cpu_s"] * 1024 / given.mib, 2) for name, figures in middle.items()},
        "peak_worker_mib": {name: figures["peak_worker_mib"] for name, figures in middle.items()},
        "ratios": {name: round(value, 2) for name, value in ratios.items()},
        "passes": {"ingest, all tables": round(log_bytes / (given.mib << 20), 2)},
    }


if __name__ == "__main__":
    main()
