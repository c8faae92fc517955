"""The data source `rocketmq-store`: whole stores, rows after those of a lake, and micro-batches."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import StructType

from jobs.ingest import run as steps
from jobs.lake.lake_stores import list_lake_stores
from jobs.lake.tables import STORED_MESSAGES
from jobs.source.format import RocketmqDataSource, RocketmqReader, RocketmqStreamReader, register
from jobs.source.log import DataLossError, LogPosition
from jobs.source.options import ReadOptions
from rmq_formats.commitlog.layout import BLANK
from rmq_formats.commitlog.record import MessageRecord, encode_record, record_from_row
from rmq_formats.errors import CorruptData, NotAStore, UnsupportedFormat
from rmq_formats.store import file_name_of_offset
from tests.golden import StoreOf
from tests.rmq_formats.builders import STORED, make_blank
from tests.support.broker import Broker, some_records
from tests.support.commands import overwrite
from tests.support.data_source import read_offsets, read_rows
from tests.support.lakes import LakeOfBroker, rows_of
from tests.support.query_stores import SEGMENT_SIZE, Sent, stored, write_store
from tests.support.stores import read_store_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _batch_reader(store: Path, **options: str) -> RocketmqReader:
    return RocketmqReader(ReadOptions.parse({"path": str(store), **options}))


def _read(store: Path, **options: str) -> list[int]:
    """Return the offsets that a reader yields, called as by Spark but in this process."""
    reader = _batch_reader(store, **options)
    return read_offsets(reader, reader.partitions())


@pytest.mark.parametrize("name", ["b420-base", "b498-dledger-upgraded", "b551-types"])
def test_every_record_of_a_real_store_is_a_row_that_encodes_to_its_bytes(name: str, golden: StoreOf) -> None:
    reader = _batch_reader(golden(name))
    rows = read_rows(reader, reader.partitions())

    assert [record.raw for record in read_store_records(golden(name))] == [
        encode_record(record_from_row(row)) for row in rows
    ]


def _orders_and_bills() -> list[MessageRecord]:
    return stored([Sent(("Orders", "Bills")[n % 2], ("k", "l"), f"id{n}", "tag", body=bytes(500)) for n in range(40)])


def test_topics_times_bodies_and_the_size_of_partitions_can_be_chosen(tmp_path: Path) -> None:
    records = _orders_and_bills()
    store = write_store(tmp_path / "store", records)
    middle = records[20]
    offsets = [record.physical_offset for record in records]

    assert offsets[1::2] == _read(store, topics="B*")
    assert offsets[:20] == _read(store, toTime=str(middle.store_timestamp))
    assert offsets[20:] == _read(store, fromTime=str(middle.store_timestamp))
    without = _batch_reader(store, body="false")

    assert {None} == {row["body"] for row in read_rows(without, without.partitions())}
    for size in (300, 2000, SEGMENT_SIZE):
        parts = _batch_reader(store, partitionSize=str(size)).partitions()

        assert len(parts) > len(list((store / "commitlog").iterdir())) or size == SEGMENT_SIZE
        assert offsets == _read(store, partitionSize=str(size))


_MIDDLE = 20


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        *(
            (condition((column,), getattr(_orders_and_bills()[_MIDDLE], column)), expected)
            for column in ("physical_offset", "store_timestamp")
            for condition, expected in (
                (GreaterThan, slice(_MIDDLE + 1, None)),
                (GreaterThanOrEqual, slice(_MIDDLE, None)),
                (LessThan, slice(_MIDDLE)),
                (LessThanOrEqual, slice(_MIDDLE + 1)),
                (EqualTo, slice(None)),
            )
        ),
        (EqualTo(("topic",), "Bills"), slice(1, None, 2)),
        (In(("topic",), ("Bills", "x")), slice(1, None, 2)),
    ],
    ids=str,
)
def test_conditions_of_a_query_narrow_the_read(condition: Filter, expected: slice, tmp_path: Path) -> None:
    """Spark evaluates all conditions again."""
    records = _orders_and_bills()
    reader = _batch_reader(write_store(tmp_path / "store", records))

    assert [condition] == [*reader.pushFilters([condition])]
    assert _offsets(records[expected]) == read_offsets(reader, reader.partitions())


def test_only_the_columns_of_a_given_schema_are_decoded(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", stored([Sent(topic="Orders", body=b"a body", tags="paid")]))
    source = RocketmqDataSource({"path": str(store)})
    expected = [{"tags": "paid", "topic": "Orders"}]
    some = StructType().add("tags", "string").add("topic", "string")

    batch = source.reader(some)
    stream = source.streamReader(some)
    ends = stream.initialOffset(), stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    for reader, parts in ((batch, batch.partitions()), (stream, stream.partitions(*ends))):
        assert expected == read_rows(reader, parts)


@pytest.mark.slow  # starts four Python processes and Spark SQL: 12 s of CPU
def test_spark_reads_the_selected_rows_and_columns(tmp_path: Path, spark: "SparkSession") -> None:
    records = _orders_and_bills()
    middle = records[20].physical_offset
    store = str(write_store(tmp_path / "store", records))
    register(spark)

    frame = spark.read.format("rocketmq-store").option("fromOffset", middle).load(store)
    # Arrow keeps the order of a map's entries, which `collect` would lose in a Java map.
    rows = frame.where("topic = 'Orders'").orderBy("physical_offset").toArrow().to_pylist()

    assert STORED_MESSAGES.schema.names == frame.columns
    assert [*map(encode_record, records[20::2])] == [encode_record(record_from_row(row)) for row in rows]
    some = spark.read.format("rocketmq-store").schema("tags string, topic string").option("fromOffset", middle)

    assert [{"tags": "tag", "topic": name} for name in ("Orders", "Bills") * 10] == some.load(
        store
    ).toArrow().to_pylist()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("column body", "declared as string, but its type is binary"), ("tag", "not a column of messages")],
)
def test_a_given_schema_has_columns_of_messages_in_their_types(name: str, reason: str) -> None:
    with pytest.raises(UnsupportedFormat, match=f"schema: {name} is {reason}"):
        RocketmqDataSource({"path": "x"}).reader(StructType().add(name.removeprefix("column "), "string"))


def test_segments_outside_the_time_range_are_not_opened(tmp_path: Path) -> None:
    """The first record of a segment shows when the segment begins; an hour is added for clocks that were set back."""
    records = stored([Sent(body=bytes(500)) for _ in range(60)])
    late = [record._replace(store_timestamp=record.store_timestamp + n * 3_600_000) for n, record in enumerate(records)]
    store = write_store(tmp_path / "store", late, with_queues=False, with_index=False)

    def bases(**options: str) -> list[int]:
        return [part.value[0].base_offset for part in _batch_reader(store, **options).partitions()]

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
    for plan in (_batch_reader(store).partitions, _reader(store).initialOffset):
        with pytest.raises(NotAStore, match="Is the log's disk mounted"):
            plan()


class PartlyIngestedStore(LakeOfBroker):
    """A store, and a lake that contains its first messages."""

    def __init__(self, root: Path) -> None:
        """Ingest two runs, and append more messages."""
        super().__init__(root)
        self.offsets = self.grow(30)
        self.run()
        self.first_version = self.version
        self.offsets += self.grow(20)
        self.run()
        self.offsets += self.grow(25)

    @property
    def version(self) -> int:
        return DeltaTable(self.path / "messages").version()

    def make_options(self, **options: object) -> ReadOptions:
        given = {"path": str(self.broker.root), "after": str(self.path), **options}
        return ReadOptions.parse({name: str(value) for name, value in given.items()})

    def read_after_lake(self, **options: object) -> list[int]:
        reader = RocketmqReader(self.make_options(**options))
        (lake_store,) = list_lake_stores(self.lake)
        rows = read_rows(reader, reader.partitions())
        assert {("b", lake_store.store_id)} >= {(row["broker"], row["store_id"]) for row in rows}
        return [int(str(row["physical_offset"])) for row in rows]


@pytest.fixture
def ingested(tmp_path: Path) -> PartlyIngestedStore:
    return PartlyIngestedStore(tmp_path)


def test_rows_after_a_version_neither_repeat_nor_miss_messages(ingested: PartlyIngestedStore) -> None:
    assert ingested.read_after_lake() == ingested.offsets[50:]
    assert ingested.read_after_lake(afterVersion=ingested.version, partitionSize=500) == ingested.offsets[50:]
    assert ingested.read_after_lake(afterVersion=ingested.first_version) == ingested.offsets[30:]
    assert ingested.read_after_lake(afterVersion=0) == ingested.offsets
    stream = RocketmqStreamReader(ingested.make_options())
    start = stream.initialOffset()
    ingested.run()

    assert ingested.read_after_lake() == []
    assert _read_remaining(stream, start) == ingested.offsets[50:]


def test_rows_of_a_prepared_run_are_read_from_the_store(ingested: PartlyIngestedStore) -> None:
    """The rows of a killed run are not in the lake, so they are read from the store until the next run commits them."""
    before = len(rows_of(ingested.path))
    with patch.object(steps, "commit_prepared", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        ingested.run()

    (lake_store,) = list_lake_stores(ingested.lake)

    assert lake_store.newest_manifest is not None
    assert lake_store.newest_manifest.to_offset == ingested.broker.offset
    assert len(rows_of(ingested.path)) == before
    assert ingested.read_after_lake() == ingested.offsets[50:]


def test_a_lake_without_the_store_or_its_history_is_refused(ingested: PartlyIngestedStore, tmp_path: Path) -> None:
    other = Broker(tmp_path / "other")
    other.append(some_records(5, seed=99))
    with pytest.raises(UnsupportedFormat, match="run ingest first"):
        RocketmqReader(ingested.make_options(path=other.root, broker="other")).partitions()

    ingested.broker.truncate(ingested.offsets[40])
    ingested.broker.append(some_records(60, seed=7))
    with pytest.raises(UnsupportedFormat, match="different records"):
        ingested.read_after_lake()


def test_a_missing_file_before_the_first_wanted_offset_is_not_a_loss(tmp_path: Path) -> None:
    store = _write(tmp_path / "store", _records(60))
    (store / "commitlog" / f"{SEGMENT_SIZE:020d}").unlink()

    assert RocketmqReader(ReadOptions(str(store), from_offset=2 * SEGMENT_SIZE)).partitions()


def test_messages_deleted_before_they_were_ingested_are_an_error_or_skipped(tmp_path: Path) -> None:
    ingested = PartlyIngestedStore(tmp_path)
    ingested.offsets += ingested.grow(200)
    ingested.broker.expire(1)
    start = int(min(path.name for path in (ingested.broker.root / "commitlog").iterdir()))

    with pytest.raises(UnsupportedFormat, match="option broker"):
        ingested.read_after_lake()  # all ingested messages were deleted
    with pytest.raises(DataLossError):
        ingested.read_after_lake(broker="b")
    kept = [offset for offset in ingested.offsets if offset >= start]

    assert ingested.read_after_lake(broker="b", failOnDataLoss="false") == kept


EVERYTHING = ReadAllAvailable()
Offset = dict[str, Any]


def _records(count: int) -> list[MessageRecord]:
    return stored([Sent(body=bytes([n % 251]) * (300 + n % 7)) for n in range(count)])


def _write(root: Path, records: Sequence[MessageRecord]) -> Path:
    rmtree(root, ignore_errors=True)
    return write_store(root, records, with_queues=False, with_index=False)


def _reader(store: Path, **options: str) -> RocketmqStreamReader:
    return RocketmqStreamReader(ReadOptions.parse({"path": str(store), "pollMilliseconds": "0", **options}))


def _read_batch(reader: RocketmqStreamReader, start: Offset, end: Offset) -> list[int]:
    return read_offsets(reader, reader.partitions(start, end))


def _offsets(records: Iterable[MessageRecord]) -> list[int]:
    return [record.physical_offset for record in records]


def _read_batches(reader: RocketmqStreamReader, start: Offset, limit: int) -> list[tuple[Offset, list[int]]]:
    """Read batches until nothing is new; return the end and the rows of each."""
    found = []
    while (end := reader.latestOffset(start, ReadMaxBytes(limit))) != start:
        found.append((end, _read_batch(reader, start, end)))
        start = end
    return found


def _read_remaining(reader: RocketmqStreamReader, start: Offset, limit: int = 1 << 40) -> list[int]:
    return [offset for _, rows in _read_batches(reader, start, limit) for offset in rows]


@pytest.mark.sample(6)
@pytest.mark.parametrize("limit", [1, 500, 1000, SEGMENT_SIZE, 3 * SEGMENT_SIZE, 1 << 40])
@pytest.mark.parametrize("part", ["1", "700", "0"])
def test_batches_of_any_limit_have_every_record_once_and_in_order(tmp_path: Path, limit: int, part: str) -> None:
    records = _records(60)
    reader = _reader(_write(tmp_path / "store", records), partitionSize=part)
    start = reader.initialOffset()
    batches = _read_batches(reader, start, limit)
    ends = [start["offset"], *(end["offset"] for end, _ in batches)]

    assert _offsets(records) == [offset for _, rows in batches for offset in rows]
    longest = max(record.total_size for record in records)

    assert all(after - before <= max(limit, longest) for before, after in pairwise(ends))
    assert records[-1].end_offset == ends[-1]


def test_a_batch_that_was_planned_before_a_restart_is_read_again_unchanged(tmp_path: Path) -> None:
    records = _records(60)
    store = _write(tmp_path / "store", records[:40])
    reader = _reader(store)
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadMaxBytes(5000))
    second = reader.latestOffset(first, EVERYTHING)
    before = _read_batch(reader, start, first), _read_batch(reader, first, second)
    _write(store, records)

    assert before == (_read_batch(_reader(store), start, first), _read_batch(_reader(store), first, second))
    assert _offsets(records[40:]) == _read_remaining(_reader(store), second)


def test_a_query_can_end_or_start_at_the_end_of_a_growing_log(tmp_path: Path) -> None:
    records = _records(60)
    store = _write(tmp_path / "store", records[:40])
    reader = _reader(store)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    latest = _reader(store, startingOffset="latest")
    end = latest.initialOffset()
    _write(store, records)
    batches = _read_batches(reader, start, 900)

    assert _offsets(records[:40]) == [offset for _, rows in batches for offset in rows]
    again = _reader(store)
    again.prepareForTriggerAvailableNow()

    assert _offsets(records[40:]) == _read_remaining(again, batches[-1][0], 900)
    assert _offsets(records[40:]) == _read_remaining(latest, end)


def test_damage_is_skipped_or_ends_the_read_depending_on_the_mode(tmp_path: Path) -> None:
    records = _records(60)
    store = _write(tmp_path / "store", records)
    hit = [records[5], records[6], next(record for record in records if record.physical_offset == SEGMENT_SIZE)]
    for record in hit:
        at = record.physical_offset % SEGMENT_SIZE
        overwrite(store / "commitlog" / f"{record.physical_offset - at:020d}", at, b"\xff" * 8)
    overwrite(store / "commitlog" / f"{0:020d}", records[1].physical_offset + 90, b"oops")
    kept = [record.physical_offset for record in records if record not in (records[1], *hit)]

    assert kept == _read(store)
    for limit in (1, 900, 1 << 40):
        reader = _reader(store)

        assert kept == _read_remaining(reader, reader.initialOffset(), limit)
    strict = _reader(store, mode="FAILFAST")
    with pytest.raises(CorruptData, match="wrong CRC"):
        _read(store, mode="FAILFAST")
    with pytest.raises(CorruptData, match="wrong CRC"):
        _read_batches(strict, strict.initialOffset(), 1 << 40)


def test_deleted_segments_are_an_error_or_are_skipped_depending_on_the_option(tmp_path: Path) -> None:
    records = _records(60)
    store = _write(tmp_path / "store", records)
    reader = _reader(store)
    start = reader.latestOffset(reader.initialOffset(), ReadMaxBytes(1000))
    for base in (0, SEGMENT_SIZE):
        (store / "commitlog" / f"{base:020d}").unlink()

    with pytest.raises(DataLossError, match=f"{start['offset']:,} to {2 * SEGMENT_SIZE:,}"):
        _reader(store).latestOffset(start, EVERYTHING)
    tolerant = _reader(store, failOnDataLoss="false")
    rest = _read_remaining(tolerant, start, 1000)

    assert [record.physical_offset for record in records if record.physical_offset >= 2 * SEGMENT_SIZE] == rest
    assert _reader(store).initialOffset()["offset"] == 2 * SEGMENT_SIZE


def test_segments_deleted_after_a_batch_was_planned_are_lost_or_left_out(tmp_path: Path) -> None:
    """After a restart, the batch of the checkpoint is planned again, and its tasks may also start too late."""
    records = _records(60)
    store = _write(tmp_path / "store", records)
    reader = _reader(store, failOnDataLoss="false")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxBytes(2 * SEGMENT_SIZE))
    strict = _reader(store)
    planned = strict.partitions(start, end)
    (store / "commitlog" / f"{0:020d}").unlink()
    last = LogPosition.from_json(end).offset
    kept = [record.physical_offset for record in records if SEGMENT_SIZE <= record.physical_offset < last]

    assert kept == _read_batch(reader, start, end)
    with pytest.raises(DataLossError):
        [*strict.read(planned[0])]
    with pytest.raises(DataLossError):
        _reader(store).partitions(start, end)

    assert kept == _read_batch(_reader(store, failOnDataLoss="false"), start, end)
    (store / "commitlog" / f"{SEGMENT_SIZE:020d}").unlink()

    assert _read_batch(_reader(store, failOnDataLoss="false"), start, end) == []


def test_records_after_pages_of_zeros_are_read(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", segment_size=1 << 16)
    records = broker.append(some_records(150))
    start = records[5].physical_offset
    overwrite(broker.root / "commitlog" / file_name_of_offset(0), start, bytes(8192))

    reader = _reader(broker.root)
    before = LogPosition(start).to_json()
    end = reader.latestOffset(before, EVERYTHING)

    after = [record.physical_offset for record in records if record.physical_offset >= start + 8192]

    assert after == _read_batch(reader, before, end)
    assert after


def _truncate_and_end(store: Path, at: int) -> None:
    """Truncate the log and end the file there, as recovery does; the old bytes remain after the end."""
    overwrite(store / "commitlog" / f"{0:020d}", at, make_blank(SEGMENT_SIZE - at)[: BLANK.size])


OTHER = stored([Sent(topic="Bills", body=bytes(300 + n % 7)) for n in range(60)])


@pytest.mark.parametrize(
    ("count", "change", "message"),
    [
        (30, lambda store: _write(store, OTHER), "was replaced"),
        (30, lambda store: _write(store, OTHER[:3]), "the log ends"),
        (8, lambda store: _truncate_and_end(store, _records(8)[2].physical_offset), "no longer exists"),
    ],
    ids=["another log", "a shorter one", "a record that nothing leads to"],
)
def test_a_checkpoint_of_another_log_is_refused(
    count: int, change: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    """A checkpoint identifies its last record: the log may have been wiped, rewritten, or continue differently."""
    store = _write(tmp_path / "store", _records(count))
    reader = _reader(store)
    end = reader.latestOffset(reader.initialOffset(), EVERYTHING)
    change(store)

    for is_available_now in (False, True):
        again = _reader(store)
        if is_available_now:
            again.prepareForTriggerAvailableNow()
        with pytest.raises(CorruptData, match=f"{message}.*; to read the log from its start, use a new checkpoint"):
            again.latestOffset(end, EVERYTHING)
    with pytest.raises(CorruptData, match=r"the log ends .*; to read the log from its start, use a new checkpoint"):
        _reader(store).latestOffset({"offset": (1 << 63) - 1}, EVERYTHING)


def test_an_idle_store_is_polled_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark polls without a pause; the source waits only after a poll that finds nothing."""
    records = _records(20)
    store = _write(tmp_path / "store", records[:10])
    clock = [100.0]
    waits = list[float]()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr("jobs.source.format.monotonic", lambda: clock[0])
    monkeypatch.setattr("jobs.source.format.sleep", wait)
    reader = _reader(store, pollMilliseconds="1500")
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    looks = list[int]()

    def is_all_read(_: object, offset: int) -> bool:
        looks.append(offset)
        return True

    monkeypatch.setattr("jobs.source.format._is_all_read", is_all_read)
    for _ in range(6):
        assert reader.latestOffset(end, EVERYTHING) == end

    assert waits == [0, 0, 1.0, 0.5, 1.0, 0.5, 1.0]
    assert len(looks) == 3


