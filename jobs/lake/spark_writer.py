"""
Commits by Spark's own Delta, for tables with features that `deltalake` does not write.

Our Parquet files become part of the table by the transaction that Delta's own commands use: it assigns row ids and
times of commits, keeps what clusters the table, and refuses what the protocol forbids. Spark computes nothing but the
snapshot of the log.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import dumps, loads
from typing import TYPE_CHECKING, Any, NamedTuple

from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError

from jobs.console.log import say
from jobs.lake.lake import Lake
from jobs.lake.writers import Commit, Saved
from jobs.launch.engine import has_session
from jobs.storage.locations import S3_SCHEMES, local_path, scheme_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject, JVMView

_CONFLICTS = "io.delta.exceptions."  # the package of what Delta raises when another commit came first
_LEAST, _MOST = "spark.databricks.delta.optimize.minFileSize", "spark.databricks.delta.optimize.maxFileSize"


class Connection(NamedTuple):
    """A session of Spark, and the JVM that has it."""

    jvm: "JVMView"
    session: "JavaObject"


def connected(table: str) -> Connection:
    """Return the session of this process, which is started for a table where there is none."""
    if not has_session():
        say(f"rmq-lake: {table}: another engine has given it features that only Spark's Delta writes: Spark starts")
    from jobs.launch.session import spark_session

    spark = spark_session("rmq-lake", s3=scheme_of(table) in S3_SCHEMES)
    return Connection(spark._jvm, spark._jsparkSession)  # noqa: SLF001 - Delta's transactions have no Python side


class SparkWriter:
    """Spark's Delta."""

    name = "spark"

    def write(self, lake: Lake, snapshot: DeltaTable, new: Commit, attempts: int) -> None:
        """Write a commit; after commits that came between, nothing: who asks looks at the newer snapshot first."""
        del attempts
        location = _location(snapshot)
        spark = connected(location)
        delta = spark.jvm.org.apache.spark.sql.delta
        with _conflicts_as_ours():
            transaction = delta.DeltaLog.forTable(spark.session, location).startTransaction()
            if transaction.snapshot().version() != snapshot.version():
                raise CommitFailedError(f"{lake.locate(new.table.name)}: another process has committed")
            for app, _ in new.transactions:  # read, so that a commit of the same application is a conflict
                transaction.txnVersion(app)
            actions = [delta.actions.Action.fromJson(dumps(action)) for action in new.additions()]
            actions += _removals(transaction, new)
            tags = {"delta.rowTracking.preserved": str(not new.change.removed).lower(), **new.metadata}
            operation = getattr(getattr(delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
            transaction.commit(_seq(spark, actions), operation, _map(spark, tags))

    def add_columns(self, snapshot: DeltaTable, new: Sequence[Field]) -> None:
        """Give a table more columns."""
        from pyspark.sql.types import StructType

        columns = StructType.fromJson(loads(Schema(list(new)).to_json()))
        described = ", ".join(
            f"`{column.name}` {column.dataType.simpleString()} COMMENT {sql_text(column.metadata.get('comment', ''))}"
            for column in columns
        )
        self._run(snapshot, f"ALTER TABLE {{table}} ADD COLUMNS ({described})")

    def set_properties(self, snapshot: DeltaTable, properties: Mapping[str, str]) -> None:
        """Give a table properties."""
        described = ", ".join(f"{sql_text(name)} = {sql_text(value)}" for name, value in properties.items())
        self._run(snapshot, f"ALTER TABLE {{table}} SET TBLPROPERTIES ({described})")

    def merge(self, snapshot: DeltaTable, table: str, *, small: int, large: int) -> Saved:
        """Have Delta merge files below *small* bytes into some of *large* ones; it keeps row ids and clusters."""
        settings = connected(_location(snapshot)).session.conf()
        before = {name: settings.getOption(name) for name in (_LEAST, _MOST)}  # unknown until Delta's classes are there
        settings.set(_LEAST, str(small))
        settings.set(_MOST, str(large))
        try:
            (line,) = self._run(snapshot, "OPTIMIZE {table}")
        finally:
            for name, value in before.items():
                if value.isDefined():
                    settings.set(name, value.get())
                else:
                    settings.unset(name)
        metrics = loads(line)["metrics"]
        gone, new = metrics["filesRemoved"], metrics["filesAdded"]
        return Saved(table, gone["totalFiles"], new["totalFiles"], gone["totalSize"], new["totalSize"])

    @staticmethod
    def _run(snapshot: DeltaTable, statement: str) -> list[str]:
        location = _location(snapshot)
        with _conflicts_as_ours():
            rows = connected(location).session.sql(statement.replace("{table}", f"delta.`{location}`")).collectAsList()
        return [row.json() for row in rows]


def _location(snapshot: DeltaTable) -> str:
    """Return the location of a table, in a form that no default file system of Spark's turns into another place."""
    return f"file:{local_path(snapshot.table_uri.rstrip('/'))}"


def _removals(transaction: "JavaObject", new: Commit) -> Iterator["JavaObject"]:
    """Yield the removal of each file as Delta's own snapshot has it, with its vector and its row ids."""
    paths = [file.path for file in new.change.removed]
    if not paths:
        return
    stored = transaction.snapshot().allFiles().filter(f"path IN ({', '.join(map(sql_text, paths))})").collectAsList()
    if len(stored) != len(paths):
        raise CommitFailedError(f"{new.table.name}: files to be replaced are gone")
    now = transaction.clock().getTimeMillis()
    yield from (file.removeWithTimestamp(now, new.data_change) for file in stored)


@contextmanager
def _conflicts_as_ours() -> Iterator[None]:
    """Raise `CommitFailedError` for Delta's own conflicts, and `OSError` for its other errors."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        name = str(error.java_exception.getClass().getName())
        reason = str(error.java_exception.getMessage()).partition("\n")[0]
        if name.startswith(_CONFLICTS):
            raise CommitFailedError(reason) from error
        raise OSError(f"Spark's Delta cannot commit: {name}: {reason}") from error


def sql_text(value: str) -> str:
    """Return a text as the SQL of Spark, Hive and Athena writes it."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _seq(spark: Connection, values: Iterable[Any]) -> "JavaObject":
    found = spark.jvm.java.util.ArrayList()
    for value in values:
        found.add(value)
    return spark.jvm.scala.jdk.javaapi.CollectionConverters.asScala(found).toSeq()


def _map(spark: Connection, values: Mapping[str, str]) -> "JavaObject":
    found = spark.jvm.java.util.HashMap()
    for name, value in values.items():
        found.put(name, value)
    converted = spark.jvm.scala.jdk.javaapi.CollectionConverters.asScala(found)
    return spark.jvm.scala.collection.immutable.Map.__getattr__("from")(converted)
