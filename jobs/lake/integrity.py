"""
Checks that a lake is complete: every table has the rows of all runs that committed to it.

Each commit of a run leaves its number in the table. So if a table was deleted, or restored from an older copy, this is
detected before anything is read or written. A new empty table in its place would hide the loss of rows, and a commit
with a number that is already taken would be mistaken for a repeated one.

`CREATE TABLE … AS SELECT`, `CLONE` and a short `delta.setTransactionRetentionDuration` keep every row of a table but
lose the numbers of its runs: every message would be ingested twice. The rows of `runs` and the manifests state which
runs each table should have, and its rows show whether it does. A transaction is restored only if they agree; nothing
else is changed.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from jobs.console.amounts import names_text
from jobs.console.log import log_message
from jobs.console.result import OtherRunActiveError, RequestError
from jobs.lake.commit import (
    TransactionTakenError,
    commit,
    commit_rows,
    file_paths,
    newest_committed_transaction,
    open_table,
    read_rows,
)
from jobs.lake.features import refuse_unsupported_features
from jobs.lake.lake import DEFAULT_BROKER, Lake, parse_run_detail
from jobs.lake.runs import (
    DONE_STATE,
    PREPARED_STATE,
    REGISTERED_STATE,
    REGISTRY_TRANSACTION,
    KnownStore,
    Manifest,
    done_transaction_app,
    list_known_stores,
    read_manifest_at,
    refuse_lost_registrations,
    tables_with_superseded_rows,
)
from jobs.lake.snapshot_files import NO_LIMITS, has_rows_within, read_rows_within
from jobs.lake.snapshots import read_newest_transaction
from jobs.lake.table_file import AddedFile, FileNaming
from jobs.lake.tables import FINDINGS, PRODUCT_TABLES, RUNS, TABLES_BY_NAME, Table
from jobs.storage.locations import is_local, local_path

_FOLDERS = ("_manifests", "_locks", "_iceberg", "typed", "lost+found")  # the last one: of a separate disk
_ATTEMPTS = 5
_OFFSET = "physical_offset"


def refuse_foreign_files(lake: Lake) -> None:
    """Raise `RequestError` if the folder of a new lake is neither empty nor an incomplete lake."""
    if any(open_table(lake, table.name) is not None for table in (RUNS, FINDINGS)):
        return
    names = set[str]()
    if not is_local(lake.location):
        names = {info.name.partition("/")[0] for info in lake.list_files("")}
    else:
        with suppress(FileNotFoundError):  # a new lake
            names = {path.name for path in Path(local_path(lake.location)).iterdir()}
    known = {name.partition("/")[0] for name in (*TABLES_BY_NAME, *_FOLDERS)}
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


def newest_run_by_table(
    lake: Lake, store: KnownStore, *, is_done: bool, unchecked_tables: Collection[str] = ()
) -> dict[str, int]:
    """
    Return the store's newest run in each table, when its newest run is committed; `OSError` if a table lacks a run.

    *is_done*: the newest run is marked as done, so every table has it. *unchecked_tables*: users may have deleted
    tables that they do not want. Raises `OtherRunActiveError` if another process is running.
    """
    newest = store.newest
    number = newest.run if newest else 0
    own = tables_of_run(newest) if newest else frozenset()
    before = newest.tables_before if newest else {}
    found = {}
    for table in PRODUCT_TABLES:
        earlier = before.get(table.name, 0) if before is not None else None
        wanted = number if table.name in own and is_done else earlier
        snapshot = open_table(lake, table.name)
        run = read_newest_transaction(snapshot, store.store_id) if snapshot is not None else None
        if table.name not in unchecked_tables:
            most = number if table.name in own or before is None else wanted or 0
            _check_run(lake, store, table, run, (wanted or 0, most))
        found[table.name] = number if table.name in own else max(run or 0, earlier or 0)
    return {name: run for name, run in found.items() if run}


def _check_run(lake: Lake, store: KnownStore, table: Table, run: int | None, bounds: tuple[int, int]) -> None:
    least, most = bounds
    if least <= (run or 0) <= most:
        return
    prepared = store.newest.run if store.newest else 0
    if newest_committed_transaction(lake, RUNS.name, store.store_id) > prepared:
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
        {*manifest.tables, *(tables_with_superseded_rows(manifest.tables_before or {}) if manifest.superseded else ())}
    )


def refuse_tables_without_runs(lake: Lake) -> None:
    """Refuse to register a store in a lake that has lost its runs: every message would be ingested twice."""
    refuse_lost_registrations(lake)
    for table in () if list_known_stores(lake) else PRODUCT_TABLES:
        if open_table(lake, table.name) is not None:
            reason = (
                "this table is missing; without it, the tool cannot determine which rows of "
                f"{table.name!r} are committed; restore it from a backup, or ingest into a new lake"
            )
            raise OSError(f"{lake.locate(RUNS.name)}: {reason}")


def append_findings(
    lake: Lake, known: KnownStore | None, broker: str | None, findings: Iterable[Mapping[str, object]]
) -> int:
    """Append rows of `findings` as a new verification of the store, which the lake may know; return its number."""
    refuse_foreign_files(lake)
    refuse_unsupported_tables(lake, [FINDINGS])
    store_id = known.store_id if known else ""
    label = known.broker if known else broker or DEFAULT_BROKER
    app = f"{store_id or label}/verify"
    names = {column.name for column in FINDINGS.columns}
    rows = [{name: value for name, value in finding.items() if name in names} for finding in findings]
    for _ in range(_ATTEMPTS):
        number = newest_committed_transaction(lake, FINDINGS.name, app) + 1
        whose = {"broker": label, "store_id": store_id, "verification": number, "time": datetime.now(UTC)}
        name = FileNaming(store_id or "unknown", number).new_file_name("findings")
        try:
            commit_rows(lake, FINDINGS, name, whose, rows, (app, number))
        except TransactionTakenError:
            continue  # another verification had this number
        except OSError as error:  # if the rows are committed, only a flush or the upkeep of the log failed
            table = open_table(lake, FINDINGS.name)
            if table is None or name not in file_paths(table):
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


class LostTransaction(NamedTuple):
    """A transaction that a table should have."""

    table: str
    app: str
    known: int  # the newest one that Delta's log has; 0 when it has none
    number: int  # the newest one that rows and manifests prove
    doubt: str = ""  # why the table's rows do not prove it


def find_lost_transactions(lake: Lake) -> list[LostTransaction]:
    """Return the transactions that tables have lost, in the order in which to restore them: `runs` last."""
    prepared: dict[str, tuple[int, str]] = {}  # by store, its newest run and the manifest of that run
    done: dict[str, int] = {}
    registered: list[int] = []  # the number of each registration; lakes of older versions have none
    names = ("store_id", "run", "state", "manifest", "detail")
    for store_id, run, state, manifest, detail in read_rows(lake, RUNS.name, names):
        if state == PREPARED_STATE and run > prepared.get(store_id, (0, ""))[0]:
            prepared[store_id] = run, manifest
        if state == DONE_STATE:
            done[store_id] = max(done.get(store_id, 0), run)
        if state == REGISTERED_STATE:
            registered.append(parse_run_detail(lake.location, detail).get("registration") or 0)
    found = [
        lost
        for store_id, newest in prepared.items()
        for lost in _find_lost_in_tables(lake, read_manifest_at(lake, newest[1], newest[0]), done.get(store_id, 0))
    ]
    wanted = [(done_transaction_app(store_id), run) for store_id, run in done.items()]
    wanted += [(store_id, run) for store_id, (run, _) in prepared.items()]
    wanted.append((REGISTRY_TRANSACTION, max(len(registered), *registered, 0)))
    for app, number in wanted:
        known = newest_committed_transaction(lake, RUNS.name, app)
        found += [LostTransaction(RUNS.name, app, known, number)] if known < number else []
    return found


def restore_transactions(lake: Lake, lost: list[LostTransaction]) -> None:
    """Restore transactions; raise `OSError`, before anything is written, if the rows do not prove one."""
    doubts = [f"{lake.locate(one.table)}: {one.doubt}" for one in lost if one.doubt]
    if doubts:
        raise OSError("; ".join(doubts))
    refuse_unsupported_tables(lake, (TABLES_BY_NAME[one.table] for one in lost))
    # Tables before `runs`: a run that begins in between must still be refused.
    for one in lost:
        with suppress(TransactionTakenError):  # another process has restored it
            commit(lake, TABLES_BY_NAME[one.table], (), (one.app, one.number), {"layout": "healed"}, data_change=False)


def _find_lost_in_tables(lake: Lake, newest: Manifest, done: int) -> Iterator[LostTransaction]:
    """Yield the transactions of a store that tables have lost, according to the manifest of its newest run."""
    store, run = newest.store_id, newest.run
    before = newest.tables_before or {}
    own = tables_of_run(newest)
    for table in PRODUCT_TABLES:
        number = run if table.name in own and done == run else before.get(table.name, 0)
        known = newest_committed_transaction(lake, table.name, store)
        if known >= number:
            continue
        doubt = _find_doubt(lake, table, newest, brought=newest.tables.get(table.name, ()) if number == run else None)
        if table.name in own and done < run and not doubt:
            doubt = (
                f"run {run} of store {store} was interrupted, and the table has lost its transactions, so it is "
                "unknown whether the table has the rows of this run. Restore the table from a backup, or ingest "
                "into a new lake"
            )
        yield LostTransaction(table.name, store, known, number, doubt)


def _find_doubt(lake: Lake, table: Table, newest: Manifest, brought: Sequence[AddedFile] | None) -> str:
    """Return why a table's rows do not prove that it has the store's runs; empty if they do."""
    snapshot = open_table(lake, table.name)
    if snapshot is None:
        return "this table is missing"
    if brought is None:
        has_rows = has_rows_within(lake, table, snapshot, newest.store_id, NO_LIMITS)
        return "" if has_rows else f"has no rows of store {newest.store_id}"
    stats = [json.loads(action.stats) for action in brought]
    lows, highs = ([one.get(name, {}).get(_OFFSET) for one in stats] for name in ("minValues", "maxValues"))
    has_limits = brought and None not in {*lows, *highs} and _OFFSET in table.schema.names
    limits = {_OFFSET: (min(lows), max(highs))} if has_limits else NO_LIMITS
    expected = sum(action.row_count for action in brought)
    rows = read_rows_within(lake, table, snapshot, newest.store_id, limits) if expected else ()
    found = sum(batch.num_rows for batch in rows)
    if found >= expected:
        return ""
    where = f" (offsets {min(lows):,} to {max(highs):,})" if has_limits else ""
    return (
        f"run {newest.run} of store {newest.store_id} added {expected:,} rows{where}, but the table has only "
        f"{found:,} of them: it was copied before that run, or rows were deleted. Restore the table "
        "from a backup"
    )
