"""A lake put in order: few large files instead of many small ones, and nothing on disk that no reader needs."""

from collections.abc import Sequence

from jobs.lake.clustering import cluster
from jobs.lake.commit import open_table
from jobs.lake.compaction import Group, compact, estimate, merge_group, vacuum
from jobs.lake.integrity import newest_runs, refuse_unsupported
from jobs.lake.lake import Lake
from jobs.lake.runs import commit_prepared, known_stores, unfinished
from jobs.lake.snapshots import kept_snapshots
from jobs.lake.table_file import Action
from jobs.lake.tables import RUNS, WRITTEN_BY_RUNS
from jobs.lake.writers import Saved
from jobs.storage.locations import normalise
from jobs.store.workers import Workers
from rmq_formats.errors import FormatError


class NotALake(FormatError):
    """There are no tables of ours."""


@kept_snapshots()
def optimize(location: str, workers: Workers, *, dry_run: bool = False) -> list[Saved]:
    """
    Finish what runs left prepared, merge small files, delete what is obsolete; return what that saved, by table.

    With *dry_run*, only look at what there would be to merge and to delete.
    """
    lake = Lake(normalise(location), workers.options)
    if open_table(lake, RUNS.name) is None:
        reason = "no lake: it has no table `runs`"
        raise NotALake(reason, None, lake.location)
    refuse_unsupported(lake, WRITTEN_BY_RUNS)

    if dry_run:
        return [estimate(lake, table) for table in WRITTEN_BY_RUNS]
    for store in known_stores(lake):
        leftover = unfinished(lake, store)  # its files are named by its manifest alone: the vacuum would take them
        if leftover is not None:
            newest_runs(lake, store, is_done=False)
            commit_prepared(lake, leftover)

    def merge(groups: Sequence[Group]) -> list[Action | None]:
        return workers.map(groups, merge_group, "merging files")

    saved = []
    for table in WRITTEN_BY_RUNS:
        merged = compact(lake, table, merge=merge)
        if table.sorted_by is not None:
            merged = merged.and_then(cluster(lake, table, merge))
        saved.append(merged._replace(vacuumed=vacuum(lake, table)))
    return saved
