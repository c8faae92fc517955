"""
Writers of Delta's log, and the content of a commit.

`deltalake` writes most tables, and Spark's Delta writes those with features that only Spark supports: the table's
protocol lists the features that every writer must support. Both write the same commit, based on the snapshot whose
transactions were checked.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import dumps, loads
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from jobs.console.log import log_message
from jobs.lake.features import needs_spark
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import SnapshotFile, read_vector_descriptors
from jobs.lake.table_file import AddedFile
from jobs.lake.tables import Table
from jobs.launch.engine import has_session
from jobs.storage.locations import S3_SCHEMES, is_local, local_path, scheme_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject, JVMView

CHECKPOINT_INTERVAL = 50  # commits that a reader of the log replays at most
VECTORS_ONLY_LOCAL_ERROR = "files with deletion vectors can only be replaced on local file systems"
_NO_CLEANUP = PostCommitHookProperties(cleanup_expired_logs=False)
_CONFLICTS = "io.delta.exceptions."  # the package of Delta's exceptions for concurrent commits
_LEAST, _MOST = "spark.databricks.delta.optimize.minFileSize", "spark.databricks.delta.optimize.maxFileSize"

LogAction = Mapping[str, Any]  # a line of Delta's log: one action on a file or on the table


class Commit(NamedTuple):
    """The content of a commit."""

    table: Table
    transactions: Mapping[str, int]  # by application
    metadata: Mapping[str, str]
    data_change: bool
    added: tuple[AddedFile, ...] = ()
    removed: tuple[SnapshotFile, ...] = ()
    mode: Literal["append", "overwrite"] = "append"  # for `deltalake`

    def additions(self) -> list[LogAction]:
        """Return the transactions and the new files as log lines."""
        now = int(time.time() * 1000)
        found: list[LogAction] = [
            {"txn": {"appId": app, "version": number, "lastUpdated": now}} for app, number in self.transactions.items()
        ]
        for file in self.added:
            add = {"path": file.path, "partitionValues": {}, "size": file.size, "dataChange": self.data_change}
            found.append({"add": {**add, "modificationTime": file.modification_time, "stats": file.stats}})
        return found


class Savings(NamedTuple):
    """The effect of compaction and vacuum on one table."""

    table: str
    merged: int = 0  # files that were replaced
    written: int = 0  # by how many
    bytes_before: int = 0
    bytes_after: int | None = 0  # None: estimated; only the merge can determine it
    vacuumed: int = 0  # files deleted

    def plus(self, later: "Savings") -> "Savings":
        """Return the sum of two rewrites of the table."""
        return self._replace(
            merged=self.merged + later.merged,
            written=self.written + later.written,
            bytes_before=self.bytes_before + later.bytes_before,
            bytes_after=(self.bytes_after or 0) + (later.bytes_after or 0),
        )


def write_commit(lake: Lake, snapshot: DeltaTable, new: Commit, attempts: int) -> None:
    """
    Write a commit on top of *snapshot*, after at most *attempts* concurrent commits.

    Raises `CommitFailedError` if another commit came first. Spark's Delta never writes after a concurrent commit: the
    caller checks the newer snapshot first.
    """
    if needs_spark(snapshot):
        _write_by_spark(lake, snapshot, new)
        return
    if any(file.vector is not None for file in new.removed):
        _write_removing_vectors(lake, snapshot, new)
        return
    now = int(time.time() * 1000)
    snapshot.create_write_transaction(
        [
            *(AddAction(a.path, a.size, {}, a.modification_time, new.data_change, a.stats) for a in new.added),
            # Without size and partitions, Spark's change data feed fails at the commit.
            *(RemoveAction(file.path, new.data_change, now, file.size, {}) for file in new.removed),
        ],
        new.mode,
        new.table.delta_schema,
        commit_properties=CommitProperties(
            custom_metadata=dict(new.metadata),
            app_transactions=[Transaction(app, number) for app, number in new.transactions.items()],
            max_commit_retries=attempts,
        ),
        # A cleanup lists the whole log, which costs more than the commit.
        post_commithook_properties=None if (snapshot.version() + 1) % CHECKPOINT_INTERVAL == 0 else _NO_CLEANUP,
    )


def add_columns(snapshot: DeltaTable, new: Sequence[Field]) -> None:
    """Add columns to a table; raise `CommitFailedError` if another commit came first."""
    if not needs_spark(snapshot):
        snapshot.alter.add_columns(list(new))
        return
    from pyspark.sql.types import StructType

    columns = StructType.fromJson(loads(Schema(list(new)).to_json()))
    described = ", ".join(
        f"`{column.name}` {column.dataType.simpleString()} COMMENT {quote_sql_text(column.metadata.get('comment', ''))}"
        for column in columns
    )
    _run_sql(snapshot, f"ALTER TABLE {{table}} ADD COLUMNS ({described})")


def set_properties(snapshot: DeltaTable, properties: Mapping[str, str]) -> None:
    """Set properties of a table; raise `CommitFailedError` if another commit came first."""
    if not needs_spark(snapshot):
        snapshot.alter.set_table_properties(dict(properties))
        return
    described = ", ".join(f"{quote_sql_text(name)} = {quote_sql_text(value)}" for name, value in properties.items())
    _run_sql(snapshot, f"ALTER TABLE {{table}} SET TBLPROPERTIES ({described})")


def _write_removing_vectors(lake: Lake, snapshot: DeltaTable, new: Commit) -> None:
    """Write a commit that removes files with vectors, which `deltalake` cannot remove by path."""
    if not is_local(lake.location):
        raise OSError(f"{snapshot.table_uri}: {VECTORS_ONLY_LOCAL_ERROR}")
    now = int(time.time() * 1000)
    operation = {"timestamp": now, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
    removed: dict[str, Any] = {
        "deletionTimestamp": now,
        "dataChange": new.data_change,
        "extendedFileMetadata": True,
        "partitionValues": {},
    }
    actions: list[LogAction] = [
        {"commitInfo": {**operation, "isBlindAppend": False, **new.metadata}},
        *new.additions(),
    ]
    log = f"{new.table.name}/_delta_log"
    described = read_vector_descriptors(lake, snapshot, log)
    for file in new.removed:
        vector = {} if file.vector is None else {"deletionVector": described[file.path]}
        actions.append({"remove": {"path": file.path, "size": file.size, **removed, **vector}})
    version = snapshot.version() + 1
    data = "".join(dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()
    try:
        lake.create(f"{log}/{version:020d}.json", data)
    except FileExistsError as error:
        raise CommitFailedError(f"version {version} was committed by another process") from error


def _write_by_spark(lake: Lake, snapshot: DeltaTable, new: Commit) -> None:
    """
    Write a commit with the transaction class that Delta's own commands use.

    It assigns row ids and commit timestamps, preserves clustering, and rejects what the protocol forbids. Spark only
    computes the snapshot of the log.
    """
    location = _location(snapshot)
    jvm, session = jvm_and_session(location)
    delta = jvm.org.apache.spark.sql.delta
    with _translating_errors():
        transaction = delta.DeltaLog.forTable(session, location).startTransaction()
        if transaction.snapshot().version() != snapshot.version():
            raise CommitFailedError(f"{lake.locate(new.table.name)}: another process has committed")
        for app in new.transactions:  # read, so that a commit of the same application is a conflict
            transaction.txnVersion(app)
        actions = [delta.actions.Action.fromJson(dumps(action)) for action in new.additions()]
        actions += _removals(transaction, new)
        tags = {"delta.rowTracking.preserved": str(not new.removed).lower(), **new.metadata}
        operation = getattr(getattr(delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
        convert = jvm.org.apache.spark.api.python.PythonUtils
        transaction.commit(convert.toSeq(actions), operation, convert.toScalaMap(tags))


def merge_by_spark(snapshot: DeltaTable, table: str, *, small: int, large: int) -> Savings:
    """Let Delta merge files below *small* bytes into files of *large* bytes, preserving row ids and clustering."""
    settings = jvm_and_session(_location(snapshot))[1].conf()
    before = {name: settings.getOption(name) for name in (_LEAST, _MOST)}  # unknown until Delta's classes are there
    settings.set(_LEAST, str(small))
    settings.set(_MOST, str(large))
    try:
        (line,) = _run_sql(snapshot, "OPTIMIZE {table}")
    finally:
        for name, value in before.items():
            if value.isDefined():
                settings.set(name, value.get())
            else:
                settings.unset(name)
    metrics = loads(line)["metrics"]
    gone, new = metrics["filesRemoved"], metrics["filesAdded"]
    return Savings(table, gone["totalFiles"], new["totalFiles"], gone["totalSize"], new["totalSize"])


def jvm_and_session(table: str) -> "tuple[JVMView, JavaObject]":
    """Return the JVM and the session of this process; start a session if there is none."""
    if not has_session():
        log_message(
            f"rmq-lake: {table}: another engine has enabled features that only Spark's Delta can write: starting Spark"
        )
    from jobs.launch.session import spark_session

    spark = spark_session("rmq-lake", s3=scheme_of(table) in S3_SCHEMES)
    return spark._jvm, spark._jsparkSession  # noqa: SLF001 - Delta's transactions have no Python side


def _run_sql(snapshot: DeltaTable, statement: str) -> list[str]:
    location = _location(snapshot)
    with _translating_errors():
        rows = jvm_and_session(location)[1].sql(statement.replace("{table}", f"delta.`{location}`")).collectAsList()
    return [row.json() for row in rows]


def _location(snapshot: DeltaTable) -> str:
    """Return the location of a table in a form that does not depend on Spark's default file system."""
    return f"file:{local_path(snapshot.table_uri.rstrip('/'))}"


def _removals(transaction: "JavaObject", new: Commit) -> Iterator["JavaObject"]:
    """Yield the remove action of each file as in Delta's snapshot, with its vector and row ids."""
    paths = [file.path for file in new.removed]
    if not paths:
        return
    stored = (
        transaction.snapshot().allFiles().filter(f"path IN ({', '.join(map(quote_sql_text, paths))})").collectAsList()
    )
    if len(stored) != len(paths):
        raise CommitFailedError(f"{new.table.name}: the files that this commit replaces no longer exist")
    now = transaction.clock().getTimeMillis()
    yield from (file.removeWithTimestamp(now, new.data_change) for file in stored)


@contextmanager
def _translating_errors() -> Iterator[None]:
    """Raise `CommitFailedError` for Delta's conflicts, and `OSError` for its other errors."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        name = str(error.java_exception.getClass().getName())
        reason = str(error.java_exception.getMessage()).partition("\n")[0]
        if name.startswith(_CONFLICTS):
            raise CommitFailedError(reason) from error
        raise OSError(f"Spark's Delta cannot commit: {name}: {reason}") from error


def quote_sql_text(value: str) -> str:
    """Quote a text for the SQL of Spark, Hive and Athena."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
