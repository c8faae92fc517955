"""
Measure `ingest` of a log into a new lake, and `restore` of the log from the lake.

    python -m benchmarks.ingest [--mib N] [--runs N] [--cores N] [--no-spark] [--directory DIR] [--scratch DIR]

The store is healthy and in the page cache, with messages of 1 KB. Spark is started before the measurement. All variants
run alternately, after a warm-up:

- messages, all tables: `ingest` into an empty lake, with one thread, with --cores threads, and on Spark;
- baseline, read: a checksum of every byte of the log;
- baseline, pyarrow: one thread writes the rows of `messages` from memory with pyarrow, without reading the log;
- baseline, cp: a copy of the log.

Two variants run once, because they take long:

- baseline, Spark's writer: Spark's Delta writer writes the same Arrow batches, without properties and keys;
- restore: the log is restored from the lake; every byte must be equal.

`passes` is the number of bytes that `ingest` reads from segments, divided by the size of the log.
`peak_worker_mib` is the memory of the largest Python worker of Spark.
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
from benchmarks.lakes import ingest_into_new_lake, start_spark_workers
from benchmarks.measuring import Cost, count_reads, measure_cost, median_cost, parse_options, print_result
from benchmarks.stores import DIRECTORY, Recipe, make_healthy_store
from jobs.lake.lake import Lake
from jobs.lake.table_file import open_parquet_writer
from jobs.lake.tables import MESSAGES
from jobs.requests.restore import RestoreRequest
from jobs.restore.run import restore
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import Range, plan_ranges
from jobs.store.request import GivenSettings
from jobs.store.store import list_store
from jobs.store.workers import InProcessWorkers, SerialWorkers, Workers
from rmq_formats.arrow import MESSAGE_SCHEMA
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.properties import PropertyParser

_RECORD_SIZE = 1024
_SPARK_WRITER = "baseline: Spark's writer"
_TABLES = {"messages": frozenset({"messages"}), "all tables": frozenset({"messages", "consume_queue", "index"})}


def decode_range(range_: Range) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `messages` of one range of the log."""
    for group in RangeReader(range_).pieces():
        if isinstance(group, RawRecords):
            yield message_batch(group, PropertyParser.SCAN)[0]


def checksum_log(store: Path) -> None:
    """Read every byte of the log into a checksum."""
    for segment in sorted((store / "commitlog").iterdir()):
        with segment.open("rb", buffering=0) as file:
            value = 0
            while data := file.read(16 << 20):
                value = crc32(data, value)


def write_with_pyarrow(store: Path, directory: Path) -> Cost:
    """Write the rows of a log from memory; return the cost of writing, without that of decoding the log."""
    cost = Cost()
    for number, range_ in enumerate(plan_ranges(list_store(str(store)))):
        batches = list(decode_range(range_))
        if not batches:
            continue  # the unused end of a segment
        began, cpu = time.perf_counter(), time.process_time()
        with open_parquet_writer(
            directory / f"{number}.parquet", MESSAGE_SCHEMA, MESSAGES, batches[0].num_rows, ["body"]
        ) as writer:
            for batch in batches:
                writer.write_batch(batch)
        cost.wall_s += time.perf_counter() - began
        cost.cpu_s += time.process_time() - cpu
    return cost


