"""
Commits to the tables of a lake: the only module that writes to Delta's log.

Each commit carries an application transaction (store, run number). The table's snapshot is checked for that
transaction, and the commit is based on that same snapshot: if another process commits the same transaction in between,
Delta rejects ours. So a commit can be repeated any number of times, and counts once.

Commits that remove files carry a second transaction, `layout`, which counts them: `deltalake` allows two commits to
remove the same file, and the replacements of both would be in the table. Other engines do not maintain this counter:
after a commit of theirs, the files must still exist, each with the deletion vector that it was read with.

`deltalake` writes most tables, and Spark's Delta writes those with features that only Spark supports: the table's
protocol lists the features that every writer must support. Both write the same commit, based on the snapshot whose
transactions were checked.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum
from functools import partial, reduce
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from jobs.console.log import log_message
from jobs.lake.features import needs_spark, refuse_unsupported_features
from jobs.lake.lake import Lake
from jobs.lake.log_files import (
    LogAction,
    add_staged_commit,
    encode_commit,
    open_staged,
    staged_table,
    write_checkpoint,
    write_commit,
)
from jobs.lake.snapshot_files import (
    SnapshotFile,
    list_snapshot_files,
    read_batches,
    read_rows_where,
    read_vector_descriptors,
    table_for_rewriting,
)
from jobs.lake.snapshots import (
    UnsupportedTableError,
    deltalake_errors_as_oserror,
    find_newest_snapshot,
    open_delta,
    read_newest_transaction,
    update_snapshot,
)
from jobs.lake.table_file import STATISTICS_LENGTH, AddedFile, FileNaming, TableFile
from jobs.lake.tables import Table
from jobs.launch.engine import has_session
from jobs.storage.local import explaining_full_disk, flush_directory
from jobs.storage.locations import S3_SCHEMES, is_local, local_path, scheme_of
from jobs.storage.model import file_exists
from jobs.storage.s3 import delta_location, delta_options, retry_server_failures

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject, JVMView

CLUSTERED_PREFIX = "clustered-"  # name prefix of files that cover a narrow range of hashes
CHECKPOINT_INTERVAL = 50  # commits that a reader of the log replays at most
_REMOTE_CHECKPOINT_INTERVAL = 5  # the same on an object store, where each of these commits takes several requests
VECTORS_ONLY_LOCAL_ERROR = "files with deletion vectors can only be replaced on local file systems"
_NO_CLEANUP = PostCommitHookProperties(cleanup_expired_logs=False)
_CONFLICTS = "io.delta.exceptions."  # the package of Delta's exceptions for concurrent commits
_LEAST, _MOST = "spark.databricks.delta.optimize.minFileSize", "spark.databricks.delta.optimize.maxFileSize"
STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
REMOVAL_TRANSACTION = "layout"  # the transaction that serializes commits that remove files
_FEW = 32  # at most this many files are looked up one by one
_ATTEMPTS = 20  # each concurrent commit of another store requires a new snapshot
LOG_RETENTION_PROPERTY = "delta.logRetentionDuration"
FILE_RETENTION_PROPERTY = "delta.deletedFileRetentionDuration"
TABLE_PROPERTIES = {
    "delta.dataSkippingStringPrefixLength": str(STATISTICS_LENGTH),
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    LOG_RETENTION_PROPERTY: "interval 7 days",  # for time travel
    FILE_RETENTION_PROPERTY: "interval 7 days",
}
ONE_DAY_INTERVAL = "interval 1 days"
_MINUTES = re.compile(r"interval \d+ (minutes|seconds)")
T = TypeVar("T")
WriteMode = Literal["append", "overwrite"]  # of `deltalake`
SnapshotRewrite: TypeAlias = Callable[[DeltaTable], tuple[list[SnapshotFile], list[AddedFile]]]  # removed, added


class TransactionTakenError(Exception):
    """Another process has committed this transaction."""


class Commit(NamedTuple):
    """The content of a commit."""

    table: Table
    transactions: Mapping[str, int]  # the version of each application
    metadata: Mapping[str, str]
    data_change: bool
    added: tuple[AddedFile, ...] = ()
    removed: tuple[SnapshotFile, ...] = ()
    mode: WriteMode = "append"

    def log_actions(self) -> list[LogAction]:
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
    merged: int = 0  # the number of replaced files
    written: int = 0  # the number of files that replaced them
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


_STATUS_WITHOUT_UNIT = pa.array(["missing", "deleted"])  # of rows of `consume_queue`: `UnitStatus`


class ObsoleteRows(NamedTuple):
    """Rows that a commit removes from a table: those with certain column values, in a part of the log."""

    values: Mapping[str, str | int]
    from_offset: int | None = None  # None: from the beginning
    to_offset: int | None = None  # None: up to the end

    def mask_rows(self, rows: pa.RecordBatch) -> pa.Array:
        """Return a mask of these rows; a row that lacks one of these values was written by another engine."""
        conditions = [pc.equal(rows.column(name), value) for name, value in self.values.items()]
        if self.from_offset is not None:
            conditions.append(pc.greater_equal(rows.column("physical_offset"), self.from_offset))
        if self.to_offset is not None:
            conditions.append(pc.less(rows.column("physical_offset"), self.to_offset))
        return pc.fill_null(reduce(pc.and_, conditions), fill_value=False)

    def may_be_in_file(self, file: SnapshotFile) -> bool:
        """Return whether a file may contain such rows, according to Delta's log."""
        reaches = self.from_offset is None or file.maximum("physical_offset", self.from_offset) >= self.from_offset
        reaches &= self.to_offset is None or file.minimum("physical_offset", 0) < self.to_offset
        return reaches and all(file.may_have(*named) for named in self.values.items())


