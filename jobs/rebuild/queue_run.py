"""
A store's queues, written again from its log: all of them, or the lost ones.

The story: list the store, learn its geometry and rules, collect the units of every range, let one task write each group
of queues, check every file from this side, keep the store's own files where they are right, and say in MANIFEST.json
what was made, by which rules, what was proven, and what the log could not tell.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from jobs.console.amounts import counted
from jobs.console.result import Result
from jobs.console.severity import Judged, Severity, worst_met
from jobs.products.queues.settings import NOTHING_SEEN, QueueSettings, SeenQueues, settle_queues
from jobs.products.queues.topics import topic_table
from jobs.rebuild.expired_queues import stored_ends
from jobs.rebuild.lost_queues import LostQueues, select_lost
from jobs.rebuild.queue_database import (
    BuiltDatabase,
    build_database,
    database_folder,
    describe_database,
    notes_of_database,
)
from jobs.rebuild.queues import BuiltQueue, QueueRecipe, Target, build_group, collect, discard, named
from jobs.rebuild.unit_files import UnitFile
from jobs.storage.local import LocalStorage, flush_directory
from jobs.storage.scratch import scratch_beside
from jobs.store.beside_broker import check_room
from jobs.store.features import QueueStorage, features_of
from jobs.store.known import ASSUMED
from jobs.store.ranges import holes, plan_ranges
from jobs.store.request import StoreRequest
from jobs.store.retention import ListedLog, read_from, read_what_stays
from jobs.store.store import Store
from jobs.store.workers import Workers
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.consumequeue.unit import QueueKind, QueueName

MANIFEST = "MANIFEST.json"
_GROUPS = 64
# Of the log's size, where records are small: scratch of 40 bytes a unit, and files of 20, or twice tables of 40.
_SHARES_OF_LOG = {Target.FILES: 0.7, Target.ROCKSDB: 1.4}


@dataclass(frozen=True, slots=True)
class RebuildQueuesRequest(StoreRequest):
    """The request of a user."""

    out: Path
    conf: BrokerConf = field(default_factory=BrokerConf)
    file_size: int | None = None
    release: str | None = None
    groups: int = _GROUPS
    lost_only: bool = False
    proven_only: bool = False  # no file whose size is only assumed
    accepted: frozenset[str] = frozenset()  # files that a user has decided: the log is right
    to: Target = Target.FILES
    seen: SeenQueues = NOTHING_SEEN


@dataclass(slots=True)
class Summary(Judged):
    """The summary of a rebuild."""

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
    gaps: list[tuple[int, int]] = field(default_factory=list)  # offsets that no file of the log holds
    blanks: int = 0  # in place of units of records that the log has lost
    lost_only: bool = False
    kept: int = 0  # files of the store that are right
    replaced: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)  # files that the log contradicts, and may be right
    proof: str = ""
    has_lost_end: bool = False
    log_bytes: int = 0  # that were read
    to: str = Target.FILES.value
    folder: str = ""  # of the database, below `out`
    has_place: bool = True  # for these files in the store: its own queues are not in RocksDB

    @property
    def severity(self) -> Severity:
        """The worst severity met, while the store is as it was."""
        return self.severity_of_store(installed=False)

    def severity_of_store(self, *, installed: bool) -> Severity:
        """Return the worst severity that is left; only `verify` can say that a store is healthy."""
        return worst_met(
            gap=self.gaps or self.has_lost_end,
            damage=self.damaged_bytes or (self.replaced and not installed),
            contradiction=self.contradictions,
        )

    def result(self, seconds: float, *, installed: bool = False) -> Result:
        """Return the result line; *installed*: the files are in the store."""
        severity = self.severity_of_store(installed=installed)
        verdict = "done, nothing wrong seen" if severity is Severity.NOT_VERIFIED else ""
        done = "written and installed" if installed else "written"
        what = f"{counted(self.queues, 'queue')}, {counted(self.units, 'unit')} {done}"
        if self.contradictions:
            what = f"{what}, {counted(len(self.contradictions), 'file')} against the log"
        return Result(severity, what, seconds, self.log_bytes, verdict)


def rebuild(request: RebuildQueuesRequest, workers: Workers) -> Summary:
    """Write the queues and the manifest into the output directory."""
    store, settings = look(request, workers.options, workers.width)
    out = request.out.absolute()  # a relative path is one of ours, not of the tasks
    out.mkdir(parents=True, exist_ok=True)
    summary = Summary(
        store.root,
        str(request.out),
        settings.release,
        settings.release_origin,
        settings.file_sizes[QueueKind.PLAIN].value,
        store.end_offset,
        to=request.to.value,
        log_bytes=sum(segment.size for segment in store.segments),
        has_place=request.to is Target.FILES and features_of(store).queues is not QueueStorage.ROCKSDB,
    )
    sizes = {kind: known.value for kind, known in settings.file_sizes.items()}
    with scratch_beside(str(out), {}) as scratch:
        recipe = QueueRecipe(
            replace(settings.rules, in_rocksdb=request.to is Target.ROCKSDB),
            *(sizes, settings.ext_file_size, request.groups, str(out), scratch),
        )
        files, recipe = _read_log(request, workers, recipe, store, summary)
        if request.to is Target.ROCKSDB:
            summary.folder = database_folder(store)
            database = build_database(workers, recipe, files, store, out / summary.folder)
            _take_database(summary, database, recipe, store)
            _write_manifest(request.out, recipe, describe_database(database), summary)
            return summary
        groups = [group for group in range(request.groups) if any(file.sections[group].units for file in files)]
        built = workers.map(groups, partial(build_group, recipe=recipe, ranges=files), "writing queues")
    queues = sorted((queue for group in built for queue in group), key=lambda queue: queue.name)
    summary.units, summary.queues = sum(queue.units for queue in queues), len(queues)
    summary.files = sum(len(queue.files) for queue in queues)
    summary.blanks = sum(queue.blanks for queue in queues)
    plain = settings.file_sizes[QueueKind.PLAIN]
    if plain.origin == ASSUMED and not request.seen.sizes:
        summary.notes.append(f"queue files of {plain.value:,} bytes ({plain.how})")
    summary.notes += [*_notes(store, recipe, queues, summary), *_notes_of_log(summary, _lasts(queues))]
    _check(request.out, queues)
    if request.lost_only:
        lost = select_lost(workers, store, settings, queues, request.out, request.accepted)
        _take(summary, lost)
        queues = lost.queues
    else:
        summary.notes += _note_of_deleted(store, [queue.name for queue in queues])
    _write_manifest(request.out, recipe, describe_files(queues), summary)
    return summary


def _read_log(
    request: RebuildQueuesRequest, workers: Workers, recipe: QueueRecipe, store: Store, summary: Summary
) -> tuple[list[UnitFile], QueueRecipe]:
    """Collect the units of the log; return them, and the recipe with the lost parts of the log."""
    log = ListedLog(store, plan_ranges(store, store.start_offset, request.range_size)).narrow()
    outcomes = read_what_stays(workers, log, partial(collect, recipe), partial(discard, recipe))
    summary.from_offset = read_from(log, outcomes)
    summary.records = sum(outcome.payload.records for outcome in outcomes)
    summary.gaps = [(first, last) for _, first, last in holes(store.segments) if first >= summary.from_offset]
    damaged = [range_ for outcome in outcomes for range_ in outcome.payload.damaged]
    summary.damaged_bytes = sum(end - first for first, end in damaged)
    segments = tuple(segment.base_offset for segment in store.segments)
    lost = tuple(sorted([*summary.gaps, *damaged]))
    return [outcome.payload.units for outcome in outcomes], replace(recipe, lost=lost, segments=segments)


def _take_database(summary: Summary, database: BuiltDatabase, recipe: QueueRecipe, store: Store) -> None:
    """Note the figures of a database."""
    queues = database.queues
    summary.units, summary.queues = sum(queue.units for queue in queues), len(queues)
    summary.files = len(database.files)
    summary.blanks = sum(queue.blanks for queue in queues)
    lasts = [(queue.name, queue.last.physical_offset) for queue in queues]
    summary.notes = [*notes_of_database(database, recipe), *_notes_of_log(summary, lasts)]
    summary.notes += _note_of_deleted(store, [queue.name for queue in queues])


def _note_of_deleted(store: Store, names: Sequence[QueueName]) -> list[str]:
    topics = topic_table(store)
    deleted = [name for name in names if topics.is_deleted(name.topic)]
    return [f"{len(deleted)} queues are of topics that were deleted ({named(deleted)})"] if deleted else []


def _take(summary: Summary, lost: LostQueues) -> None:
    """Note the figures of the selected files."""
    summary.lost_only = True
    summary.queues, summary.units = len(lost.queues), sum(queue.units for queue in lost.queues)
    summary.files = sum(len(queue.files) for queue in lost.queues)
    summary.kept, summary.replaced = len(lost.kept), lost.replaced
    summary.contradictions, summary.proof = lost.undecided, lost.proof
    summary.has_lost_end = lost.has_lost_end
    if lost.has_lost_end:
        summary.notes.append("the log has lost its end: last units of queues lead to messages after it, and stay")


def look(request: RebuildQueuesRequest, options: Mapping[str, str], readers: int = 1) -> tuple[Store, QueueSettings]:
    """List the store and settle its settings; `UndecidedError` for one that has to be given."""
    store = request.listed(options, readers)
    store.require_log()
    check_room(store.root, str(request.out), int(store.log_size * _SHARES_OF_LOG[request.to]))
    settings = settle_queues(store, request.conf, request.release, request.file_size, request.seen)
    if request.proven_only:
        settings.require_known_size()
    return store, settings


def _notes(store: Store, recipe: QueueRecipe, queues: Sequence[BuiltQueue], summary: Summary) -> Iterator[str]:
    """Yield the facts that the log could not tell, and the differences from a healthy log."""
    beginning = [queue for queue in queues if queue.first_queue_offset > 0 and queue.name.kind is QueueKind.PLAIN]
    if beginning:
        yield (
            f"queues that begin after queue offset 0: {len(beginning)} ({_named(beginning)}); the units before are of "
            "deleted messages, and are blanks back to the start of the first file"
        )
    skipped = [queue for queue in queues if queue.skipped]
    if skipped:
        yield (
            f"records without a unit, as a broker drops them: {sum(queue.skipped for queue in skipped)} "
            f"({_named(skipped)}); their queue offset is below the queue's end"
        )
    misplaced = [queue for queue in queues if queue.misplaced]
    if misplaced:
        yield (
            "units that are not where their queue offset says, as a broker appends them: "
            f"{sum(queue.misplaced for queue in misplaced)} ({_named(misplaced)})"
        )
    refused = [queue for queue in queues if not queue.files]
    if refused:
        yield f"queues that are not written: {len(refused)} ({_named(refused)}); no folder can have their topic's name"
    if recipe.ext_file_size is not None:
        yield "ConsumeQueueExt units are made without filter bitmaps, which no log holds"
    if features_of(store).queues is QueueStorage.ROCKSDB:
        yield "this store's own queues are in RocksDB (storeType=defaultRocksDB); these are those of storeType=default"
        ended = sorted(stored_ends(store, {queue.name for queue in queues}))
        if ended:
            yield (
                f"queues without a message in the log any more: {len(ended)} ({named(ended)}); with these files a "
                "broker begins them at 0 again, for there are none of them"
            )
    left_out = [queue for queue in queues if queue.blanks]
    if left_out:
        yield (
            f"blanks in place of units whose records the log has lost: {summary.blanks} ({_named(left_out)}); every "
            "later unit is at its own queue offset, and consumers skip the blanks"
        )


def _notes_of_log(summary: Summary, lasts: Sequence[tuple[QueueName, int]]) -> Iterator[str]:
    """Yield the facts that an incomplete log could not tell; *lasts* are the offsets of each queue's newest record."""
    last = max((end for _, end in summary.gaps), default=0)
    short = [name for name, offset in lasts if summary.gaps and offset < last]
    if short:
        yield (
            f"queues without a message after the last gap: {len(short)} ({named(short)}); where they ended is not "
            "known, and consumers may be ahead of them"
        )
    if summary.damaged_bytes:
        yield f"damaged bytes of the log: {summary.damaged_bytes:,}; units of the records lost there are missing"


