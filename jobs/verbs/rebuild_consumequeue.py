"""`rebuild-consumequeue`: queues written again from a store's log, and put in place if asked."""

import json
from pathlib import Path
from typing import Any

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
    store_options,
)
from jobs.command.places import WRITTEN
from jobs.console.exit_codes import ExitCode
from jobs.console.log import say
from jobs.rebuild.dry_run import dry_run_of_queues
from jobs.rebuild.install import RefusedError, broker_kept_out
from jobs.rebuild.queue_install import install_queues, plan_queue_installation
from jobs.rebuild.queue_run import Request, Summary, is_unused, look, rebuild
from jobs.storage.locations import is_local, local_path
from jobs.store.beside_broker import broker_process, care_beside, check_room
from jobs.store.known import UndecidedError
from jobs.store.store import list_store

_SHARE_OF_LOG = 0.7  # of the log's size: scratch of 40 bytes a unit and files of 20, where records are small


@click.command(epilog="\b\nExamples:\n  rmq-lake rebuild-consumequeue /data/rocketmq/store --out /data/queues\n  "
               "rmq-lake rebuild-consumequeue STORE --out DIR --broker-conf broker.conf --release 4.9.8\n  "
               "rmq-lake rebuild-consumequeue STORE --out DIR --dry-run")  # fmt: skip
@store_options
@click.option(
    "--out",
    required=True,
    type=WRITTEN,
    metavar="DIR",
    help="An empty directory, or a new one, for <topic>/<queue id>/….",
)
@click.option("--lost-only", is_flag=True, help="Keep the queue files that are right; write what is lost or wrong.")
@click.option("--install", "wants_install", is_flag=True, help="Put the files into the stopped broker's store.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Say what would be built, and write nothing; with --install, build into DIR, and leave the store as it is.",
)
@max_rate_option
@form_options
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
    max_rate: int | None,
    form: StoreForm,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """Write the queues of STORE again from its log: DIR/<topic>/<queue id>/<20 digits>, byte for byte a broker's."""
    root = place.store
    target = _output(out)
    from jobs.launch.session import hadoop_options, spark_session
    from jobs.store.workers import SparkWorkers

    conf = place.conf()
    directories = place.log_directories(conf)
    care = care_beside(root, max_rate)
    spark = spark_session("rmq-lake rebuild-consumequeue", half=care is not None)
    if broker_process(root) is not None:
        if wants_install:
            raise click.UsageError(f"{root}: the broker runs (it holds the file `lock`); stop it first")
        store = list_store(root, commitlog=directories, options=hadoop_options(spark))
        check_room(root, out, int(sum(segment.size for segment in store.segments) * _SHARE_OF_LOG))
    request = Request(
        root,
        target,
        directories,
        conf,
        form.consume_queue_size,
        form.release,
        care=care,
        lost_only=lost_only,
    )
    try:
        if dry_run and not wants_install:
            listed, settings = look(request, hadoop_options(spark), care)
            return say_dry_run(dry_run_of_queues(listed, out, settings), as_json=as_json, quiet=quiet)
        summary = rebuild(request, SparkWorkers(spark), hadoop_options(spark))
    except UndecidedError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        click.echo(json.dumps(_described(summary), indent=1))
    elif not quiet:
        say(_text(summary))
    if wants_install and not summary.contradictions:
        _install(root, target, dry_run=dry_run)
    return summary.exit_code


def _output(out: str) -> Path:
    """Return the directory to write into; a usage error for one that must not be."""
    if not is_local(out):
        raise click.UsageError(f"--out {out}: queues are written front to back, into a directory of this machine")
    target = Path(local_path(out))
    if not is_unused(target):
        raise click.UsageError(f"--out {out}: the directory is not empty")
    return target


def _install(store: str, source: Path, *, dry_run: bool) -> None:
    try:
        with broker_kept_out(store):
            plan = plan_queue_installation(store, source)
            for line in plan.describe():
                say(f"  {'would be ' if dry_run else ''}{line}")
            if not dry_run:
                install_queues(plan)
    except RefusedError as error:
        raise click.UsageError(f"not installed: {error}") from error


def _described(summary: Summary) -> dict[str, Any]:
    return {name: getattr(summary, name) for name in Summary.__dataclass_fields__}


def _text(summary: Summary) -> str:
    """Return the summary for people."""
    lines = [
        f"{summary.store} → {summary.out}",
        f"  {summary.units} units of {summary.records} records in {summary.queues} queues",
        f"  {summary.files} files of {summary.file_size} bytes, as RocketMQ {summary.release} writes them",
        f"  release {summary.release_origin}",
        *(f"  GAP {start} to {end}: no file holds this part of the log" for start, end in summary.gaps),
        *(f"  NOTE {note}" for note in summary.notes),
    ]
    if summary.lost_only:
        lines += [
            f"  kept {summary.kept} files of the store; {summary.proof}",
            *(f"  REPLACED {path}" for path in summary.replaced),
            *(f"  CONTRADICTS {path}" for path in summary.contradictions),
        ]
    if summary.contradictions:
        lines.append("  nothing was written: these files are not of this log")
    return "\n".join(lines)
