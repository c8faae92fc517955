"""`rebuild-index`: index files rebuilt from a store's log, and put in place if asked."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.command.answer import Answer, answer_options
from jobs.command.engine import StoreRun, engine_option
from jobs.command.options import StoreForm, StorePlace, given_words, read_options, report_option, store_options
from jobs.command.places import WRITTEN, refuse_used
from jobs.command.rebuilds import (
    RebuildForm,
    Rebuilt,
    give_rebuilt,
    held_for_install,
    put_in_place,
    rebuild_options,
    refuse_beside_broker,
)
from jobs.console.amounts import counted
from jobs.console.exit_codes import ExitCode
from jobs.storage.locations import is_local
from jobs.store.beside_broker import broker_process

if TYPE_CHECKING:
    from jobs.rebuild.index import Result


@click.command(epilog="\b\nExamples:\n  rmq-lake rebuild-index /data/rocketmq/store --out /data/index\n  "
               "rmq-lake rebuild-index STORE --out DIR --lost-only --dry-run\n  "
               "rmq-lake rebuild-index STORE --out DIR --lost-only --install --dry-run")  # fmt: skip
@store_options
@click.option("--out", required=True, type=WRITTEN, metavar="DIR", help="An empty or new directory; a path or a URI.")
@rebuild_options("Keep existing index files; write only missing ones.")
@click.option(
    "--advance-checkpoint",
    is_flag=True,
    help="With --install, after a crash: prevent the broker from deleting the files at its next start.",
)
@read_options
@engine_option
@report_option
@answer_options
def command(  # noqa: PLR0913 - one argument an option
    *,
    place: StorePlace,
    out: str,
    how: RebuildForm,
    advance_checkpoint: bool,
    form: StoreForm,
    engine: str,
    report: Path | None,
    answer: Answer,
) -> ExitCode:
    """Rebuild the index files of STORE from its log into DIR, byte for byte as the broker writes them."""
    root = place.store
    if advance_checkpoint and not how.wants_install:
        raise click.UsageError("--advance-checkpoint belongs to --install")
    if how.only_says and report is not None:
        raise click.UsageError("--report belongs to a run: this --dry-run writes nothing")
    refuse_used(out)
    if how.wants_install and not how.dry_run:
        refuse_beside_broker(root)
    run = StoreRun(place, engine, form.max_rate, warm="jobs.rebuild.index")
    from jobs.rebuild.dry_run import dry_run_of_index
    from jobs.rebuild.index import RebuildIndexRequest, rebuild
    from jobs.rebuild.install import plan_index
    from jobs.report.of_rebuild_index import report_of
    from jobs.report.output import write_report

    request = RebuildIndexRequest(
        root,
        out,
        form.wanted(run.conf),
        lost_only=how.lost_only,
        broker_runs=broker_process(root) is not None,
        commitlog=run.commitlog,
        care=run.care,
        options=given_words(place, form),
    )
    if how.only_says:
        would = dry_run_of_index(request, run.workers.options)
        return answer.end(would, would.lines())
    with held_for_install(place, out, how) as held:
        result = rebuild(request, run.workers)
        answer.begin(_lines(result))
        if how.wants_install and not result.contradictions:
            plan = partial(plan_index, root, out, advance_checkpoint=advance_checkpoint)
            result.installed = put_in_place(plan, answer, held)
    outcome = result.result(answer.seconds)
    if report is not None:
        write_report(report, report_of(result, outcome, installs=how.wants_install))
    more = ["--advance-checkpoint"] if result.was_killed and is_local(root) else []
    is_to_install = result.files and not how.wants_install
    rebuilt = Rebuilt(root, out, result.replaced, result.installed, more if is_to_install else None, request.options)
    return give_rebuilt(rebuilt, result.describe(), outcome, answer)


def _lines(result: "Result") -> Iterator[str]:
    from jobs.rebuild.index import MANIFEST

    yield f"{result.store} → {result.out}"
    yield f"  {counted(result.row_keys, 'key')} of {counted(result.records, 'message')}"
    yield from result.settings.lines()
    for entry in result.survivors:
        if entry.role != "kept":
            yield f"  {entry.role.upper()} {entry.name}: {entry.verdict}; {entry.detail}"
    if result.contradictions:
        yield "  nothing was written: these files are not what any known release leaves"
        return
    for file in result.files:
        proven = "proven" if file.proven else "not proven"
        yield f"  {file.name} {file.kind} {counted(file.keys, 'key')}, {proven}: {file.proof}"
    yield from (f"  GAP {start:,} to {end:,}: no file holds this part of the log" for start, end in result.gaps)
    yield from (f"  LEFT OUT {text}" for text in result.left_out)
    if result.damaged_bytes:
        yield f"  DAMAGE {result.damaged_bytes:,} bytes of the log: keys of the records lost there are missing"
    yield f"  {counted(len(result.files), 'file')} and {MANIFEST}"
