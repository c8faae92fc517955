"""`spark.read.format("rocketmq-store")` gives the rows of the table `messages`, of all of a store or after a lake's."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from deltalake import DeltaTable
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from jobs.ingest import commit
from jobs.lake.lake import Lake
from jobs.lake.runs import list_known_stores
from jobs.lake.tables import STORED_MESSAGES
from jobs.source import ReadOptions
from jobs.source.format import RocketmqDataSource, RocketmqReader, RocketmqStreamReader, register
from jobs.source.log import DataLossError
from rmq_formats.commitlog.record import MessageRecord, encode_record, record_from_row
from rmq_formats.errors import CorruptData, NotAStore, UnsupportedFormat
from tests.golden import StoreOf
from tests.support.broker import Broker, some_records
from tests.support.commands import overwrite
from tests.support.data_source import read_offsets, read_rows
from tests.support.lakes import ingest_store, rows_of
from tests.support.query_stores import SEGMENT_SIZE, Sent, stored, write_store
from tests.support.stores import stored_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def rocketmq(spark: "SparkSession") -> Callable[..., "DataFrame"]:
    register(spark)

    def read(store: Path, **options: str | int) -> "DataFrame":
        return spark.read.format("rocketmq-store").options(**options).load(str(store))

    return read


def _read(store: Path, **options: str) -> list[int]:
    """Return the offsets that a reader yields, as Spark asks it, in this process."""
    reader = RocketmqReader(ReadOptions.parse({"path": str(store), **options}))
    return read_offsets(reader, reader.partitions())


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["b420-base", "b498-dledger-upgraded", "b551-types"])
def test_every_record_of_a_real_store_is_a_row_that_encodes_to_its_bytes(
    name: str, golden: StoreOf, rocketmq: Callable[..., "DataFrame"]
) -> None:
    store = golden(name)
    frame = rocketmq(store)
    # Arrow keeps the order of a map's entries; `collect` would go through a Java map.
    rows = frame.orderBy("physical_offset").toArrow().to_pylist()

    assert STORED_MESSAGES.schema.names == frame.columns
    assert [record.raw for record in stored_records(store)] == [encode_record(record_from_row(row)) for row in rows]


def test_topics_offsets_times_and_bodies_can_be_chosen(tmp_path: Path, rocketmq: Callable[..., "DataFrame"]) -> None:
    messages = [Sent(topic=("Orders", "Bills")[n % 2], body=bytes(500)) for n in range(40)]
    records = stored(messages)
    store = write_store(tmp_path / "store", records)
    middle = records[20]
    offsets = [record.physical_offset for record in records]

    assert offsets[1::2] == _read(store, topics="B*")
    assert offsets[:20] == _read(store, toTime=str(middle.store_timestamp))
    assert offsets[20:] == _read(store, fromTime=str(middle.store_timestamp))
    rows = rocketmq(store, fromOffset=middle.physical_offset, body="false").where("topic = 'Orders'").collect()
    assert [(offset, None) for offset in offsets[20::2]] == sorted((row.physical_offset, row.body) for row in rows)


def test_only_the_columns_of_a_given_schema_are_decoded(tmp_path: Path, spark: "SparkSession") -> None:
    store = write_store(tmp_path / "store", stored([Sent(topic="Orders", body=b"a body", tags="paid")]))
    source = RocketmqDataSource({"path": str(store)})
    expected = [{"tags": "paid", "topic": "Orders"}]
    some = StructType().add("tags", "string").add("topic", "string")

    batch, stream = source.reader(some), source.streamReader(some)
    ends = stream.initialOffset(), stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    for reader, parts in ((batch, batch.partitions()), (stream, stream.partitions(*ends))):
        assert expected == read_rows(reader, parts)

    register(spark)
    frame = spark.read.format("rocketmq-store").schema(some).load(str(store))
    assert expected == frame.toArrow().to_pylist()


@pytest.mark.parametrize(("name", "reason"), [("body", "binary, not string"), ("tag", "not a column of messages")])
def test_a_given_schema_has_columns_of_messages_in_their_types(name: str, reason: str) -> None:
    with pytest.raises(UnsupportedFormat, match=f"schema: {name} is {reason}"):
        RocketmqDataSource({"path": "x"}).reader(StructType().add(name, "string"))


@pytest.mark.parametrize("size", [300, 700, 2000, SEGMENT_SIZE])
def test_partitions_of_any_size_read_every_record_once(tmp_path: Path, size: int) -> None:
    """A part begins where a record does, however the segment is cut."""
    records = stored([Sent(body=bytes(100 + n)) for n in range(50)])
    store = write_store(tmp_path / "store", records)

    assert [record.physical_offset for record in records] == _read(store, partitionSize=str(size))
    parts = RocketmqReader(ReadOptions.parse({"path": str(store), "partitionSize": str(size)})).partitions()
    assert len(parts) > len(list((store / "commitlog").iterdir())) or size == SEGMENT_SIZE


def test_segments_outside_the_time_range_are_not_opened(tmp_path: Path) -> None:
    """The first record of a segment shows when the segment begins; an hour is added for clocks that were set back."""
    records = stored([Sent(body=bytes(500)) for _ in range(60)])
    late = [record._replace(store_timestamp=record.store_timestamp + n * 3_600_000) for n, record in enumerate(records)]
    store = write_store(tmp_path / "store", late, with_queues=False, with_index=False)

    def bases(**options: str) -> list[int]:
        planned = RocketmqReader(ReadOptions.parse({"path": str(store), **options})).partitions()
        return [part.value[0].base_offset for part in planned]

    everything = bases()
    from_middle = bases(fromTime=str(late[30].store_timestamp))

    assert 0 < len(from_middle) < len(everything)
    assert set(from_middle) == {base for base in everything if base + SEGMENT_SIZE > late[28].physical_offset}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("after", ""), ("mode", "quick"), ("fromTime", "yesterday"), ("fromTime", "--5"), ("toTime", "²")),
        *(
            ("startingOffset", "yesterday"),
            ("maxBytesPerTrigger", "1g"),
            ("partitionSize", "-1"),
            ("maxBytesPerTrigger", "-1"),
            ("fromOffset", str(1 << 63)),
        ),
        *(("failOnDataLoss", "no"), ("body", "0"), ("startingOffsets", "latest"), ("topic", "orders"), ("path", "")),
    ],
)
def test_invalid_options_are_refused(name: str, value: str) -> None:
    with pytest.raises(UnsupportedFormat, match=f"(?i)option {name}|load"):
        ReadOptions.parse({"path": "x", name: value})


def test_a_store_without_its_log_is_refused(golden: StoreOf, tmp_path: Path) -> None:
    store = shutil.copytree(golden("b533-base"), tmp_path / "store", ignore=shutil.ignore_patterns("commitlog"))
    wanted = ReadOptions.parse({"path": str(store)})
    for plan in (RocketmqReader(wanted).partitions, RocketmqStreamReader(wanted).initialOffset):
        with pytest.raises(NotAStore, match="Is the log's disk mounted"):
            plan()


def test_damage_is_skipped_or_ends_the_read_depending_on_the_mode(tmp_path: Path) -> None:
    records = stored([Sent(body=bytes(500)) for _ in range(20)])
    store = write_store(tmp_path / "store", records)
    overwrite(store / "commitlog" / f"{0:020d}", records[1].physical_offset + 90, b"oops")

    assert [record.physical_offset for record in (records[0], *records[2:])] == _read(store)
    with pytest.raises(CorruptData, match="wrong CRC"):
        _read(store, mode="FAILFAST")


# after what a lake has


class Filled:
    """A store, and a lake that has some of it."""

    def __init__(self, root: Path) -> None:
        """Fill the lake by two runs; the store goes on."""
        self.broker = Broker(root / "store")
        self.lake = root / "lake"
        self.records = self.grow(30)
        self.run()
        self.first_version = self.version
        self.records += self.grow(20)
        self.run()
        self.records += self.grow(25)

    def grow(self, count: int) -> list[MessageRecord]:
        return self.broker.append(some_records(count, seed=self.broker.offset))

    def run(self) -> None:
        ingest_store(self.broker.root, self.lake, "b")

    @property
    def version(self) -> int:
        return DeltaTable(self.lake / "messages").version()

    def wanted(self, **options: object) -> ReadOptions:
        given = {"path": str(self.broker.root), "after": str(self.lake), **options}
        return ReadOptions.parse({name: str(value) for name, value in given.items()})

    def after(self, **options: object) -> list[int]:
        reader = RocketmqReader(self.wanted(**options))
        assert {("b", self.store_id)} >= {
            (row["broker"], row["store_id"]) for row in read_rows(reader, reader.partitions())
        }
        return read_offsets(reader, reader.partitions())

    @property
    def store_id(self) -> str:
        return list_known_stores(Lake(str(self.lake)))[0].store_id

    def offsets(self, start: int, end: int | None = None) -> list[int]:
        return [record.physical_offset for record in self.records[start:end]]


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return Filled(tmp_path)


def test_rows_after_a_version_neither_repeat_nor_miss_messages(filled: Filled) -> None:
    assert filled.after() == filled.offsets(50)
    assert filled.after(afterVersion=filled.version, partitionSize=500) == filled.offsets(50)
    assert filled.after(afterVersion=filled.first_version) == filled.offsets(30)
    assert filled.after(afterVersion=0) == filled.offsets(0)
    filled.run()
    assert filled.after() == []


def test_rows_of_a_prepared_run_are_read_from_the_store(filled: Filled) -> None:
    """A killed run's rows are nobody's yet, and come out of the store until the next run commits them."""
    lake = Lake(str(filled.lake))
    before = len(rows_of(filled.lake))
    with patch.object(commit, "commit_prepared", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        filled.run()

    (known,) = list_known_stores(lake)
    assert known.newest is not None
    assert known.newest.to_offset == filled.records[-1].end_offset
    assert len(rows_of(filled.lake)) == before
    assert filled.after() == filled.offsets(50)


def test_a_stream_begins_after_the_lake(filled: Filled) -> None:
    reader = RocketmqStreamReader(filled.wanted())
    start = reader.initialOffset()
    filled.run()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())

    assert read_offsets(reader, reader.partitions(start, end)) == filled.offsets(50)


def test_a_lake_without_the_store_or_its_history_is_refused(filled: Filled, tmp_path: Path) -> None:
    other = Broker(tmp_path / "other")
    other.append(some_records(5, seed=99))
    with pytest.raises(UnsupportedFormat, match="run ingest first"):
        RocketmqReader(filled.wanted(path=other.root, broker="other")).partitions()

    filled.broker.truncate(filled.records[40].physical_offset)
    filled.broker.append(some_records(60, seed=7))
    with pytest.raises(UnsupportedFormat, match="different records"):
        filled.after()


def test_messages_deleted_before_they_were_ingested_are_an_error_or_skipped(tmp_path: Path) -> None:
    filled = Filled(tmp_path)
    filled.records += filled.grow(200)
    filled.broker.expire(1)
    start = int(min(path.name for path in (filled.broker.root / "commitlog").iterdir()))

    with pytest.raises(UnsupportedFormat, match="option broker"):
        filled.after()  # nothing is left that the lake has seen
    with pytest.raises(DataLossError):
        filled.after(broker="b")
    kept = [record.physical_offset for record in filled.records if record.physical_offset >= start]
    assert filled.after(broker="b", failOnDataLoss="false") == kept