class ExpiredRows(NamedTuple):
    """
    Rows of a store that have expired: their message is older than the retention time of its topic.

    Rows without a message expire with the part of the log that they describe.
    """

    store_id: str
    cutoffs: Mapping[str, int]  # by topic: messages stored before this time, in ms, have expired; "": other topics
    to_offset: int  # every message before this offset of the log has expired

    @property
    def newest_cutoff(self) -> int:
        """No message stored at this time or later has expired."""
        return max(self.cutoffs.values(), default=0)

    def mask_messages(self, timestamps: pa.Array, topics: pa.Array | None) -> pa.Array:
        """Return which messages have expired; NULL for those without a time."""
        limits: pa.Array | int = self.cutoffs.get("", 0)
        names = None if topics is None else topics.cast(pa.string())
        for topic, cutoff in self.cutoffs.items() if names is not None else ():
            if topic:
                limits = pc.if_else(pc.fill_null(pc.equal(names, topic), fill_value=False), cutoff, limits)
        return pc.less(timestamps, limits)

    def mask_rows(self, rows: pa.RecordBatch) -> pa.Array:
        """Return which rows have expired."""
        names, offsets = rows.schema.names, rows.column("physical_offset")
        if "store_timestamp" in names:
            # A typed table has a single topic, and its column of this name may mean anything.
            topics = rows.column("topic") if self.cutoffs.keys() - {""} else None
            expired = self.mask_messages(rows.column("store_timestamp"), topics)
            expired = pc.coalesce(expired, pc.less(offsets, self.to_offset))
        else:
            expired = pc.less_equal(pc.add(offsets, pc.fill_null(rows.column("length"), 1)), self.to_offset)
        return pc.fill_null(pc.and_(pc.equal(rows.column("store_id"), self.store_id), expired), fill_value=False)

    def may_be_in_file(self, file: SnapshotFile) -> bool:
        """Return whether a file may contain such rows, according to Delta's log."""
        is_old = file.minimum("store_timestamp", 0) < self.newest_cutoff
        return file.may_have("store_id", self.store_id) and (
            is_old or file.minimum("physical_offset", 0) < self.to_offset
        )


