"""
Lake maintenance: `optimize` merges small files and deletes obsolete ones, and some runs do this for their store.

A process that follows a store for months needs no other maintenance.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import ceil

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError

from jobs.lake.commit import (
    FILE_RETENTION_PROPERTY,
    LOG_RETENTION_PROPERTY,
    ONE_DAY_INTERVAL,
    TABLE_PROPERTIES,
    keeps_replaced_files_briefly,
    open_table,
)
from jobs.lake.compaction import (
    MAX_SMALL_FILES,
    SMALL_FILE_BYTES,
    MergeGroup,
    cluster_by_hash,
    estimate_savings,
    merge_group,
    merge_small_files,
    vacuum,
)
from jobs.lake.features import needs_spark
from jobs.lake.integrity import newest_run_by_table, refuse_unsupported_tables
from jobs.lake.lake import Lake
from jobs.lake.runs import Manifest, commit_prepared, delete_manifests_up_to, find_unfinished_run, list_known_stores
from jobs.lake.snapshots import cache_snapshots
from jobs.lake.table_file import AddedFile, FileNaming
from jobs.lake.tables import INDEX_FILES, RUNS, WRITTEN_BY_RUNS, Table
from jobs.lake.writers import CHECKPOINT_INTERVAL, Savings, set_properties
from jobs.storage.locations import normalise_location
from jobs.store.workers import Workers
from rmq_formats.errors import NotAStore


@cache_snapshots()
def optimize(location: str, workers: Workers, *, dry_run: bool = False) -> list[Savings]:
    """Finish prepared runs, merge small files, delete obsolete ones (*dry_run*: only count); return the savings."""
    lake = Lake(normalise_location(location), workers.options)
    if open_table(lake, RUNS.name) is None:
        reason = "not a lake: it has no table `runs`"
        raise NotAStore(reason, None, lake.location)
    refuse_unsupported_tables(lake, WRITTEN_BY_RUNS)

    if dry_run:
        return [estimate_savings(lake, table) for table in WRITTEN_BY_RUNS]
    for store in list_known_stores(lake):
        leftover = find_unfinished_run(lake, store)  # only its manifest names its files: the vacuum would delete them
        if leftover is not None:
            newest_run_by_table(lake, store, is_done=False)
            commit_prepared(lake, leftover)

    def merge(groups: Sequence[MergeGroup]) -> list[AddedFile | None]:
        return workers.map(groups, merge_group, "merging files")

    saved = []
    for table in WRITTEN_BY_RUNS:
        merged = merge_small_files(lake, table, merge=merge)
        if table.sorted_by is not None:
            merged = merged.plus(cluster_by_hash(lake, table, merge))
        saved.append(merged._replace(vacuumed=vacuum(lake, table)))
    return saved


_MANIFESTS_KEPT = 64
_RUNS_BETWEEN_VACUUMS = 64
_MOST_TURNS = 4  # runs from one turn of a large table to the next
_HOURS = 24
_KEPT_SHORTER = (RUNS, INDEX_FILES)  # readers need them only briefly: a quarter of the time is enough
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
CHECKPOINTS_KEPT = 4  # the newest ones, and before them each fourth


def merge_and_vacuum(lake: Lake, manifest: Manifest) -> list[Exception]:
    """
    Merge a store's small files if there are many, and delete long obsolete ones; most runs do nothing here.

    Return the errors of tables: the run is committed, and an unreadable file must not stop the maintenance of other
    tables.
    """
    naming = FileNaming(manifest.store_id, manifest.run)
    errors: list[Exception] = []
    for number, table in enumerate(WRITTEN_BY_RUNS):
        if _is_due(manifest, table, number):
            with _collecting_errors(errors):
                merge_small_files(lake, table, many=MAX_SMALL_FILES, of=naming)
    if manifest.run % MAX_SMALL_FILES:
        return errors
    with _collecting_errors(errors):
        is_any_at_work = any(find_unfinished_run(lake, store) for store in list_known_stores(lake))
        for table in WRITTEN_BY_RUNS if manifest.run % _RUNS_BETWEEN_VACUUMS == 0 else ():
            with _collecting_errors(errors):
                vacuum(lake, table, manifest.store_id)
                _thin_checkpoints(lake, table)
                if not is_any_at_work:
                    vacuum(lake, table)
        delete_manifests_up_to(lake, manifest.store_id, manifest.run - _MANIFESTS_KEPT)
    return errors


@contextmanager
def _collecting_errors(errors: list[Exception]) -> Iterator[None]:
    try:
        yield
    except (OSError, DeltaError, pa.ArrowException) as error:  # any: the run, which is committed, reports it
        errors.append(error)


def _is_due(manifest: Manifest, table: Table, number: int) -> bool:
    """
    Return whether small files of a table are merged after a run; *number* is the table's among those of runs.

    The next step waits for a merge. If runs write many rows, files are merged as soon as their sum is not small, and
    messages and index in different runs: merging sixteen runs of 100,000 messages took six seconds of one run.
    """
    size = sum(action.size for action in manifest.tables.get(table.name, ()))
    if size < SMALL_FILE_BYTES // MAX_SMALL_FILES:
        return manifest.run % MAX_SMALL_FILES == 0
    turns = max(min(_MOST_TURNS, SMALL_FILE_BYTES // size), 2)
    return (manifest.run + number + 2) % turns == 0


def _thin_checkpoints(lake: Lake, table: Table) -> None:
    """
    Delete three out of four older checkpoints of a log that gets a commit every few seconds.

    Each checkpoint lists every replaced file that is still kept. Readers need only the newest one; time travel replays
    more commits. Files that another engine writes have other names, or are in a log that it owns.
    """
    snapshot = open_table(lake, table.name)
    if snapshot is None or not keeps_replaced_files_briefly(snapshot) or needs_spark(snapshot):
        return
    log = f"{table.name}/_delta_log"
    found = [int(name[1]) for info in lake.list_files(log) if (name := _CHECKPOINT.fullmatch(info.name))]
    for version in sorted(found)[:-CHECKPOINTS_KEPT]:
        if version // CHECKPOINT_INTERVAL % CHECKPOINTS_KEPT:
            lake.delete(f"{log}/{version:020d}.checkpoint.parquet")


def shorten_file_retention(lake: Lake, every_s: float) -> None:
    """
    Configure tables that get a commit every few seconds for weeks to keep few obsolete files.

    Each commit lists the log, which keeps about 3,600 steps: one hour if steps are a second apart, one day at most.
    Replaced files are kept for the same time: each step leaves one per table.
    """
    hours = min(max(ceil(every_s), 1), _HOURS)
    for table in WRITTEN_BY_RUNS:
        snapshot = open_table(lake, table.name, own=True)
        if snapshot is None:
            continue
        there = snapshot.metadata().configuration
        # Values that users set stay: Delta refuses a log that is kept for a shorter time than the files.
        ours = {TABLE_PROPERTIES[FILE_RETENTION_PROPERTY], ONE_DAY_INTERVAL}  # a day: of earlier versions
        if there.get(FILE_RETENTION_PROPERTY, ONE_DAY_INTERVAL) not in ours:
            continue
        kept = f"interval {hours * (15 if table in _KEPT_SHORTER else 60)} minutes"
        short = {FILE_RETENTION_PROPERTY: kept}
        if there.get(LOG_RETENTION_PROPERTY) == TABLE_PROPERTIES[LOG_RETENTION_PROPERTY]:
            short[LOG_RETENTION_PROPERTY] = kept
        with suppress(CommitFailedError):  # another process commits at this moment; the next start tries again
            set_properties(snapshot, short)
