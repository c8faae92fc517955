"""
The format `rocketmq-store`: a store's messages as rows, in those columns of the table `messages` that a log has.

    from jobs.source.format import register

    register(spark)
    spark.read.format("rocketmq-store").option("topics", "Orders").load("/data/store")
    spark.readStream.format("rocketmq-store").load("/data/store")

Rows are Arrow batches from the same compiled scan that fills the lake.
"""

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from jobs.lake.commit import open_table
from jobs.lake.lake import Lake
from jobs.lake.tables import MESSAGES, STORED_MESSAGES
from jobs.launch.session import hadoop_options
from jobs.source.batch import RocketmqReader
from jobs.source.options import NAME, Wanted
from jobs.source.stream import RocketmqStreamReader
from jobs.storage.locations import normalise
from rmq_formats.errors import UnsupportedFormat

_EARLIER_NAME = "rocketmq"


def register(spark: SparkSession) -> None:
    """Register the format with a session, and let conditions on topic, offset and store time narrow the read."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(RocketmqDataSource)
    spark.dataSource.register(EarlierDataSource)


def lake_and_store(spark: SparkSession, lake: str, store: str, **options: str) -> DataFrame:
    """
    Return all messages that the lake has, and those that the store has after them, no row twice.

    Both are pinned: the table's version, and the place up to which that version reaches. *options* are the source's.
    """
    where = Lake(normalise(lake), hadoop_options(spark))
    snapshot = open_table(where, MESSAGES.name)
    if snapshot is None:
        raise FileNotFoundError(f"{where.locate(MESSAGES.name)}: no such table; run ingest first")
    version = snapshot.version()
    history = spark.read.format("delta").option("versionAsOf", version).load(where.locate(MESSAGES.name))
    new = spark.read.format(NAME).options(**options).options(after=where.location, afterVersion=version).load(store)
    return history.unionByName(new, allowMissingColumns=True)


class RocketmqDataSource(DataSource):
    """The format, as Spark asks for it."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the table `messages`, but for those of inflated bodies and the CRC of a record."""
        return from_arrow_schema(STORED_MESSAGES.plain_schema)

    def reader(self, schema: StructType) -> RocketmqReader:
        """Return the reader of one store."""
        return RocketmqReader(self._wanted(schema))

    def streamReader(self, schema: StructType) -> RocketmqStreamReader:
        """Return the reader of one store's new messages."""
        return RocketmqStreamReader(self._wanted(schema))

    def _wanted(self, schema: StructType) -> Wanted:
        """Read the options; the columns are those of *schema*, which a user may have given."""
        there = {field.name: field.dataType for field in self.schema()}
        for field in schema:
            if field.name not in there:
                raise UnsupportedFormat(f"schema: {field.name} is not a column of messages")
            types = there[field.name].simpleString(), field.dataType.simpleString()
            if types[0] != types[1]:
                raise UnsupportedFormat(f"schema: {field.name} is {types[0]}, not {types[1]}")
        return replace(Wanted.of(dict(self.options)), columns=tuple(schema.fieldNames()))


class EarlierDataSource(RocketmqDataSource):
    """The same under its earlier name."""

    @classmethod
    def name(cls) -> str:
        """Return the earlier name."""
        return _EARLIER_NAME
