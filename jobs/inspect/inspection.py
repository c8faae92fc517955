"""
The inspection of a store: all parts, each of which can use the results of the previous ones, and the verdict.

This module also has the broker's state (running, closed, how far it had flushed), and the number of files by directory.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import islice

from jobs.console.amounts import count_text
from jobs.console.lines import quote_name
from jobs.console.result import Severity
from jobs.diagnosis import predict_start_by_own_walk, unknown_start
from jobs.diagnosis.broker_state import NO_CHECKPOINT, check_broker_state, has_lost_checkpoint
from jobs.dump import short_time_text
from jobs.inspect.log import LogInspector
from jobs.inspect.queues import (
    SampledRecords,
    add_to_sampled_ranges,
    compare_with_sampled_records,
    find_first_message_with_key,
    inspect_index,
    inspect_queues,
    note_index_gaps,
)
from jobs.inspect.report import Problem, Problems, QueuesReport, RocksReport, StateReport, StoreReport
from jobs.launch.arguments import file_system_options
from jobs.query.store_reader import StoreReader
from jobs.storage.locations import join_location
from jobs.store.broker_config import CONFIG_DIRECTORY, TOPICS_FILE, read_broker_config, read_json_file
from jobs.store.epochs import read_epochs
from jobs.store.log_ends import NO_SEGMENTS_ERROR, find_end_after_crash, find_lost_ends
from jobs.store.pending_messages import (
    count_index_rows,
    open_rocksdb_store,
    read_timer_state,
    read_timers,
    read_transactions,
    read_waiting_units,
)
from jobs.store.release import add_marks, find_file_marks, writers_of_eras
from jobs.store.repeated_reads import repeat_read
from jobs.store.rocksdb import Database
from jobs.store.running_broker import find_broker_process
from jobs.store.store import TIER_NOT_READ, Store, find_evidence_of_log, is_set_aside, list_store, relist_store
from jobs.store.topics import TopicEvidence, collect_topic_evidence
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.broker_start import StartOutcome
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.detection import Mark, detect_eras, record_marks
from rmq_formats.store import (
    CHECKPOINT_SIZE,
    ROCKSDB_STORE_DIRECTORY,
    FileKind,
    StoreFile,
    decode_checkpoint,
    parse_offset_name,
)

_SMALL = 256
_TIMERS_READ = 10_000
_DIRECTORIES_NOTED = 3  # directories with files that are named like segments
_LARGEST_CONFIG = 64 << 20
_TIER_METADATA = "tieredStoreMetadata.json"
_OURS = {"MANIFEST.json": "list of the files that restore wrote"}
_DATABASES = {
    "consumequeue": "queues in RocksDB",
    "consumequeue_rocksdb": "queues in RocksDB",
    "rocksdbstore": "index, timers and transactions in RocksDB "
    "(RocketMQ 5.4.0 and later create this database in every store)",
    "config/topics": "topics in RocksDB",
    "config/subscriptionGroups": "consumer groups in RocksDB",
    "config/consumerOffsets": "consumer offsets in RocksDB",
    "config/metadata": "configuration in RocksDB",
    "config/rdb": "configuration in RocksDB (configManagerVersion=v2)",
}


def inspect_store(  # noqa: PLR0913 - the store, and how to look at it
    root: str,
    commitlog: Sequence[str],
    conf: BrokerConf,
    *,
    deep: bool,
    progress: Callable[[int, int], None],
    accepted: Collection[str] = (),
) -> StoreReport:
    """Inspect a store part by part; *progress* receives the number of walked bytes, and the total."""

    def inspect() -> StoreReport:
        store = list_store(root, commitlog=commitlog, options=file_system_options())
        return _inspect(store, conf, deep=deep, progress=progress, accepted=accepted)

    return repeat_read(inspect, is_disturbed=lambda report: report.problems.misses_listed_file)


def _inspect(
    store: Store, conf: BrokerConf, *, deep: bool, progress: Callable[[int, int], None], accepted: Collection[str]
) -> StoreReport:
    with StoreReader(store) as reader:
        problems, marks, sampled = Problems(), list[Mark](), SampledRecords()

        def see(record: MessageRecord) -> None:
            add_marks(marks, record_marks(record))
            add_to_sampled_ranges(record, sampled)

        state = inspect_state(store, marks, problems)
        queues = inspect_queues(reader, problems)
        index = inspect_index(store, marks, problems)
        ends = [end for one in queues.queues for end in (one.first_physical_offset, one.last_physical_offset)]
        known = [offset for offset in (*ends, index.last_offset) if offset is not None]
        log = LogInspector(store, problems, known, see, progress, state.epochs, accepted).inspect(deep=deep)
        report = StoreReport(store.root, log, queues, index, state, detect_eras(marks), problems, deep=deep)
        if len(state.epochs) > 1:
            _note_left_over(store, report)
        is_closed = state.process is None and state.abort is None
        topics = inspect_topics(store, problems)
        _add_broker_state(store, queues, problems)
        lacking = compare_with_sampled_records(sampled, queues, topics)
        if lacking and not is_closed:  # a broker may have created files since they were listed
            with StoreReader(relist_store(store)) as now:
                queues_now = inspect_queues(now, Problems())
            lacking = compare_with_sampled_records(sampled, queues_now, topics)
            # A broker that has started on an empty store writes its first units a moment after their messages.
            if (
                state.process is not None
                and not queues_now.queues
                and not (state.checkpoint or {}).get("logic_timestamp")
            ):
                lacking = Problems()
        # The units of a queue whose files must not be read are unknown.
        closed_files = [one.file for one in problems if one.severity is Severity.NOT_ACCESSIBLE]
        problems += [one for one in lacking if not any(f"/{one.file}/" in file for file in closed_files)]
        if index.files:
            note_index_gaps(store, index, problems, log.end_offset if is_closed else None)
        elif not report.has_index:
            _note_lost_index(store, report, conf, is_closed=is_closed)
        if state.process is None or not store.segments:
            _note_lost_ends(store, report, max(known, default=-1))
        if state.process is None:
            report.start = _start(store, report, conf)
        return report


def _add_broker_state(store: Store, queues: QueuesReport, problems: Problems) -> None:
    """Add the faults of the configuration, of the positions of consumers, and of timers."""
    spans = {(one.topic, one.queue_id): (one.min_offset, one.max_offset) for one in queues.queues}
    try:
        config = read_broker_config(store)
        state = check_broker_state(
            store, config, lambda *queue: spans.get(queue), are_ends_known=store.has_clean_shutdown
        )
    except OSError as error:  # any: it is noted here, unless it was noted with the queues
        file = str(error.filename or join_location(store.root, CONFIG_DIRECTORY))
        if file not in {one.file for one in problems}:
            with problems.noting_errors(file):
                raise
        return
    reported = {one.file for one in problems}
    for finding in state.findings:
        file = join_location(store.root, finding.file)
        if file not in reported:
            what = f"{finding.field} " if finding.field not in {"file", "files"} else ""
            text = f"{what}{finding.found}, expected {finding.expected}: {finding.cause}"
            problems.append(Problem(finding.severity, file, text))
    if has_lost_checkpoint(store):
        problems.add_note(join_location(store.root, "checkpoint"), f"does not exist: {NO_CHECKPOINT}")
    for note in (*state.doubts, *state.notes):
        problems.add_note(store.root, note)


def _note_lost_index(store: Store, report: StoreReport, conf: BrokerConf, *, is_closed: bool) -> None:
    """Note that there should be index files: by the checkpoint, or by the broker's configuration."""
    place, indexed = f"{store.root}/index", (report.state.checkpoint or {}).get("index_timestamp", 0)
    if indexed > 0:
        noted = f"the checkpoint shows that messages were indexed up to {short_time_text(indexed)}"
        report.problems.add_gap(place, f"there are no index files, although {noted}")
    elif is_closed and conf.is_given and conf.makes_index_files and report.log.end_offset:
        keyed = find_first_message_with_key(store, store.start_offset, report.log.end_offset)
        if keyed is not None:
            text = "there are no index files, although the broker's configuration enables them and messages have keys"
            report.problems.add_gap(place, text, keyed)


