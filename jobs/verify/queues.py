"""
Compares a store's queues with its log.

The join returns the differences between units and records. This module adds findings on file names, file sizes, bytes
after the last unit, and the broker's configuration, and describes all of them in words.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from time import sleep
from typing import Any, NamedTuple

from jobs.console.amounts import count_text, utc_time_text
from jobs.diagnosis import kinds
from jobs.diagnosis.broker_state import ReadSpan
from jobs.diagnosis.findings import QUEUES, Finding
from jobs.products.queues.join import collect_log_units, collect_topic_evidence_with_queues, compare_queues
from jobs.products.queues.join_result import (
    KINDS_OF_EARLIER_QUEUES,
    MISSING_UNIT_KINDS,
    DifferenceKind,
    JoinResult,
    QueueDifference,
    UndispatchedRecords,
)
from jobs.products.queues.unit_files import choose_group_count
from jobs.storage.scratch import Scratch
from jobs.store.chain import NewCollector, RangeOutcome, Results, complete_records_end, read_ranges_not_deleted
from jobs.store.queue_ends import list_unprobed_queues, probe_queue_ends
from jobs.store.queue_files import (
    QUEUE_KIND_OF_FILE,
    LastUnits,
    StoredQueue,
    hold_file,
    queue_file_sizes,
    undecided_queue_file_sizes,
)
from jobs.store.queue_storage import rocksdb_queue_directory
from jobs.store.ranges import find_holes, plan_ranges
from jobs.store.rocksdb_queues import find_queue_database
from jobs.store.store import DEFAULT_RANGE_SIZE, Store, StoredFile, read_checkpoint
from jobs.store.topics import RecordedTopics, TopicFate
from jobs.store.units import read_stored_units
from jobs.store.workers import Workers
from jobs.verify.report import PartReport, unreadable_database_finding
from jobs.verify.rocksdb_queues import (
    DoubleWriteComparison,
    compare_double_write,
    findings_on_queue_ends,
    queues_left_out_of_double_write,
    step_for_rocksdb_queues,
    unflushed_rows_note,
)
from rmq_formats.consumequeue.dispatch import LMQ_PREFIX, QueueKind, QueueName, UnitRules
from rmq_formats.consumequeue.layout import DEFAULT_FILE_SIZE
from rmq_formats.errors import FormatError, UnsupportedFormat
from rmq_formats.store import FileKind, file_name_of_offset, is_queue_id

_CAUSES = {
    DifferenceKind.DANGLING: "the unit was overwritten, or the queue or the segment that the unit points "
    "to belongs to another log; consumers skip this unit",
    DifferenceKind.UNIT_OF_LOST_RECORD: "the log has a gap there",
    DifferenceKind.UNIT_OF_DAMAGED_RECORD: "the log is damaged there; the unit shows where the lost record began",
    DifferenceKind.PAST_LOG_END: "the end of the log was lost after the unit was written, or the queue was copied "
    "later than the log",
    DifferenceKind.WRONG_SIZE: "part of the unit was overwritten; consumers receive no message, or only part of one",
    DifferenceKind.WRONG_TAGS_CODE: "this is the hash of another tag, or messageDelayLevel was changed: "
    "tag filters skip the message, or a delayed message is delivered at the wrong time",
    DifferenceKind.WRONG_BATCH_FIELD: "part of the unit was overwritten; consumers miscount the messages of the batch",
    DifferenceKind.FOREIGN: "a file of another queue was copied here, or the unit was overwritten",
    DifferenceKind.UNIT_OF_HIDDEN_RECORD: "the record is a prepared or rolled-back message, which must not be "
    "delivered to consumers",
    DifferenceKind.DUPLICATE: "the broker dispatched this part of the log twice; consumers receive the message twice",
    DifferenceKind.OUT_OF_ORDER: "the units are in a different order from the records in the log",
    DifferenceKind.MISPLACED: "the broker appended units after a gap in the queue offsets; all later messages "
    "are at the wrong queue offset",
    DifferenceKind.MISSING: "the unit was lost or never written; consumers never receive the message",
    DifferenceKind.MISSING_FILE: "a file of the queue was deleted; consumers never receive its messages",
    DifferenceKind.MISSING_QUEUE: "the directory was deleted; brokers do not rebuild these units, so consumers "
    "receive none of these messages",
    DifferenceKind.HOLE: "bytes inside the file were lost; a broker that starts now treats this as the end of the "
    "queue",
    DifferenceKind.BLANK_INSIDE: "the queue was restarted at a later offset while the log still had its earlier "
    "messages, or lost messages were restored to the log; consumers never receive these messages",
    DifferenceKind.BLANK_OF_LOST: "the log has lost the record there; a repair or a rebuild left its unit out",
    DifferenceKind.CORRUPT: "the unit was overwritten; a broker that starts now treats this as the end of the queue",
    DifferenceKind.RESTARTED: "the topic was deleted and recreated: its queue offsets restarted at 0",
    DifferenceKind.DROPPED_RECORD: "the broker dropped the record silently, because its queue offset is below the "
    "queue's end",
    DifferenceKind.DELETED_TOPIC: "the topic was deleted and recreated: these messages belong to the deleted topic",
    DifferenceKind.QUEUE_LOST: "the queue's directory was lost, and the broker restarted the queue at offset 0: the "
    "topic was not deleted, and consumers receive none of these messages",
}
_NUMBERS = ("expected", "matched", "misplaced", "expired", "blanks", "ahead")
_ALL_LOST = (
    "the directories of all queues were deleted; RocketMQ 4.7.1 and later rebuild them from the log when the broker "
    "starts"
)
_CHANGED_RECORD = "the unit was overwritten, or a field of the record that no checksum covers was changed"
_FIRST_ROW = (
    "a broker that rebuilds its queues in RocksDB never writes the row of the message at log offset 0, and consumers "
    "never receive this message"
)
_UNDECIDED_SIZE = (
    "some files were truncated or have extra bytes, and the files do not show which size is right; pass --broker-conf"
)
_UNDECIDED_TOPIC = "the topic was deleted, or the queue was lost and consumers receive none of these messages"
_DELETED = "the topic was deleted: its messages need no units, and stay in the log until retention deletes them"


@dataclass(frozen=True, slots=True)
class LogPass:
    """How the log is read once for the queues, and for everything else that needs its records."""

    range_size: int = DEFAULT_RANGE_SIZE
    new_collectors: Sequence[NewCollector[Any]] = ()  # of the other parts; they see each record
    scratch: Scratch | None = None


class VerifiedQueues(NamedTuple):
    """The report on the queues, the units of the log that it is based on, and the results of the other collectors."""

    report: PartReport
    joined: JoinResult
    outcomes: list[RangeOutcome[Results]]
    last_units: LastUnits | None = None  # None if the queues cannot be read


def verify_queues(
    workers: Workers,
    store: Store,
    rules: UnitRules,
    log_pass: LogPass = LogPass(),
    recorded: Sequence[RecordedTopics] | None = None,
) -> VerifiedQueues:
    """Compare the queues of a store with its log in one pass; if their database cannot be read, only read the log."""
    error = _find_error_of_database(workers, store)
    if error is not None:
        ranges = plan_ranges(store, store.start_offset, log_pass.range_size)
        start, outcomes = read_ranges_not_deleted(workers, store, ranges, log_pass.new_collectors)
        joined = JoinResult(log_end=complete_records_end(outcomes, start))
        return VerifiedQueues(_report_unreadable_queues(store, error), joined, outcomes)
    groups = choose_group_count(store.log_size)
    seen = list_unprobed_queues(store) if store.is_closed else probe_queue_ends(workers, store, with_tails=True)
    topics = collect_topic_evidence_with_queues(store, seen.queues, recorded)
    shared = log_pass.scratch if groups > 1 else None  # units of a small log stay in memory
    log, outcomes = collect_log_units(
        workers, store, rules, groups, shared, log_pass.range_size, log_pass.new_collectors
    )
    joined = compare_queues(workers, store, rules, seen, log, topics)
    after_ends = _read_queue_ends(workers, store, joined)
    return VerifiedQueues(_report_queues(store, joined, after_ends), joined, outcomes, joined.queue_ends.last_units)


def _find_error_of_database(workers: Workers, store: Store) -> FormatError | None:
    """Return why the queues in RocksDB cannot be read; None if they can, or if there are none."""
    try:
        database = find_queue_database(store)
        if database is not None:
            workers.map(database.plan_row_checks(), database.check_rows, "checking the rows of queues")
    except FormatError as error:
        return error
    return None


def _report_unreadable_queues(store: Store, error: FormatError) -> PartReport:
    if isinstance(error, UnsupportedFormat):
        return PartReport(unverified=str(error))
    return PartReport([unreadable_database_finding(QUEUES, error, store, ", or may start without these queues")])


def _read_queue_ends(workers: Workers, store: Store, joined: JoinResult) -> list[Finding]:
    """Return the findings on bytes after the ends of the queues, where the probe has not found only zeros."""
    probed = joined.queue_ends.probed_queues
    ends = [(queue, joined.figures.ends[queue.name]) for queue, end in probed if end is None or not end.has_zero_tail]
    parts = [ends[at : at + _TAILS_A_TASK] for at in range(0, len(ends), _TAILS_A_TASK)]
    read = partial(_findings_after_queue_ends, looks=1 if store.has_clean_shutdown else _LOOKS)
    return list(chain.from_iterable(workers.map(parts, read, "reading the ends of queues")))


def _list_unit_findings(
    store: Store, joined: JoinResult, left_out: Collection[QueueName]
) -> tuple[list[Finding], list[Finding]]:
    """
    Return the findings on queues without files, except those *left_out* of double write, and those on units.

    A record without a unit is a consequence if a unit elsewhere points to that record.
    """
    queues = {queue.name: queue for queue in joined.queues}
    size = queue_file_sizes(store).get(FileKind.CONSUME_QUEUE) or DEFAULT_FILE_SIZE
    earlier_kinds = KINDS_OF_EARLIER_QUEUES.values()
    differences = [one for one in joined.differences if one.kind not in earlier_kinds]
    units = [_make_finding(queues[difference.queue], difference, size) for difference in differences]
    doubted = {
        unit.log_offset: unit
        for difference, unit in zip(differences, units, strict=True)
        if difference.may_be_changed_record
    }
    missing = [_attribute_to_unit(one, doubted) for one in _missing_queues(joined, left_out)]
    units = [
        _attribute_to_unit(one, doubted) if one.times == 1 and one.kind in MISSING_UNIT_KINDS else one for one in units
    ]
    units += _earlier_messages(joined, [one for one in joined.differences if one.kind in earlier_kinds])
    return missing, units


def _report_queues(store: Store, joined: JoinResult, after_ends: Sequence[Finding]) -> PartReport:
    queues = {queue.name: queue for queue in joined.queues}
    files = list(_file_findings(store, joined.queues))
    wrong_sizes = {finding.file for finding in files if finding.kind == kinds.WRONG_FILE_SIZE}
    double = compare_double_write(store, queues)
    left_out = frozenset(queues_left_out_of_double_write(double, joined.figures.queues_without_files))
    missing, units = _list_unit_findings(store, joined, left_out)
    why_unknown = joined.topic_evidence.unsupported_reason
    fact_kinds = {kinds.DELETED_TOPIC, *([kinds.DELETED_OR_LOST_QUEUE] if why_unknown else [])}
    facts = [finding for finding in (*missing, *units) if finding.kind in fact_kinds]
    missing = [finding for finding in missing if finding.kind not in fact_kinds]
    units = [finding for finding in units if finding.kind not in fact_kinds]
    is_unknown = any(finding.kind == kinds.DELETED_OR_LOST_QUEUE for finding in facts)
    return PartReport(
        [
            *files,
            *_all_missing(joined, store),
            *_missing_directories(missing, joined),
            *(finding for finding in units if finding.file not in wrong_sizes),
            *after_ends,
            *_double_write_findings(double),
            *findings_on_queue_ends(store),
            *findings_on_sequence(joined, store),
        ],
        {
            "queues": len(joined.queues),
            "records_dispatched_to": joined.dispatched_offset,
            "behind": joined.behind,
            **{name: getattr(joined.figures, name) for name in _NUMBERS},
            "damaged_bytes": sum(end - start for start, end in joined.damaged_ranges),
            "of_deleted_topics": sum(finding.times for finding in facts),
        },
        list(_list_notes(store, joined, double, left_out)),
        facts,
        doubts=[
            *[f"it is unknown which topics were deleted: {why_unknown}"] * is_unknown,
        ],
        database_step=step_for_rocksdb_queues(store, [*missing, *units]),
    )


def _attribute_to_unit(finding: Finding, doubted: Mapping[int | None, Finding]) -> Finding:
    """Return the finding on a record without a unit, as a consequence if a unit elsewhere points to that record."""
    return finding._replace(follows=doubted.get(finding.log_offset))


def _list_notes(
    store: Store, joined: JoinResult, double: DoubleWriteComparison | None, left_out: Collection[QueueName]
) -> Iterator[str]:
    if joined.log_end > joined.dispatched_offset:
        lag = joined.log_end - joined.dispatched_offset
        yield f"the broker had not dispatched the last {lag:,} bytes of the log when the queues were read"
    if joined.figures.waiting_light_units:
        yield (
            f"{count_text(joined.figures.waiting_light_units, 'unit')} of light queues (LMQ) were not in RocksDB yet. "
            "They are stored only there; the broker writes them at its next start (with "
            "rocksdbCQSelectiveDoubleWriteEnable, only those of LITE topics)"
        )
    if joined.figures.ahead:
        yield f"{count_text(joined.figures.ahead, 'unit')} of messages after the end of the log"
    if not joined.queues and not store.has_clean_shutdown and rocksdb_queue_directory(store) is not None:
        yield unflushed_rows_note(store)
    if double is not None:
        yield double.switch_safety_text()
    if left_out:
        units = sum(joined.figures.queues_without_files[name].unit_count for name in left_out)
        yield (
            f"{count_text(units, 'unit')} of {count_text(len(left_out), 'light queue')} (LMQ) are neither in files nor "
            "in RocksDB, because selective double write does not write them. The broker reports these queues as empty; "
            "their messages are in the log (property INNER_MULTI_DISPATCH)"
        )


def _double_write_findings(double: DoubleWriteComparison | None) -> Iterator[Finding]:
    if double is None:
        return
    if double.different_units:
        cause = (
            "either a queue file or the RocksDB database was overwritten; if it was a file, another finding names that "
            "file, because verify also compares files with the log"
        )
        values = f"{double.different_units:,} different in RocksDB", "the same as in the files"
        yield Finding(QUEUES, kinds.DOUBLE_WRITE_DIFFERS, "consumequeue", None, "unit", *values, cause)
    for name, units in sorted(double.units_without_files.items()):
        cause = "the queue's directory was deleted; with double write, the broker reads queues from the files"
        expected = f"{count_text(units, 'unit')}, as in RocksDB"
        yield Finding(QUEUES, DifferenceKind.MISSING_QUEUE.value, name.path, None, "files", "none", expected, cause)


def _earlier_messages(joined: JoinResult, differences: Sequence[QueueDifference]) -> Iterator[Finding]:
    """Yield one finding for each queue that restarted at queue offset 0, on its earlier messages."""
    by_queue: dict[tuple[QueueName, DifferenceKind], list[QueueDifference]] = {}
    for one in differences:
        by_queue.setdefault((one.queue, one.kind), []).append(one)
    for (name, kind), some in by_queue.items():
        count, begin = sum(one.unit_count for one in some), joined.figures.first_record_offsets[name]
        is_undecided = kind is DifferenceKind.DELETED_OR_LOST_QUEUE
        cause = _CAUSES.get(kind, "")
        if is_undecided:
            cause = f"{_UNDECIDED_TOPIC}; reason: {joined.topic_evidence.explain_undecided(name.topic)}"
        expected = f"{count_text(count, 'unit')} of messages before log offset {begin}, at which the queue begins again"
        first = min((one.log_offset for one in some if one.log_offset is not None), default=None)
        yield Finding(
            QUEUES, kind.value, name.path, None, "units", "missing", expected, cause, count, first, begin,
            is_undecided=is_undecided,
        )  # fmt: skip


def _make_finding(queue: StoredQueue, difference: QueueDifference, file_size: int) -> Finding:
    position = difference.position * queue.unit_size
    file = queue.file_at(difference.position)
    base = file.base_offset if file else position // file_size * file_size
    is_field = difference.field != "unit"
    is_undecided = difference.may_be_changed_record or difference.kind is DifferenceKind.DANGLING
    cause = _CHANGED_RECORD if difference.may_be_changed_record else _CAUSES[difference.kind]
    if queue.in_rocksdb and difference.kind is DifferenceKind.MISSING and difference.log_offset == 0:
        cause = _FIRST_ROW
    if difference.kind is DifferenceKind.HOLE and not difference.expected:
        is_undecided = True
        cause = f"the next file has the wrong name or belongs to another queue, or {cause}"
    offset = position - base + (queue.name.kind.layout.offset(difference.field) if is_field else 0)
    path = f"{queue.name.path}/{file_name_of_offset(base)}"
    place = path, None if difference.kind is DifferenceKind.MISSING_FILE else offset
    values = difference.field, difference.found, difference.expected
    return Finding(
        QUEUES, difference.kind.value, *place, *values, cause, difference.unit_count, difference.log_offset,
        is_undecided=is_undecided,
    )  # fmt: skip


def _missing_queues(joined: JoinResult, left_out: Collection[QueueName]) -> Iterator[Finding]:
    for name, (count, first, last, _) in sorted(joined.figures.queues_without_files.items()):
        if name in left_out:
            continue
        fate = joined.find_topic_fate(name)
        kind, cause = DifferenceKind.MISSING_QUEUE.value, _ALL_LOST
        if fate is TopicFate.DELETED:
            kind, cause = kinds.DELETED_TOPIC, _DELETED
        elif joined.queues and fate is TopicFate.UNDECIDED:  # without any queue, a broker rebuilds all of them
            kind, cause = (
                kinds.DELETED_OR_LOST_QUEUE,
                f"{_UNDECIDED_TOPIC}; reason: {joined.topic_evidence.explain_undecided(name.topic)}",
            )
        elif joined.queues:
            cause = _CAUSES[DifferenceKind.MISSING_QUEUE]
        expected = f"{count_text(count, 'unit')}, the first for the record at log offset {first}"
        times, log_offset = count if fate is TopicFate.DELETED else 1, first if count == 1 else None
        yield Finding(
            QUEUES, kind, name.path, None, "files", "none", expected, cause, times, log_offset, last + 1,
            is_undecided=kind == kinds.DELETED_OR_LOST_QUEUE,
        )  # fmt: skip


def _all_missing(joined: JoinResult, store: Store) -> Iterator[Finding]:
    """Yield a finding if a killed broker's queues are all missing: then none of its records counts as dispatched."""
    checkpoint = None if joined.queues or store.has_clean_shutdown else read_checkpoint(store)
    if checkpoint is None or checkpoint.logic_timestamp <= 0 or joined.log_end <= store.start_offset:
        return
    if rocksdb_queue_directory(store) is None:
        noted = f"queues up to store time {utc_time_text(checkpoint.logic_timestamp)}, according to the checkpoint"
        place = "consumequeue", None, "files"
        yield Finding(QUEUES, DifferenceKind.MISSING_QUEUE.value, *place, "none", noted, _ALL_LOST)


