"""Upkeep of a lake while runs follow each other for months: done every now and then, after a run."""

from contextlib import suppress
from math import ceil

from deltalake.exceptions import CommitFailedError

from jobs.lake.commit import A_DAY, CONFIGURATION, FILES_KEPT, LOG_KEPT, open_table, own_table, paths
from jobs.lake.compaction import MANY, Saved, compact, vacuum
from jobs.lake.lake import Lake
from jobs.lake.runs import Manifest, forget, known_stores, unfinished
from jobs.lake.table_file import FileNaming
from jobs.lake.tables import RUNS, WRITTEN_BY_RUNS
from jobs.lake.writers import writer_of

_MANIFESTS_KEPT = 64
_RUNS_BETWEEN_VACUUMS = 64
_HOURS = 24
_ID_LENGTH = 36  # of a store's id, with which the name of a run's file begins


def keep_up(lake: Lake, manifest: Manifest) -> list[Saved]:
    """Merge a store's small files when there are many, and drop what is obsolete for long; most runs do nothing."""
    if manifest.run % MANY:
        return []
    naming = FileNaming(manifest.store_id, manifest.run)
    saved = []
    for table in WRITTEN_BY_RUNS:
        spared = newest_rows(lake) if table is RUNS else ()
        saved.append(compact(lake, table, many=MANY, of=naming, spared=spared))
    if manifest.run % _RUNS_BETWEEN_VACUUMS == 0 and not any(unfinished(lake, store) for store in known_stores(lake)):
        for table in WRITTEN_BY_RUNS:
            vacuum(lake, table)
    forget(lake, manifest, _MANIFESTS_KEPT)
    return saved


def expect_many_commits(lake: Lake, every_s: float) -> None:
    """
    Keep little of what is obsolete in tables that get a commit every few seconds for weeks.

    Whoever commits lists the log: it keeps some 3,600 steps, an hour for each second between two, a day at most.
    Replaced files are kept for a day, as queries that have begun read them.
    """
    wanted = {LOG_KEPT: f"interval {min(max(ceil(every_s), 1), _HOURS)} hours", FILES_KEPT: A_DAY}
    for table in WRITTEN_BY_RUNS:
        snapshot = own_table(lake, table.name)
        if snapshot is None:
            continue
        there = snapshot.metadata().configuration
        # Not what somebody has set.
        short = {name: value for name, value in wanted.items() if there.get(name) == CONFIGURATION[name]}
        if short:
            with suppress(CommitFailedError):  # another process commits at this moment; the next start asks again
                writer_of(snapshot).set_properties(snapshot, short)


def newest_rows(lake: Lake) -> tuple[str, ...]:
    """
    Return how the files of each store's newest run are called in `runs`.

    They stay as they are: whoever looks whether a commit was its own looks for its file.
    """
    snapshot = open_table(lake, RUNS.name)
    newest: dict[str, int] = {}
    for path in paths(snapshot) if snapshot is not None else ():
        store_id, run = path[:_ID_LENGTH], path[_ID_LENGTH + 1 :].partition("-")[0]
        if run.isdigit():
            newest[store_id] = max(newest.get(store_id, 0), int(run))
    return tuple(f"{store_id}-{run}-" for store_id, run in newest.items())
