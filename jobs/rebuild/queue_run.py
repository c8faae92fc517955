"""
Rebuilds a store's queues from its log: all of them, or the lost ones.

The steps: list the store, determine geometry and rules, collect the units of every range, write each group of queues in
a task, check every file from this process, keep the store's files that are right, and record in MANIFEST.json the
rebuilt files, the rules, the proofs, and the facts that the log does not contain.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jobs.console.amounts import count_text
from jobs.console.result import RatedOutcome, Result, Severity, worst_severity_met
from jobs.diagnosis.log_check import complete_checks, list_doubtful_ranges, new_range_check
from jobs.products.queues.join import collect_log_units, collect_topic_evidence_with_queues, compare_queues
from jobs.products.queues.settings import (
    NOTHING_RECORDED,
    QueueSettings,
    determine_queue_settings,
)
from jobs.rebuild.lost_queues import keep_needed_files
from jobs.rebuild.output import remove_output_on_error
from jobs.rebuild.queue_database import build_database, describe_database, notes_of_database, stored_queue_ends
from jobs.rebuild.queues import BuiltQueue, QueueRecipe, build_queues, count_note, queue_names_text
from jobs.requests.rebuild import FILES, ROCKSDB, RebuildQueuesRequest
from jobs.storage.local import LocalStorage, flush_directory, make_directory
from jobs.storage.scratch import open_scratch
from jobs.store.queue_ends import probe_queue_ends
from jobs.store.queue_storage import QueueStorage, detect_queue_storage, rocksdb_queue_directory
from jobs.store.ranges import find_holes
from jobs.store.release import ASSUMED, unknown_setting_error
from jobs.store.running_broker import check_disk_space
from jobs.store.store import Store
from jobs.store.topics import TopicFate, collect_topic_evidence, find_newest_time_by_topic
from jobs.store.workers import Workers
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName
from rmq_formats.consumequeue.layout import DEFAULT_FILE_SIZE
from rmq_formats.rocksdb.build import QueueRowBuilder
from rmq_formats.store import CONSUME_QUEUE_DIRECTORY

MANIFEST_FILE = "MANIFEST.json"
_IN_MANIFEST = (
    "from_offset",
    "records",
    "units",
    "notes",
    "gaps",
    "blanks",
    "lost_only",
    "replaced",
    "removed",
    "proof",
)
# Disk space as a part of the log's size, with small records: 40 bytes of scratch for each unit, and 20 bytes of queue
# files or 80 bytes of tables (two copies of 40).
_SHARES_OF_LOG = {FILES: 0.7, ROCKSDB: 1.4}


@dataclass(slots=True)
class QueueRebuildSummary(RatedOutcome):
    """The summary of a rebuild."""

    store: str
    out: str
    release: str
    release_origin: str
    file_size: int
    from_offset: int = 0
    records: int = 0
    units: int = 0
    queues: int = 0
    files: int = 0
    damaged_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)  # offsets of the log that are in no file
    blanks: int = 0  # the number of blank units in place of units of lost records
    lost_only: bool = False
    kept: int = 0  # the number of correct files of the store
    replaced: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)  # misnamed copies of right files, which an installation sets aside
    contradictions: list[str] = field(default_factory=list)  # files that the log contradicts, and may be right
    of_unknown_topics: list[str] = field(default_factory=list)  # missing files: the topic may be deleted
    proof: str = ""
    has_lost_end: bool = False
    log_bytes: int = 0  # bytes of the log that were read
    to: str = FILES
    folder: str = ""  # the directory of the database, below `out`
    has_place: bool = True  # whether the store can take these files, because its own queues are not in RocksDB
    installed: bool = False  # the files are in the store
    written_queues: Sequence[BuiltQueue] = ()  # with the files that an installation takes; not part of the JSON form

    @property
    def severity(self) -> Severity:
        """The worst remaining severity; only `verify` can report a store as healthy."""
        return worst_severity_met(
            gap=self.gaps or self.has_lost_end or self.of_unknown_topics,
            damage=self.damaged_bytes or ((self.replaced or self.removed) and not self.installed),
            contradiction=self.contradictions,
        )

    def result(self, seconds: float) -> Result:
        """Return the result line."""
        verdict = "done, no problems found" if self.severity is Severity.NOT_VERIFIED else ""
        done = "written and installed" if self.installed else "written"
        what = f"{count_text(self.queues, 'queue')}, {count_text(self.units, 'unit')} {done}"
        if self.contradictions:
            what = f"{what}; files that contradict the log: {len(self.contradictions):,}"
        return Result(self.severity, what, seconds, self.log_bytes, verdict)

    def to_dict(self) -> dict[str, object]:
        """Return the summary for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "written_queues"}


