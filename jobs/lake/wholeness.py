"""
Whether a lake is whole: every table holds what its runs say that it holds.

Each commit of a run leaves its number in the table. So a table that was deleted, or put back from an older copy, shows
before anything is read or written: a new empty one in its place would hide that rows are lost, and a number that is
taken already would let a commit pass for one that was made.
"""

from collections.abc import Mapping

from jobs.lake.commit import open_table
from jobs.lake.runs import KnownStore, Lake, Manifest, known_stores, lake_tables
from jobs.lake.superseded import REWRITTEN
from jobs.lake.tables import RUNS
from jobs.storage import join

STATE = "tables"  # in a manifest's state: the newest run of each table before this one


def newest_runs(lake: Lake, store: KnownStore, *, is_done: bool) -> dict[str, int]:
    """
    Return the store's newest run in each table, once its newest run is committed; `OSError` when one lacks a run.

    *is_done*: the newest run is marked done, so every table has it.
    """
    newest = store.newest
    number = newest.run if newest else 0
    own = committed_by(newest) if newest else frozenset()
    before: Mapping[str, int] | None = newest.state.get(STATE) if newest else {}
    found = {}
    for table in lake_tables():
        location = join(lake.location, table.name)
        snapshot = open_table(lake.location, table.name, lake.options)
        run = (snapshot.transaction_version(store.store_id) or 0) if snapshot is not None else 0
        earlier = before.get(table.name, 0) if before is not None else None  # a lake of an older version does not tell
        wanted = number if table.name in own and is_done else earlier
        if wanted and snapshot is None:
            raise OSError(f"{location}: this table is gone, and with it what {wanted} runs brought; put it back")
        too_new = run > number or (run == number and number and table.name not in own)
        if too_new or (wanted is not None and run < wanted):
            should = wanted if wanted is not None else f"at most {number}"
            reason = "was it or `runs` put back from a copy?"
            raise OSError(f"{location}: has run {run} of store {store.store_id} and should have run {should}; {reason}")
        found[table.name] = number if table.name in own else run
    return {name: run for name, run in found.items() if run}


def committed_by(manifest: Manifest) -> frozenset[str]:
    """Return the tables that a run commits to."""
    return frozenset({*manifest.tables, *(REWRITTEN if manifest.superseded else ())})


def refuse_tables_without_runs(lake: Lake) -> None:
    """Refuse to begin a lake where one was: every message would come twice."""
    for table in lake_tables():
        if open_table(lake.location, table.name, lake.options) is not None and not known_stores(lake):
            reason = f"this table is gone; without it nobody knows what {table.name} holds already"
            raise OSError(f"{join(lake.location, RUNS.name)}: {reason}")