class LaterUnits(NamedTuple):
    """Rows of `consume_queue` that were added after a run had ended: those that undone runs have added."""

    store_id: str
    from_offset: int  # the run had read the records before it
    ends: Mapping[tuple[str, int], int]  # by topic and queue id: the run had read the units before it

    def mask_rows(self, rows: pa.RecordBatch) -> pa.Array:
        """Return a mask of these rows: units by their position, rows without a unit by the offset of their record."""
        names = pc.binary_join_element_wise(
            rows.column("topic").cast(pa.string()), rows.column("queue_id").cast(pa.string()), "/"
        )
        known = pa.array([f"{topic}/{queue_id}" for topic, queue_id in self.ends], pa.string())
        limits = pa.array(self.ends.values(), pa.int64()).take(pc.index_in(names, value_set=known))
        is_later_unit = pc.fill_null(pc.greater_equal(rows.column("queue_offset"), limits), fill_value=True)
        is_later_record = pc.greater_equal(rows.column("physical_offset"), self.from_offset)
        has_no_unit = pc.is_in(rows.column("status").cast(pa.string()), value_set=_STATUS_WITHOUT_UNIT)
        # A batch unit has the number of its first message instead of its position.
        is_by_record = pc.or_(has_no_unit, pc.is_valid(rows.column("batch_count")))
        chosen = pc.if_else(is_by_record, is_later_record, is_later_unit)
        return pc.fill_null(pc.and_(pc.equal(rows.column("store_id"), self.store_id), chosen), fill_value=False)

    def may_be_in_file(self, file: SnapshotFile) -> bool:
        """Return whether a file may contain such rows, according to Delta's log."""
        return file.may_have("store_id", self.store_id)


class LaterEntries(NamedTuple):
    """Rows of `index_entries` after a given entry of the file that was open: those that undone runs have added."""

    store_id: str
    file: int
    entry_count: int

    def mask_rows(self, rows: pa.RecordBatch) -> pa.Array:
        """Return a mask of these rows."""
        is_later_entry = pc.and_(
            pc.equal(rows.column("index_file"), self.file), pc.greater(rows.column("entry"), self.entry_count)
        )
        chosen = pc.or_(pc.greater(rows.column("index_file"), self.file), is_later_entry)
        return pc.fill_null(pc.and_(pc.equal(rows.column("store_id"), self.store_id), chosen), fill_value=False)

    def may_be_in_file(self, file: SnapshotFile) -> bool:
        """Return whether a file may contain such rows, according to Delta's log."""
        return file.may_have("store_id", self.store_id) and file.maximum("index_file", self.file) >= self.file


RemovedRows: TypeAlias = ObsoleteRows | ExpiredRows | LaterUnits | LaterEntries


