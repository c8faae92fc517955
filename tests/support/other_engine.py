"""Use Spark with Delta as another engine that enables features of a lake's tables, and writes and reads them."""

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable, QueryBuilder

from jobs.lake.snapshots import rows_without_timestamps
from tests.support.commands import ROOT
from tests.support.lakes import LakeOfBroker
from tests.support.stores import make_process_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITH_VECTORS = "ALTER TABLE {messages} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
NO_SHORT_RETENTION_CHECK = "SET spark.databricks.delta.retentionDurationCheck.enabled = false"


class SharedLake(LakeOfBroker):
    """A lake that our runs fill from one broker's store, and that Spark's SQL writes to as well."""

    def __init__(self, spark: "SparkSession", root: Path) -> None:
        super().__init__(root)
        self.spark = spark

    def name(self, table: str = "messages") -> str:
        return f"delta.`{self.path}/{table}`"

    def sql(self, *statements: str) -> None:
        """Run statements of Spark SQL, in which `{messages}` stands for that table of the lake."""
        for statement in statements:
            self.spark.sql(re.sub(r"\{(\w+)\}", lambda found: self.name(found[1]), statement)).collect()

    def run_remedy(self, refused: Exception) -> None:
        self.sql(*str(refused).partition("run in Spark SQL: ")[2].split("; "))

    def read_by_spark(self) -> list[int]:
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
        return rows_without_timestamps(QueryBuilder().register("t", snapshot).execute(query).read_all())

    def changes(self, version: int) -> tuple[list[int], list[int]]:
        """Return the offsets that the change feed removed and added since a version; offsets in both cancel out."""
        feed = self.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version)
        count = Counter[int]()
        for row in feed.load(str(self.path / "messages")).select("physical_offset", "_change_type").collect():
            count[row.physical_offset] += {"insert": 1, "delete": -1}[row["_change_type"]]
        ordered = sorted(count.items())
        return [at for at, change in ordered if change < 0], [at for at, change in ordered if change > 0]

    def files(self, table: str = "messages") -> int:
        return len(DeltaTable(self.path / table).file_uris())


@cache
def _make_lake(spark: "SparkSession", runs: tuple[int, ...]) -> SharedLake:
    lake = SharedLake(spark, make_process_directory("shared-lake-"))
    for count in runs:
        lake.grow(count)
        lake.run()
    return lake


def shared_lake(spark: "SparkSession", root: Path, runs: tuple[int, ...] = (10, 10, 10)) -> SharedLake:
    """Return a new copy of a lake with *runs* of so many messages; each process creates the original only once."""
    return _make_lake(spark, runs).copied(root)


WORKS = "works"
_BLOCKS = Path(__file__).with_name("features.sql").read_text(encoding="utf-8").strip().split("\n\n")[1:]
FEATURES = {
    name.removeprefix("-- "): tuple(statements.removesuffix(";").split(";\n"))
    for name, _, statements in (block.partition("\n") for block in _BLOCKS)
}


def read_documented_features() -> dict[str, tuple[str, ...]]:
    """Return the cells of the table in docs/internals/guarantees.md, the remark last, by the name of the feature."""
    lines = (
        (ROOT / "docs" / "internals" / "guarantees.md")
        .read_text()
        .partition("| feature | read | append |")[2]
        .split("\n\n")[0]
    )
    rows = ([cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines.splitlines()[2:])
    return {name: tuple(cells[:6]) for name, *cells in rows}


def find_protocol_violations(lake: Path) -> list[str]:
    """Return row ids and commit times that tables require by their properties, but that Delta's logs lack."""
    found = []
    for table in ("messages", "consume_queue", "runs"):
        rows: dict[str, tuple[int, int]] = {}
        last, properties = 0, ""
        for path in sorted((lake / table / "_delta_log").glob(f"{'[0-9]' * 20}.json")):
            for line in map(json.loads, path.read_text().splitlines()):
                properties = json.dumps(line["metaData"]) if "metaData" in line else properties
                if "add" in line and '"delta.enableRowTracking": "true"' in properties:
                    add = line["add"]
                    first = add.get("baseRowId", -1)
                    rows[add["path"]] = first, first + json.loads(add["stats"])["numRecords"]
                if "commitInfo" in line and '"delta.enableInCommitTimestamps": "true"' in properties:
                    time = line["commitInfo"].get("inCommitTimestamp", 0)
                    found += [f"{table}: {path.name} is not later"] if time <= last else []
                    last = time
        ends = sorted(rows.values())
        found += [
            f"{table}: row {first} has no id of its own"
            for (first, _), (_, end) in zip(ends[1:], ends, strict=False)
            if first < end
        ]
        found += [f"{table}: rows without ids"] if ends and ends[0][0] < 0 else []
    return found
