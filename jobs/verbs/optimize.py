"""`optimize`: few large files instead of many small ones, and nothing on disk that no reader needs."""

from collections.abc import Sequence

import click

from jobs.command.answer import Answer, Stopwatch, answer_options
from jobs.command.places import WRITTEN
from jobs.console.amounts import counted, size_text
from jobs.console.exit_codes import ExitCode
from jobs.console.result import Result
from jobs.console.severity import Severity
from jobs.lake.commit import open_table
from jobs.lake.compaction import Group, Saved, compact, estimate, merge_group, vacuum
from jobs.lake.inflation import WITH_BODIES, inflate, inflate_file
from jobs.lake.integrity import newest_runs, refuse_unsupported
from jobs.lake.lake import Lake
from jobs.lake.runs import commit_prepared, known_stores, unfinished
from jobs.lake.table_file import Action
from jobs.lake.tables import RUNS, WRITTEN_BY_RUNS, Table
from jobs.lake.upkeep import newest_rows
from jobs.launch.session import spark_session
from jobs.storage.locations import normalise
from jobs.store.workers import SparkWorkers, Workers
from rmq_formats.errors import FormatError


class NotALake(FormatError):
    """There are no tables of ours."""


def optimize(
    location: str, workers: Workers | None = None, *, dry_run: bool = False, with_inflated: bool = False
) -> list[Saved]:
    """
    Finish what runs left prepared, merge small files, delete what is obsolete; return what that saved, by table.

    With *dry_run*, only look at what there would be to merge and to delete. Compressed bodies *with_inflated* ones.
    """
    workers = workers or SparkWorkers(spark_session("rmq-lake optimize"))
    lake = Lake(normalise(location), workers.options)
    if open_table(lake, RUNS.name) is None:
        reason = "no lake: it has no table `runs`"
        raise NotALake(reason, None, lake.location)
    refuse_unsupported(lake, WRITTEN_BY_RUNS)

    def inflated(table: Table) -> int:
        if not with_inflated or table not in WITH_BODIES:
            return 0
        return inflate(lake, table, lambda work: workers.map(work, inflate_file, "inflating bodies"), dry_run=dry_run)

    if dry_run:
        newest = newest_rows(lake)
        return [
            estimate(lake, table, newest if table is RUNS else ())._replace(inflated=inflated(table))
            for table in WRITTEN_BY_RUNS
        ]
    for store in known_stores(lake):
        leftover = unfinished(lake, store)  # its files are named by its manifest alone: the vacuum would take them
        if leftover is not None:
            newest_runs(lake, store, is_done=False)
            commit_prepared(lake, leftover)

    def merge(groups: Sequence[Group]) -> list[Action | None]:
        return workers.map(groups, merge_group, "merging files")

    saved = []
    for table in WRITTEN_BY_RUNS:
        spared = newest_rows(lake) if table is RUNS else ()
        merged = compact(lake, table, spared=spared, merge=merge)
        bodies = inflated(table)
        saved.append(merged._replace(vacuumed=vacuum(lake, table), inflated=bodies))
    return saved


@click.command(epilog="\b\nExamples:\n  rmq-lake optimize /data/lake\n  rmq-lake optimize --dry-run /data/lake")
@click.argument("lake", metavar="LAKE", type=WRITTEN)
@click.option("--dry-run", is_flag=True, help="Say what there is to merge and to delete; change nothing.")
@click.option(
    "--inflate", "with_inflated", is_flag=True,
    help="Add body_inflated to messages that were taken without it; files with compressed bodies are written again.",
)  # fmt: skip
@answer_options
def command(*, lake: str, dry_run: bool, with_inflated: bool, answer: Answer) -> ExitCode:
    """
    Compact the tables of LAKE and delete what no version of the last seven days needs.

    Rows and their order in the log stay as they are; runs may go on meanwhile.
    """
    watch = Stopwatch()
    saved = optimize(lake, dry_run=dry_run, with_inflated=with_inflated)
    lines = [f"  {_text(table, dry_run=dry_run)}" for table in saved]
    merged, deleted = sum(table.merged for table in saved), sum(table.vacuumed for table in saved)
    would = "would be " * dry_run
    what = f"{counted(merged, 'file')} {would}merged, {counted(deleted, 'obsolete file')} {would}deleted"
    result = Result(Severity.HEALTHY, what, watch.seconds, verdict="dry run" if dry_run else "done")
    answer.give([table._asdict() for table in saved], [lake, *lines], result)
    return ExitCode.CLEAN


def _text(saved: Saved, *, dry_run: bool) -> str:
    inflated = counted(saved.inflated, "body")
    if dry_run:
        before = f"{saved.merged:,} files of {size_text(saved.bytes_before)}"
        merged = f"{before} would become {saved.written:,}, size not known yet"
        return (
            f"{saved.table}: {merged if saved.merged else 'nothing to merge'}; "
            f"{counted(saved.vacuumed, 'obsolete file')} would be deleted"
            + f"; {inflated} would be inflated"
            * bool(saved.inflated)
        )
    merged = f"{saved.merged:,} files merged into {saved.written:,}" if saved.merged else "nothing to merge"
    size = f", {size_text(saved.bytes_before)} into {size_text(saved.bytes_after or 0)}" if saved.merged else ""
    deleted = f"{counted(saved.vacuumed, 'obsolete file')} deleted"
    return f"{saved.table}: {merged}{size}; {deleted}" + f"; {inflated} inflated" * bool(saved.inflated)