class FileShare(Enum):
    """The share of a file's rows that a commit removes."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


def keeps_replaced_files_briefly(snapshot: DeltaTable) -> bool:
    """Return whether replaced files of a table are kept only for minutes or hours, because the table is followed."""
    kept = snapshot.metadata().configuration.get(FILE_RETENTION_PROPERTY, "")
    return kept == ONE_DAY_INTERVAL or _MINUTES.fullmatch(kept) is not None


def open_table(lake: Lake, name: str, *, is_private: bool = False) -> DeltaTable | None:
    """Return the newest snapshot of a table, not shared if *is_private*; None if the table does not exist."""
    load = partial(_load_table, lake, name)
    try:
        return load() if is_private else find_newest_snapshot(lake.locate(name), lake.options, load)
    except TableNotFoundError:
        return None


def _load_table(lake: Lake, name: str) -> DeltaTable:
    return retry_server_failures(lambda: open_delta(lake.locate(name), lake.options))


def ensure_table(lake: Lake, table: Table) -> DeltaTable:
    """Return the newest snapshot of a table; create the table, or add missing columns, if necessary."""
    location = lake.locate(table.name)
    # `deltalake` would treat missing limits as NULL.
    statistics = {STATISTICS_PROPERTY: ",".join(table.columns_with_limits)}

    def create_at(location: str) -> DeltaTable:
        return DeltaTable.create(
            delta_location(location),
            table.delta_schema,
            mode="ignore",
            name=table.name,
            description=f"Each row is {table.row_meaning}.",
            configuration={**TABLE_PROPERTIES, **statistics},
            storage_options=delta_options(location, lake.options),
            raise_if_key_not_exists=False,
        )

    def create() -> DeltaTable:
        if not is_local(location):
            return create_at(location)
        with staged_table(location) as staged:
            try:
                create_at(staged)
            except TableNotFoundError as error:  # the disk cannot examine the first commit, and `deltalake` omits it
                raise OSError(f"{location}: the first commit of the new table cannot be read: {error}") from error
            add_staged_commit(staged, location, 0)
        return _load_table(lake, table.name)

    existing = open_table(lake, table.name)
    there = {field.name for field in existing.schema().fields} if existing is not None else set()
    new = [field for field in table.delta_schema.fields if field.name not in there]  # since the table was created
    lacks_statistics = existing is not None and STATISTICS_PROPERTY not in existing.metadata().configuration
    if existing is not None and not (new or lacks_statistics):
        return existing
    # another process may do the same at this moment
    with deltalake_errors_as_oserror(location, lake.options, "written"), suppress(CommitFailedError):
        if existing is None:
            return retry_server_failures(create)
        if new:
            add_columns(_load_table(lake, table.name), new)
        if lacks_statistics:
            set_properties(_load_table(lake, table.name), statistics)
    return _load_table(lake, table.name)


def commit(  # noqa: PLR0913, PLR0917 - what a commit is made of
    lake: Lake,
    table: Table,
    actions: Iterable[AddedFile],
    transaction: tuple[str, int],
    metadata: Mapping[str, str],
    rewrite: SnapshotRewrite | None = None,
    *,
    replaces: bool = False,
    data_change: bool = True,
) -> int:
    """
    Add files to a table under *transaction*, once; return the table's version.

    *rewrite* returns the files of the snapshot that the same commit removes, and their replacements; it is called again
    for each snapshot. If the commit *replaces* the table, its files and columns replace all existing ones. Raises
    `TransactionTakenError` if the table already has this transaction, or a later one of the same application.
    """
    added = tuple(actions)
    known = replace(table, columns=()) if replaces else table  # without its columns, because they are replaced

    def attempt() -> int:
        snapshot = (open_table(lake, table.name) if replaces else None) or ensure_table(lake, table)
        if _is_committed(snapshot, table, transaction, added, replacing=replaces):
            return snapshot.version()
        refuse_unsupported_features(lake, snapshot, known)
        refuse_lost_files(lake, table.name, added)
        removed, replacements = rewrite(snapshot) if rewrite else ([], [])
        # Replacements without removed files would duplicate rows. Only a bug could cause this: no content of a lake
        # leads here.
        assert removed or not replacements
        transactions = dict([transaction])
        if removed:
            # Two commits that replace the same files would both succeed, and duplicate their rows. Each one increments
            # this transaction from its own snapshot, so that the second one is a conflict.
            transactions[REMOVAL_TRANSACTION] = read_newest_transaction(snapshot, REMOVAL_TRANSACTION) + 1
        if replaces:
            _check_replaceable(lake, snapshot, known)
        mode: WriteMode = "overwrite" if replaces else "append"
        files = (*added, *replacements), tuple(removed)
        return _write(lake, snapshot, Commit(table, transactions, metadata, data_change, *files, mode))

    failure: CommitFailedError | None = None
    with explaining_full_disk(lake.locate(table.name)):
        for _ in range(_ATTEMPTS):  # after conflicts and server failures, the next snapshot shows whether it succeeded
            try:
                return retry_server_failures(attempt)
            except CommitFailedError as error:
                failure = error
        raise OSError(f"{_ATTEMPTS} commit attempts failed: {failure}. Run the command again") from failure


def commit_rows(  # noqa: PLR0913, PLR0917 - the parts of a file and of its commit
    lake: Lake,
    table: Table,
    name: str,
    constants: Mapping[str, object],
    rows: Iterable[Mapping[str, object]],
    transaction: tuple[str, int],
    rewrite: SnapshotRewrite | None = None,
) -> None:
    """Write rows to a file and commit it; if `commit` raises `TransactionTakenError`, the file is deleted."""
    with TableFile(lake, table, name, constants) as file:
        file.write_rows(rows)
        action = file.close()
    try:
        commit(lake, table, [action] if action else [], transaction, {}, rewrite)
    except TransactionTakenError:
        file.discard()
        raise


def _check_replaceable(lake: Lake, snapshot: DeltaTable, table: Table) -> None:
    """Raise if another engine has changed a table so that its rows cannot be replaced."""
    location = lake.locate(table.name)
    if needs_spark(snapshot):
        raise UnsupportedTableError(
            f"{location}: rmq-lake cannot replace this table, because another engine has enabled Delta features on it "
            "that rmq-lake does not support; nothing was written. Delete the table; the next run rebuilds it from the "
            "messages"
        )
    if any(file.kept_row_mask is not None for file in list_snapshot_files(lake, snapshot, table)):
        raise OSError(
            f"{location}: {VECTORS_ONLY_LOCAL_ERROR}; run in Spark SQL: REORG TABLE delta.`{location}` APPLY (PURGE)"
        )


def _is_committed(
    snapshot: DeltaTable, table: Table, transaction: tuple[str, int], added: Sequence[AddedFile], *, replacing: bool
) -> bool:
    """
    Return whether a table already has *transaction*, made of exactly these files.

    If a response was lost, the repeated request looks like a conflict although the commit was ours. Raises
    `TransactionTakenError` otherwise.
    """
    app, number = transaction
    done = read_newest_transaction(snapshot, app)
    if done < number:
        return False
    ours, there = {action.path for action in added}, file_paths(snapshot)
    if done == number and (ours == there if replacing else ours and ours <= there):
        return True
    raise TransactionTakenError(f"{table.name} already contains run {done} of {app}")


def lost_file_text(lost: str) -> str:
    """Return why a file of a commit may be missing, as text."""
    return (
        f"{lost}: this file was deleted before it was committed: by another run that was committed first, by another "
        "engine's VACUUM with a short retention, or by a lifecycle rule of the storage"
    )


def refuse_lost_files(lake: Lake, table: str, actions: Sequence[AddedFile]) -> None:
    """Raise `FileNotFoundError` if files of a commit were deleted after they were written."""
    for lost in find_lost_files(lake, table, actions):
        raise FileNotFoundError(f"{lost_file_text(lost)}. The next run writes the rows that are still missing")


def rewrite_without_rows(
    lake: Lake,
    table: Table,
    obsolete: Sequence[RemovedRows],
    owner: tuple[str, int],
    find_share: Callable[[SnapshotFile], FileShare] = lambda _: FileShare.SOME,
) -> SnapshotRewrite:
    """
    Return the function, called by a commit, that removes obsolete rows from a snapshot of *table*.

    The names of new files show their *owner*, a run of a store. *find_share* returns how many of the rows of a file
    are obsolete, if Delta's log shows that some may be.
    """
    naming = FileNaming(*owner)
    written: dict[tuple[str, bytes], AddedFile | None] = {}  # a commit may need several snapshots

    def drop_obsolete_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.invert(reduce(pc.or_, (one.mask_rows(batch) for one in obsolete))))

    def rewrite(snapshot: DeltaTable) -> tuple[list[SnapshotFile], list[AddedFile]]:
        found = list_files_with_rows(lake, snapshot, obsolete, table)
        shares = {file.identity: find_share(file) for file in found}
        removed = {file.identity: file for file in found if shares[file.identity] is not FileShare.NONE}
        rows = table_for_rewriting(snapshot, table)
        for key in removed.keys() - written.keys():
            if shares[key] is FileShare.ALL:
                written[key] = None
                continue
            is_clustered = key[0].startswith(CLUSTERED_PREFIX)
            name = f"{CLUSTERED_PREFIX}{uuid4()}.parquet" if is_clustered else naming.new_file_name("kept")
            file = TableFile(lake, rows, name, {})
            written[key] = file.write_all(map(drop_obsolete_rows, read_batches(lake, rows, removed[key])))
        return list(removed.values()), [action for key in removed if (action := written[key]) is not None]

    return rewrite


def list_files_with_rows(
    lake: Lake, snapshot: DeltaTable, obsolete: Sequence[RemovedRows], table: Table | None = None
) -> list[SnapshotFile]:
    """Return the files that may contain obsolete rows, in log order."""
    found = [
        file for file in list_snapshot_files(lake, snapshot, table) if any(one.may_be_in_file(file) for one in obsolete)
    ]
    return sorted(found, key=lambda file: int(file.minimum("physical_offset", 0)))


def find_lost_files(lake: Lake, table: str, actions: Sequence[AddedFile]) -> Iterator[str]:
    """Yield the locations of files that were written for a commit and are missing now."""
    known = {info.name for info in lake.list_files(table)} if len(actions) > _FEW else set()
    for action in actions:
        if action.path not in known and not file_exists(lake.open, f"{table}/{action.path}"):
            yield lake.locate(table, action.path)


def abort_file_replacements(lake: Lake, table: Table) -> None:
    """Make all concurrent replacements of this table's files fail when they commit."""
    snapshot = open_table(lake, table.name)
    if snapshot is None:
        return
    fence = REMOVAL_TRANSACTION, read_newest_transaction(snapshot, REMOVAL_TRANSACTION) + 1
    with suppress(TransactionTakenError):  # another process was faster, with the same effect
        commit(lake, table, (), fence, {"layout": "unchanged"}, data_change=False)


