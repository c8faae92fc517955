"""`optimize`: few large files instead of many small ones, and nothing on disk that no reader needs."""

from typing import TYPE_CHECKING

import click

from jobs.command.answer import Answer, answer_options
from jobs.command.engine import engine_option, start_workers
from jobs.command.iceberg import Registrations, iceberg_option
from jobs.command.places import CHANGED_LAKE
from jobs.console.amounts import counted, size_text
from jobs.console.exit_codes import ExitCode
from jobs.console.result import Result
from jobs.console.severity import Severity
from jobs.launch.arguments import file_system_options
from jobs.storage.locations import normalise

if TYPE_CHECKING:
    from jobs.lake.iceberg import Target
    from jobs.lake.writers import Saved


@click.command(
    epilog="\b\nExamples:\n  rmq-lake optimize /data/lake\n  rmq-lake optimize --dry-run /data/lake\n"
    "  rmq-lake optimize --heal --dry-run /data/lake"
)
@click.argument("lake", metavar="LAKE", type=CHANGED_LAKE)
@click.option("--dry-run", is_flag=True, help="Show which files would be merged and deleted; change nothing.")
@click.option(
    "--heal",
    is_flag=True,
    help="Restore transactions of runs lost from Delta's log by CREATE TABLE … AS SELECT, CLONE or a short retention "
    "of transactions; nothing is merged or deleted. With --dry-run, show which would be restored.",
)
@iceberg_option
@engine_option
@answer_options
def command(  # noqa: PLR0913 - a command's options
    *,
    lake: str,
    dry_run: bool,
    heal: bool,
    iceberg: "Target | None",
    engine: str,
    answer: Answer,
) -> ExitCode:
    """
    Compact the tables of LAKE, and delete files that no version of the last seven days needs.

    Rows and their order do not change; ingest runs may continue at the same time.
    """
    if heal:
        return _heal(lake, answer, dry_run=dry_run)
    ready = start_workers(engine, lake, warm="jobs.lake.compaction")

    # While the JVM starts, Python imports its modules.
    from jobs.lake.lake import Lake
    from jobs.lake.upkeep import optimize

    workers = ready()
    saved = optimize(lake, workers, dry_run=dry_run)
    registrations = Registrations(None if dry_run else iceberg)
    registrations.register(Lake(normalise(lake), workers.options))
    lines = [f"  {_text(table, dry_run=dry_run)}" for table in saved]
    merged, deleted = sum(table.merged for table in saved), sum(table.vacuumed for table in saved)
    would = "would be " * dry_run
    what = f"{counted(merged, 'file')} {would}merged, {counted(deleted, 'obsolete file')} {would}deleted"
    result = Result(Severity.HEALTHY, what, answer.seconds, verdict="dry run" if dry_run else "done")
    answer.give([table._asdict() for table in saved], [lake, *lines], result)
    registrations.raise_failure()
    return ExitCode.CLEAN


def _heal(lake: str, answer: Answer, *, dry_run: bool) -> ExitCode:
    """Put lost transactions back, or say which ones would be."""
    from jobs.lake.integrity import lost_transactions, put_back
    from jobs.lake.lake import Lake

    where = Lake(normalise(lake), file_system_options())
    lost = lost_transactions(where)
    if not dry_run:
        put_back(where, lost)
    doubts = sum(bool(one.doubt) for one in lost)
    lines = [
        f"  {one.table}: the log knows {one.known} of {one.app}, rows prove {one.number}"
        if not one.doubt
        else f"  {one.table}: cannot be healed: {one.doubt}"
        for one in lost
    ]
    what = f"{counted(len(lost), 'transaction')} {'would be ' * dry_run}put back"
    what += f", {counted(doubts, 'table')} cannot be healed" * bool(doubts)
    severity = Severity.DAMAGE if doubts else Severity.HEALTHY
    result = Result(severity, what, answer.seconds, verdict="dry run" if dry_run else "done")
    answer.give([one._asdict() for one in lost], [lake, *lines], result)
    return severity.exit_code


def _text(saved: "Saved", *, dry_run: bool) -> str:
    if dry_run:
        before = f"{saved.merged:,} files of {size_text(saved.bytes_before)}"
        merged = f"{before} would become {saved.written:,}, size not known yet"
        return (
            f"{saved.table}: {merged if saved.merged else 'nothing to merge'}; "
            f"{counted(saved.vacuumed, 'obsolete file')} would be deleted"
        )
    merged = f"{saved.merged:,} files merged into {saved.written:,}" if saved.merged else "nothing to merge"
    size = f", {size_text(saved.bytes_before)} into {size_text(saved.bytes_after or 0)}" if saved.merged else ""
    deleted = f"{counted(saved.vacuumed, 'obsolete file')} deleted"
    return f"{saved.table}: {merged}{size}; {deleted}"
