"""Findings on the log itself: parts that are missing, damaged, unreadable, or changed after the broker wrote them."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from jobs.console.amounts import count_text, is_or_are, names_text
from jobs.console.process import tool_command
from jobs.diagnosis import kinds, why_segment_size_is_doubtful
from jobs.diagnosis.findings import LOG, Finding
from jobs.diagnosis.log_check import ChangedRecord, RangeCheck
from jobs.store.copied_segments import find_messages_delivered_twice
from jobs.store.log_ends import (
    NO_SEGMENTS_ERROR,
    EndAfterCrash,
    find_end_after_crash,
    find_lost_start,
    find_right_segment_name,
    wrong_name_text,
)
from jobs.store.queue_files import LastUnits
from jobs.store.ranges import find_holes, find_truncated_segments, locate_hole
from jobs.store.running_broker import find_broker_process
from jobs.store.store import Segment, Store, find_checkpoint_file, read_checkpoint
from jobs.verify.report import LostRange, LostRanges, PartReport, locate_offset
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.layout import BLANK
from rmq_formats.commitlog.record import BRIDGE_REASON, OTHER_OFFSET_PREFIX
from rmq_formats.commitlog.scan import IO_ERROR
from rmq_formats.commitlog.segment import Piece
from rmq_formats.errors import skip_lost_file
from rmq_formats.properties import MAX_LONG
from rmq_formats.release import Release
from rmq_formats.store import CHECKPOINT, CHECKPOINT_SIZE, COMMITLOG_DIRECTORY, FileKind, file_name_of_offset

_FLUSHED = ("physical_timestamp", "logic_timestamp")
_DISPATCHED = "dispatched_offset"
_CHECKPOINT_WRONG = (
    "the checkpoint was overwritten or belongs to another store, or the end of the log was lost; after a crash, the "
    "broker would start its recovery at too high an offset"
)
UNCHECKED_FIELDS = (
    "flag, sysFlag, born time and host, store host, reconsume times, prepared transaction offset, and properties "
    "except keys and tags"
)
UNCHECKED_NOTE = f"no checksum covers these fields of a record, so they cannot be verified: {UNCHECKED_FIELDS}"
NO_CHECKPOINT = (
    "the checkpoint is missing, so the offset up to which the broker had flushed the log is unknown; the broker "
    "creates a new checkpoint at its next start"
)
_STORE_TIMES = (
    "store times of records without keys are compared only with those of the previous and the next record; the first "
    "and the last record have only one neighbor, so a wrong store time may not be found there"
)
_CUT_SHORT = (
    "the file was truncated, for example by an interrupted copy, a full disk or fsck; the broker refuses to load the "
    "log"
)
_MOST_OFFSETS = 50  # that a finding lists
_AHEAD = 1 << 30  # bytes: assumed length of a lost end, whose real length is unknown


def findings_on_log(  # noqa: PLR0913, PLR0917 - the log, the releases that wrote it, and other evidence of its end
    store: Store,
    checks: Sequence[RangeCheck],
    log_end: int,
    lost_record_offset: int | None,
    conf: BrokerConf,
    newest_release: Release,
    last_units: LastUnits | None = None,
) -> tuple[PartReport, LostRanges]:
    """
    Return the report on the log, and the ranges that findings of other parts may follow from.

    *lost_record_offset* is that of the last record after *log_end* to which queues or index files of a closed store
    point, *last_units* are those of the queues.
    """
    crashed = find_end_after_crash(store, log_end, last_units)  # a copy of a running broker's store may look the same
    if crashed is not None and crashed.loss_evidence:
        lost_record_offset = crashed.newest_offset
    findings, lost = findings_on_records(store, checks)
    findings += (_finding_of_changed_record(one, store) for check in checks for one in check.doubtful_records)
    findings += map(LostRanges(lost).mark_consequence, _lost_start(store))
    findings += _overlapping(store)
    findings += _stray_files(store)
    if lost_record_offset is None:
        for segment, usual in find_truncated_segments(store.segments):
            if segment is store.segments[-1]:  # for any other segment, the gap after it is a finding
                place, sizes = (store.path_below_root(segment.location), segment.size), (str(segment.size), str(usual))
                end = segment.base_offset + segment.size
                findings.append(Finding(LOG, kinds.WRONG_FILE_SIZE, *place, "size", *sizes, _CUT_SHORT, log_offset=end))
    else:
        finding = lost_end_finding(log_end, lost_record_offset, store, crashed)
        findings.append(finding)
        lost.append((log_end, log_end + _AHEAD if store.segments else MAX_LONG, finding))
    findings.sort(key=lambda finding: finding.log_offset or 0)
    newest = max((check.newest_timestamp for check in checks), default=0)
    checkpoint, doubts = findings_on_checkpoint(store, newest, log_end, newest_release)
    if crashed is not None and not crashed.loss_evidence:
        command = f"{tool_command()} repair {store.command_words} --lake LAKE --out REPAIR"
        doubts.append(f"{crashed.text}. Undecided: {crashed.evidence_text}. {crashed.advice}; run: {command}")
    if stray := [one for check in checks for one in check.undecided_times]:
        doubts.append(
            f"{count_text(len(stray), 'store time')} (the first at offset {stray[0].offset:,}) {is_or_are(len(stray))} "
            "more than a day away from the times before and after, which agree with each other; undecided: either the "
            "record changed, or the broker's clock was briefly wrong"
        )
    if ends := [one for check in checks for one in check.undecided_ends]:
        doubts.append(
            f"the properties of {count_text(len(ends), 'record')} (the first at offset {ends[0].offset:,}) end in "
            "zeros; undecided: either a value ends in them, which RocketMQ 4.9.1 to 5.1.4 store without a separator, "
            "or the end of the record was lost; pass --release to decide"
        )
    if odd := why_segment_size_is_doubtful(store, conf):
        doubts.append(f"{odd}; pass --broker-conf to decide")
    if lost:  # the lost part may contain the time that it states
        checkpoint = [one for one in checkpoint if one.kind == kinds.TRUNCATED_CHECKPOINT]
    report = PartReport(
        [*findings, *checkpoint], log_numbers(store, checks, log_end), [UNCHECKED_NOTE, _STORE_TIMES], doubts=doubts
    )
    changed = (
        (one.offset, one.offset + one.size, _finding_of_changed_record(one, store))
        for check in checks
        for one in (*check.wrong_records, *check.doubtful_records)
    )
    return report, LostRanges([*lost, *changed])


def findings_on_records(store: Store, checks: Sequence[RangeCheck]) -> tuple[list[Finding], list[LostRange]]:
    """Return the findings on the records of a log, and its lost ranges."""
    pieces = [piece for check in checks for piece in check.damaged_pieces]
    findings, lost = _findings_of_wrong_names(pieces, store)
    wrong_names = LostRanges(lost)
    for before, start, end in find_holes(store.segments):
        cut = next((piece for piece in pieces if piece.end == start), None)
        location, position = locate_hole(before, store.segments)
        cause = "the file was truncated, for example by an interrupted copy, a full disk or fsck"
        if position is None:
            cause = "a segment is missing: it was deleted or not copied"
        place = store.path_below_root(location), position
        finding = wrong_names.mark_consequence(_finding_of_range(kinds.MISSING_RANGE, place, (start, end), cause))
        findings.append(finding)
        lost.append((cut.offset if cut else start, end, finding.follows or finding))
        pieces = [piece for piece in pieces if piece is not cut]
    for piece in pieces:
        place, kind = locate_offset(piece.offset, store), kinds.DAMAGED_RANGE
        cause = "these bytes are not a valid record: they were overwritten or zeroed, or bits changed"
        if piece.reason == IO_ERROR:
            kind, cause = kinds.UNREADABLE_RANGE, "the disk reports a read error for these bytes"
        elif piece.reason == BRIDGE_REASON:
            cause = "the record was lost"
        elif not place[1] and piece.reason.startswith(OTHER_OFFSET_PREFIX):
            cause = "these records were written at another offset: the file is from another log or has the wrong name"
            cause = _describe_copied_segment(store, piece.offset) or cause
        cause += f" ({piece.reason})" if piece.reason else ""
        finding = _finding_of_range(kind, place, (piece.offset, piece.end), cause)
        findings.append(finding)
        lost.append((piece.offset, piece.end, finding))
    findings += (_finding_of_changed_record(one, store) for check in checks for one in check.wrong_records)
    return findings, lost


def _describe_copied_segment(store: Store, offset: int) -> str:
    """Return which messages consumers receive twice if the segment at *offset* is a copy; empty if there are none."""
    segment = store.segment_at(offset)
    again = find_messages_delivered_twice(store, segment) if segment is not None else []
    if not again:
        return ""
    original, _ = locate_offset(again[0], store)
    return (
        f"the file is a copy of {original}: its own messages are lost, and in place of some of them, consumers receive "
        f"{count_text(len(again), 'message')} of {original} a second time, at "
        f"{'offset' if len(again) == 1 else 'offsets'} {names_text([f'{one:,}' for one in again], _MOST_OFFSETS)}"
    )


def _findings_of_wrong_names(pieces: list[Piece], store: Store) -> tuple[list[Finding], list[LostRange]]:
    """
    Return the findings on segments under a wrong name, and the offsets that are lost by it.

    Their pieces, and unwritten ones before their names, are removed from *pieces*, because they follow from the name.
    """
    findings: list[Finding] = []
    lost: list[LostRange] = []
    gaps = {end: start for _, start, end in find_holes(store.segments)}
    starts = {piece.offset for piece in pieces}
    for segment in (one for one in store.segments if one.base_offset in starts):
        with skip_lost_file(), store.open(segment) as file:
            right = find_right_segment_name(store, segment, file.read)
            if right is not None:
                finding = _finding_of_misnamed_segment(segment, right, store)
                findings.append(finding)
                pieces[:] = [one for one in pieces if not segment.base_offset <= one.offset < segment.limit_offset]
                start = gaps.get(segment.base_offset, segment.base_offset)
                while before := next((piece for piece in pieces if piece.end == start), None):
                    pieces.remove(before)
                    start = before.offset
                lost.append((start, segment.limit_offset, finding))
                lost.append((right, right + segment.size, finding))
    return findings, lost


def _finding_of_misnamed_segment(segment: Segment, right: int, store: Store) -> Finding:
    names = file_name_of_offset(segment.base_offset), file_name_of_offset(right)
    place = store.path_below_root(segment.location), 0, "name"
    return Finding(LOG, kinds.MISNAMED_SEGMENT, *place, *names, wrong_name_text(right), log_offset=right)


def log_numbers(store: Store, checks: Sequence[RangeCheck], log_end: int) -> dict[str, int]:
    """Return the figures of a log: how much was read, and how much is wrong."""
    return {
        "segments": len(store.segments),
        "records": sum(check.record_count for check in checks),
        "from_offset": store.start_offset,
        "to_offset": log_end,
        "missing_bytes": sum(end - start for _, start, end in find_holes(store.segments)),
        "damaged_bytes": sum(piece.size for check in checks for piece in check.damaged_pieces),
        "wrong_bodies": sum(len(check.wrong_records) for check in checks),
    }


def _stray_files(store: Store) -> Iterator[Finding]:
    """Yield a finding on each file in the log's directory whose name no broker uses."""
    for path in sorted(file.path_facts.path for file in store.other_files_of_kind(FileKind.UNKNOWN)):
        directory, _, name = path.rpartition("/")
        if directory == COMMITLOG_DIRECTORY:
            cause = "another program or a user created the file; a broker loads every file here, and refuses to start"
            yield Finding(LOG, kinds.UNEXPECTED_FILE, path, None, "name", name, "20 digits below 2^63", cause)