def _write(lake: Lake, snapshot: DeltaTable, new: Commit) -> int:
    """
    Write one commit on *snapshot*, durably; return the new version of the table.

    Raises `CommitFailedError` if another commit came first: `deltalake` accepts commits of others in between if they
    leave protocol and metadata unchanged, but one that removes files must be on top of the snapshot from which they
    were listed, and Spark's Delta never writes after a concurrent commit.
    """
    location = lake.locate(new.table.name)
    _flush(snapshot.table_uri)
    before = snapshot.version()
    with deltalake_errors_as_oserror(location, lake.options, "written"):
        if needs_spark(snapshot):
            _write_by_spark(lake, snapshot, new)
        elif is_local(lake.location):
            _write_to_disk(snapshot, new)
        elif any(file.kept_row_mask is not None for file in new.removed):
            raise OSError(f"{snapshot.table_uri}: {VECTORS_ONLY_LOCAL_ERROR}")
        else:
            _write_by_deltalake(snapshot, new)
        update_snapshot(location, snapshot, new.transactions)
        if not is_local(lake.location) and _is_remote_checkpoint_due(snapshot):
            snapshot.create_checkpoint()
        if is_local(lake.location) and not needs_spark(snapshot):
            _maintain_log(snapshot)
    version: int = snapshot.version()
    _flush(snapshot.table_uri, range(before + 1, version + 1))
    return version


