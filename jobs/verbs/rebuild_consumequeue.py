"""`rebuild-consumequeue`: queues rebuilt from a store's log, and put in place if asked."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

import click

from jobs.command.answer import Answer, answer_options
from jobs.command.engine import StoreRun, engine_option
from jobs.command.options import StoreForm, StorePlace, bundled, given_words, read_options, store_options
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
from jobs.launch.failures import shown_as_usage
from jobs.storage.locations import is_local, local_path
from jobs.store.rocksdb import check_installed
from rmq_formats.errors import UnsupportedFormat
from rmq_formats.store import CONSUME_QUEUE_FOLDER

if TYPE_CHECKING:
    from jobs.rebuild.queue_run import Summary

_ROCKSDB = "rocksdb"


class _QueueOutput(NamedTuple):
    """The output directory of the queues, and their form."""

    out: str
    to: str


@click.command(epilog="\b\nExamples:\n  rmq-lake rebuild-consumequeue /data/rocketmq/store --out /data/queues\n  "
               "rmq-lake rebuild-consumequeue STORE --out DIR --broker-conf broker.conf --release 4.9.8\n  "
               "rmq-lake rebuild-consumequeue STORE --out DIR --dry-run")  # fmt: skip
@store_options
@bundled(
    "made",
    _QueueOutput,
    click.option(
        "--out",
        required=True,
        type=WRITTEN,
        metavar="DIR",
        help="An empty or new directory for <topic>/<queue id>/…, or for the folder of the database.",
    ),
    click.option(
        "--to",
        type=click.Choice(["files", _ROCKSDB]),
        default="files",
        show_default=True,
        help="Write files, or the database that a 5.x broker opens with storeType=defaultRocksDB.",
    ),
)
@rebuild_options("Keep correct queue files; write only lost or wrong ones.")
@read_options
@engine_option
@answer_options
def command(  # noqa: PLR0913 - one argument an option
    *,
    place: StorePlace,
    made: _QueueOutput,
    how: RebuildForm,
    form: StoreForm,
    engine: str,
    answer: Answer,
) -> ExitCode:
    """
    Rebuild the queues of STORE from its log.

    As files: DIR/<topic>/<queue id>/<20 digits>, byte for byte a broker's. As a database: DIR/consumequeue, with the
    rows of a broker.
    """
    root, out = place.store, made.out
    if not is_local(out):
        raise click.UsageError(f"--out {out}: queues are written front to back, into a directory of this machine")
    refuse_used(out)
    target = Path(local_path(out))
    if made.to == _ROCKSDB:
        _refuse_for_database(root, target, how)
    if how.wants_install and not how.dry_run:
        refuse_beside_broker(root)
    run = StoreRun(place, engine, form.max_rate, warm="jobs.rebuild.queue_run")
    from jobs.rebuild.dry_run import dry_run_of_queues
    from jobs.rebuild.install import plan_queues
    from jobs.rebuild.queue_run import RebuildQueuesRequest, rebuild
    from jobs.rebuild.queues import Target

    request = RebuildQueuesRequest(
        root,
        target,
        form.wanted(run.conf).conf,
        form.release,
        lost_only=how.lost_only,
        to=Target(made.to),
        commitlog=run.commitlog,
        care=run.care,
    )
    if how.only_says:
        would = dry_run_of_queues(request, run.workers.options)
        return answer.end(would, would.lines())
    with held_for_install(place, out, how) as held:
        summary = rebuild(request, run.workers)
        answer.begin(_lines(summary))
        if how.wants_install:
            summary.installed = put_in_place(partial(plan_queues, root, target), answer, held)
    is_to_install = summary.files and summary.has_place and not how.wants_install
    more = [] if how.lost_only else ["--lost-only"]
    rebuilt = Rebuilt(
        root, out, summary.replaced, summary.installed, more if is_to_install else None, given_words(place, form)
    )
    return give_rebuilt(rebuilt, asdict(summary), summary.result(answer.seconds), answer)


def _refuse_for_database(store: str, out: Path, how: RebuildForm) -> None:
    """Refuse options with which no database can be made."""
    if how.lost_only:
        raise click.UsageError("--lost-only keeps files that are right; a database is made as one: leave it out")
    if how.wants_install:
        raise click.UsageError(
            "--install: a database is not put in place, for the broker's configuration must change with it "
            "(storeType=defaultRocksDB). Make it without, stop the broker, then paste\n"
            + "\n".join(_placing(store, out / CONSUME_QUEUE_FOLDER))
        )
    with shown_as_usage(UnsupportedFormat):
        check_installed(str(out), "write")


def _placing(store: str, made: Path) -> Iterator[str]:
    """Yield the commands that put a database in place: the old folder stays next to it."""
    root = Path(local_path(store)) if is_local(store) else Path("STORE")
    place, old, owner = root / made.name, root / f"{made.name}.replaced", root
    if place.exists():
        yield f"  mv -T {quote(str(place))} {quote(str(old))}"
        owner = old
    there = quote(str(place))
    yield f"  mv -T {quote(str(made))} {there} && chown -R --reference={quote(str(owner))} {there}"


def _lines(summary: "Summary") -> Iterator[str]:
    yield f"{summary.store} → {summary.out}"
    units, records = counted(summary.units, "unit"), counted(summary.records, "record")
    yield f"  {units} of {records} in {counted(summary.queues, 'queue')}"
    files = counted(summary.files, "file")
    if summary.to == _ROCKSDB:
        yield f"  a RocksDB database of {files}, for a broker with storeType=defaultRocksDB"
        yield "  to put it in place while the broker is stopped:"
        yield from (f"  {line}" for line in _placing(summary.store, Path(summary.out, summary.folder)))
    else:
        yield f"  {files} of {summary.file_size:,} bytes"
    yield f"  rules of RocketMQ {summary.release} ({summary.release_origin})"
    yield from (f"  GAP {start:,} to {end:,}: no file holds this part of the log" for start, end in summary.gaps)
    yield from (f"  NOTE {note}" for note in summary.notes)
    if summary.lost_only:
        yield f"  kept {counted(summary.kept, 'file')} of the store; {summary.proof}"
        yield from (
            f"  CONTRADICTION {path}: it stays, for a record of the log may be wrong" for path in summary.contradictions
        )
