"""
Checks that a lake is complete: every table has the rows of all runs that committed to it.

Each commit of a run leaves its number in the table. So if a table was deleted, or restored from an older copy, this is
detected before anything is read or written. A new empty table in its place would hide the loss of rows, and a commit
with a number that is already taken would be mistaken for a repeated one.

`CREATE TABLE … AS SELECT`, `CLONE` and a short `delta.setTransactionRetentionDuration` keep every row of a table but
lose the numbers of its runs: every message would be ingested twice. So a table without them is refused.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.compute as pc

from jobs.console.amounts import names_text
from jobs.console.log import log_message
from jobs.console.result import OtherRunActiveError, RequestError
from jobs.lake.commit import (
    TransactionTakenError,
    commit_rows,
    file_paths,
    find_newest_transaction,
    open_table,
    read_snapshot,
)
from jobs.lake.features import refuse_unsupported_features
from jobs.lake.lake import DEFAULT_BROKER, Lake
from jobs.lake.lake_stores import LakeStore, list_lake_stores, refuse_lost_registrations
from jobs.lake.manifest import Manifest
from jobs.lake.runs import tables_with_superseded_rows
from jobs.lake.snapshot_files import read_rows_where
from jobs.lake.snapshots import read_newest_transaction
from jobs.lake.table_file import FileNaming
from jobs.lake.tables import ACCEPTED_FINDINGS, FINDINGS, PRODUCT_TABLES, RUNS, TABLES_BY_NAME, Table
from jobs.storage.locations import is_local, local_path

_DIRECTORIES = ("_manifests", "_locks", "_iceberg", "typed", "lost+found")  # the last: on a separate disk
_ATTEMPTS = 5
_OFFSET = "physical_offset"


def refuse_foreign_files(lake: Lake) -> None:
    """Raise `RequestError` if the directory of a new lake is neither empty nor an incomplete lake."""
    if any(open_table(lake, table.name) is not None for table in (RUNS, FINDINGS, ACCEPTED_FINDINGS)):
        return
    names = set[str]()
    if not is_local(lake.location):
        names = {info.name.partition("/")[0] for info in lake.list_files("")}
    else:
        with suppress(FileNotFoundError):  # a new lake
            names = {path.name for path in Path(local_path(lake.location)).iterdir()}
    known = {name.partition("/")[0] for name in (*TABLES_BY_NAME, *_DIRECTORIES)}
    foreign = sorted(name for name in names - known if not name.startswith("."))
    if foreign:
        raise RequestError(
            f"{lake.location}: not a lake: it contains files of another program ({names_text(foreign, most=5)}). Pass "
            "an empty or new directory"
        )


def refuse_unsupported_tables(lake: Lake, tables: Iterable[Table]) -> None:
    """Raise `UnsupportedTableError` if one of these tables has a feature that we cannot write."""
    for table in tables:
        snapshot = open_table(lake, table.name)
        if snapshot is not None:
            refuse_unsupported_features(lake, snapshot, table)


def find_newest_run_by_table(
    lake: Lake, store: LakeStore, *, is_done: bool, unchecked_tables: Collection[str] = ()
) -> dict[str, int]:
    """
    Return the newest run that each table has, or will have once the newest run is committed.

    *is_done*: the newest run is marked as done, so every table has it. *unchecked_tables*: users may have deleted
    tables that they do not want. Raises `OSError` if a table lacks a run, and `OtherRunActiveError` if another process
    is running.
    """
    newest_manifest = store.newest_manifest
    number = newest_manifest.run if newest_manifest else 0
    own = tables_of_run(newest_manifest) if newest_manifest else frozenset()
    before = newest_manifest.tables_before if newest_manifest else {}
    found = {}
    for table in PRODUCT_TABLES:
        earlier = before.get(table.name, 0)
        wanted = number if table.name in own and is_done else earlier
        snapshot = open_table(lake, table.name)
        run = read_newest_transaction(snapshot, store.store_id) if snapshot is not None else None
        if table.name not in unchecked_tables:
            most = number if table.name in own else wanted
            _refuse_unexpected_run(lake, store, table, run, (wanted, most))
        found[table.name] = number if table.name in own else max(run or 0, earlier)
    return {name: run for name, run in found.items() if run}


def _refuse_unexpected_run(
    lake: Lake, store: LakeStore, table: Table, run: int | None, bounds: tuple[int, int]
) -> None:
    """Raise `OSError` if the newest run of a table is not in *bounds*, the lowest and the highest that it may have."""
    least, most = bounds
    if least <= (run or 0) <= most:
        return
    prepared = store.newest_manifest.run if store.newest_manifest else 0
    if find_newest_transaction(lake, RUNS.name, store.store_id) > prepared:
        raise OtherRunActiveError("another process has just prepared a run of this store. Run the command again")
    location = lake.locate(table.name)
    if run is None:
        reason = f"this table is missing, although runs up to run {least} wrote to it; restore it from a backup"
        raise OSError(f"{location}: {reason}")
    should = least if least == most else f"{least} to {most}"
    raise OSError(
        f"{location}: the newest run of store {store.store_id} in this table is {run}, but according to `runs` it is "
        f"{should}. One of the two tables was probably restored from an older backup. Restore both from the same backup"
    )


def tables_of_run(manifest: Manifest) -> frozenset[str]:
    """Return the tables that a run commits to."""
    return frozenset(
        {*manifest.tables, *(tables_with_superseded_rows(manifest.tables_before) if manifest.superseded else ())}
    )


def refuse_tables_without_runs(lake: Lake) -> None:
    """Refuse to register a store in a lake that has lost its runs: every message would be ingested twice."""
    refuse_lost_registrations(lake)
    for table in () if list_lake_stores(lake) else PRODUCT_TABLES:
        if open_table(lake, table.name) is not None:
            reason = (
                "this table is missing; without it, the tool cannot determine which rows of "
                f"{table.name!r} are committed; restore it from a backup, or ingest into a new lake"
            )
            raise OSError(f"{lake.locate(RUNS.name)}: {reason}")


def append_findings(
    lake: Lake, lake_store: LakeStore | None, broker: str | None, findings: Iterable[Mapping[str, object]]
) -> int:
    """Append rows of `findings` as a new verification of the store, which the lake may know; return its number."""
    rows = list(findings)
    return _append_rows(lake, FINDINGS, lake_store, broker, "verify", lambda number: ({"verification": number}, rows))


def append_accepted_findings(
    lake: Lake, lake_store: LakeStore | None, broker: str | None, findings: Sequence[Mapping[str, object]]
) -> None:
    """Record which findings of a store a user has accepted."""
    _append_rows(lake, ACCEPTED_FINDINGS, lake_store, broker, "accept", lambda _: ({}, findings))


def list_findings_options(lake: Lake, broker: str | None) -> tuple[str, ...]:
    """Return the options with which `verify` records accepted findings in a lake."""
    return ("--findings-lake", lake.location, *(() if broker is None else ("--broker", broker)))


def read_accepted_findings(lake: Lake, lake_store: LakeStore | None, broker: str | None) -> dict[str, datetime]:
    """Return the names of the accepted findings of a store, and when each was accepted."""
    store_id, label = _name_store(lake_store, broker)
    # Before its first run of `ingest`, the lake knows a store only by its label.
    wanted = pc.field("store_id") == store_id
    wanted |= (pc.field("store_id") == "") & (pc.field("broker") == label)
    columns = ["accept_as", "time"]
    rows = read_snapshot(
        lake, ACCEPTED_FINDINGS.name, lambda snapshot: read_rows_where(lake, snapshot, columns, wanted)
    )
    return {} if rows is None else {row["accept_as"]: row["time"] for row in rows.to_pylist()}


def _name_store(lake_store: LakeStore | None, broker: str | None) -> tuple[str, str]:
    """Return the id and the label that rows about a store have; before its first run of `ingest`, it has no id."""
    if lake_store is None:
        return "", broker or DEFAULT_BROKER
    return lake_store.store_id, lake_store.broker


def _append_rows(  # noqa: PLR0913, PLR0917 - the table, the store, and its rows
    lake: Lake,
    table: Table,
    lake_store: LakeStore | None,
    broker: str | None,
    purpose: str,
    describe: Callable[[int], tuple[Mapping[str, object], Iterable[Mapping[str, object]]]],
) -> int:
    """
    Append rows about a store in one commit with its own number, which is returned.

    *describe* returns, for that number, the values that all rows have, and the rows.
    """
    refuse_foreign_files(lake)
    refuse_unsupported_tables(lake, [table])
    store_id, label = _name_store(lake_store, broker)
    app = f"{store_id or label}/{purpose}"
    names = {column.name for column in table.columns}
    for _ in range(_ATTEMPTS):
        number = find_newest_transaction(lake, table.name, app) + 1
        common, described = describe(number)
        rows = [{name: value for name, value in one.items() if name in names} for one in described]
        whose = {"broker": label, "store_id": store_id, "time": datetime.now(UTC), **common}
        name = FileNaming(store_id or "unknown", number).new_file_name(table.name)
        try:
            commit_rows(lake, table, name, whose, rows, (app, number))
        except TransactionTakenError:
            continue  # another command has taken this number
        except OSError as error:  # if the rows are committed, only a flush or the upkeep of the log failed
            snapshot = open_table(lake, table.name)
            if snapshot is None or name not in file_paths(snapshot):
                raise
            # The next run would add them a second time.
            log_message(
                f"{error}; the findings are in the lake, but they may still be lost in a power failure", "warning"
            )
        return number
    raise OSError(
        f"{lake.location}: {_ATTEMPTS} commit attempts failed because of concurrent verifications of this store. Run "
        "the command again"
    )
