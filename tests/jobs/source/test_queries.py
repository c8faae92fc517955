"""Spark queries on a store, and on a lake while runs add messages, which write to the user's own table."""

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from jobs.lake.upkeep import optimize
from jobs.source.format import lake_and_store, register
from jobs.store.workers import SerialWorkers
from rmq_formats.commitlog.record import MessageRecord, encode_record, record_from_row
from tests.support.broker import Broker, some_records
from tests.support.other_engine import shared_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow  # a streaming query takes seconds to start

TEXT = (Path(__file__).parents[3] / "docs" / "reference" / "streaming.md").read_text(encoding="utf-8")
_ATTEMPTS = 6
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def run_example(number: int, spark: "SparkSession", data: Path) -> dict[str, Any]:
    names: dict[str, Any] = {"spark": spark}
    exec(EXAMPLES[number].replace("/data/", f"{data}/"), names)  # noqa: S102 - our own document
    return names


def stream_orders(spark: "SparkSession", data: Path) -> None:
    """Stream the new messages of a topic; retry if the machine is so busy that Spark's planning process times out."""
    for _ in range(_ATTEMPTS - 1):
        try:
            run_example(0, spark, data)["query"].awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return
    run_example(0, spark, data)["query"].awaitTermination()


def raw(spark: "SparkSession", table: Path) -> list[bytes]:
    rows = spark.read.format("delta").load(str(table)).orderBy("physical_offset").toArrow().to_pylist()
    return [encode_record(record_from_row(row)) for row in rows]


def expected_rows(records: list[MessageRecord]) -> list[bytes]:
    return [encode_record(record) for record in records if record.topic == "Orders"]


def test_a_streamed_topic_arrives_exactly_once_after_interruptions(
    spark: "SparkSession", broker: Broker, tmp_path: Path
) -> None:
    records = broker.append(some_records(150))
    checkpoint, table = tmp_path / "checkpoints" / "orders", tmp_path / "orders"
    stream_orders(spark, tmp_path)

    assert expected_rows(records) == raw(spark, table)

    newest = max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda one: int(one.name)
    )
    newest.unlink()  # as after a kill between the commit to Delta and the checkpoint of Spark
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    records += broker.append(some_records(40, seed=2))
    small = (
        spark.readStream.format("rocketmq-store")
        .options(topics="Orders", maxBytesPerTrigger=2000)
        .load(str(broker.root))
    )
    query = small.writeStream.format("delta").option("checkpointLocation", str(checkpoint)).start(str(table))
    with suppress(StreamingQueryException):  # as in `stream_orders`; the query may end that way
        while not query.recentProgress and not query.awaitTermination(1):
            pass
    query.stop()
    records += broker.append(some_records(20, seed=3))
    stream_orders(spark, tmp_path)

    assert expected_rows(records) == raw(spark, table)


def test_lake_and_store_together_have_each_row_once_while_runs_go_on(spark: "SparkSession", tmp_path: Path) -> None:
    """The version of the table and the offset after it are determined when the union is created."""
    lake = shared_lake(spark, tmp_path)
    register(spark)
    lake.grow(25)
    stored = spark.read.format("rocketmq-store").load(str(lake.broker.root))
    expected = sorted(row.physical_offset for row in stored.select("physical_offset").collect())
    union = lake_and_store(spark, str(lake.path), str(lake.broker.root))
    lake.run()

    assert expected == sorted(row.physical_offset for row in union.select("physical_offset").collect())
    names = run_example(2, spark, tmp_path)
    lake.grow(5)

    assert len(names["messages"].select("physical_offset").collect()) == len(expected) + 5


def test_a_stream_of_a_lakes_messages_sees_runs_but_no_merges_and_stops_at_a_rewritten_log(
    spark: "SparkSession", tmp_path: Path
) -> None:
    lake = shared_lake(spark, tmp_path)
    lake.sql("ALTER TABLE {messages} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    run_example(3, spark, tmp_path)["query"].awaitTermination()
    plain = spark.readStream.format("delta").load(str(lake.path / "messages")).writeStream.format("delta")
    target = tmp_path / "plain"

    def follow() -> None:
        query = plain.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start(str(target)).awaitTermination()

    def read_seen() -> list[int]:
        frame = spark.read.format("delta").load(str(target)).select("physical_offset")
        return sorted(row.physical_offset for row in frame.collect())

    follow()
    lake.grow(6)
    lake.run()
    optimize(str(lake.path), SerialWorkers())
    follow()
    offsets = lake.offsets()

    assert offsets == read_seen()

    lake.broker.truncate(offsets[20])
    lake.grow(30)
    lake.run()
    with pytest.raises(Exception, match="DELTA_SOURCE_TABLE_IGNORE_CHANGES"):
        follow()

    assert offsets == read_seen()
    run_example(3, spark, tmp_path)["query"].awaitTermination()
    copy = spark.read.format("delta").load(str(tmp_path / "copy")).select("physical_offset").collect()

    assert lake.offsets() == sorted(row.physical_offset for row in copy)