def _is_remote_checkpoint_due(snapshot: DeltaTable) -> bool:
    """Return whether a table on an object store gets a checkpoint in addition to those that `deltalake` writes."""
    number = snapshot.version() + 1
    is_ours = _read_checkpoint_interval(snapshot) == CHECKPOINT_INTERVAL  # not set by a user
    return is_ours and number % _REMOTE_CHECKPOINT_INTERVAL == 0 and number % CHECKPOINT_INTERVAL != 0


def _read_checkpoint_interval(snapshot: DeltaTable) -> int:
    return int(snapshot.metadata().configuration.get("delta.checkpointInterval") or CHECKPOINT_INTERVAL)


def _flush(uri: str, versions: Iterable[int] = ()) -> None:
    """
    Make a local table's files durable.

    After a crash, no commit lacks its files, and no finished run lacks its commits.
    """
    if not is_local(uri):
        return
    root = Path(local_path(uri))
    log = root / "_delta_log"
    for version in versions:
        # Delta deletes old versions once a checkpoint covers them.
        with suppress(FileNotFoundError), (log / f"{version:020d}.json").open("rb") as file:
            os.fsync(file.fileno())
    flush_directory(log if versions else root)


def file_paths(snapshot: DeltaTable) -> set[str]:
    """Return the paths of a snapshot's files."""
    return {str(path) for path in snapshot.get_add_actions().column("path").to_pylist()}


