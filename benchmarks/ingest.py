"""
Ingest a log into `messages`, against what is on either side of it.

    python -m benchmarks.ingest [--mib N] [--record-size BYTES] [--runs N] [--compressible] [--broker]
                                [--folder DIR] [--scratch DIR]

Peers, interleaved in one run: reading the bytes into a checksum (the physical limit); one process that writes the same
columns with the same codec from batches that lie ready in memory (the floor: it neither reads, decodes nor checks); the
same work shared by two processes at once, whose CPU seconds are those of busy cores, as ours are; one process again,
without a codec for bodies that it does not shorten, as we write them; Spark's own writer on our batches; naive PySpark
(binaryFile, `struct` for each record; of a smaller log with small segments, counted per byte). The log is in the page
cache, and sessions are started before the clock. `--broker`: once, after them, a real broker that dispatches the same
log to its queues and its index.
"""

import argparse
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
from pyspark.sql import Row, SparkSession

from benchmarks.broker import RELEASE, rebuilt_by_broker
from benchmarks.floor import batches_of, floor
from benchmarks.lakes import bring, spark_workers
from benchmarks.measuring import Measured, answer, asked, measured, medians
from benchmarks.stores import FOLDER, Recipe, make_store
from jobs.store.ranges import plan_ranges
from jobs.store.store import list_store
from jobs.store.workers import OneByOne, Workers
from rmq_formats.commitlog.layout import MAGIC_V1
from rmq_formats.commitlog.schema import SCHEMA

_SLOW = {"Spark's writer", "naive PySpark"}  # run once: they take minutes
_CORES = 2  # that Spark and the floor may use
_NAIVE_MIB = 192
_NAIVE_SEGMENT = 16 << 20
_PLAIN = ">iiiiiqqiq4siq4siiqi"  # the fields before a record's body
_PLAIN_SIZE = struct.calcsize(_PLAIN)


def checksum(store: Path) -> None:
    """Read every byte once."""
    for segment in sorted((store / "commitlog").iterdir()):
        with segment.open("rb", buffering=0) as file:
            value = 0
            while data := file.read(16 << 20):
                value = crc32(data, value)


