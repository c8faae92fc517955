"""
Commits to the tables of a lake: the only module that writes to Delta's log.

Each commit carries an application transaction (store, run number). The table's snapshot is checked for that
transaction, and the commit is based on that same snapshot: if another process commits the same transaction in between,
Delta rejects ours. So a commit can be repeated any number of times, and counts once.

Commits that remove files carry a second transaction, `layout`, which counts them: `deltalake` allows two commits to
remove the same file, and the replacements of both would be in the table. Other engines do not maintain this counter:
after a commit of theirs, the files must still exist, each with the deletion vector that it was read with.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from jobs.lake.features import needs_spark, refuse_unsupported_features
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import SnapshotFile, list_snapshot_files, read_rows_where
from jobs.lake.snapshots import (
    UnsupportedTableError,
    deltalake_errors_as_oserror,
    newest_snapshot,
    open_delta,
    read_newest_transaction,
    update_snapshot,
)
from jobs.lake.table_file import STATISTICS_LENGTH, AddedFile, TableFile
from jobs.lake.tables import Table
from jobs.lake.writers import (
    CHECKPOINT_INTERVAL,
    VECTORS_ONLY_LOCAL_ERROR,
    Commit,
    add_columns,
    set_properties,
    write_commit,
)
from jobs.storage.local import explaining_full_disk, flush_directory
from jobs.storage.locations import is_local, local_path
from jobs.storage.model import file_exists
from jobs.storage.s3 import delta_location, delta_options, retry_server_failures

STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
REMOVAL_TRANSACTION = "layout"  # the transaction that serialises commits which remove files
_FEW = 32  # files that are looked for one by one
_ATTEMPTS = 20  # concurrent commits of other stores; each needs another snapshot
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
SnapshotRewrite: TypeAlias = Callable[[DeltaTable], tuple[list[SnapshotFile], list[AddedFile]]]  # removed, added


def keeps_replaced_files_briefly(snapshot: DeltaTable) -> bool:
    """Return whether replaced files of a table are kept only for minutes or hours, because the table is followed."""
    kept = snapshot.metadata().configuration.get(FILE_RETENTION_PROPERTY, "")
    return kept == ONE_DAY_INTERVAL or _MINUTES.fullmatch(kept) is not None


class TransactionTakenError(Exception):
    """Another process has committed this transaction."""


def open_table(lake: Lake, name: str, *, own: bool = False) -> DeltaTable | None:
    """Return the newest snapshot of a table, a caller's *own* to change; None if the table does not exist."""
    try:
        return _load_table(lake, name) if own else newest_snapshot(lake.locate(name), lambda: _load_table(lake, name))
    except TableNotFoundError:
        return None


def _load_table(lake: Lake, name: str) -> DeltaTable:
    return retry_server_failures(lambda: open_delta(lake.locate(name), lake.options))


def ensure_table(lake: Lake, table: Table) -> DeltaTable:
    """Return the newest snapshot of a table; create the table, or add missing columns, if necessary."""
    location = lake.locate(table.name)
    # `deltalake` would treat missing limits as NULL.
    statistics = {STATISTICS_PROPERTY: ",".join(table.columns_with_limits)}

    def create() -> DeltaTable:
        return DeltaTable.create(
            delta_location(location),
            table.delta_schema,
            mode="ignore",
            name=table.name,
            description=f"One row is {table.row}.",
            configuration={**TABLE_PROPERTIES, **statistics},
            storage_options=delta_options(location, lake.options),
            raise_if_key_not_exists=False,
        )

    existing = open_table(lake, table.name)
    there = {field.name for field in existing.schema().fields} if existing is not None else set()
    new = [field for field in table.delta_schema.fields if field.name not in there]  # since the table was created
    lacks_statistics = existing is not None and STATISTICS_PROPERTY not in existing.metadata().configuration
    if existing is not None and not (new or lacks_statistics):
        return existing
    # another process may do the same at this moment
    with deltalake_errors_as_oserror(location, lake.options, "written"), suppress(CommitFailedError):
        if existing is None:
            retry_server_failures(create)
        elif new:
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
    known = replace(table, columns=()) if replaces else table  # whose own columns are replaced

    def attempt() -> int:
        snapshot = (open_table(lake, table.name) if replaces else None) or ensure_table(lake, table)
        if _is_committed(snapshot, table, transaction, added, replacing=replaces):
            return snapshot.version()
        refuse_unsupported_features(lake, snapshot, known)
        refuse_lost_files(lake, table.name, added)
        removed, replacements = rewrite(snapshot) if rewrite else ([], [])
        # Without removed files, the rows of the added ones would be in the table twice. No lake can cause this.
        assert removed or not replacements
        transactions = dict([transaction])
        if removed:
            # Two commits that replace the same files would both succeed, and duplicate their rows. Each one increments
            # this transaction from its own snapshot, so that the second one is a conflict.
            transactions[REMOVAL_TRANSACTION] = read_newest_transaction(snapshot, REMOVAL_TRANSACTION) + 1
        if replaces:
            _refuse_replacement(lake, snapshot, known)
        new = Commit(
            table,
            transactions,
            metadata,
            data_change,
            added=(*added, *replacements),
            removed=tuple(removed),
            mode="overwrite" if replaces else "append",
        )
        return _write(lake, snapshot, new)

    failure: CommitFailedError | None = None
    with explaining_full_disk(lake.locate(table.name)):
        for _ in range(_ATTEMPTS):  # after conflicts and server failures, the next snapshot shows whether it succeeded
            try:
                return retry_server_failures(attempt)
            except CommitFailedError as error:
                failure = error
        raise OSError(f"{_ATTEMPTS} attempts to commit failed: {failure}") from failure


