"""Commits by the package `deltalake`, which needs no JVM."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Transaction
from deltalake.transaction import AddAction, RemoveAction

from jobs.lake.delta_log import LogAction, write_commit
from jobs.lake.lake import Lake
from jobs.lake.writers import CHECKPOINT_INTERVAL, NO_VECTORS, Commit
from jobs.storage.locations import is_local

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