def rebuild_queues(request: RebuildQueuesRequest, workers: Workers) -> QueueRebuildSummary:
    """Write the queues and the manifest to the output directory; after an error, remove the written files."""
    store, settings = list_and_determine_settings(request, workers.options, workers.processes)
    out = request.out.absolute()  # a relative path is one of ours, not of the tasks
    make_directory(out)
    with remove_output_on_error(out):
        return _write_queues(request, workers, store, settings, out)


def _write_queues(
    request: RebuildQueuesRequest, workers: Workers, store: Store, settings: QueueSettings, out: Path
) -> QueueRebuildSummary:
    is_database = request.to == ROCKSDB
    plain = settings.file_sizes[QueueKind.PLAIN]
    summary = QueueRebuildSummary(
        store.root, str(request.out), settings.releases.value.text, settings.releases.origin_text,
        plain.value,
        lost_only=request.lost_only, log_bytes=store.log_size, to=request.to,
        # The directory in which a broker expects the database.
        folder=(rocksdb_queue_directory(store) or CONSUME_QUEUE_DIRECTORY) if is_database else "",
        has_place=not is_database and detect_queue_storage(store) is not QueueStorage.ROCKSDB,
    )  # fmt: skip
    if plain.origin == ASSUMED and not (is_database or (request.recorded_formats or NOTHING_RECORDED).sizes):
        summary.notes.append(f"queue files of {plain.value:,} bytes ({plain.origin_text})")
    every: Sequence[BuiltQueue | QueueRowBuilder]
    needed: Sequence[BuiltQueue | QueueRowBuilder]
    with open_scratch(request.scratch or str(out), {}) as scratch:
        rules = replace(settings.rules, in_rocksdb=is_database)
        seen = probe_queue_ends(workers, store) if request.lost_only else None  # before the log is read
        topics = (
            collect_topic_evidence_with_queues(store, seen.queues, request.recorded_topics)
            if seen is not None
            else None
        )
        shared, others = scratch if request.group_count > 1 else None, [new_range_check] if request.lost_only else []
        log, outcomes = collect_log_units(
            workers, store, rules, request.group_count, shared, request.range_size, others
        )
        summary.from_offset, summary.records = log.start, log.record_count
        summary.gaps = [(first, last) for _, first, last in find_holes(store.segments) if first >= log.start]
        summary.damaged_bytes = sum(end - first for first, end in log.damaged_ranges)
        recipe = QueueRecipe(
            rules,
            {kind: known.value for kind, known in settings.file_sizes.items()},
            settings.ext_file_size,
            request.group_count,
            str(out),
            scratch,
            lost_log_ranges=tuple(sorted([*summary.gaps, *log.damaged_ranges])),
            segment_base_offsets=tuple(segment.base_offset for segment in store.segments),
            compared_store=(store.root, store.storage) if request.lost_only else None,
        )
        if is_database:
            files, queues, carried = build_database(workers, recipe, log.ranges, store, out / summary.folder)
            every, needed, described_files = queues, queues, describe_database(files, queues, carried)
            summary.files = len(files)
            summary.notes += notes_of_database(queues, carried, recipe.rules.batch_topics)
            summary.notes += _notes_of_log(summary, store, log.damaged_ranges, queues)
        else:
            built = made = build_queues(workers, recipe, log.ranges)
            summary.notes += [
                *_notes_of_queues(store, recipe, built),
                *_notes_of_log(summary, store, log.damaged_ranges, built),
            ]
            _check_file_sizes(out, built)
            if seen is not None and topics is not None:
                joined = compare_queues(workers, store, settings.rules, seen, log, topics)
                checks = complete_checks(outcomes, 0, settings.releases.value)
                doubtful = {start for start, _ in list_doubtful_ranges(checks, includes_undecided=True)}
                made = keep_needed_files(store, settings, joined, doubtful, built, request, summary)
            summary.files = sum(len(queue.files) for queue in made)
            every, needed, described_files, summary.written_queues = built, made, describe_files(made), made
    summary.units, summary.queues = sum(queue.units for queue in needed), len(needed)
    summary.blanks = sum(queue.blanks for queue in every)
    if not request.lost_only:
        summary.notes += _notes_of_topics(store, every)
    _write_manifest(out, summary, recipe, described_files)
    return summary