def find_newest_transaction(lake: Lake, table: str, app: str) -> int:
    """Return the newest transaction of *app* on a table; 0 if there is none."""
    snapshot = open_table(lake, table)
    return read_newest_transaction(snapshot, app) if snapshot is not None else 0


def read_rows(
    lake: Lake, table: str, columns: Sequence[str], where: pc.Expression | None = None
) -> list[tuple[Any, ...]]:
    """Return some columns of the table's rows that match *where*; statistics limit the number of opened files."""
    found = read_snapshot(lake, table, lambda snapshot: read_rows_where(lake, snapshot, list(columns), where))
    return [] if found is None else list(zip(*(found.column(name).to_pylist() for name in columns), strict=True))


def read_snapshot(lake: Lake, table: str, read: Callable[[DeltaTable], T]) -> T | None:
    """Apply *read* to the newest snapshot of a table; None if the table does not exist."""
    for _ in range(_ATTEMPTS):
        snapshot = open_table(lake, table)
        if snapshot is None:
            return None
        with suppress(FileNotFoundError):  # its files were merged and removed meanwhile
            return read(snapshot)
    raise OSError(
        f"{lake.locate(table)}: data files that the Delta log references are missing. Restore them from a backup"
    )


def _write_by_deltalake(snapshot: DeltaTable, new: Commit) -> None:
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
            max_commit_retries=0 if new.removed or new.mode == "overwrite" else _ATTEMPTS,
        ),
        # A cleanup lists the whole log, which costs more than the commit.
        post_commithook_properties=None if (snapshot.version() + 1) % CHECKPOINT_INTERVAL == 0 else _NO_CLEANUP,
    )


def _alter(snapshot: DeltaTable, change: Callable[[DeltaTable], None]) -> None:
    """Let `deltalake` change the metadata of a table, durably; raise `CommitFailedError` if another commit is first."""
    if not is_local(snapshot.table_uri):
        change(snapshot)
        return
    location, version = local_path(snapshot.table_uri).rstrip("/"), snapshot.version()
    with staged_table(location, version) as staged:
        change(open_staged(staged))
        add_staged_commit(staged, location, version + 1)


def add_columns(snapshot: DeltaTable, new_columns: Sequence[Field]) -> None:
    """Add columns to a table; raise `CommitFailedError` if another commit came first."""
    if not needs_spark(snapshot):
        _alter(snapshot, lambda table: table.alter.add_columns(list(new_columns)))
        return
    from pyspark.sql.types import StructType

    columns = StructType.fromJson(loads(Schema(list(new_columns)).to_json()))
    described = ", ".join(
        f"`{column.name}` {column.dataType.simpleString()} COMMENT {quote_sql_text(column.metadata.get('comment', ''))}"
        for column in columns
    )
    _run_sql(snapshot, f"ALTER TABLE {{table}} ADD COLUMNS ({described})")


def set_properties(snapshot: DeltaTable, properties: Mapping[str, str]) -> None:
    """Set properties of a table; raise `CommitFailedError` if another commit came first."""
    if not needs_spark(snapshot):
        _alter(snapshot, lambda table: table.alter.set_table_properties(dict(properties)))
        return
    described = ", ".join(f"{quote_sql_text(name)} = {quote_sql_text(value)}" for name, value in properties.items())
    _run_sql(snapshot, f"ALTER TABLE {{table}} SET TBLPROPERTIES ({described})")