def _start(store: Store, report: StoreReport, conf: BrokerConf) -> StartOutcome:
    """Return the outcome of a start of the broker, and note those parts of it that no problem states yet."""
    writers = writers_of_eras(report.eras, ()).value
    start = unknown_start(writers.last_release, "a file cannot be read")
    errors = Problems()
    with errors.noting_errors(store.root):
        start = predict_start_by_own_walk(store, writers, conf, deep=report.deep)
    known = {store.path_below_root(one.file) for one in report.problems if one.severity.is_alarm}
    report.problems += [one for one in errors if store.path_below_root(one.file) not in known]
    report.problems.misses_listed_file |= errors.misses_listed_file
    refused = start.unloadable_file or start.ignores_from
    file = "" if refused is None else f"{store.root}/{refused.file}"
    if refused is not None and not any(one.file == file and one.severity.is_alarm for one in report.problems):
        does = "refuses to start" if start.unloadable_file else "ignores this file and all files after it"
        report.problems.add_damage(file, f"because of the file's length or name, the broker {does}")
    if start.cuts_at is not None:
        file = next(one.file for one in reversed(report.log.segments) if one.base_offset <= start.cuts_at)
        report.problems.add_damage(file, "the broker would truncate the log here at its next start", start.cuts_at)
    return start