def _check_file_sizes(out: Path, queues: Sequence[BuiltQueue]) -> None:
    """Raise `OSError` if a written file does not have its size here: tasks may have run on other machines."""
    written = ((queue, file) for queue in queues for file in queue.files if file.path not in queue.stored_paths)
    for path, expected in ((out / file.path, file.size) for _, file in written):
        size = path.stat().st_size
        if size != expected:
            raise OSError(f"{path} has {size:,} bytes, but {expected:,} were written. Rebuild into a new directory")


def _write_manifest(
    out: Path, summary: QueueRebuildSummary, recipe: QueueRecipe, described_files: Mapping[str, object]
) -> None:
    """Write the manifest of the output directory to the disk: the settings, the amounts and the files."""
    manifest = {
        **{name: getattr(summary, name) for name in ("store", "to", "release", "release_origin")},
        "file_size": {kind.value: size for kind, size in recipe.file_sizes.items()},
        "ext_file_size": recipe.ext_file_size,
        "delay_levels": recipe.rules.delay_levels,
        "batch_topics": sorted(recipe.rules.batch_topics),
        **{name: getattr(summary, name) for name in _IN_MANIFEST},
        **described_files,
    }
    LocalStorage().create(
        str(out / MANIFEST_FILE), json.dumps(manifest, indent=1, ensure_ascii=False).encode("utf-8", "replace")
    )
    flush_directory(out)


def _notes_of_topics(store: Store, queues: Sequence[BuiltQueue | QueueRowBuilder]) -> Iterator[str]:
    """Yield the queues whose topics were deleted, or may have been deleted."""
    topics = collect_topic_evidence(store)
    names: dict[TopicFate, list[QueueName]] = {fate: [] for fate in TopicFate}
    newest = find_newest_time_by_topic((queue.name.topic, queue.newest_ms) for queue in queues)
    for queue in queues:
        names[topics.fate(queue.name.topic, newest[queue.name.topic])].append(queue.name)
    if deleted := names[TopicFate.DELETED]:
        yield f"rebuilt queues of deleted topics: {len(deleted):,} ({queue_names_text(deleted)})"
    if topics.topics_with_queues and (undecided := names[TopicFate.UNDECIDED]):
        why = topics.explain_undecided(undecided[0].topic)
        named = queue_names_text(undecided)
        yield f"rebuilt queues that may belong to deleted topics: {len(undecided):,} ({named}): {why}"


