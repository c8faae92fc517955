"""
A lake whose tables have lost what Delta's log knew of their runs: found again from its own rows and manifests.

`CREATE TABLE … AS SELECT`, `CLONE` and a short `delta.setTransactionRetentionDuration` keep every row of a table and
forget which runs it has: every message would come twice. The rows of `runs` and the manifests say which runs each table
should have, and its rows whether it does. A transaction is restored only where they agree; nothing else is changed.
"""

import json
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow.dataset as ds

from jobs.lake.commit import chosen, committed_transaction, open_table, put_transaction, rows
from jobs.lake.integrity import committed_by, refuse_unsupported
from jobs.lake.lake import Lake
from jobs.lake.runs import DONE, PREPARED, REGISTERED, REGISTRY, Manifest, done_app, manifest_at
from jobs.lake.tables import BY_NAME, PRODUCED, RUNS, Table

_OFFSET = "physical_offset"


class Lost(NamedTuple):
    """A transaction that a table should have."""

    table: str
    app: str
    known: int  # the newest one that Delta's log has; 0 when it has none
    number: int  # the newest one that rows and manifests prove
    doubt: str = ""  # why the table's rows do not prove it


class _Store(NamedTuple):
    """The newest runs of one store, as rows of `runs` have them."""

    store_id: str
    prepared: int
    done: int
    manifest: str


class _RunRow(NamedTuple):
    store_id: str
    run: int
    state: str
    manifest: str
    detail: str


def lost_transactions(lake: Lake) -> list[Lost]:
    """Return the transactions that tables have lost, in the order in which they are restored: `runs` last."""
    stores, registered = _stores(lake)
    found = [lost for store in stores for lost in _of_tables(lake, store)]
    wanted = [(done_app(store.store_id), store.done) for store in stores]
    wanted += [(store.store_id, store.prepared) for store in stores]
    wanted.append((REGISTRY, registered))
    for app, number in wanted:
        known = committed_transaction(lake, RUNS.name, app)
        found += [Lost(RUNS.name, app, known, number)] if known < number else []
    return found


def put_back(lake: Lake, lost: list[Lost]) -> None:
    """Put transactions back; `OSError`, before anything is written, where rows do not prove one."""
    doubts = [f"{lake.locate(one.table)}: {one.doubt}" for one in lost if one.doubt]
    if doubts:
        raise OSError("; ".join(doubts))
    refuse_unsupported(lake, (BY_NAME[one.table] for one in lost))
    # Tables before `runs`: a run that begins in between must still be refused.
    for one in lost:
        put_transaction(lake, BY_NAME[one.table], (one.app, one.number))


def _stores(lake: Lake) -> tuple[list[_Store], int]:
    """Return the stores that rows of `runs` know, and how many were registered."""
    found: dict[str, _Store] = {}
    registered = 0
    for row in rows(lake, RUNS.name, _RunRow):
        store = found.get(row.store_id, _Store(row.store_id, 0, 0, ""))
        if row.state == PREPARED and row.run > store.prepared:
            store = store._replace(prepared=row.run, manifest=row.manifest)
        if row.state == DONE:
            store = store._replace(done=max(store.done, row.run))
        if row.state == REGISTERED:
            registered = max(registered + 1, json.loads(row.detail).get("registration", 0))
        found[row.store_id] = store
    return list(found.values()), registered


def _of_tables(lake: Lake, store: _Store) -> Iterator[Lost]:
    if not store.prepared:
        return
    newest = manifest_at(lake, store.manifest, store.prepared)
    before = newest.tables_before or {}
    own = committed_by(newest)
    for table in PRODUCED:
        number = store.prepared if table.name in own and store.done == store.prepared else before.get(table.name, 0)
        known = committed_transaction(lake, table.name, store.store_id)
        if known >= number:
            continue
        doubt = _doubt(lake, table, store, newest if number == store.prepared else None)
        if table.name in own and store.done < store.prepared and not doubt:
            doubt = (
                f"run {store.prepared} of store {store.store_id} was not finished: nothing says which tables have it"
            )
        yield Lost(table.name, store.store_id, known, number, doubt)


def _doubt(lake: Lake, table: Table, store: _Store, newest: Manifest | None) -> str:
    """Return why a table's rows do not prove that it has the runs of a store; empty when they do."""
    snapshot = open_table(lake, table.name)
    if snapshot is None:
        return "this table is missing"
    of_store = ds.field("store_id") == store.store_id
    columns = [name for name in ("store_id", _OFFSET) if name in table.schema.names]
    there = chosen(lake, snapshot, columns, of_store)
    if not there.num_rows and newest is None:
        return f"has no row of store {store.store_id}"
    brought = newest.tables.get(table.name, ()) if newest is not None else ()
    limits = [json.loads(action.stats) for action in brought]
    lows, highs = ([one.get(name, {}).get(_OFFSET) for one in limits] for name in ("minValues", "maxValues"))
    if brought and None not in {*lows, *highs} and _OFFSET in columns:
        there = there.filter((ds.field(_OFFSET) >= min(lows)) & (ds.field(_OFFSET) <= max(highs)))
    expected = sum(action.rows for action in brought)
    if there.num_rows >= expected:
        return ""
    return (
        f"has {there.num_rows:,} of at least {expected:,} rows where run {store.prepared} of store {store.store_id} "
        "brought some: was it copied before that run, or were rows deleted?"
    )