def spark_writer(spark: SparkSession, store: Path, folder: Path) -> None:
    """Give our batches to Spark's writer."""
    ranges = plan_ranges(list_store(str(store)))
    plain = pa.schema([field for field in SCHEMA if field.name not in {"properties", "keys"}])

    def rows(indices: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in indices:
            for number in batch.column(0).to_pylist():
                for made in batches_of(ranges[number]):
                    yield pa.RecordBatch.from_arrays(
                        [_plain(made.column(field.name)) for field in plain], names=plain.names
                    )

    frame = spark.range(0, len(ranges), 1, len(ranges)).mapInArrow(rows, _ddl(plain))
    frame.write.format("delta").mode("overwrite").option("compression", "zstd").save(str(folder))


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _ddl(schema: pa.Schema) -> str:
    names = {"int32": "int", "int64": "bigint", "bool": "boolean", "date32[day]": "date", "binary": "binary"}
    return ", ".join(
        f"{field.name} {names.get(str(field.type)) or ('timestamp' if pa.types.is_timestamp(field.type) else 'string')}"
        for field in schema
    )


def naive(spark: SparkSession, store: Path, folder: Path) -> None:
    """Do what a first version does: whole files as rows, records by `struct` in Python, Spark's writer."""

    def records(row: Row) -> Iterator[tuple[object, ...]]:
        content, position = row.content, 0
        while position + _PLAIN_SIZE <= len(content):
            fields = struct.unpack_from(_PLAIN, content, position)
            if fields[1] != MAGIC_V1:
                return
            start = position + _PLAIN_SIZE
            body = bytes(content[start : start + fields[-1]])
            start += fields[-1]
            topic = content[start + 1 : start + 1 + content[start]].decode()
            start += 1 + content[start]
            (length,) = struct.unpack_from(">h", content, start)
            text = content[start + 2 : start + 2 + length].decode()
            properties = dict(item.split("\x01", 1) for item in text.split("\x02") if item)
            yield (*fields[:9], fields[11], *fields[14:], topic, properties, body)
            position += fields[0]

    integers = (
        "total_size",
        "magic_code",
        "body_crc",
        "queue_id",
        "flag",
        "queue_offset",
        "physical_offset",
        "sys_flag",
    )
    names = [
        *integers,
        "born_timestamp",
        "store_timestamp",
        "reconsume_times",
        "prepared_transaction_offset",
        "body_length",
    ]
    ddl = ", ".join(f"{name} bigint" for name in names) + ", topic string, properties map<string,string>, body binary"
    files = spark.read.format("binaryFile").load(str(store / "commitlog"))
    frame = spark.createDataFrame(files.rdd.flatMap(records), ddl)
    frame.write.format("delta").mode("overwrite").save(str(folder))


def main() -> None:
    """Print the figures as JSON."""
    given = asked(
        __doc__, mib=4096, record_size=1024, runs=3, scratch=Path, compressible=False, broker=False, folder=FOLDER
    )
    size = given.mib << 20
    store = make_store(Recipe(size, given.record_size, compressible=given.compressible), given.folder)
    small = make_store(Recipe(_NAIVE_MIB << 20, given.record_size, segment_size=_NAIVE_SEGMENT, seed=1), given.folder)
    scratch = (given.scratch or given.folder) / "rocketmq-lake-scratch"
    spark_tasks = spark_workers(_CORES)
    spark = spark_tasks.spark
    as_is = [] if given.compressible else ["body"]
    peers: dict[str, tuple[float, Callable[[], Measured | None]]] = {
        "checksum": (given.mib, lambda: checksum(store)),
        "floor": (given.mib, lambda: floor(store, size, scratch)),
        "floor, two at once": (given.mib, lambda: floor(store, size, scratch, processes=_CORES)),
        "floor, bodies as we store them": (given.mib, lambda: floor(store, size, scratch, as_is=as_is)),
        "one process": (given.mib, lambda: _ours(store, scratch, OneByOne())),
        "rocketmq-lake": (given.mib, lambda: _ours(store, scratch, spark_tasks)),
        "Spark's writer": (given.mib, lambda: spark_writer(spark, store, scratch / "spark")),
        "naive PySpark": (_NAIVE_MIB, lambda: naive(spark, small, scratch / "naive")),
    }
    seen: dict[str, list[Measured]] = {name: [] for name in peers}
    for turn in range(given.runs + 1):
        for name, (_, run) in peers.items():
            if name in _SLOW and turn != 1:
                continue
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            with measured() as figures:
                own = run()
            if turn:  # the first turn warms up
                seen[name].append(own or figures)
    shutil.rmtree(scratch)
    result = _result(given, seen, {name: mib for name, (mib, _) in peers.items()})
    if given.broker:
        with rebuilt_by_broker(store, given.folder) as (_, seconds):
            result["broker"] = {"release": RELEASE, "wall_s_per_gib": round(seconds / given.mib * 1024, 3)}
    answer(result)


def _ours(store: Path, scratch: Path, workers: Workers) -> None:
    """Ingest messages alone."""
    if not bring(store, scratch / "lake", workers).messages:
        raise SystemExit("nothing was ingested")


def _result(given: argparse.Namespace, seen: dict[str, list[Measured]], mib: dict[str, float]) -> dict[str, Any]:
    middle = {name: medians(runs) for name, runs in seen.items()}
    per_gib = {
        name: {key: round(values[key] / mib[name] * 1024, 3) for key in ("cpu_s", "wall_s")}
        for name, values in middle.items()
    }
    ours, floor_ = per_gib["rocketmq-lake"], per_gib["floor"]
    at_once, like_ours = per_gib["floor, two at once"], per_gib["floor, bodies as we store them"]
    return {
        "record_size": given.record_size,
        "mib": given.mib,
        "runs": given.runs,
        "median": middle,
        "per_gib": per_gib,
        "ratios": {
            "cpu_over_floor": round(ours["cpu_s"] / floor_["cpu_s"], 2),
            "wall_over_floor": round(ours["wall_s"] / floor_["wall_s"], 2),
            "cpu_over_floor_two_at_once": round(ours["cpu_s"] / at_once["cpu_s"], 2),
            "wall_over_floor_two_at_once": round(ours["wall_s"] / at_once["wall_s"], 2),
            "cpu_over_floor_with_bodies_as_ours": round(ours["cpu_s"] / like_ours["cpu_s"], 2),
            "wall_over_floor_with_bodies_as_ours": round(ours["wall_s"] / like_ours["wall_s"], 2),
            "rows_per_core_second": round((1 << 30) / given.record_size / ours["cpu_s"]),
            "one_process_wall_over_two": round(per_gib["one process"]["wall_s"] / ours["wall_s"], 2),
            "times_faster_than_naive": round(per_gib["naive PySpark"]["wall_s"] / ours["wall_s"], 1),
            "times_faster_than_spark_writer": round(per_gib["Spark's writer"]["wall_s"] / ours["wall_s"], 1),
        },
    }


if __name__ == "__main__":
    main()
