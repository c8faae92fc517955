"""Rows of the table `runs`: appended by each step of a run, and read for its manifest."""

import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds

from jobs.lake.commit import SnapshotRewrite, commit_rows, read_rows
from jobs.lake.lake import UNDONE_KEY, Lake, parse_run_detail
from jobs.lake.manifest import Manifest, read_manifest_of_row
from jobs.lake.table_file import FileNaming
from jobs.lake.tables import RUNS

REGISTERED_STATE = "registered"
PREPARED_STATE = "prepared"
DONE_STATE = "done"
EXPIRED_STATE = "expired"
REGISTRY_TRANSACTION = "stores"  # the transaction that serializes registrations


def read_manifest(lake: Lake, store_id: str, run: int) -> Manifest | None:
    """Return the manifest of a prepared run; None for run 0."""
    return read_manifest_of_row(lake, read_prepared_row(lake, store_id, run)) if run else None


def read_prepared_row(lake: Lake, store_id: str, run: int) -> Mapping[str, Any]:
    """Return the row of `runs` that prepares a run; raise `OSError` if it is missing."""
    row = find_prepared_row(lake, store_id, run)
    if row is None:
        raise missing_row_error(lake, store_id, run)
    return row


def missing_row_error(lake: Lake, store_id: str, run: int) -> OSError:
    """Return the error for a prepared run without its row."""
    return OSError(
        f"{lake.location}: run {run} of store {store_id} is prepared, but its row in `runs` is missing. Restore `runs` "
        "from a backup"
    )


def find_prepared_row(lake: Lake, store_id: str, run: int) -> Mapping[str, Any] | None:
    """Return the row of `runs` that prepares a run, if there is one."""
    names = ("store_id", "state", "run", "time", "host", "to_offset", "manifest")
    found = read_rows(lake, RUNS.name, names, ds.field("run") == run)
    return next((dict(zip(names, row, strict=True)) for row in found if row[:2] == (store_id, PREPARED_STATE)), None)


def find_undone_offset(lake: Lake, store_id: str, after: int, until: int) -> int | None:
    """Return the lowest offset from which the runs later than *after*, up to *until*, have undone earlier ones."""
    wanted = (pc.field("store_id") == store_id) & (pc.field("state") == PREPARED_STATE)
    wanted &= (pc.field("run") > after) & (pc.field("run") <= until)
    wanted &= pc.match_substring(pc.field("detail"), f'"{UNDONE_KEY}"')
    details = [parse_run_detail(lake.location, detail) for (detail,) in read_rows(lake, RUNS.name, ["detail"], wanted)]
    return min((detail[UNDONE_KEY]["from"] for detail in details), default=None)


def expiry_app(store_id: str) -> str:
    """Return the application whose transactions count the expiries of a store."""
    return f"{store_id}/expired"


def done_transaction_app(store_id: str) -> str:
    """Return the application whose transactions state which runs of a store are done."""
    return f"{store_id}/done"


def append_run_row(  # noqa: PLR0913, PLR0917 - the parts of a row and of its commit
    lake: Lake,
    naming: FileNaming,
    broker: str,
    state: str,
    transaction: tuple[str, int],
    rewrite: SnapshotRewrite | None = None,
    **values: object,
) -> None:
    """Append a row in one commit with *rewrite*; raise `TransactionTakenError` if its transaction is taken."""
    constants = {"broker": broker, "store_id": naming.store_id}
    row = {"run": naming.run, "state": state, "time": datetime.now(UTC), "host": socket.gethostname(), **values}
    commit_rows(lake, RUNS, naming.new_file_name(state), constants, [row], transaction, rewrite)
