"""Read the data source `rocketmq-store` in this process, as Spark does."""

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from jobs.source.format import RocketmqReader, RocketmqStreamReader


def read_rows(
    reader: RocketmqReader | RocketmqStreamReader, parts: Sequence[InputPartition]
) -> list[dict[str, object]]:
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def read_offsets(reader: RocketmqReader | RocketmqStreamReader, parts: Sequence[InputPartition]) -> list[int]:
    batches = (batch for part in parts for batch in reader.read(part))
    return [offset for batch in batches for offset in batch.column("physical_offset").to_pylist()]