def _note_left_over(store: Store, report: StoreReport) -> None:
    """Note units and index entries of messages that were truncated after a promotion: these are not damage."""
    state, index, log, problems = report.state, report.index, report.log, report.problems
    epoch = state.epochs[-1]
    since = f"epoch {epoch.number} begins at offset {epoch.start_offset:,}"
    units = sum(queue.left_over for queue in report.queues.queues)
    if units:
        text = (
            f"units at the ends of queues point to messages that were truncated after a promotion: {units:,} ({since})"
        )
        problems.add_note(store.root, text)
    if log.end_offset is not None and index.last_offset is not None and index.last_offset >= log.end_offset:
        text = (
            f"index files have entries up to offset {index.last_offset:,}, past the end of the log "
            f"({log.end_offset:,}), and may lack messages that the new master stored ({since})"
        )
        problems.add_note(store.root, text)


def _note_lost_ends(store: Store, report: StoreReport, newest: int) -> None:
    problems, log = report.problems, report.log
    if not store.segments:
        if not report.state.log_folders and find_evidence_of_log(store):
            problems.add_gap(f"{store.root}/commitlog", NO_SEGMENTS_ERROR)
        return
    with suppress(OSError):  # reported with the queues and index files
        for lost in find_lost_ends(store, newest, log.end_offset):
            is_start = lost.end == store.start_offset
            problems.add_gap(store.segments[0 if is_start else -1].location, lost.text)
            log.lost_bytes += 0 if is_start else lost.end - lost.start
        crashed = find_end_after_crash(store, log.end_offset)
        if crashed is not None and not crashed.loss_evidence:
            log.lost_bytes = crashed.newest_end - crashed.log_end
            text = f"{crashed.text}. Undecided: {crashed.evidence_text}. {crashed.advice}"
            problems.add_note(store.segments[-1].location, text)


# the broker's own state


def inspect_state(store: Store, marks: list[Mark], problems: Problems) -> StateReport:
    """Read checkpoint and abort, and check the broker's lock."""
    report = StateReport(folders=_count_files(store), epochs=read_epochs(store))
    with problems.noting_errors(store.root):
        report.process = find_broker_process(store.root)
    add_marks(marks, find_file_marks(store))
    for file in store.other_files:
        if file.path_facts.kind is FileKind.ABORT:
            with problems.noting_errors(file.location):
                report.abort = store.read(file, 0, _SMALL).decode("latin-1")
        elif file.path_facts.path == "brokerIdentity":
            with problems.noting_errors(file.location):
                report.replica = store.read(file, 0, _SMALL).decode("utf-8", "replace")
        elif file.path_facts.kind is FileKind.CHECKPOINT:
            with problems.noting_errors(file.location):
                report.checkpoint = decode_checkpoint(store.read(file, 0, CHECKPOINT_SIZE))._asdict()
            if file.size != CHECKPOINT_SIZE:
                problems.add_note(file.location, f"{count_text(file.size, 'byte')} long instead of {CHECKPOINT_SIZE:,}")
    if report.process is not None:
        report.broker = f"running: process {report.process} holds the lock"
    elif report.abort is not None:
        report.broker = "not shut down cleanly: it crashed, or this is a copy of a running broker's store"
        problems.add_note(store.root, "the file `abort` exists, but no broker holds the lock")
    with problems.noting_errors(f"{store.root}/{ROCKSDB_STORE_DIRECTORY}"), open_rocksdb_store(store) as database:
        report.rocksdb = None if database is None else _count_rows(database)
    with problems.noting_errors(f"{store.root}/timerwheel"):
        report.timers = read_timer_state(store)
        if report.timers is not None and report.abort is None:  # raises `CorruptData` where the timer log has no unit
            deque(islice(read_waiting_units(store, report.timers), _TIMERS_READ), maxlen=0)
    _report_unknown_files(store, report, problems)
    _note_tier(store, problems)
    return report


def _count_rows(database: Database) -> RocksReport:
    report = RocksReport(count_index_rows(database))
    for transaction in read_transactions(database):
        report.pending_transactions += 1
        report.oldest_transaction = _min_known(report.oldest_transaction, transaction.physical_offset)
    for timer in read_timers(database):
        report.waiting_timers += 1
        report.first_due = _min_known(report.first_due, timer.delivery_ms)
        report.last_due = max(timer.delivery_ms, report.last_due or 0)
    return report


