"""Spark with Delta as another engine that writes to a lake, and what it sees of the lake's messages."""

import re
import shutil
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from deltalake import DeltaTable, QueryBuilder

from jobs.ingest.request import Summary
from jobs.lake.lake import Lake
from jobs.lake.snapshots import plain_rows
from tests.support.broker import Broker, some_records
from tests.support.in_memory import folder_of_process
from tests.support.lakes import ingest_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITH_VECTORS = "ALTER TABLE {messages} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
NO_SHORT_RETENTION_CHECK = "SET spark.databricks.delta.retentionDurationCheck.enabled = false"


class SharedLake:
    """A lake that our runs fill from one broker's store, and that Spark's SQL writes to as well."""

    def __init__(self, spark: "SparkSession", root: Path) -> None:
        self.spark = spark
        self.root = root
        self.path = root / "lake"
        self.lake = Lake(str(self.path))
        self.broker = Broker(root / "store")

    def copied(self, root: Path) -> Self:
        """Return the lake as it is now, with its store, in another folder; Spark has nothing to do for that."""
        copy = type(self)(self.spark, root)
        shutil.copytree(self.path, copy.path)
        shutil.rmtree(copy.broker.root)
        copy.broker = self.broker.copied(copy.broker.root)
        return copy

    def grow(self, count: int) -> list[int]:
        records = self.broker.append(some_records(count, seed=self.broker.offset))
        return [record.physical_offset for record in records]

    def run(self) -> Summary:
        return ingest_store(self.broker.root, self.path, "b")

    def name(self, table: str = "messages") -> str:
        """Return how Spark's SQL calls a table of the lake."""
        return f"delta.`{self.path}/{table}`"

    def sql(self, *statements: str) -> None:
        """Run statements of Spark's SQL; a table of the lake is its name in braces, as in `{messages}`."""
        for statement in statements:
            self.spark.sql(re.sub(r"\{(\w+)\}", lambda found: self.name(found[1]), statement)).collect()

    def take_back(self, refused: Exception) -> None:
        """Run the statements that an error names."""
        self.sql(*str(refused).partition("run in Spark SQL: ")[2].split("; "))

    def seen_by_spark(self) -> list[int]:
        rows = self.spark.sql(f"SELECT physical_offset FROM {self.name()}").collect()
        return sorted(row.physical_offset for row in rows)

    def offsets(self, where: str = "true", table: str = "messages") -> list[int]:
        return sorted(row["physical_offset"] for row in self.rows("physical_offset", where, table))

    def values(self, column: str, table: str = "messages") -> dict[int, object]:
        found = self.rows(f"physical_offset, {column} AS value", "true", table)
        return {row["physical_offset"]: row["value"] for row in found}

    def rows(self, columns: str, where: str = "true", table: str = "messages") -> list[dict[str, Any]]:
        snapshot = DeltaTable(self.path / table)
        query = f"SELECT {columns} FROM t WHERE {where}"
        return plain_rows(QueryBuilder().register("t", snapshot).execute(query).read_all())

    def changes(self, version: int, table: str = "messages") -> tuple[list[int], list[int]]:
        """Return which offsets the feed of changes has lost and got since a version; what is in both cancels out."""
        feed = self.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version)
        count = Counter[int]()
        for row in feed.load(str(self.path / table)).select("physical_offset", "_change_type").collect():
            count[row.physical_offset] += {"insert": 1, "delete": -1}[row["_change_type"]]
        ordered = sorted(count.items())
        return [at for at, change in ordered if change < 0], [at for at, change in ordered if change > 0]

    def files(self, table: str = "messages") -> int:
        return len(DeltaTable(self.path / table).file_uris())


@cache
def _filled(spark: "SparkSession", runs: tuple[int, ...]) -> SharedLake:
    lake = SharedLake(spark, folder_of_process("shared-lake-"))
    for count in runs:
        lake.grow(count)
        lake.run()
    return lake


def shared_lake(spark: "SparkSession", root: Path, runs: tuple[int, ...] = (10, 10, 10)) -> SharedLake:
    """Return a lake of its own that runs of so many messages have filled: once in a process, then it is copied."""
    return _filled(spark, runs).copied(root)