def _missing_directories(findings: Sequence[Finding], joined: JoinResult) -> Iterator[Finding]:
    """Yield one finding for each missing directory: of all queues, of a topic, or of one queue."""
    paths = [queue.name.path for queue in joined.queues]
    there = {path.partition("/")[0] for path in paths} | {path.rpartition("/")[0] for path in paths}
    counts = {name.path: count for name, (count, *_) in joined.figures.queues_without_files.items()}
    for kind, of_kind in groupby(findings, lambda finding: finding.file.partition("/")[0]):
        some = list(of_kind)
        if len(some) > 1 and kind not in there:
            yield _merge_findings(kind, some, counts)
            continue
        for topic, of_topic in groupby(some, lambda finding: finding.file.rpartition("/")[0]):
            queues = list(of_topic)
            if len(queues) > 1 and topic not in there:
                yield _merge_findings(topic, queues, counts)
            else:
                yield from queues


def _merge_findings(path: str, queues: Sequence[Finding], counts: Mapping[str, int]) -> Finding:
    """Return one finding on a missing directory, made of those on the queues in it."""
    units = sum(counts[finding.file] for finding in queues)
    expected = f"{count_text(units, 'unit')} of {count_text(len(queues), 'queue')}"
    ends = [finding.log_end for finding in queues if finding.log_end is not None]
    return queues[0]._replace(file=path, expected=expected, times=len(queues), log_end=max(ends, default=None))