def _write_to_disk(snapshot: DeltaTable, new: Commit) -> None:
    """Write a commit of a local table that is durable once it has its name."""
    location = local_path(snapshot.table_uri).rstrip("/")
    version = snapshot.version()
    if new.mode == "overwrite":
        with staged_table(location, version) as staged:
            _write_by_deltalake(open_staged(staged), new)
            add_staged_commit(staged, location, version + 1)
        return
    now = int(time.time() * 1000)
    operation = {"timestamp": now, "operation": "WRITE", "operationParameters": {"mode": "Append", "partitionBy": "[]"}}
    details = {"engineInfo": "rocketmq-lake", "isBlindAppend": False, **new.metadata}
    removed = {"deletionTimestamp": now, "dataChange": new.data_change, "extendedFileMetadata": True}
    actions: list[LogAction] = [{"commitInfo": {**operation, **details}}, *new.log_actions()]
    has_vectors = any(file.kept_row_mask is not None for file in new.removed)
    described = _read_vector_descriptors(location, version) if has_vectors else {}
    for file in new.removed:
        vector = {} if file.kept_row_mask is None else {"deletionVector": described[file.path]}
        of_file = {"path": file.path, "size": file.size, "partitionValues": {}, **vector}
        actions.append({"remove": {**removed, **of_file}})
    write_commit(location, version + 1, encode_commit(actions))


def _read_vector_descriptors(location: str, version: int) -> dict[str, dict[str, object]]:
    """Return how Delta's log describes the deletion vectors of a version's files, by path."""
    with staged_table(location, version) as staged:
        open_staged(staged).create_checkpoint()  # the log may be any mixture of commits and forms of checkpoints
        try:
            vectors = read_vector_descriptors(f"{staged}/_delta_log/{version:020d}.checkpoint.parquet")
        except FileNotFoundError as error:  # another engine has written a checkpoint of this version in another form
            action = {"commitInfo": {"operation": "WRITE", "timestamp": int(time.time() * 1000), "layout": "unchanged"}}
            write_commit(location, version + 1, encode_commit([action]))
            raise CommitFailedError("the next version will be checkpointed") from error
        return vectors


def shorten_log(lake: Lake, table: str, snapshot: DeltaTable) -> None:
    """Write a checkpoint of a table's version, and delete the entries of its log that are no longer kept."""
    version = snapshot.version()
    with deltalake_errors_as_oserror(lake.locate(table), lake.options, "written"):
        if file_exists(lake.open, f"{table}/_delta_log/{version:020d}.checkpoint.parquet"):
            pass  # nothing was written since
        elif is_local(snapshot.table_uri):
            write_checkpoint(local_path(snapshot.table_uri).rstrip("/"), version)
        else:
            snapshot.create_checkpoint()
        if _is_log_cleaned(snapshot):
            snapshot.cleanup_metadata()


def _is_log_cleaned(snapshot: DeltaTable) -> bool:
    return (snapshot.metadata().configuration.get("delta.enableExpiredLogCleanup") or "true").lower() == "true"


def _maintain_log(snapshot: DeltaTable) -> None:
    """Write the checkpoint of a local table that is due, and delete old commits, as `deltalake` does."""
    version = snapshot.version()
    if (version + 1) % _read_checkpoint_interval(snapshot) == 0:
        write_checkpoint(local_path(snapshot.table_uri).rstrip("/"), version)
    if version % CHECKPOINT_INTERVAL == 0 and _is_log_cleaned(
        snapshot
    ):  # it lists the whole log, which costs more than the commit
        snapshot.cleanup_metadata()


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
        actions = [delta.actions.Action.fromJson(dumps(action)) for action in new.log_actions()]
        actions += _removals(transaction, new)
        tags = {"delta.rowTracking.preserved": str(not new.removed).lower(), **new.metadata}
        operation = getattr(getattr(delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
        convert = jvm.org.apache.spark.api.python.PythonUtils
        transaction.commit(convert.toSeq(actions), operation, convert.toScalaMap(tags))


def merge_by_spark(snapshot: DeltaTable, table: str, *, small_bytes: int, large_bytes: int) -> Savings:
    """Let Delta merge files below *small_bytes* into files of *large_bytes*, preserving row ids and clustering."""
    settings = jvm_and_session(_location(snapshot))[1].conf()
    before = {name: settings.getOption(name) for name in (_LEAST, _MOST)}  # unknown until Delta's classes are loaded
    settings.set(_LEAST, str(small_bytes))
    settings.set(_MOST, str(large_bytes))
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
        raise CommitFailedError(f"{new.table.name}: another process has removed files that this commit replaces")
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