def list_and_determine_settings(
    request: RebuildQueuesRequest, options: Mapping[str, str], processes: int = 1
) -> tuple[Store, QueueSettings]:
    """List the store and determine its settings; raise `UndecidedError` if one must be given."""
    store = request.list_store(options, processes)
    store.refuse_lost_log()
    check_disk_space(store.root, str(request.out), int(store.log_size * _SHARES_OF_LOG[request.to]))
    given = request.given_settings
    settings = determine_queue_settings(store, given.conf, given.release, request.recorded_formats or NOTHING_RECORDED)
    if request.proven_only and settings.file_sizes[QueueKind.PLAIN].origin == ASSUMED:
        # A broker with another queue file size does not start.
        raise unknown_setting_error(
            "the size of the broker's queue files", ("--consume-queue-size", str(DEFAULT_FILE_SIZE))
        )
    return store, settings


def _notes_of_queues(store: Store, recipe: QueueRecipe, queues: Sequence[BuiltQueue]) -> Iterator[str]:
    """Yield the facts that the log does not contain, and the differences from a healthy log."""
    plain = [queue for queue in queues if queue.name.kind is QueueKind.PLAIN]
    yield from count_note(
        "queues that start after queue offset 0",
        {queue.name: queue.first_queue_offset > 0 for queue in plain},
        "Their earlier messages were deleted, and the units of these messages in the first file are blank",
    )
    yield from count_note(
        "records without a unit",
        {queue.name: queue.skipped for queue in queues},
        "Their queue offsets are below the end of the queue, so a broker skips them",
    )
    yield from count_note(
        "units that are not at the position of their queue offset",
        {queue.name: queue.misplaced for queue in queues},
        "This happens when a broker appends units after a gap in the queue offsets",
    )
    yield from count_note(
        "queues that are not written",
        {queue.name: not queue.files for queue in queues},
        "The name of their topic is not a valid directory name",
    )
    if recipe.ext_file_size is not None:
        yield "ConsumeQueueExt units have no filter bitmaps, because the log does not contain them"
    if detect_queue_storage(store) is QueueStorage.ROCKSDB:
        yield (
            "this store's queues are in RocksDB (storeType=defaultRocksDB); the rebuilt files are for storeType=default"
        )
        yield from count_note(
            "queues without messages in the log",
            dict.fromkeys(sorted(stored_queue_ends(store, {queue.name for queue in queues})), 1),
            "No files are written for these queues, so the broker restarts them at queue offset 0",
        )
    yield from count_note(
        "lost records for which blank units were written",
        {queue.name: queue.blanks for queue in queues},
        "Later units therefore keep their queue offsets, and consumers skip blank units",
    )
    yield from count_note(
        "intact messages that consumers may miss",
        {queue.name: queue.hidden for queue in queues},
        "A broker that reaches a blank unit in these queues skips all remaining messages of the first segment (offset "
        "0). Restore the lost bytes first, from a lake or a replica, and rebuild again",
    )


def _notes_of_log(
    summary: QueueRebuildSummary,
    store: Store,
    damaged: Sequence[tuple[int, int]],
    queues: Sequence[BuiltQueue | QueueRowBuilder],
) -> Iterator[str]:
    """Yield the facts that an incomplete log does not contain."""
    last = max((end for _, end in summary.gaps), default=0)
    yield from count_note(
        "queues without messages after the last gap",
        {queue.name: queue.last_physical_offset < last for queue in queues},
        "Their ends are unknown, and consumer offsets may be past them",
    )
    if summary.damaged_bytes:
        places = store.describe_places(start for start, _ in damaged)
        yield (
            f"damaged bytes of the log: {summary.damaged_bytes:,} ({places}); the queues lack the units of the damaged "
            "records"
        )


def describe_files(queues: Sequence[BuiltQueue]) -> dict[str, object]:
    """Return the manifest's entries of queue files."""
    return {
        "belongs": {
            "*": "consumequeue",
            "batchconsumequeue": "batchconsumequeue",
            "consumequeue_ext": "consumequeue_ext",
        },
        "sha256_is_of": "the first `written` bytes of a file; zeros follow",
        "queues": [queue.to_dict() for queue in queues],
    }
