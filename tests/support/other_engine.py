"""Use Spark with Delta as another engine that enables features of a lake's tables, and writes and reads them."""

import json
import re
import shutil
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from deltalake import DeltaTable, QueryBuilder

from jobs.ingest import Summary
from jobs.lake.lake import Lake
from jobs.lake.snapshots import rows_without_timestamps
from tests.support.broker import Broker, some_records
from tests.support.commands import ROOT
from tests.support.lakes import ingest_store
from tests.support.stores import make_process_folder

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
        """Copy the lake and its store to another folder, without Spark."""
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
    lake = SharedLake(spark, make_process_folder("shared-lake-"))
    for count in runs:
        lake.grow(count)
        lake.run()
    return lake


def shared_lake(spark: "SparkSession", root: Path, runs: tuple[int, ...] = (10, 10, 10)) -> SharedLake:
    """Return a new copy of a lake with *runs* of so many messages; each process creates the original only once."""
    return _make_lake(spark, runs).copied(root)


WORKS = "works"
SET = "ALTER TABLE {messages} SET TBLPROPERTIES ('delta.%s' = '%s')"
ADD_COLUMN = "ALTER TABLE {messages} ADD COLUMNS (theirs %s)"
CLUSTERED = "ALTER TABLE {messages} CLUSTER BY (topic)"
# Only a table with a name can be replaced with a list of columns.
CREATE_NAMED = "CREATE TABLE named USING delta LOCATION '<path>'"
REPLACE = "CREATE OR REPLACE TABLE {messages} USING delta %s AS SELECT %s FROM {messages}"
REPLACE_NAMED = "CREATE OR REPLACE TABLE named (<columns>, theirs %s) USING delta LOCATION '<path>'"
FILL_NAMED = "INSERT INTO named SELECT *, %s AS theirs FROM {messages} VERSION AS OF 3"
DROP_NAMED = "DROP TABLE named"
MAPPED_BY_ID = "TBLPROPERTIES ('delta.columnMapping.mode' = 'id')"
ICEBERG = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableIcebergCompat%s' = 'true')"
FEATURES: dict[str, tuple[str, ...]] = {
    "changeDataFeed": (SET % ("enableChangeDataFeed", "true"),),
    "deletionVectors": (
        SET % ("enableDeletionVectors", "true"),
        "UPDATE {messages} SET flag = flag WHERE physical_offset % 3 = 0",
    ),
    "timestampNtz": (SET % ("feature.timestampNtz", "supported"), ADD_COLUMN % "TIMESTAMP_NTZ"),
    "v2Checkpoint": (SET % ("checkpointPolicy", "v2"), SET % ("checkpointInterval", "1"), ADD_COLUMN % "INT"),
    "vacuumProtocolCheck": (SET % ("feature.vacuumProtocolCheck", "supported"),),
    "clustering": (CLUSTERED, CLUSTERED.replace("messages", "consume_queue")),
    "domainMetadata, after CLUSTER BY NONE": (CLUSTERED, "ALTER TABLE {messages} CLUSTER BY NONE"),
    "rowTracking": (SET % ("enableRowTracking", "true"),),
    "inCommitTimestamp": (SET % ("enableInCommitTimestamps", "true"),),
    "inCommitTimestamp of the table runs": ((SET % ("enableInCommitTimestamps", "true")).replace("messages", "runs"),),
    "typeWidening of another engine's column": (
        SET % ("enableTypeWidening", "true"),
        ADD_COLUMN % "INT",
        "UPDATE {messages} SET theirs = queue_id WHERE physical_offset % 3 = 0",
        "ALTER TABLE {messages} CHANGE COLUMN theirs TYPE BIGINT",
    ),
    "allowColumnDefaults, without a default": (
        SET % ("feature.allowColumnDefaults", "supported"),
        ADD_COLUMN % "INT",
        "ALTER TABLE {messages} ALTER COLUMN theirs SET DEFAULT 5",
        "ALTER TABLE {messages} ALTER COLUMN theirs DROP DEFAULT",
    ),
    "checkpointProtection": (
        SET % ("columnMapping.mode", "name"),
        SET % ("columnMapping.mode", "none"),
        "ALTER TABLE {messages} DROP FEATURE columnMapping",
    ),
    "rowTracking, clustering, deletionVectors, inCommitTimestamp": (
        SET % ("enableRowTracking", "true"),
        SET % ("enableInCommitTimestamps", "true"),
        SET % ("enableDeletionVectors", "true"),
        "ALTER TABLE {messages} CLUSTER BY (store_time)",
    ),
    "appendOnly": (SET % ("appendOnly", "true"),),
    "checkConstraints": ("ALTER TABLE {messages} ADD CONSTRAINT few CHECK (queue_id < 100)",),
    "invariants: a column NOT NULL": (
        CREATE_NAMED,
        REPLACE_NAMED % "STRING NOT NULL",
        FILL_NAMED % "topic",
        DROP_NAMED,
    ),
    "allowColumnDefaults": (
        SET % ("feature.allowColumnDefaults", "supported"),
        "ALTER TABLE {messages} ALTER COLUMN topic SET DEFAULT 'x'",
    ),
    "generatedColumns": (
        CREATE_NAMED,
        REPLACE_NAMED % "INT GENERATED ALWAYS AS (queue_id + 1)",
        FILL_NAMED % "queue_id + 1",
        DROP_NAMED,
    ),
    "identityColumns": (
        CREATE_NAMED,
        REPLACE_NAMED % "BIGINT GENERATED BY DEFAULT AS IDENTITY",
        FILL_NAMED % "physical_offset",
        DROP_NAMED,
    ),
    "typeWidening of one of our columns": (
        SET % ("enableTypeWidening", "true"),
        "ALTER TABLE {messages} CHANGE COLUMN queue_id TYPE BIGINT",
    ),
    "columnMapping by name, a column renamed": (
        SET % ("columnMapping.mode", "name"),
        "ALTER TABLE {messages} RENAME COLUMN tags TO labels",
    ),
    "columnMapping by name, a column dropped": (
        SET % ("columnMapping.mode", "name"),
        "ALTER TABLE {messages} DROP COLUMN tags",
    ),
    "columnMapping by id": (REPLACE % (MAPPED_BY_ID, "*"),),
    "icebergCompatV1": (REPLACE % (ICEBERG % "V1", "*"),),
    "icebergCompatV2": (REPLACE % (ICEBERG % "V2", "*"),),
    "variantType": (ADD_COLUMN % "VARIANT",),
    "collations": (ADD_COLUMN % "STRING COLLATE UTF8_LCASE",),
    "partitions": (REPLACE % ("PARTITIONED BY (topic)", "*"),),
    "one of our columns with a different type": (REPLACE % ("", "* EXCEPT (queue_id), string(queue_id) AS queue_id"),),
    "some of our columns are missing": (REPLACE % ("", "* EXCEPT (topic, store_time)"),),
    "setTransactionRetentionDuration": (SET % ("setTransactionRetentionDuration", "interval 7 days"),),
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
