"""
A store's messages as a stream into a Delta table of one's own, beside `ingest` of the same log into `messages`.

    python -m benchmarks.stream [--mib N] [--runs N] [--batch-mib N] [--folder DIR]

One session for all, started before the clock, and the log is in the page cache. Peers, interleaved: `ingest`; the
source with `Trigger.AvailableNow` in one batch; the same in batches of `--batch-mib`, with a schema of some columns
alone, and into a sink that drops all rows; the source read as a batch. The others write every column of `messages` that
the source has. The floor is a source of twenty lines that has the very same Arrow batches ready, in files that it maps:
what it takes is the JVM's.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from benchmarks.measuring import Measured, answer, asked, measured, medians
from benchmarks.stores import FOLDER, Recipe, make_store
from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.lake.tables import STORED_MESSAGES
from jobs.launch.session import spark_session
from jobs.source.batch import RocketmqReader
from jobs.source.format import register
from jobs.source.options import NAME, Wanted
from jobs.store.spark_workers import SparkWorkers

_RECORD_SIZE = 1024
_OURS = "ingest"
_ATTEMPTS = 6  # on a busy machine
_SOME = "topic STRING, physical_offset BIGINT, store_timestamp BIGINT, tags STRING, keys ARRAY<STRING>, body BINARY"
_READY = "ready"
_PART = str(256 << 20)  # of a task, as the source has it by default


class ReadySource(DataSource):
    """Arrow batches that lie ready in files, a task a file."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return _READY

    def schema(self) -> StructType:
        """Return the columns that the store's source has."""
        return from_arrow_schema(STORED_MESSAGES.plain_schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of the files."""
        del schema
        return ReadyReader(Path(self.options["path"]))


class ReadyReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Yields all batches as they are, once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def initialOffset(self) -> dict[str, object]:
        """Return the beginning."""
        return {"end": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: what is available now is all."""

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return that a batch takes everything."""
        return ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, object], limit: ReadLimit) -> dict[str, object]:
        """Return the end."""
        del start, limit
        return {"end": 1}

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[InputPartition]:
        """Return the files."""
        return [InputPartition(str(path)) for path in sorted(self._folder.iterdir())] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a file."""
        file = pa.ipc.open_file(pa.memory_map(partition.value))
        return map(file.get_batch, range(file.num_record_batches))


def make_ready(store: Path, folder: Path) -> None:
    """Write the batches that the source makes of a store, a file for each of its tasks."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    reader = RocketmqReader(Wanted.of({"path": str(store), "partitionSize": _PART}))
    schema = STORED_MESSAGES.plain_schema
    for number, part in enumerate(reader.partitions()):
        path = str(folder / f"{number:03}.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in reader.read(part):
                writer.write_batch(batch)


def bring(spark: SparkSession, store: Path, place: Path) -> Path:
    """Ingest the log into `messages`."""
    ingest(IngestRequest(str(store), str(place), broker="b", tables=frozenset({"messages"})), SparkWorkers(spark))
    return place / "messages"


def messages(spark: SparkSession, store: Path, batch_size: int, schema: str | None = None) -> DataFrame:
    """Return the log as a stream, in batches of so many bytes."""
    reading = spark.readStream.format(NAME).option("maxBytesPerTrigger", batch_size)
    return (reading if schema is None else reading.schema(schema)).load(str(store))


def stream(read: Callable[[], DataFrame], place: Path, sink: str = "delta") -> Path:
    """Write what there is of a stream."""
    writing = read().writeStream.format(sink).option("checkpointLocation", str(place / "checkpoint"))
    for _ in range(_ATTEMPTS):
        try:
            writing.option("path", str(place / "table")).trigger(availableNow=True).start().awaitTermination()
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
    if table.exists() and _rows(table) != rows:
        raise SystemExit(f"{table}: {_rows(table)} rows of {rows}")
    return figures


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, mib=1024, runs=3, batch_mib=64, folder=FOLDER)
    size = given.mib << 20
    store = make_store(Recipe(size, _RECORD_SIZE, compressible=True), given.folder)
    spark = spark_session("stream", lasting=True)
    register(spark)
    spark.dataSource.register(ReadySource)
    ready = given.folder / "ready"
    make_ready(store, ready)
    all_at_once = partial(messages, spark, store, size * 2)
    lying_ready = partial(spark.readStream.format(_READY).load, str(ready))
    peers: dict[str, Callable[[Path], Path]] = {
        _OURS: partial(bring, spark, store),
        "stream, one batch": partial(stream, all_at_once),
        "floor: ready batches": partial(stream, lying_ready),
        "stream, one batch, into nothing": partial(stream, all_at_once, sink="noop"),
        "floor: ready batches, into nothing": partial(stream, lying_ready, sink="noop"),
        "stream, one batch, six columns": partial(stream, partial(all_at_once, _SOME)),
        f"stream, batches of {given.batch_mib} MiB": partial(
            stream, partial(messages, spark, store, given.batch_mib << 20)
        ),
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
    shutil.rmtree(ready)
    found = {name: medians(runs) for name, runs in seen.items()}
    for figures in found.values():
        figures["mib_per_second"] = round(given.mib / figures["wall_s"], 1)
        figures["mib_per_core_second"] = round(given.mib / figures["cpu_s"], 1)
    load = round(os.getloadavg()[0], 1)  # of the machine by then, this and other work
    answer({"load": load, "mib": given.mib, "messages": rows, "peers": found})


def _rows(table: Path) -> int:
    return sum(DeltaTable(table).get_add_actions(flatten=True)["num_records"].to_pylist())


if __name__ == "__main__":
    main()
