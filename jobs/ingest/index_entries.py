"""
How a run takes the index along: keys are counted in its ranges, then one task a file makes the new entries.

The log is decoded a second time for them, from the page cache, and only for keys: packed keys with their texts would be
as much to write and to read as the decoding costs. What retention deletes meanwhile is taken from rows just written.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from jobs.ingest.range_task import RangeResult, RangeWork
from jobs.lake.commit import open_table
from jobs.lake.lake import Lake
from jobs.lake.log_rows import records
from jobs.lake.runs import KnownStore
from jobs.lake.snapshot_files import files
from jobs.lake.table_file import Action
from jobs.lake.tables import INDEX_ENTRIES, INDEX_FILES, MESSAGES
from jobs.products.index.key_row import Kept
from jobs.products.index.product import Begun, EntryRows, file_rows, plan, state_of, write
from jobs.store.chain import Outcome
from jobs.store.ranges import Range
from jobs.store.store import Store
from jobs.store.workers import Workers

STATE = "index"


class Made(NamedTuple):
    """Files of both tables, what the next run must know, and ranges that were deleted before all keys were taken."""

    entries: list[Action]
    files: list[Action]
    state: dict[str, Any]
    short: list[Range]


def make_entries(  # noqa: PLR0913, PLR0917 - what the steps before have found
    workers: Workers,
    begun: Begun,
    store: Store,
    work: RangeWork,
    outcomes: Sequence[Outcome[RangeResult]],
    to_offset: int,
) -> Made:
    """Write the run's new entries."""
    counted = [(outcome.range, outcome.payload.keys) for outcome in outcomes if outcome.payload.keys is not None]
    kept = [_rows(work, outcome.payload) for outcome in outcomes if outcome.payload.keys is not None]
    planned = plan(begun, store, counted, partial(_files_with, work.lake, work.naming.store_id), kept)
    opened = partial(work.file, INDEX_ENTRIES)
    written: list[EntryRows] = workers.map(
        planned, partial(write, open_file=opened, storage=store.storage, store_id=work.naming.store_id)
    )
    entries = [action for rows in written for action in rows.actions if isinstance(action, Action)]
    short = {range_.start_offset: range_ for rows in written for range_ in rows.short}
    return Made(entries, _index_files(work, begun, written), state_of(begun, written, to_offset), list(short.values()))


def _rows(work: RangeWork, result: RangeResult) -> Kept:
    """Give the records of a range as this run has written them."""
    action = result.files.get(MESSAGES.name)
    names = [action.path] if action else []
    return partial(records, lake=work.lake, names=names, store_id=work.naming.store_id)


def _index_files(work: RangeWork, begun: Begun, written: Sequence[EntryRows]) -> list[Action]:
    rows = file_rows(begun, written, work.naming.run)
    with work.file(INDEX_FILES, "headers") as file:
        if rows:
            file.write_rows(rows)
        action = file.close()
        return [action] if action else []


def _files_with(lake: Lake, store_id: str, ordinal: int) -> list[str]:
    """Name the Parquet files that may hold entries of an index file."""
    snapshot = open_table(lake, INDEX_ENTRIES.name)
    if snapshot is None:
        return []
    return [
        f"{lake.location}/{INDEX_ENTRIES.name}/{file.path}"
        for file in files(snapshot)
        if file.may_hold(store_id) and file.low("index_file", ordinal) <= ordinal <= file.high("index_file", ordinal)
    ]


def state_before(store: KnownStore, back_to: int | None) -> Mapping[str, Any] | None:
    """
    Return what the last run left.

    Where the broker cut off its log, keys of the new records follow the entries of the old ones, as in its own files.
    """
    state: Mapping[str, Any] | None = store.newest.state.get(STATE) if store.newest else None
    if state is None or back_to is None:
        return state
    return {**state, "to_offset": min(state["to_offset"], back_to)}