def _file_findings(store: Store, queues: Sequence[StoredQueue]) -> Iterator[Finding]:
    queues = [queue for queue in queues if not queue.in_rocksdb]
    usual = queue_file_sizes(store)
    for kind, sizes in undecided_queue_file_sizes(store).items():
        found = ", ".join(map(str, sizes))
        directory = QUEUE_KIND_OF_FILE[kind].value if kind in QUEUE_KIND_OF_FILE else kind.value
        values = "sizes", found, "one size for all files", _UNDECIDED_SIZE
        yield Finding(QUEUES, kinds.WRONG_FILE_SIZE, directory, None, *values, is_undecided=True)
    for queue in queues:
        for file in (*queue.files, *queue.extension):
            # A broker creates a file before it sets its size: a killed one may leave an empty last file.
            if file.size or file not in {queue.files[-1], *queue.extension[-1:]} or store.has_clean_shutdown:
                yield from _check_size_and_name(file, usual.get(file.path_facts.kind, 0))
    for path in (stored.path_facts.path for stored in store.other_files_of_kind(FileKind.UNKNOWN)):
        root, *directories = path.split("/")[:-1] or [""]
        # Brokers skip files outside the directories of queues (ConsumeQueueStore#loadConsumeQueues).
        if root in set(map(str, QueueKind)) and directories[1:] and is_queue_id(directories[1]):
            cause = "brokers do not use this file name; a broker that starts now may refuse to load the queue"
            wrong = "name", path.rpartition("/")[2], "20 digits"
            if directories[1] != (queue_id := str(int(directories[1]))):
                cause = "a broker that starts now loads either this directory or the one with the expected name"
                wrong = "directory", directories[1], queue_id
            yield Finding(QUEUES, kinds.UNEXPECTED_FILE, path, None, *wrong, cause)


