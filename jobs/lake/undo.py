"""
Undo the newest runs of a store: their rows are removed from all tables, and the next run reads the range again.

An undo is a separate run, with the state of the run before those that it undoes: its row in `runs` is the commit point,
and any later run completes it. Rows are recognized by the part of the log, of the queues and of the index that they
describe; typed tables lose theirs with the next `type`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from jobs.console.result import RequestError
from jobs.lake import integrity
from jobs.lake.commit import open_table
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import LakeStore, refresh_newest_run
from jobs.lake.lock import hold_lock
from jobs.lake.manifest import QUEUES_STATE, TABLES_BEFORE_KEY, Manifest, read_manifest_of_row, read_plain_queue_ends
from jobs.lake.run_rows import read_prepared_row
from jobs.lake.runs import commit_prepared, find_unfinished_run, prepare_run, vectors_error
from jobs.lake.snapshot_files import list_snapshot_files
from jobs.lake.tables import PRODUCT_TABLES, TABLES_BY_NAME, WRITTEN_BY_RUNS
from jobs.storage.locations import is_local
from jobs.storage.model import file_exists


def undo_runs(lake: Lake, store: LakeStore, first_run: int) -> Manifest:
    """
    Undo *first_run* and all later runs of a store; return the run that undid them, also if it existed before.

    Raises `RequestError` if a run cannot be undone: it changed rows of earlier runs, or the state before it is no
    longer stored.
    """
    integrity.refuse_unsupported_tables(lake, WRITTEN_BY_RUNS)
    with hold_lock(lake, store.store_id):
        lake_store = refresh_newest_run(lake, store)
        newest_manifest = lake_store.newest_manifest
        if newest_manifest is None or not 0 < first_run <= newest_manifest.run:
            runs = "it has no run" if newest_manifest is None else f"its newest run is {newest_manifest.run}"
            raise RequestError(f"{lake.location}: broker {store.broker} has no run {first_run}; {runs}")
        if find_unfinished_run(lake, lake_store) is not None:
            if newest_manifest.undone_from is None:
                raise RequestError(
                    f"{lake.location}: run {newest_manifest.run} was interrupted. Run `ingest` to complete it first"
                )
            commit_prepared(lake, newest_manifest)
        if newest_manifest.undone_from == first_run:
            return newest_manifest
        before = _read_state_before(lake, lake_store, first_run)
        tables = integrity.find_newest_run_by_table(lake, lake_store, is_done=True)
        changed = sorted(tables.keys() & {table.name for table in PRODUCT_TABLES})
        _refuse_deletion_vectors(lake, changed)
        undo = replace(
            before.make_empty_successor(lake_store.next_run, datetime.now(UTC).isoformat(timespec="seconds")),
            broker=lake_store.broker,
            tables=dict.fromkeys(changed, ()),
            state={**before.state, TABLES_BEFORE_KEY: tables},
            undone_from=first_run,
        )
        prepare_run(lake, undo)
        commit_prepared(lake, undo)
        return undo


def _read_state_before(lake: Lake, lake_store: LakeStore, first_run: int) -> Manifest:
    """Return the run before *first_run*; `RequestError` if its state is gone, or a later run changed earlier rows."""
    assert lake_store.newest_manifest is not None
    undone = list(_read_manifests(lake, lake_store, range(first_run, lake_store.newest_manifest.run + 1)))
    for one in undone:
        reasons = {
            "filled gaps": bool(one.filled),
            "backfilled topics": bool(one.backfilled),
            "replaced rows, because the broker had truncated its log": one.superseded is not None,
            "undid runs before it": one.undone_from is not None and one.undone_from < first_run,
        }
        reason = next((text for text, is_true in reasons.items() if is_true), None)
        if reason is not None:
            raise RequestError(f"{lake.location}: run {one.run} {reason}, so only runs after it can be undone")
    if first_run == 1:
        start = undone[0].from_offset
        return replace(
            undone[0], to_offset=start, store_timestamp=None, fingerprints=lake_store.registered_fingerprints, state={}
        )
    (before,) = _read_manifests(lake, lake_store, range(first_run - 1, first_run))
    if not all(file_exists(lake.open, path) for path in before.state_files):
        raise _lost_state_error(lake, first_run)
    queues = cast("dict[str, Any]", before.state.get(QUEUES_STATE) or {"queues": []})
    read_plain_queue_ends(lake, queues)  # an error before anything is written
    return before


def _read_manifests(lake: Lake, lake_store: LakeStore, runs: range) -> Iterator[Manifest]:
    for run in runs:
        row = read_prepared_row(lake, lake_store.store_id, run)
        if not file_exists(lake.open, row["manifest"]):
            raise _lost_state_error(lake, run + 1)
        yield read_manifest_of_row(lake, row)


def _refuse_deletion_vectors(lake: Lake, tables: Iterable[str]) -> None:
    """Raise `UnsupportedTableError` if rows would have to be removed from files that cannot be replaced."""
    for name in () if is_local(lake.location) else tables:
        snapshot = open_table(lake, name)
        files = () if snapshot is None else list_snapshot_files(lake, snapshot, TABLES_BY_NAME[name])
        if any(file.kept_row_mask is not None for file in files):
            raise vectors_error(lake, name, "rows of a run were to be undone; nothing was written")


def _lost_state_error(lake: Lake, run: int) -> RequestError:
    return RequestError(
        f"{lake.location}: the state before run {run} is no longer stored, so it cannot be undone; the lake keeps "
        "it for the newest runs only"
    )
