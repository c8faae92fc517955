"""`rebuild-consumequeue`: queues written again from a store's log, and put in place if asked."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.command.answer import Answer, Stopwatch, answer_options
from jobs.command.failures import shown_as_usage
from jobs.command.options import StoreForm, StorePlace, read_options, store_options
from jobs.command.places import WRITTEN
from jobs.command.rebuilds import RebuildForm, put_in_place, rebuild_options, refuse_beside_broker, say_dry_run
from jobs.console.amounts import counted
from jobs.console.exit_codes import ExitCode
from jobs.storage.locations import is_local, local_path
from jobs.store.beside_broker import care_beside
from jobs.store.known import UndecidedError

if TYPE_CHECKING:
    from jobs.rebuild.queue_run import Summary

_NAME = "rmq-lake rebuild-consumequeue"


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
@rebuild_options("Keep the queue files that are right; write what is lost or wrong.")
@read_options
@answer_options
def command(
    *,
    place: StorePlace,
    out: str,
    how: RebuildForm,
    form: StoreForm,
    answer: Answer,
) -> ExitCode:
    """Write the queues of STORE again from its log: DIR/<topic>/<queue id>/<20 digits>, byte for byte a broker's."""
    watch = Stopwatch()
    root = place.store
    from jobs.launch.session import begin_session, spark_session

    if not is_local(out):
        raise click.UsageError(f"--out {out}: queues are written front to back, into a directory of this machine")
    target = Path(local_path(out))
    if how.wants_install:
        refuse_beside_broker(root)
    conf = place.conf()
    care = care_beside(root, form.max_rate)
    begin_session(_NAME, half=care is not None, warm="jobs.rebuild.queue_run")

    # Beside the start of a JVM, Python imports what is needed.
    from jobs.rebuild.dry_run import dry_run_of_queues
    from jobs.rebuild.queue_install import install_queues, plan_queue_installation
    from jobs.rebuild.queue_run import RebuildQueuesRequest, is_unused, rebuild
    from jobs.store.workers import SparkWorkers

    if not is_unused(target):
        raise click.UsageError(f"--out {out}: the directory is not empty")
    workers = SparkWorkers(spark_session(_NAME))
    request = RebuildQueuesRequest(
        root,
        target,
        conf,
        form.consume_queue_size,
        form.release,
        lost_only=how.lost_only,
        commitlog=place.log_directories(conf),
        care=care,
    )
    with shown_as_usage(UndecidedError):
        if how.only_says:
            return say_dry_run(dry_run_of_queues(request, workers.options), answer, watch.seconds)
        summary = rebuild(request, workers)
    result = summary.result(watch.seconds)
    fields = asdict(summary)
    described = {**fields, "severity": summary.severity.value, "seconds": result.seconds}
    answer.give(described, _lines(summary), result)
    if how.wants_install and not summary.contradictions:
        put_in_place(root, partial(plan_queue_installation, root, target), install_queues, answer, dry_run=how.dry_run)
    return summary.exit_code


def _lines(summary: "Summary") -> Iterator[str]:
    """Yield the summary for people."""
    yield f"{summary.store} → {summary.out}"
    units, records = counted(summary.units, "unit"), counted(summary.records, "record")
    yield f"  {units} of {records} in {counted(summary.queues, 'queue')}"
    files = counted(summary.files, "file")
    yield f"  {files} of {summary.file_size:,} bytes, as RocketMQ {summary.release} writes them"
    yield f"  release {summary.release_origin}"
    yield from (f"  GAP {start:,} to {end:,}: no file holds this part of the log" for start, end in summary.gaps)
    yield from (f"  NOTE {note}" for note in summary.notes)
    if summary.lost_only:
        yield f"  kept {counted(summary.kept, 'file')} of the store; {summary.proof}"
        yield from (f"  REPLACED {path}" for path in summary.replaced)
        yield from (f"  CONTRADICTION {path}" for path in summary.contradictions)
    if summary.contradictions:
        yield "  nothing was written: these files are not of this log"
