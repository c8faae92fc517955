"""
Verifies a store: reads and checks the log, compares queues and index files with it, and finds the causes of findings.

Nothing is written. If a part cannot be verified, the report says so, and the other parts are still verified. If the
disk cannot read some files, the comparison is repeated without them.

The promotion of a broker leaves old data, which is not a fault. A replica that returns truncates its log where the new
master's epoch begins, and then stores that master's records. Three kinds of data remain: old records after the end of
the log, units that point to them at the ends of queues, and entries that point to them in index files, which then lack
messages of the new master. The old records prove a promotion; without any, units that point after the end of the log
mean that the end is lost.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from tempfile import gettempdir
from typing import Any, NamedTuple

from jobs.console.amounts import count_text
from jobs.diagnosis import WalkedLog, keeps_incomplete_record, kinds, predict_store_start, unknown_start
from jobs.diagnosis.findings import CONFIGURATION, INDEX, LOG, QUEUES, Finding
from jobs.diagnosis.log_check import RangeCheck, complete_checks, list_doubtful_ranges, new_range_check, summarize_walk
from jobs.products.queues.join_result import MISSING_UNIT_KINDS, OVERWRITTEN_UNIT_KINDS, DifferenceKind, JoinResult
from jobs.products.queues.settings import determine_unit_rules
from jobs.requests.verify import VerifyRequest
from jobs.storage.scratch import Scratch, open_scratch
from jobs.store.broker_config import read_broker_config
from jobs.store.chain import NewCollector, RangeOutcome, Results, read_ranges_not_deleted
from jobs.store.epochs import Promotion, find_last_promotion
from jobs.store.log_ends import find_newest_known_offset
from jobs.store.queue_files import LastUnits, queues_in_files
from jobs.store.ranges import plan_ranges
from jobs.store.release import UndecidedError, Writers, parse_rules
from jobs.store.repeated_reads import repeat_after_expiry
from jobs.store.running_broker import check_disk_space, find_broker_process
from jobs.store.store import Segment, Store, StoredFile, find_evidence_of_log, relist_store
from jobs.store.workers import Workers
from jobs.verify.configuration import verify_configuration
from jobs.verify.index import IndexVerification
from jobs.verify.log import early_log_end_finding, findings_on_log
from jobs.verify.queues import LogPass, make_span_reader, verify_queues
from jobs.verify.report import LostRanges, PartReport, locate_offset
from jobs.verify.rocksdb_queues import verify_waiting_messages
from jobs.verify.unreadable_files import (
    find_unreadable_files,
    leave_out_files,
    report_unreadable_at_start,
    report_unreadable_file,
)
from jobs.verify.verdict import Verdict, set_accepted_apart
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.broker_start import StartOutcome
from rmq_formats.commitlog.record import INVALID_MAGIC_PREFIX
from rmq_formats.consumequeue.dispatch import QueueKind
from rmq_formats.errors import is_disk_error
from rmq_formats.release import Release
from rmq_formats.store import FileKind

# The largest size of scratch files, as a part of the log's size, with small records.
_SHARE_OF_UNITS, _SHARE_OF_KEYS = 0.35, 0.25
_ZEROS = f"{INVALID_MAGIC_PREFIX}00000000"
_NEVER_WRITTEN = "these bytes were zeroed, or they were never written and the data after them belongs to another log"
_OF_PROMOTION = frozenset(
    {kinds.UNITS_OF_TRUNCATED_MESSAGES, kinds.ENTRIES_OF_TRUNCATED_MESSAGES, kinds.NOT_INDEXED_ON_REPLICA}
)
# Differences at which startup recovery ends a queue.
_STOPPING_KINDS = frozenset({DifferenceKind.HOLE, DifferenceKind.CORRUPT})


def verify(request: VerifyRequest, workers: Workers) -> Verdict:
    """Return the findings on a store; raise `UndecidedError` for an unknown release."""
    if request.given_settings.release is not None:
        parse_rules(request.given_settings.release)
    store = request.list_store(workers.options, workers.processes)
    verdict = _compare_readable_files(request, workers, store)
    return set_accepted_apart(verdict, store, request.acceptances)


def _compare_readable_files(
    request: VerifyRequest, workers: Workers, store: Store, left_out: frozenset[StoredFile] = frozenset()
) -> Verdict:
    """Compare a store; if the disk cannot read some files, compare it without them, and report them."""
    try:
        return _compare_parts(request, workers, store, left_out)
    except OSError as error:  # of the disk: the files become findings
        unreadable = find_unreadable_files(store, error, workers)
        if not unreadable:
            raise
    left_out |= {file for file, _ in unreadable}
    verdict = _compare_readable_files(request, workers, leave_out_files(store, left_out), left_out)
    for file, why in unreadable:
        report_unreadable_file(file, why, verdict.parts)
    return verdict


def _compare_parts(request: VerifyRequest, workers: Workers, store: Store, left_out: frozenset[StoredFile]) -> Verdict:
    """Compare log, queues, index and configuration, and return the verdict."""

    def relist(store: Store) -> Store:
        return leave_out_files(relist_store(store), left_out)

    place = request.scratch.location if isinstance(request.scratch, Scratch) else request.scratch
    share = _SHARE_OF_UNITS + _SHARE_OF_KEYS * bool(store.index_files)
    check_disk_space(store.root, place or gettempdir(), int(store.log_size * share))
    with open_scratch(request.scratch, workers.options) as scratch:
        read = partial(_read_log_and_queues, request, workers, scratch)
        indexing, queues, configuration, joined, checks, writers, outcomes, last_units = repeat_after_expiry(
            store, read, relist
        )
        store = indexing.store
        compare = partial(_verify_index, request, workers, checks, indexing, outcomes, scratch, left_out)
        index = repeat_after_expiry(store, compare, relist)
    known_ahead = [finding.log_offset for finding in index.findings if finding.kind == kinds.PAST_LOG_END]
    ahead = max(
        [offset for offset in (*known_ahead, joined.find_newest_offset_ahead()) if offset is not None], default=None
    )
    if ahead is None and not store.segments and find_evidence_of_log(store):  # wherever queues and index files point
        ahead = max(find_newest_known_offset(store, queues_in_files(store), last_units), 0)
    promotion = find_last_promotion(store, joined.log_end)
    if promotion is not None and promotion.has_truncated(ahead):
        ahead = None
    conf = request.given_settings.conf
    log, lost = findings_on_log(store, checks, joined.log_end, ahead, conf, writers.last_release, last_units)
    if promotion is not None:
        _set_apart(promotion, log, [queues, index], store)
    _attribute(log, [queues, index, configuration], lost, checks, store)
    parts: dict[str, PartReport] = {LOG: log, QUEUES: queues, INDEX: index, CONFIGURATION: configuration}
    start = None
    stops = [(one.queue, one.position, one.unit_count) for one in joined.differences if one.kind in _STOPPING_KINDS]
    walked = summarize_walk(checks, joined.log_end)._replace(queue_stops=stops)
    if find_broker_process(store.root) is None:
        try:
            start = _predict_start(conf, store, writers, walked, parts, last_units)
        except OSError as error:  # any other error ends the command, like an error in a part
            if not is_disk_error(error):
                raise
            start = unknown_start(writers.last_release, error)
            report_unreadable_at_start(error, parts, store)
    return Verdict(store.root, parts, start, walked, request.options, request.findings_options)


def _predict_start(  # noqa: PLR0913, PLR0917 - the store, and results of its comparison
    conf: BrokerConf,
    store: Store,
    writers: Writers,
    walked: WalkedLog,
    parts: Mapping[str, PartReport],
    last_units: LastUnits | None,
) -> StartOutcome:
    """Predict the next start of the broker, and add what it does to the reports."""
    start = predict_store_start(store, writers, walked, conf, last_units)
    _add_start(start, parts, store)
    if keeps_incomplete_record(store, Release.from_version(start.release), walked.end):
        parts[LOG].notes.append(
            f"the properties of the record at offset {walked.end:,} end in zeros: RocketMQ {start.release} "
            "accepts it as the last message of the log, without the properties that the zeros overwrote"
        )
    return start


def _add_start(start: StartOutcome, parts: Mapping[str, PartReport], store: Store) -> None:
    """Add a finding on a file that keeps the broker from starting, or on a truncation, if no other finding names it."""
    refused = start.unloadable_file or start.ignores_from
    if refused is not None and not any(one.file == refused.file for part in parts.values() for one in part.findings):
        part = QUEUES if refused.file.partition("/")[0] in map(str, QueueKind) else LOG
        what_it_does = (
            "refuses to start" if start.unloadable_file else "starts, but ignores this file and all files after it"
        )
        wrong = "is empty"
        if refused.size:
            how = "has extra bytes" if refused.size > refused.expected_size else "was truncated"
            wrong = f"{how}, or belongs to a broker with a different file size"
        cause = f"the file {wrong}; the broker {what_it_does}"
        size = (min(refused.size, refused.expected_size), "size", str(refused.size), str(refused.expected_size))
        finding = Finding(part, kinds.WRONG_FILE_SIZE, refused.file, *size, cause)
        if refused.size == refused.expected_size:  # only the name of the file is wrong
            cause = f"the file was created or renamed by another program or a user; the broker {what_it_does}"
            name = refused.file.rpartition("/")[2]
            finding = Finding(
                part, kinds.UNEXPECTED_FILE, refused.file, None, "name", name, "20 digits below 2^63", cause
            )
        parts[part].findings.append(finding)
    if start.cuts_at is not None and not any(one.severity.is_alarm for one in parts[LOG].findings):
        parts[LOG].findings.append(early_log_end_finding(start.cuts_at, store))


class _LogAndQueues(NamedTuple):
    """The results of the pass over the log, and of the comparison with the queues."""

    indexing: IndexVerification
    queues: PartReport
    configuration: PartReport
    joined: JoinResult
    checks: list[RangeCheck]
    writers: Writers
    outcomes: list[RangeOutcome[Results]]
    last_units: LastUnits | None


def _read_log_and_queues(request: VerifyRequest, workers: Workers, scratch: Scratch, store: Store) -> _LogAndQueues:
    indexing = IndexVerification(store, request.given_settings, scratch)
    new_collectors: list[NewCollector[Any]] = [new_range_check, *indexing.new_collectors]
    releases = indexing.releases
    rules = determine_unit_rules(store, releases.value.rules, request.given_settings.conf)
    config = read_broker_config(store)  # read before the queues, because consumers may advance meanwhile
    log_pass = LogPass(request.range_size, new_collectors, scratch)
    queues, joined, outcomes, last_units = verify_queues(workers, store, rules, log_pass, request.recorded_topics)
    verify_waiting_messages(queues, store)
    if store.other_files_of_kind(FileKind.COMPACTION_LOG):
        queues.notes.append("the copies of messages in compacted logs (`compaction/`) are not verified")
    queues.notes.append(f"queue format: RocketMQ {releases.value} ({releases.origin_text})")
    checks = complete_checks(outcomes, 0, releases.value)
    configuration = verify_configuration(store, config, make_span_reader(joined, store.start_offset))
    return _LogAndQueues(indexing, queues, configuration, joined, checks, releases.value, outcomes, last_units)


def _verify_index(  # noqa: PLR0913, PLR0917 - the request, and data from the pass over the log
    request: VerifyRequest,
    workers: Workers,
    checks: Sequence[RangeCheck],
    indexing: IndexVerification,
    outcomes: Sequence[RangeOutcome[Results]],
    scratch: Scratch,
    left_out: frozenset[StoredFile],
    store: Store,
) -> PartReport:
    if not indexing.has_files:  # a broker may have created some, or retention deleted those that were listed
        now = leave_out_files(relist_store(store), left_out)
        store = now if now.index_files else store
    ranges = plan_ranges(store, range_size=request.range_size)
    if store is not indexing.store:
        indexing = IndexVerification(store, request.given_settings, scratch)
        if indexing.new_collectors:
            _, outcomes = read_ranges_not_deleted(workers, store, ranges, indexing.new_collectors)
    try:
        return indexing.build_report(workers, store, ranges, outcomes, list_doubtful_ranges(checks))
    except UndecidedError as error:
        return PartReport(unverified=str(error), numbers={"files": len(store.index_files)})


def _attribute(
    log: PartReport, others: Sequence[PartReport], lost: LostRanges, checks: Sequence[RangeCheck], store: Store
) -> None:
    """
    Attribute findings to their causes in the log, and mark those that a foreign segment explains as undecided.

    *others* are the reports on the other parts, queues first: dangling units show a foreign segment.
    """
    dangling = (one.log_offset for one in others[0].findings if one.kind == DifferenceKind.DANGLING)
    segments = {store.segment_before(offset) for offset in dangling if offset is not None}
    for part in others:
        part.findings = [lost.mark_consequence(_doubt_cause(one, segments, store)) for one in part.findings]
    followed = {one.follows.identity for part in (log, *others) for one in part.findings if one.follows is not None}
    # Zeros up to a file's end to which no unit or entry points may never have been written.
    ends = {segment.limit_offset for segment in store.segments}
    pieces = (piece for check in checks for piece in check.damaged_pieces)
    tails = {piece.offset for piece in pieces if piece.reason == _ZEROS and piece.end in ends}
    for number, one in enumerate(log.findings):
        if one.kind == kinds.DAMAGED_RANGE and one.log_offset in tails and one.identity not in followed:
            log.findings[number] = one._replace(cause=_NEVER_WRITTEN, is_undecided=True)


def _doubt_cause(finding: Finding, segments: set[Segment | None], store: Store) -> Finding:
    """Return a finding; if a foreign segment also explains it, its cause is undecided."""
    why = finding.cause if finding.kind == kinds.PAST_LOG_END else None
    if finding.kind in {*MISSING_UNIT_KINDS, kinds.MISSING_INDEX_ENTRIES}:
        why = "units, entries or files were lost"
    elif finding.kind in OVERWRITTEN_UNIT_KINDS:
        why = "the unit was overwritten"
    offset = finding.log_offset
    if not segments or why is None or not (offset is None or store.segment_before(offset) in segments):
        return finding
    others = "other units also point to offsets at which the log has no record"
    cause = f"{why}, or a segment belongs to another log: {others}"
    return finding._replace(cause=cause, is_undecided=True)


def _set_apart(promotion: Promotion, log: PartReport, others: Sequence[PartReport], store: Store) -> None:
    """Move the findings of *others* that the promotion explains to their facts, and add a fact on it to *log*."""
    for part in others:
        every, part.findings = part.findings, []
        for one in every:
            if one.kind in _OF_PROMOTION or (
                one.kind == kinds.PAST_LOG_END and promotion.has_truncated(one.log_offset)
            ):
                part.facts.append(_turn_into_fact(one))
            else:
                part.findings.append(one)
    if not promotion.leftover_offsets and not any(fact.kind in _OF_PROMOTION for part in others for fact in part.facts):
        return  # the new master itself, or a replica that had nothing to remove
    left = promotion.leftovers_end - promotion.log_end if promotion.leftover_offsets else 0
    cause = (
        f"another replica became master: this replica truncated its log at offset {promotion.start:,} and then copied "
        "the new master's records; this is the normal state of queues and index files after a promotion"
    )
    ends = f"the log ends at offset {promotion.log_end:,}; {left:,} bytes after it are left over from the truncation"
    place = locate_offset(promotion.start, store)
    start = str(promotion.start)
    fact = Finding(LOG, kinds.PROMOTION, *place, "offsets", start, ends, cause, log_offset=promotion.start)
    log.facts = [fact, *log.facts]


def _turn_into_fact(finding: Finding) -> Finding:
    if finding.kind != kinds.PAST_LOG_END:
        return finding
    cause = "they belong to messages that were truncated after a promotion; "
    if finding.part == QUEUES:
        units = f"{count_text(finding.times, 'unit')} after the end of the queue"
        cause += "the broker removes them at its next start"
        return finding._replace(kind=kinds.UNITS_OF_TRUNCATED_MESSAGES, expected=units, cause=cause)
    return finding._replace(
        kind=kinds.ENTRIES_OF_TRUNCATED_MESSAGES, expected=finding.found, cause=f"{cause}lookups skip these entries"
    )