def commit_rows(  # noqa: PLR0913, PLR0917 - the parts of a file and of its commit
    lake: Lake,
    table: Table,
    name: str,
    constants: Mapping[str, object],
    found: Iterable[Mapping[str, object]],
    transaction: tuple[str, int],
    rewrite: SnapshotRewrite | None = None,
) -> None:
    """Write rows to a file and commit it; if `commit` raises `TransactionTakenError`, the file is deleted."""
    with TableFile(lake, table, name, constants) as file:
        file.write_rows(found)
        action = file.close()
    try:
        commit(lake, table, [action] if action else [], transaction, {}, rewrite)
    except TransactionTakenError:
        file.discard()
        raise


def _refuse_replacement(lake: Lake, snapshot: DeltaTable, known: Table) -> None:
    location = lake.locate(known.name)
    if needs_spark(snapshot):
        raise UnsupportedTableError(
            f"{location}: rmq-lake cannot replace this table, because another engine has enabled Delta features on it "
            "that rmq-lake does not support; nothing was written. Delete the table; the next run rebuilds it from the "
            "messages"
        )
    if any(file.vector is not None for file in list_snapshot_files(lake, snapshot, known)):
        raise OSError(
            f"{location}: {VECTORS_ONLY_LOCAL_ERROR}; run in Spark SQL: REORG TABLE delta.`{location}` APPLY (PURGE)"
        )


def _is_committed(
    snapshot: DeltaTable,
    table: Table,
    transaction: tuple[str, int],
    added: Sequence[AddedFile],
    *,
    replacing: bool = False,
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


def refuse_lost_files(lake: Lake, table: str, actions: Sequence[AddedFile]) -> None:
    """Raise `FileNotFoundError` if files of a commit were deleted after they were written."""
    for lost in find_lost_files(lake, table, actions):
        raise FileNotFoundError(
            f"{lost}: this file was deleted before it was committed, probably by another engine's VACUUM with a "
            "retention shorter than the run. The next run will write these rows again"
        )


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
    """Write one commit on *snapshot*, durably; return the new version of the table."""
    _flush(snapshot.table_uri)
    before = snapshot.version()
    # `deltalake` accepts commits of others in between if they leave protocol and metadata unchanged. A commit that
    # removes files must be on top of the snapshot from which they were listed.
    attempts = 0 if new.removed or new.mode == "overwrite" else _ATTEMPTS
    location = lake.locate(new.table.name)
    with deltalake_errors_as_oserror(location, lake.options, "written"):
        write_commit(lake, snapshot, new, attempts)
        update_snapshot(location, snapshot)
    version: int = snapshot.version()
    _flush(snapshot.table_uri, range(before + 1, version + 1))
    return version


def _flush(uri: str, versions: Iterable[int] = ()) -> None:
    """Make a local table's files durable: after a crash, no commit lacks its files, and no done run its commits."""
    if not is_local(uri):
        return
    root = Path(local_path(uri))
    log = root / "_delta_log"
    for version in versions:
        # Delta deletes old versions once there is a checkpoint of them.
        with suppress(FileNotFoundError), (log / f"{version:020d}.json").open("rb") as file:
            os.fsync(file.fileno())
    flush_directory(log if versions else root)


def file_paths(snapshot: DeltaTable) -> set[str]:
    """Return the paths of a snapshot's files."""
    return {str(path) for path in snapshot.get_add_actions().column("path").to_pylist()}


def newest_committed_transaction(lake: Lake, table: str, app: str) -> int:
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
