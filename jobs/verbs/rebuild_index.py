"""`rebuild-index`: index files written again from a store's log, and put in place if asked."""

import json
from pathlib import Path

import click

from jobs.command.configuration import config_option
from jobs.command.dry_run import say_dry_run
from jobs.command.options import (
    StoreForm,
    StorePlace,
    form_options,
    json_option,
    max_rate_option,
    quiet_option,
    report_option,
    store_options,
)
from jobs.command.places import WRITTEN
from jobs.console.exit_codes import ExitCode
from jobs.console.log import say
from jobs.products.index.settings import Wanted
from jobs.rebuild.dry_run import dry_run_of_index
from jobs.rebuild.index import MANIFEST, Request, Result, is_unused, rebuild
from jobs.rebuild.install import RefusedError, broker_kept_out, install, plan_installation
from jobs.report.of_rebuild_index import report_of
from jobs.report.output import write_report
from jobs.store.beside_broker import broker_process, care_beside, check_room
from jobs.store.known import UndecidedError
from jobs.store.store import list_store

_SHARE_OF_LOG = 0.5  # of the log's size, what index files and scratch files take at most where keys are usual


@click.command(epilog="\b\nExamples:\n  rmq-lake rebuild-index /data/rocketmq/store --out /data/index\n  "
               "rmq-lake rebuild-index STORE --out DIR --lost-only --dry-run\n  "
               "rmq-lake rebuild-index STORE --out DIR --lost-only --install --dry-run")  # fmt: skip
@store_options
@click.option(
    "--out", required=True, type=WRITTEN, metavar="DIR", help="An empty directory, or a new one; a path or a URI."
)
@click.option("--lost-only", is_flag=True, help="Keep the index files that are there; write those that are missing.")
@click.option("--install", "wants_install", is_flag=True, help="Put the files into the stopped broker's store.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Say what would be built, and write nothing; with --install, build into DIR, and leave the store as it is.",
)
@click.option(
    "--advance-checkpoint",
    is_flag=True,
    help="With --install, after a crash: keep the broker from deleting the files at its start.",
)
@max_rate_option
@form_options
@report_option
@json_option
@quiet_option
@config_option
def command(  # noqa: PLR0913 - one argument an option
    *,
    place: StorePlace,
    out: str,
    lost_only: bool,
    wants_install: bool,
    dry_run: bool,
    advance_checkpoint: bool,
    max_rate: int | None,
    form: StoreForm,
    report: Path | None,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """Write the index files of STORE again from its log into DIR, byte for byte a broker's."""
    from jobs.launch.session import hadoop_options, spark_session
    from jobs.store.workers import SparkWorkers

    root = place.store
    if advance_checkpoint and not wants_install:
        raise click.UsageError("--advance-checkpoint belongs to --install")
    only_says = dry_run and not wants_install
    if only_says and report is not None:
        raise click.UsageError("--report belongs to a run: this --dry-run writes nothing")
    conf = place.conf()
    care = care_beside(root, max_rate)
    spark = spark_session("rmq-lake rebuild-index", half=care is not None)
    options = hadoop_options(spark)
    if not is_unused(out, options):
        raise click.UsageError(f"--out {out}: the directory is not empty")
    request = Request(
        root,
        out,
        Wanted(form.hash_slots, form.index_num, form.release, form.time_zone, conf),
        place.log_directories(conf),
        lost_only,
        broker_process(root) is not None,
        care=care,
    )
    if request.broker_runs and wants_install:
        raise click.UsageError(f"{root}: the broker runs (it holds the file `lock`); stop it first")
    if request.broker_runs:
        store = list_store(root, commitlog=request.commitlog, options=options)
        check_room(root, out, int(sum(segment.size for segment in store.segments) * _SHARE_OF_LOG))
    try:
        if only_says:
            return say_dry_run(dry_run_of_index(request, options), as_json=as_json, quiet=quiet)
        result = rebuild(request, SparkWorkers(spark), options)
    except UndecidedError as error:
        raise click.UsageError(str(error)) from error
    _tell(result, report, as_json=as_json, quiet=quiet)
    if wants_install and not result.contradictions:
        _install(root, out, dry_run=dry_run, advance_checkpoint=advance_checkpoint)
    return result.exit_code


def _tell(result: Result, report: Path | None, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        click.echo(json.dumps(result.describe(), indent=1))
    elif not quiet:
        say(_text(result))
    if report is not None:
        write_report(report, report_of(result))


def _install(store: str, out: str, *, dry_run: bool, advance_checkpoint: bool) -> None:
    try:
        with broker_kept_out(store):
            plan = plan_installation(store, out, advance_checkpoint=advance_checkpoint)
            for line in plan.describe():
                say(f"  {'would be ' if dry_run else ''}{line}")
            if not dry_run:
                install(plan)
    except RefusedError as error:
        raise click.UsageError(f"not installed: {error}") from error


def _text(result: Result) -> str:
    """Return the summary for people."""
    lines = [
        f"{result.store} → {result.out}",
        f"  {result.row_keys} keys of {result.records} messages",
        *result.settings.lines(),
    ]
    lines += [
        f"  {entry['role'].upper()} {entry['name']}: {entry['verdict']}; {entry['detail']}"
        for entry in result.survivors
        if entry["role"] != "kept"
    ]
    if result.contradictions:
        lines.append("  nothing was written: these files are not what any known release leaves")
        return "\n".join(lines)
    lines += [
        "  {name} {kind} {keys} keys, {is_}proven: {proof}".format(is_="" if file["proven"] else "not ", **file)
        for file in result.files
    ]
    lines += [f"  GAP {start} to {end}: no file holds this part of the log" for start, end in result.gaps]
    lines += [f"  LEFT OUT {text}" for text in result.left_out]
    if result.damaged_bytes:
        lines.append(
            f"  {result.damaged_bytes} bytes of the log are damaged: keys of the records lost there are missing"
        )
    lines.append(f"  {len(result.files)} {'file' if len(result.files) == 1 else 'files'} and {MANIFEST}")
    return "\n".join(lines)
