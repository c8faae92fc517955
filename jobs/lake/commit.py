"""
Commits on the tables of a lake: the one place where Delta's log is written.

Each commit carries an application transaction (store, run number). The table's snapshot is asked first whether that
run is there already, and the commit is made on that very snapshot: if another process commits the same transaction in
between, Delta refuses ours. So a commit may be repeated as often as anybody likes, and counts once.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from jobs.lake.tables import Table
from jobs.lake.writing import STATISTICS_LENGTH, Action
from jobs.storage import delta_location, delta_options, join

_ATTEMPTS = 20  # of other stores' commits that may come between; each is another snapshot
_CONFIGURATION = {
    "delta.dataSkippingStringPrefixLength": str(STATISTICS_LENGTH),
}


class TransactionTakenError(Exception):
    """Another process has committed this transaction."""


def open_table(lake: str, name: str, options: Mapping[str, str]) -> DeltaTable | None:
    """Return the newest snapshot of a table; None when the lake has no such table."""
    location = join(lake, name)
    try:
        return DeltaTable(delta_location(location), storage_options=delta_options(location, options))
    except TableNotFoundError:
        return None


def ensure_table(lake: str, table: Table, options: Mapping[str, str]) -> DeltaTable:
    """Return the newest snapshot of a table, which is created when it is not there."""
    existing = open_table(lake, table.name, options)
    if existing is not None:
        return existing
    location = join(lake, table.name)
    return DeltaTable.create(
        delta_location(location),
        table.delta_schema,
        mode="ignore",
        name=table.name,
        description=f"One row is {table.row}.",
        configuration=_CONFIGURATION,
        storage_options=delta_options(location, options),
        raise_if_key_not_exists=False,
    )


def commit(  # noqa: PLR0913, PLR0917 - what a commit is made of
    lake: str,
    table: Table,
    actions: Iterable[Action],
    transaction: tuple[str, int],
    metadata: Mapping[str, str],
    options: Mapping[str, str],
) -> int:
    """
    Add files to a table under *transaction*, once; return the table's version.

    `TransactionTakenError` when the table has this transaction, or a later one of the same application, already.
    """
    app, number = transaction
    adds: list[AddAction | RemoveAction] = [
        AddAction(a.path, a.size, {}, a.modification_time, data_change=True, stats=a.stats) for a in actions
    ]

    def attempt() -> int:
        snapshot = ensure_table(lake, table, options)
        newest = snapshot.transaction_version(app)
        if newest is not None and newest >= number:
            raise TransactionTakenError(f"{table.name} has run {newest} of {app}")
        snapshot.create_write_transaction(
            adds,
            "append",
            table.delta_schema,
            commit_properties=CommitProperties(
                custom_metadata=dict(metadata),
                app_transactions=[Transaction(app, number)],
                max_commit_retries=_ATTEMPTS,
            ),
        )
        snapshot.update_incremental()
        return snapshot.version()

    return _retried(attempt)


T = TypeVar("T")


def _retried(attempt: Callable[[], T]) -> T:
    """Repeat *attempt* while others' commits come between; a taken transaction shows on the next snapshot."""
    failure: CommitFailedError | None = None
    for _ in range(_ATTEMPTS):
        try:
            return attempt()
        except CommitFailedError as error:
            failure = error
    raise OSError(f"{_ATTEMPTS} attempts to commit failed: {failure}") from failure


def committed_transaction(lake: str, table: str, app: str, options: Mapping[str, str]) -> int:
    """Return the newest transaction of *app* on a table; 0 when there is none."""
    snapshot = open_table(lake, table, options)
    return (snapshot.transaction_version(app) or 0) if snapshot is not None else 0


def rows(lake: str, table: str, options: Mapping[str, str], columns: list[str] | None = None) -> list[dict[str, Any]]:
    """Return all rows of a small table."""
    snapshot = open_table(lake, table, options)
    return snapshot.to_pyarrow_table(columns=columns).to_pylist() if snapshot is not None else []


__all__ = [
    "DeltaError",
    "TransactionTakenError",
    "commit",
    "committed_transaction",
    "ensure_table",
    "open_table",
    "rows",
]