def test_an_empty_store_is_read_once_it_has_a_log(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "checkpoint").write_bytes(bytes(4096))
    reader = _reader(store)
    start = reader.initialOffset()

    assert reader.latestOffset(start, EVERYTHING) == start
    records = _records(20)
    _write(store, records)

    assert _offsets(records) == _read_remaining(reader, start)


@pytest.mark.parametrize(
    "values",
    [{}, [], None, {"offset": "x"}, {"offset": -5}, {"offset": 1 << 70}, {"offset": 5, "record": {"a": 1}}],
    ids=str,
)
def test_a_checkpoint_of_another_source_is_reported(values: Any, tmp_path: Path) -> None:  # noqa: ANN401 - any JSON value
    reader = _reader(_write(tmp_path / "store", _records(3)))
    with pytest.raises(CorruptData, match="does not contain a position in a log"):
        reader.latestOffset(values, EVERYTHING)


def test_an_incomplete_record_after_the_end_of_a_batch_is_read_later(broker: Broker) -> None:
    """The largest offset was treated as the end of the record, so nothing was read afterwards."""
    broker.append(some_records(3))
    reader = _reader(broker.root)
    end = reader.latestOffset(reader.initialOffset(), EVERYTHING)
    later = some_records(2, seed=2, stored=STORED + 1000)
    broker.append(later[:1], cut_at=60)
    waiting = reader.latestOffset(end, EVERYTHING)
    broker.append(later)

    assert end == waiting
    answers = (reader.latestOffset(waiting, EVERYTHING) for _ in range(60))  # a slow probe delays the next one
    after = next((answer for answer in answers if answer != waiting), waiting)

    assert broker.offset == after["offset"]
    assert len(_read_batch(reader, waiting, after)) == len(later)