def _overlapping(store: Store) -> Iterator[Finding]:
    """Yield findings on files that lie inside the range of a segment, and are not part of the log."""
    for file in store.overlapping_segments:
        segment = store.segment_at(file.base_offset)
        name = file_name_of_offset(segment.base_offset) if segment else ""
        right = None
        with skip_lost_file(), store.open(file) as reader:
            right = find_right_segment_name(store, file, reader.read)
        if right is not None:
            yield _finding_of_misnamed_segment(file, right, store)
            continue
        cause = (
            f"the file is a copy or belongs to another log: the records at its offsets are in segment {name}, not in "
            "this file"
        )
        if segment is not None and segment.base_offset == file.base_offset:
            cause = f"{store.path_below_root(segment.location)} has the same name: one is a copy, or of another log"
        if not file.has_valid_offsets:
            cause = "the file was renamed or belongs to another log: its offsets would exceed 64 bits"
        place, names = store.path_below_root(file.location), file_name_of_offset(file.base_offset)
        yield Finding(LOG, kinds.OVERLAPPING_FILE, place, 0, "name", names, "", cause)


def _lost_start(store: Store) -> Iterator[Finding]:
    """Yield a finding if segments before the first one are missing that retention did not delete."""
    started = find_lost_start(store) if find_broker_process(store.root) is None else None
    if started is not None:
        file = store.path_below_root(store.segments[0].location)
        doubt = ", or the only file that points to them is from another store" * (started.file_count == 1)
        if not store.has_clean_shutdown:
            doubt = ", or the broker was killed or the store was copied while retention deleted files"
        either = "either " * bool(doubt)
        found = f"{started.start} to {started.end} (the range may begin earlier)"
        yield Finding(
            LOG, kinds.LOST_START, file, 0, "offsets", found, "records",
            f"{either}the first segments were lost, deleted manually or not copied{doubt}: {started.text}",
            log_offset=started.start, log_end=started.end, is_undecided=bool(doubt),
        )  # fmt: skip


