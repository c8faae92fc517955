"""
`rebuild-consumequeue`: a store's queues, written anew from its log.

The story: list the store, learn its geometry and rules, collect the units of every range, let one task write each group
of queues, check every file from this side, and say in MANIFEST.json what was made, by which rules, and what the log
could not tell.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from jobs.command.configuration import config_option
from jobs.command.dry_run import say_dry_run
from jobs.command.options import (
    WRITTEN,
    StoreForm,
    StorePlace,
    form_options,
    json_option,
    max_rate_option,
    quiet_option,
    store_options,
)
from jobs.console.exit_codes import ExitCode
from jobs.console.log import say
from jobs.products.index.settings import UndecidedError
from jobs.products.queues.settings import QueueSettings, has_rocksdb_queues, settle_queues
from jobs.rebuild.dry_run import dry_run_of_queues
from jobs.rebuild.queues import ATTEMPT, BuiltQueue, Recipe, build_group, collect, discard
from jobs.storage.local import Care, LocalStorage, flush_directory
from jobs.storage.locations import is_local, local_path
from jobs.storage.scratch import scratch_beside
from jobs.store.beside_broker import broker_process, care_beside, check_room
from jobs.store.ranges import DEFAULT_RANGE_SIZE, plan_ranges
from jobs.store.retention import ListedLog, read_what_stays
from jobs.store.store import Store, list_store
from jobs.store.workers import Workers
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.consumequeue.unit import QueueKind

MANIFEST = "MANIFEST.json"
_GROUPS = 64
_SHARE_OF_LOG = 0.7  # of the log's size: scratch of 40 bytes a unit and files of 20, where records are small


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asked for."""

    store: str
    out: Path
    commitlog: Sequence[str] = ()
    conf: BrokerConf = field(default_factory=BrokerConf)
    file_size: int | None = None
    release: str | None = None
    range_size: int = DEFAULT_RANGE_SIZE
    groups: int = _GROUPS
    care: Care | None = None  # how to read the store


@dataclass(slots=True)
class Summary:
    """What was made."""

    store: str
    out: str
    release: str
    release_origin: str
    file_size: int
    from_offset: int
    records: int = 0
    units: int = 0
    queues: int = 0
    files: int = 0
    damaged_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> ExitCode:
        """Damage in the log is told by the exit code; the queues are made all the same."""
        return ExitCode.DAMAGE if self.damaged_bytes else ExitCode.CLEAN


def rebuild(request: Request, workers: Workers, options: dict[str, str]) -> Summary:
    """Write the queues and the manifest into the output directory."""
    store, settings = look(request, options, request.care.shared_by(workers.width) if request.care else None)
    out = request.out.absolute()  # a relative path is one of ours, not of the tasks
    out.mkdir(parents=True, exist_ok=True)
    with scratch_beside(str(out), {}) as scratch:
        recipe = Recipe(
            settings.rules, dict(settings.file_sizes), settings.ext_file_size, request.groups, str(out), scratch
        )
        log = ListedLog(store, plan_ranges(store, store.start_offset, request.range_size))
        outcomes = read_what_stays(workers, log, partial(collect, recipe), partial(discard, recipe))
        files = [outcome.payload.units for outcome in outcomes]
        groups = [group for group in range(request.groups) if any(file.sections[group].units for file in files)]
        built = workers.map(groups, partial(build_group, recipe=recipe, ranges=files))
    queues = sorted((queue for group in built for queue in group), key=lambda queue: queue.name)
    summary = Summary(
        store.root,
        str(request.out),
        settings.release,
        settings.release_origin,
        recipe.file_sizes[QueueKind.PLAIN],
        outcomes[0].range.start_offset if outcomes else store.end_offset,
        sum(outcome.payload.records for outcome in outcomes),
        sum(queue.units for queue in queues),
        len(queues),
        sum(len(queue.files) for queue in queues),
        sum(outcome.payload.damaged for outcome in outcomes),
    )
    summary.notes = list(_notes(store, recipe, queues, summary))
    _check(request.out, queues)
    _write_manifest(request.out, recipe, queues, summary)
    return summary


def look(request: Request, options: dict[str, str], care: Care | None) -> tuple[Store, QueueSettings]:
    """Return what there is and what to build by; `UndecidedError` for what has to be given."""
    store = list_store(request.store, commitlog=request.commitlog, options=options, care=care)
    return store, settle_queues(store, request.conf, request.release, request.file_size)