def _check_size_and_name(file: StoredFile, usual_size: int) -> Iterator[Finding]:
    """Yield findings on a queue file whose size or name is not that of the store's other files."""
    path = file.path_facts.path
    if usual_size and file.size != usual_size:
        cause = (
            "the file was truncated, has extra bytes, or belongs to a broker with a different file size; the broker "
            "refuses to load it"
        )
        yield Finding(
            QUEUES,
            kinds.WRONG_FILE_SIZE,
            path,
            min(file.size, usual_size),
            "size",
            str(file.size),
            str(usual_size),
            cause,
        )
    if usual_size and file.base_offset % usual_size:
        wanted = file_name_of_offset(file.base_offset // usual_size * usual_size)
        cause = "the file was renamed, or belongs to a broker with a different file size"
        yield Finding(
            QUEUES, kinds.WRONG_FILE_NAME, path, None, "name", file_name_of_offset(file.base_offset), wanted, cause
        )


def make_span_reader(joined: JoinResult, start_offset: int) -> ReadSpan:
    """Return a function that reads the offsets of a queue; a killed broker's next start adds rows of newer messages."""
    queues = {queue.name: queue for queue in joined.queues}
    newer = {run.queue: run.first_queue_offset + run.record_count for run in joined.figures.undispatched_records}

    def read_span(topic: str, queue_id: int) -> tuple[int, int] | None:
        end = _next_offset(topic, queue_id, queues, joined)
        if end is None or (topic.startswith(LMQ_PREFIX) and joined.behind > 0):
            return None
        end = max(end, newer.get(QueueName(QueueKind.PLAIN, topic, queue_id), 0))
        queue = queues.get(QueueName(QueueKind.PLAIN, topic, queue_id))
        first = 0 if queue is None else queue.first_unit_pointing_from(start_offset, joined.figures.ends[queue.name])
        return first, end

    return read_span


def _next_offset(topic: str, queue_id: int, queues: Mapping[QueueName, StoredQueue], joined: JoinResult) -> int | None:
    """Return the queue offset of a queue's next message; None if the queue has no files."""
    plain, batch = (QueueName(kind, topic, queue_id) for kind in (QueueKind.PLAIN, QueueKind.BATCH))
    if plain in queues:
        return joined.figures.ends[plain]
    end = joined.figures.ends[batch] if batch in queues else 0
    for unit in read_stored_units(queues[batch], end - 1, end) if end else ():
        return int(unit["base_offset"]) + int(unit["batch_count"])
    return None


_TAILS_A_TASK = 64
_LOOKS = 5
_PAUSE_S = 0.02
_CAUSE = (
    "the topic, queue id or queue offset of this record or of an earlier one changed, or the end of the "
    "queue was lost; the record has no unit yet, and the broker writes one from these values at its next start"
)


def _findings_after_queue_ends(queues: Sequence[tuple[StoredQueue, int]], *, looks: int) -> list[Finding]:
    """Return the findings on bytes other than zero after the ends of queues."""
    return list(filter(None, (_finding_after_queue_end(queue, end, looks) for queue, end in queues)))


def _finding_after_queue_end(queue: StoredQueue, end: int, looks: int) -> Finding | None:
    """Return a finding on bytes other than zero after a queue's end; units that a broker appends are not counted."""
    found: Finding | None = None
    for look in range(looks):
        with hold_file(queue) as held:
            end = max(end, held.find_written_end(end)) if looks > 1 else end
            found = _first_not_zero(held, end)
            if found is not None and looks > 1 and _has_part_of_next_unit(held, end):
                found = _first_not_zero(held, end + 1)
        if found is None:
            return None
        if look + 1 < looks:
            sleep(_PAUSE_S)
    return found


def _has_part_of_next_unit(queue: StoredQueue, end: int) -> bool:
    """Return whether bytes after a queue's end may be of a unit that was being written: a start overwrites these."""
    place = queue.find_nonzero_byte(end)
    return place is not None and place // queue.unit_size == end


def _first_not_zero(queue: StoredQueue, end: int) -> Finding | None:
    place = queue.find_nonzero_byte(end)
    if place is None:
        return None
    unit_number, skipped = divmod(place, queue.unit_size)
    file = queue.file_at(unit_number)
    base = file.base_offset if file else 0
    found = queue.read(unit_number, min(unit_number + 2, queue.capacity_end))[skipped:]
    cause = "a recovery truncated the queue and left old units, or another program wrote to the file"
    return Finding(
        QUEUES, kinds.NONZERO_TAIL, f"{queue.name.path}/{file_name_of_offset(base)}", place - base, "tail",
        found[: queue.unit_size].hex(), "zeros", cause,
    )  # fmt: skip


def findings_on_sequence(joined: JoinResult, store: Store) -> Iterator[Finding]:
    """Yield findings on records after the dispatched part of the log that do not continue their queues."""
    if not joined.queues or any(queue.in_rocksdb for queue in joined.queues):
        return  # the log alone was copied, or a killed broker had rows in memory
    lost = [end for _, _, end in find_holes(store.segments)] + [end for _, end in joined.damaged_ranges]
    if any(end > joined.dispatched_offset for end in lost):
        return  # the lost records are unknown
    queues = {queue.name: queue for queue in joined.queues}
    contradicted = {*joined.figures.queues_without_files, *(difference.queue for difference in joined.differences)}
    of_other_kinds = {name.topic for name in queues if name.kind is not QueueKind.PLAIN}
    newer: dict[QueueName, list[UndispatchedRecords]] = {}
    for run in joined.figures.undispatched_records:
        newer.setdefault(run.queue, []).append(run)
    for name in sorted(newer.keys() - contradicted):
        if name.topic.startswith(LMQ_PREFIX) or name.topic in of_other_kinds:
            continue
        queue, runs = queues.get(name), newer[name]
        # If a queue has no files, only a complete log shows where the queue begins.
        begin = 0 if store.start_offset == 0 else runs[0].first_queue_offset
        before = expected = joined.figures.ends[name] if queue else begin
        for run in runs:
            # After a single record of another queue, the sequence continues where it was.
            if run.first_queue_offset not in {expected, before} and not _is_stored(
                queue, run.first_queue_offset, run.log_offset
            ):
                found = f"{run.first_queue_offset}, in the record at offset {run.log_offset:,}"
                place = name.path, None, "queue_offset"
                values = found, str(expected), _CAUSE
                yield Finding(
                    QUEUES, kinds.OUT_OF_SEQUENCE, *place, *values, log_offset=run.log_offset, is_undecided=True
                )
            before, expected = expected, run.first_queue_offset + run.record_count


def _is_stored(queue: StoredQueue | None, position: int, log_offset: int) -> bool:
    """Return whether a running broker has written the unit meanwhile."""
    unit = (
        queue.read_unit(position)
        if queue is not None and queue.first_unit_number <= position < queue.capacity_end
        else None
    )
    return unit is not None and unit.physical_offset == log_offset