def _finding_of_range(kind: str, place: tuple[str, int | None], offsets: tuple[int, int | str], cause: str) -> Finding:
    start, end = offsets
    return Finding(
        LOG, kind, *place, "offsets", f"{start} to {end}", "records", cause, log_offset=start,
        log_end=end if isinstance(end, int) else None,
    )  # fmt: skip


WRONG_BYTES = "; consumers receive the wrong bytes"
_CHANGES = {  # changes of a record: the field, its correct value, and the cause
    kinds.WRONG_BODY_CRC: (
        "body",
        "a body that matches the stored CRC",
        f"the body or its CRC changed after the broker wrote the record{WRONG_BYTES}",
    ),
    kinds.WRONG_RECORD_CRC: (
        "record",
        "the record as the broker wrote it",
        "a field, a property, or the CRC over the full record changed after the broker wrote it",
    ),
    kinds.ZEROED_PROPERTIES: (
        "properties",
        "properties that do not end in zeros",
        "the end of the record was lost; only a value of RocketMQ 4.9.1 to 5.1.4 may end in zeros: pass its --release",
    ),
    kinds.WRONG_STORE_TIME: (
        "store_timestamp",
        "a store time between those of the records before and after it",
        "one bit of the store time changed: it is more than a day away from the times before and after it, which agree",
    ),
}