def _notes(store: Store, recipe: Recipe, queues: Sequence[BuiltQueue], summary: Summary) -> Iterator[str]:
    """Yield what the log could not tell, and what differs from a healthy log."""
    beginning = [queue for queue in queues if queue.first_queue_offset > 0 and queue.name.kind is QueueKind.PLAIN]
    if beginning:
        yield (
            f"{len(beginning)} queues begin behind queue offset 0: the units before are of deleted messages, and stand "
            f"as blanks back to the start of the first file ({_named(beginning)})"
        )
    skipped = [queue for queue in queues if queue.skipped]
    if skipped:
        yield (
            f"{sum(queue.skipped for queue in skipped)} records got no unit, as a broker drops them: their queue "
            f"offset is below the queue's end ({_named(skipped)})"
        )
    misplaced = [queue for queue in queues if queue.misplaced]
    if misplaced:
        yield (
            f"{sum(queue.misplaced for queue in misplaced)} units do not stand where their queue offset says, as a "
            f"broker appends them ({_named(misplaced)})"
        )
    refused = [queue for queue in queues if not queue.files]
    if refused:
        yield f"{len(refused)} queues are not written: no folder can have their topic's name ({_named(refused)})"
    if recipe.ext_file_size is not None:
        yield "ConsumeQueueExt units are made without filter bitmaps, which no log holds"
    if has_rocksdb_queues(store):
        yield "this store's own queues are in RocksDB (storeType=defaultRocksDB); these are those of storeType=default"
    if summary.damaged_bytes:
        yield f"{summary.damaged_bytes} bytes of the log are damaged: units of the records lost there are missing"


def _named(queues: Sequence[BuiltQueue]) -> str:
    shown = ", ".join(f"{queue.name.topic!r} {queue.name.queue_id}" for queue in queues[:3])
    return shown if len(queues) <= 3 else f"{shown}, …"  # noqa: PLR2004 - enough to find one


def _check(out: Path, queues: Sequence[BuiltQueue]) -> None:
    """See every file from here, too."""
    for queue in queues:
        for file in queue.files:
            size = (out / file.path).stat().st_size
            if size != file.size:
                raise OSError(f"{out / file.path}: {size} bytes, {file.size} were written")


def _write_manifest(out: Path, recipe: Recipe, queues: Sequence[BuiltQueue], summary: Summary) -> None:
    manifest: dict[str, Any] = {
        "store": summary.store,
        "release": summary.release,
        "release_origin": summary.release_origin,
        "file_size": {kind.value: size for kind, size in recipe.file_sizes.items()},
        "ext_file_size": recipe.ext_file_size,
        "delay_levels": recipe.rules.delay_levels,
        "batch_topics": sorted(recipe.rules.batch_topics),
        "from_offset": summary.from_offset,
        "records": summary.records,
        "units": summary.units,
        "notes": summary.notes,
        "belongs": {
            "*": "consumequeue",
            "batchconsumequeue": "batchconsumequeue",
            "consumequeue_ext": "consumequeue_ext",
        },
        "sha256_is_of": "the first `written` bytes of a file; zeros follow",
        "queues": [queue.describe() for queue in queues],
    }
    LocalStorage().create(
        str(out / MANIFEST), json.dumps(manifest, indent=1, ensure_ascii=False).encode("utf-8", "replace")
    )
    flush_directory(out)


def _unused(path: Path) -> bool:
    """Tell whether nothing is there that the queues could be mixed up with; a killed run's attempts are litter."""
    return not path.exists() or all(child.name.startswith((ATTEMPT, ".scratch-")) for child in path.iterdir())


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
@click.option("--dry-run", is_flag=True, help="Say what would be built, and write nothing.")
@max_rate_option
@form_options
@json_option
@quiet_option
@config_option
def command(  # noqa: PLR0913 - one argument an option
    *,
    place: StorePlace,
    out: str,
    dry_run: bool,
    max_rate: int | None,
    form: StoreForm,
    as_json: bool,
    quiet: bool,
) -> ExitCode:
    """Write the queues of STORE anew from its log: DIR/<topic>/<queue id>/<20 digits>, byte for byte a broker's."""
    root = place.store
    if not is_local(out):
        raise click.UsageError(f"--out {out}: queues are written front to back, into a directory of this machine")
    target = Path(local_path(out))
    if not _unused(target):
        raise click.UsageError(f"--out {out}: the directory is not empty")
    if is_local(root) and target.is_relative_to(local_path(root)):
        raise click.UsageError(f"--out {out}: nothing is written inside a store")
    from jobs.launch.session import hadoop_options, spark_session
    from jobs.store.workers import SparkWorkers

    conf = place.conf()
    directories = place.log_directories(conf)
    care = care_beside(root, max_rate)
    spark = spark_session("rmq-lake rebuild-consumequeue", half=care is not None)
    if broker_process(root) is not None:
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
    )
    try:
        if dry_run:
            store, settings = look(request, hadoop_options(spark), care)
            return say_dry_run(dry_run_of_queues(store, out, settings), as_json=as_json, quiet=quiet)
        summary = rebuild(request, SparkWorkers(spark), hadoop_options(spark))
    except UndecidedError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        click.echo(json.dumps(_described(summary), indent=1))
    elif not quiet:
        say(_text(summary))
    return summary.exit_code


def _described(summary: Summary) -> dict[str, Any]:
    return {name: getattr(summary, name) for name in Summary.__dataclass_fields__}


def _text(summary: Summary) -> str:
    """Return the summary for people."""
    lines = [
        f"{summary.store} → {summary.out}",
        f"  {summary.units} units of {summary.records} records in {summary.queues} queues",
        f"  {summary.files} files of {summary.file_size} bytes, as RocketMQ {summary.release} writes them",
        f"  release {summary.release_origin}",
        *(f"  NOTE {note}" for note in summary.notes),
    ]
    return "\n".join(lines)