def _min_known(known: int | None, value: int) -> int:
    return value if known is None else min(known, value)


def inspect_topics(store: Store, problems: Problems) -> TopicEvidence:
    """Return the broker's table of topics, and note a `config/topics.json` or a database that cannot be read."""
    file = store.other_file(f"{CONFIG_DIRECTORY}/{TOPICS_FILE}")
    if file is not None and file.size <= _LARGEST_CONFIG:
        with problems.noting_errors(file.location):
            read_json_file(store, file)
    try:
        evidence = collect_topic_evidence(store)
    except PermissionError:  # already reported for that file
        return TopicEvidence(doubt_reason=f"{CONFIG_DIRECTORY}/{TOPICS_FILE} cannot be read")
    if evidence.database_error is not None:
        problems.add_damage(evidence.database_error.file or store.root, evidence.database_error.reason)
    return evidence


def _report_unknown_files(store: Store, report: StateReport, problems: Problems) -> None:
    """Report files of unknown kind, and directories with files that are named like segments but were not read."""
    unknown = [
        file
        for file in store.other_files_of_kind(FileKind.UNKNOWN)
        if not is_set_aside(file.path_facts.path) and file.path_facts.path not in _OURS
    ]
    named = {segment.location for segment in store.segments}
    report.unknown_files = len(unknown)
    directories = {
        file.location.rpartition("/")[0]
        for file in unknown
        if parse_offset_name(file.location.rpartition("/")[2]) is not None and file.location not in named
    }
    report.log_folders = tuple(sorted(directories))
    more = len(report.log_folders) - _DIRECTORIES_NOTED
    for number, directory in enumerate(report.log_folders[:_DIRECTORIES_NOTED], 1):
        others = (
            f" (and those of {count_text(more, 'other directory')})"
            if number == _DIRECTORIES_NOTED and more > 0
            else ""
        )
        problems.add_note(
            directory,
            f"its files{others} are named like segments; if they are part of the log, pass their directories with "
            "--commitlog",
        )
    for file in unknown:
        if file.path_facts.path.startswith(("commitlog/", "index/", "consumequeue/")):
            target = quote_name(f"{store.root}/{file.location.rpartition('/')[2]}.copy")
            text = (
                "brokers never create a file with this name, and may refuse to start while it exists. Move the file "
                f"out of its directory: mv -n {quote_name(file.location)} {target}"
            )
            problems.add_note(file.location, text)


def _note_tier(store: Store, problems: Problems) -> None:
    """Note that the broker copies messages to a tier; the metadata is written by the plugin alone (5.1.0 and later)."""
    tiered = store.other_files_of_kind(FileKind.TIERED)
    file = tiered[0] if tiered else store.other_file(f"{CONFIG_DIRECTORY}/{_TIER_METADATA}")
    if file is not None:
        problems.add_note(file.location, f"the broker copies messages to tiered storage, {TIER_NOT_READ}")


def _count_files(store: Store) -> list[tuple[str, str, int, int]]:
    files: list[tuple[StoreFile, int]] = []
    for segment in (*store.segments, *store.overlapping_segments):
        # A log in other directories is shown by the directory it is in.
        directory = segment.location.rpartition("/")[0]
        below = directory.removeprefix(f"{store.root}/")
        log_kind = FileKind.DLEDGER_LOG if below.startswith("dledger-") else FileKind.COMMITLOG
        files.append((StoreFile(f"{below}/{segment.base_offset:020d}", log_kind), segment.size))
    named = {segment.location for segment in store.segments}
    others = (*store.queue_files, *store.index_files, *store.other_files)
    files += [(file.path_facts, file.size) for file in others if file.location not in named]
    counts, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for about, size in files:
        *directories, _ = about.path.split("/")
        depth = 2 if directories[:1] == ["config"] else 1
        is_log = about.kind in {FileKind.COMMITLOG, FileKind.DLEDGER_LOG}
        directory = "/".join(directories if is_log else directories[:depth])
        kind = _DATABASES.get(directory, str(about.kind)) if about.kind is FileKind.ROCKSDB else str(about.kind)
        kind = _OURS.get(about.path, kind)
        kind = "set aside by repair or --install" if is_set_aside(about.path) else kind
        counts[directory, kind] += 1
        sizes[directory, kind] += size
    return [(*name, counts[name], sizes[name]) for name in sorted(counts)]