def _finding_of_changed_record(record: ChangedRecord, store: Store) -> Finding:
    field, expected, cause = _CHANGES[record.kind]
    found = f"record at {record.offset}, {record.size} bytes"
    place, end = locate_offset(record.offset, store), record.offset + record.size
    return Finding(LOG, record.kind, *place, field, found, expected, cause, log_offset=record.offset, log_end=end)


def early_log_end_finding(offset: int, store: Store) -> Finding:
    """Return the finding on correct bytes that the broker treats as the end of its log."""
    cause = "the end-of-file blank is longer than the rest of the file, so the broker treats it as the end of the log"
    return _finding_of_range(kinds.DAMAGED_RANGE, locate_offset(offset, store), (offset, offset + BLANK.size), cause)


def lost_end_finding(
    log_end: int, lost_record_offset: int, store: Store, crashed: EndAfterCrash | None = None
) -> Finding:
    """Return the finding that the log ends before a record to which queues or index files point."""
    cause = (
        "the broker was shut down cleanly, but its queues or index files point to records past the end of the log: "
        "the newest segment was truncated, or the last segments are missing"
    )
    if not store.segments:
        cause = NO_SEGMENTS_ERROR
    elif crashed is not None:
        cause = f"{crashed.text}: {crashed.evidence_text}. {crashed.advice}"
    return _finding_of_range(
        kinds.LOST_END, locate_offset(log_end, store), (log_end, f"{lost_record_offset} or higher"), cause
    )


def findings_on_checkpoint(
    store: Store, newest_ms: int, log_end: int, newest_release: Release
) -> tuple[list[Finding], list[str]]:
    """
    Return findings on the checkpoint's times and queue offset, and notes.

    *newest_ms* is the log's latest store time.
    """
    stored = find_checkpoint_file(store)
    if stored is None:
        return [], [NO_CHECKPOINT]
    findings = []
    if stored.size != CHECKPOINT_SIZE:
        cause = (
            "the file was truncated or extended; after a crash, the broker would read more of its log than necessary"
        )
        found = str(stored.size), str(CHECKPOINT_SIZE)
        findings.append(Finding(LOG, kinds.TRUNCATED_CHECKPOINT, "checkpoint", stored.size, "size", *found, cause))
    checkpoint = read_checkpoint(store)
    # A running broker's may be newer than the log's copy.
    for name in _FLUSHED if checkpoint is not None and newest_ms and store.has_clean_shutdown else ():
        time = getattr(checkpoint, name)
        if time > newest_ms:
            latest = f"the log's latest store time, {_format_time(newest_ms)}"
            cause = f"{_format_time(time)} is later than {latest}: {_CHECKPOINT_WRONG}"
            place, values = ("checkpoint", CHECKPOINT.offset(name), name), (str(time), str(newest_ms))
            findings.append(Finding(LOG, kinds.CHECKPOINT_AFTER_LOG, *place, *values, cause, right_time=newest_ms))
    offset = checkpoint.dispatched_offset if checkpoint is not None and newest_ms and store.has_clean_shutdown else 0
    # The Java broker writes the offset at which the last record begins, rocketmq-rust the one at which it ends.
    limit = log_end + bool(newest_release.implementation)
    if offset >= max(limit, 1):  # 5.5.0+: if it is positive, a recovery does not look at the times
        place = "checkpoint", CHECKPOINT.offset(_DISPATCHED), _DISPATCHED
        values = str(offset), f"less than {limit}"
        cause = f"the log ends before this offset: {_CHECKPOINT_WRONG}"
        findings.append(Finding(LOG, kinds.CHECKPOINT_AFTER_LOG, *place, *values, cause, right_time=0))
    return findings, []


def _format_time(time: int) -> str:
    try:
        return datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # outside the calendar; no I/O
        return f"{time} (out of range)"
