"""
The writers of Delta's log: their interface, the content of a commit, and the writer by `deltalake`.

`deltalake` writes to most tables, Spark's own Delta to those with features that only Spark writes
(`jobs.lake.spark_writer`). The table decides: its protocol names the features that every writer must know.
Both write the same commit, and it follows the very snapshot that was asked for the transactions of the table.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Transaction
from deltalake.transaction import AddAction, RemoveAction

from jobs.lake.delta_log import LogAction, Vector, write_commit
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import StoredFile
from jobs.lake.table_file import Action
from jobs.lake.tables import Table
from jobs.storage.locations import is_local

CHECKPOINT_INTERVAL = 50  # commits that a reader of the log replays at most
NO_VECTORS = "files with deletion vectors can be replaced on local file systems alone"


class Rewrite(NamedTuple):
    """Files of a snapshot, and the files that replace them."""

    removed: tuple[StoredFile, ...] = ()
    added: tuple[Action, ...] = ()

    @property
    def vectors(self) -> Mapping[str, Vector]:
        """Return the vectors of those removed files that have one, by the file's path."""
        return {file.path: file.vector for file in self.removed if file.vector is not None}


class Commit(NamedTuple):
    """The content of a commit."""

    table: Table
    transactions: tuple[tuple[str, int], ...]
    metadata: Mapping[str, str]
    data_change: bool
    brought: tuple[Action, ...] = ()  # files of new rows
    change: Rewrite = Rewrite()
    mode: Literal["append", "overwrite"] = "append"  # which of the two `deltalake` is told

    @property
    def added(self) -> tuple[Action, ...]:
        """All new files."""
        return (*self.brought, *self.change.added)

    def additions(self) -> list[LogAction]:
        """Return the transactions and the new files as lines of the log."""
        now = int(time.time() * 1000)
        found: list[LogAction] = [
            {"txn": {"appId": app, "version": number, "lastUpdated": now}} for app, number in self.transactions
        ]
        for file in self.added:
            add = {"path": file.path, "partitionValues": {}, "size": file.size, "dataChange": self.data_change}
            found.append({"add": {**add, "modificationTime": file.modification_time, "stats": file.stats}})
        return found


class Saved(NamedTuple):
    """The effect of compaction and vacuum on one table."""

    table: str
    merged: int = 0  # files that were replaced
    written: int = 0  # by how many
    bytes_before: int = 0
    bytes_after: int | None = 0  # None: estimated, and only the merge itself can tell
    vacuumed: int = 0  # files deleted

    def and_then(self, later: "Saved") -> "Saved":
        """Return the sum of two rewrites of the table."""
        return self._replace(
            merged=self.merged + later.merged,
            written=self.written + later.written,
            bytes_before=self.bytes_before + later.bytes_before,
            bytes_after=(self.bytes_after or 0) + (later.bytes_after or 0),
        )


class Writer(Protocol):
    """Writes to the log of a table; raises `CommitFailedError` where another commit came first."""

    @property
    def name(self) -> str:
        """The writer's name in a run's manifest."""

    def write(self, lake: Lake, snapshot: DeltaTable, new: Commit, attempts: int) -> None:
        """Write a commit that follows *snapshot*, or after *attempts* commits of others at the most."""

    def add_columns(self, snapshot: DeltaTable, new: Sequence[Field]) -> None:
        """Give a table more columns."""

    def set_properties(self, snapshot: DeltaTable, properties: Mapping[str, str]) -> None:
        """Give a table properties."""


_NO_CLEANUP = PostCommitHookProperties(cleanup_expired_logs=False)


class DeltalakeWriter:
    """The package `deltalake`, which needs no JVM."""

    name = "deltalake"  # in a run's manifest

    def write(self, lake: Lake, snapshot: DeltaTable, new: Commit, attempts: int) -> None:
        """Write a commit; one that removes files with vectors by hand."""
        if new.change.vectors:
            _write_removing_vectors(lake, snapshot, new)
            return
        now = int(time.time() * 1000)
        snapshot.create_write_transaction(
            [
                *(AddAction(a.path, a.size, {}, a.modification_time, new.data_change, a.stats) for a in new.added),
                # Without size and partitions Spark's feed of changes stops at the commit.
                *(RemoveAction(file.path, new.data_change, now, file.size, {}) for file in new.change.removed),
            ],
            new.mode,
            new.table.delta_schema,
            commit_properties=CommitProperties(
                custom_metadata=dict(new.metadata),
                app_transactions=[Transaction(app, number) for app, number in new.transactions],
                max_commit_retries=attempts,
            ),
            # To clean up, all of the log is listed: after each commit that would cost more than the commit.
            post_commithook_properties=None if (snapshot.version() + 1) % CHECKPOINT_INTERVAL == 0 else _NO_CLEANUP,
        )

    def add_columns(self, snapshot: DeltaTable, new: Sequence[Field]) -> None:
        """Give a table more columns."""
        snapshot.alter.add_columns(list(new))

    def set_properties(self, snapshot: DeltaTable, properties: Mapping[str, str]) -> None:
        """Give a table properties."""
        snapshot.alter.set_table_properties(dict(properties))


def _write_removing_vectors(lake: Lake, snapshot: DeltaTable, new: Commit) -> None:
    """Write a commit that removes files with their vectors: `deltalake` would remove nothing by their paths alone."""
    if not is_local(lake.location):
        raise OSError(f"{snapshot.table_uri}: {NO_VECTORS}")
    now = int(time.time() * 1000)
    operation = {"timestamp": now, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
    described = {path: {"deletionVector": dict(vector.descriptor)} for path, vector in new.change.vectors.items()}
    removed: dict[str, Any] = {
        "deletionTimestamp": now,
        "dataChange": new.data_change,
        "extendedFileMetadata": True,
        "partitionValues": {},
    }
    actions: list[LogAction] = [
        {"commitInfo": {**operation, "isBlindAppend": False, **new.metadata}},
        *new.additions(),
        *(
            {"remove": {"path": file.path, "size": file.size, **removed, **described.get(file.path, {})}}
            for file in new.change.removed
        ),
    ]
    write_commit(lake, snapshot, actions)