def _named(queues: Sequence[BuiltQueue]) -> str:
    return named([queue.name for queue in queues])


def _lasts(queues: Sequence[BuiltQueue]) -> list[tuple[QueueName, int]]:
    return [(queue.name, queue.last_physical_offset) for queue in queues]


def _check(out: Path, queues: Sequence[BuiltQueue]) -> None:
    """See every file from here, too."""
    for queue in queues:
        for file in queue.files:
            size = (out / file.path).stat().st_size
            if size != file.size:
                raise OSError(f"{out / file.path}: {size} bytes, {file.size} were written")


def describe_files(queues: Sequence[BuiltQueue]) -> dict[str, object]:
    """Return the manifest's entries of queues as files."""
    return {
        "belongs": {
            "*": "consumequeue",
            "batchconsumequeue": "batchconsumequeue",
            "consumequeue_ext": "consumequeue_ext",
        },
        "sha256_is_of": "the first `written` bytes of a file; zeros follow",
        "queues": [queue.describe() for queue in queues],
    }


def _write_manifest(out: Path, recipe: QueueRecipe, made: Mapping[str, object], summary: Summary) -> None:
    manifest: dict[str, object] = {
        "store": summary.store,
        "to": summary.to,
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
        "gaps": summary.gaps,
        "blanks": summary.blanks,
        "lost_only": summary.lost_only,
        "replaced": summary.replaced,
        "proof": summary.proof,
        **made,
    }
    LocalStorage().create(
        str(out / MANIFEST), json.dumps(manifest, indent=1, ensure_ascii=False).encode("utf-8", "replace")
    )
    flush_directory(out)