def write_with_spark(spark: SparkSession, store: Path, directory: Path) -> None:
    """Decode the log in Spark's tasks, and write the rows with Spark's Delta writer."""
    ranges = plan_ranges(list_store(str(store)))
    schema = pa.schema([field for field in MESSAGE_SCHEMA if field.name not in {"properties", "keys"}])

    def decode_ranges(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for rows in decode_range(ranges[number]):
                    columns = [_decode_dictionary(rows.column(field.name)) for field in schema]
                    yield pa.RecordBatch.from_arrays(columns, names=schema.names)

    frame = spark.range(0, len(ranges), 1, len(ranges)).mapInArrow(decode_ranges, _format_ddl(schema))
    frame.write.format("delta").mode("overwrite").option("compression", "zstd").save(str(directory))


def _decode_dictionary(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _format_ddl(schema: pa.Schema) -> str:
    names = {"int32": "int", "int64": "bigint", "bool": "boolean", "date32[day]": "date", "binary": "binary"}
    return ", ".join(
        f"{field.name} {names.get(str(field.type)) or ('timestamp' if pa.types.is_timestamp(field.type) else 'string')}"
        for field in schema
    )


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, mib=4092, runs=3, cores=2, no_spark=False, scratch=Path, directory=DIRECTORY)
    store = make_healthy_store(Recipe(options.mib << 20, _RECORD_SIZE, compressible=True), options.directory)
    scratch = (options.scratch or options.directory) / "rocketmq-lake-scratch"
    threads = InProcessWorkers(width=options.cores)
    variants: dict[str, Callable[[], Cost | None]] = {
        "baseline: read": lambda: checksum_log(store),
        "baseline: pyarrow": lambda: write_with_pyarrow(store, scratch),
        **_ingest_variants("1 thread", store, scratch, SerialWorkers()),
        **_ingest_variants(f"{options.cores} threads", store, scratch, threads),
        "baseline: cp": lambda: _run_and_sync(lambda: shutil.copytree(store / "commitlog", scratch / "copy")),
    }
    slow_variants: dict[str, Callable[[], None]] = {}
    if not options.no_spark:
        from jobs.launch.session import spark_session

        spark_tasks = start_spark_workers(options.cores)
        spark = spark_session("benchmark")
        variants |= _ingest_variants(f"Spark, {options.cores} cores", store, scratch, spark_tasks)
        slow_variants[_SPARK_WRITER] = lambda: write_with_spark(spark, store, scratch / "spark")
    costs: dict[str, list[Cost]] = {name: [] for name in [*variants, *slow_variants]}
    for turn in range(options.runs + 1):
        for name, run in [*variants.items(), *(slow_variants.items() if turn == 1 else ())]:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            with measure_cost() as cost:
                own_cost = run()
            if turn:  # the first turn is a warm-up
                costs[name].append(own_cost or cost)
    shutil.rmtree(scratch)  # the restore needs the space
    scratch.mkdir()
    restore_cost = _measure_restore(store, scratch, threads)
    with count_reads("commitlog") as count:
        ingest_into_new_lake(store, scratch / "lake", SerialWorkers(), _TABLES["all tables"])
    shutil.rmtree(scratch)
    medians = {name: median_cost(of_variant) for name, of_variant in costs.items()} | {"restore": restore_cost}
    print_result(_summarize(options, medians, count.total_bytes))


def _ingest_variants(where: str, store: Path, scratch: Path, workers: Workers) -> dict[str, Callable[[], None]]:
    def run(tables: frozenset[str]) -> None:
        if not ingest_into_new_lake(store, scratch / "lake", workers, tables).messages:
            raise SystemExit(f"{store}: no messages were ingested")

    return {f"{name}, {where}": lambda tables=tables: run(tables) for name, tables in _TABLES.items()}  # type: ignore[misc]  # a default binds each


def _run_and_sync(work: Callable[[], object]) -> None:
    """Do *work*, and wait until its files are on disk."""
    work()
    os.sync()


def _measure_restore(store: Path, scratch: Path, workers: Workers) -> dict[str, float]:
    """Restore the log from a lake; compare every byte, and return the cost of the restore."""
    lake, out = scratch / "lake", scratch / "restored"
    ingest_into_new_lake(store, lake, workers)
    request = RestoreRequest(
        Lake(str(lake)), out, given_settings=GivenSettings(release=RELEASE), with_queues=False, with_index=False
    )  # fmt: skip
    with measure_cost() as cost:
        _run_and_sync(lambda: restore(request, workers))
    for segment in sorted((store / "commitlog").iterdir()):
        if not cmp(segment, out / "commitlog" / segment.name, shallow=False):
            raise SystemExit(f"{segment}: the restored segment differs")
    shutil.rmtree(lake)
    shutil.rmtree(out)
    return median_cost([cost])


def _summarize(options: argparse.Namespace, costs: dict[str, dict[str, float]], log_bytes: int) -> dict[str, Any]:
    def wall(name: str) -> float:
        return costs[name]["wall_s"]

    threads = f"{options.cores} threads"
    ratios = {
        "messages, 1 thread, over pyarrow": wall("messages, 1 thread") / wall("baseline: pyarrow"),
        f"all tables over messages, {threads}": wall(f"all tables, {threads}") / wall(f"messages, {threads}"),
        f"messages, 1 thread over {threads}": wall("messages, 1 thread") / wall(f"messages, {threads}"),
        "restore over cp": wall("restore") / wall("baseline: cp"),
    }
    if not options.no_spark:
        on_spark = f"messages, Spark, {options.cores} cores"
        ratios["Spark's writer over messages on Spark"] = wall(_SPARK_WRITER) / wall(on_spark)
    return {
        "mib": options.mib,
        "runs": options.runs,
        "load": os.getloadavg(),
        "mib_per_second": {name: round(options.mib / cost["wall_s"]) for name, cost in costs.items()},
        "core_s_per_gib": {name: round(cost["cpu_s"] * 1024 / options.mib, 2) for name, cost in costs.items()},
        "peak_worker_mib": {name: cost["peak_worker_mib"] for name, cost in costs.items() if "Spark" in name},
        "ratios": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "passes": {"ingest, all tables": round(log_bytes / (options.mib << 20), 2)},
    }


if __name__ == "__main__":
    main()
