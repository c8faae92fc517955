"""
Losses at both ends of a log, shown by queues and index files: more is missing than a broker deletes itself.

Retention deletes a segment, and in the same minute every queue file and index file that points only to messages before
the new beginning, except the last one of its kind. Queues do not point after the end of the log, except in a copy of a
running broker's store whose log was copied before its queues.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from jobs.console.amounts import count_text, duration_text
from jobs.storage.locations import is_local
from jobs.store.epochs import find_last_promotion, tail_evidence
from jobs.store.queue_files import LastUnits, StoredQueue, hold_file, queues_in_files
from jobs.store.ranges import find_holes, find_newest_segment, usual_segment_size
from jobs.store.record_places import find_record, segment_bytes
from jobs.store.running_broker import find_broker_process
from jobs.store.store import Segment, Store, StoredFile, read_index_header, relist_store
from rmq_formats.commitlog.layout import DLEDGER_ENTRY, DLEDGER_MAGIC, HEAD, RECORD
from rmq_formats.commitlog.record import decode_record, has_right_body_crc
from rmq_formats.consumequeue.dispatch import BatchUnit, QueueKind, QueueName, Unit
from rmq_formats.errors import FormatError, NotAStore, skip_lost_file
from rmq_formats.layout import Read
from rmq_formats.properties import MAX_LONG
from rmq_formats.store import file_name_of_offset

MAX_BYTES_PAST_LOG_END = 1 << 30  # bytes after the log's end: a unit that points farther is not evidence
_SECOND_MS = 1000
_WRITTEN_TOGETHER_MS = 60_000  # a broker writes a record to the disk, and its unit, within this time
_NEAR_END = 64 << 10
_MOST_QUEUES = 256  # queues that are probed if the caller has not read all of them


NO_SEGMENTS_ERROR = (
    "the log has no segments: they are in another directory (--commitlog, --broker-conf), or were deleted"
)


class LostPart(NamedTuple):
    """Offsets before the first segment or after the last record that a log has lost, and the evidence as text."""

    start: int  # for a lost beginning, an offset that the log certainly had
    end: int
    text: str
    file_count: int = 0  # the number of files that prove a lost beginning


def find_lost_ends(store: Store, newest_offset: int | None = None, log_end: int | None = None) -> Iterator[LostPart]:
    """
    Yield the lost parts of a log that no broker is writing: before its first segment, and after its last record.

    *newest_offset* is the newest one in queues and index files, *log_end* the end of the last record, if the caller
    has read them. Otherwise they come from the last index file and some queues, and from the newest segment.
    """
    if not store.segments:
        return
    if not store.has_clean_shutdown:
        crashed = find_end_after_crash(store, log_end)
        if crashed is not None and crashed.loss_evidence:
            text = f"{crashed.text}: {crashed.loss_evidence}. {crashed.advice}"
            yield LostPart(crashed.log_end, crashed.newest_end, text)
        return
    queues = queues_in_files(store)
    started = find_lost_start(store, islice((queue for queue in queues if len(queue.files) > 1), _MOST_QUEUES))
    if started is not None:
        yield started._replace(text=f"the beginning of the log is missing: {started.text}")
    newest_offset = find_newest_known_offset(store, queues) if newest_offset is None else newest_offset
    log_end = _end_of_log(store, newest_offset, log_end)
    if log_end is not None and has_lost_end(store, newest_offset, log_end):
        text = (
            f"the end of the log is missing: the log ends at offset {log_end:,}, but queues or index files point to a "
            f"record at {newest_offset:,}"
        )
        yield LostPart(log_end, newest_offset, text)


def read_last_units(queues: Iterable[StoredQueue], known: LastUnits | None = None) -> Iterator[Unit | BatchUnit]:
    """Yield the last unit of each queue that has any; only queues that are not *known* are read."""
    known = known or {}
    for queue in queues:
        unit = known[queue.name] if queue.name in known else _read_last_unit(queue)
        if unit is not None:
            yield unit


def _read_last_unit(queue: StoredQueue) -> Unit | BatchUnit | None:
    with hold_file(queue) as held:
        return held.read_last_unit(held.find_written_end())


def find_newest_known_offset(store: Store, queues: Iterable[StoredQueue], last_units: LastUnits | None = None) -> int:
    """Return the newest offset in the last index file and some queues; -1 without any, or if it is not evidence."""
    latest = sorted(queues, key=lambda queue: queue.files[-1].modified_ms, reverse=True)[:_MOST_QUEUES]
    known = [unit.physical_offset for unit in read_last_units(latest, last_units)]
    known += filter(None, (_newest_of(file, store) for file in store.index_files[-1:]))
    limit = store.end_offset + MAX_BYTES_PAST_LOG_END if store.segments else MAX_LONG
    return max((offset for offset in known if offset < limit), default=-1)


class EndAfterCrash(NamedTuple):
    """
    The end of a log that no broker closed, and a record after it to which queues or index files point.

    Without evidence, the end of the log may be lost, or the log was copied first.
    """

    log_end: int
    newest_offset: int
    newest_end: int  # the end of the record at *newest_offset*; this offset itself if no unit states its size
    copy_evidence: str  # why the log was copied before these files, as text; empty without evidence
    loss_evidence: str  # why the log was not copied before these files, as text; empty without evidence

    @property
    def text(self) -> str:
        """How far the log ends before its queues and index, as text."""
        return f"the log ends {count_text(self.newest_end - self.log_end, 'byte')} before its queues and index"

    @property
    def advice(self) -> str:
        """The warning before the next start of the broker, as text."""
        return (
            "If this is the broker's directory and not a copy, do not start the broker, which would delete the units "
            "and index entries after the end of the log"
        )

    @property
    def evidence_text(self) -> str:
        """The evidence, as text."""
        doubt = "the times of the files do not show whether the end of the log was lost or the log was copied first"
        return self.copy_evidence or self.loss_evidence or doubt


def find_end_after_crash(
    store: Store, log_end: int | None = None, last_units: LastUnits | None = None
) -> EndAfterCrash | None:
    """
    Return the record after the end of a killed broker's log to which queues or index files point, if any.

    Queues whose *last_units* the caller knows are not read.

    A copy of a running broker's store looks the same if its log was copied first, and so does a store that was copied
    afterwards without its file times. The times of the files tell them apart in most cases: a broker writes a record
    and its unit within seconds, whether the times are those of the broker's writes or of the copies. If the log's file
    is the newest one, it was not copied first. The same holds if only the beginning of a record is left, because a copy
    very rarely reads a page in the middle of a broker's write.
    """
    if store.has_clean_shutdown or not store.segments or find_broker_process(store.root) is not None:
        return None
    with suppress(OSError, NotAStore):  # reported by the comparison of queues and index files, or by the next listing
        queues = queues_in_files(store)
        newest = find_newest_known_offset(store, queues, last_units)
        end = _end_of_log(store, newest, log_end)
        if end is not None and has_lost_end(store, newest, end):
            now = relist_store(store)  # an undetected broker may have created segments since they were listed
            if _is_whole_at(end, now) or not has_lost_end(now, newest, end):
                return None
            sizes = [unit.size for unit in read_last_units(queues, last_units) if unit.physical_offset == newest]
            return EndAfterCrash(end, newest, newest + max(sizes, default=0), *_find_evidence(store, end))
    return None


def _find_evidence(store: Store, log_end: int) -> tuple[str, str]:
    """Return why the log was copied before queues and index, and why it was not; both are empty without evidence."""
    segment = store.segment_at(log_end) or store.segments[-1]
    path, (directory, _, name) = store.path_below_root(segment.location), segment.location.rpartition("/")
    modified_ms = {info.name: info.modified_ms for info in store.storage.list_files(directory)}.get(name)
    newest = max((*store.queue_files, *store.index_files), key=lambda file: file.modified_ms)
    later_ms = 0 if modified_ms is None else newest.modified_ms - modified_ms
    if later_ms > _WRITTEN_TOGETHER_MS:
        later = duration_text(later_ms / 1000)
        return f"{newest.path_facts.path} was modified {later} later than {path}: the log was copied before it", ""
    is_exact = newest.modified_ms % _SECOND_MS != 0  # an archive may have whole seconds
    # Other file systems have the times of the copies, which were made in parallel.
    if later_ms < (1 if is_exact else 0) and is_local(store.root):
        return "", f"no queue or index file was modified after {path}, so it was not copied before them"
    if _has_beginning_of_record(store, segment, log_end - segment.base_offset):
        return "", f"only the beginning of the record at offset {log_end:,} is left"
    return "", ""


def _has_beginning_of_record(store: Store, segment: Segment, position: int) -> bool:
    """
    Return whether the beginning of a record, up to its own offset, follows the end of a log.

    An undetected broker may be writing a shorter beginning, or one that has grown when it is read again.
    """
    if position < 0:
        return False
    with store.open(segment) as reader:
        written = bytes(reader.read(position, _NEAR_END)).rstrip(b"\0")
        reader.read(position + len(written), HEAD.size)  # the next bytes that a broker would write
        if bytes(reader.read(position, _NEAR_END)).rstrip(b"\0") != written:
            return False
    start = _record_start(written)
    stated = written[start + _PLACE :][:8].ljust(8, b"\0")
    return len(written) > start + _PLACE and int.from_bytes(stated) == segment.base_offset + position + start


def _end_of_log(store: Store, newest: int, records_end: int | None) -> int | None:
    """
    Return where a broker continues the log: after the last record, or after the blank that ends its segment.

    *records_end* is the end of the last record, if the caller has read it.
    """
    end = _end_of_records(store, newest) if records_end is None else records_end
    segment = None if end is None else store.segment_at(end)
    if end is None or segment is None:
        return end
    with store.open(segment) as reader:
        position = end - segment.base_offset
        is_sealed = segment_bytes(segment, reader).stated_blank_size(position) == segment.readable_bytes - position
    return segment.base_offset + segment.readable_bytes if is_sealed else end


def _end_of_records(store: Store, newest: int) -> int | None:
    """Return the end of the newest segment's last record if no whole one is at *newest*; None otherwise."""
    last = find_newest_segment(store)
    segment = store.segments[0] if last is None else last[0]  # without any, all segments are zeros
    if newest < segment.base_offset or _is_whole_at(newest, store):
        return None
    with store.open(segment) as reader:
        position = min(newest - segment.base_offset, segment.readable_bytes)
        if any(reader.read(position, min(HEAD.size, segment.readable_bytes - position))):
            return newest  # damage: at the end of a log it looks like a broker that is still writing
        places = segment_bytes(segment, reader).walk_record_bounds()
        return max((end for _, end in places), default=segment.base_offset)


def find_lost_start(store: Store, queues: Iterable[StoredQueue] | None = None) -> LostPart | None:
    """Return evidence that segments before the first one were not deleted by retention; None without any."""
    if not store.segments or not store.start_offset:
        return None
    queues = queues_in_files(store) if queues is None else queues
    found = sorted([*_index_files(store), *_find_queue_files_before_log(queues, store.start_offset)])
    if not found:
        return None
    count, (first, _) = len(found), found[0]
    what = f"{first} points" if count == 1 else f"{count:,} queue and index files (the first: {first}) point"
    files = "this file" if count == 1 else "these files"
    text = f"{what} only to messages before offset {store.start_offset:,}; retention would also have deleted {files}"
    return LostPart(min(newest for _, newest in found), store.start_offset, text, count)


def _index_files(store: Store) -> Iterator[tuple[str, int]]:
    """Yield the oldest files that outlived their messages; a later one belongs to another log."""
    for file in store.index_files[:-1]:
        newest = _newest_of(file, store)
        if newest is None or not 0 < newest < store.start_offset:
            return
        yield file.path_facts.path, newest


def _newest_of(file: StoredFile, store: Store) -> int | None:
    with skip_lost_file():
        header = read_index_header(file, store)
        return None if header is None else header.end_physical_offset
    return None


def _find_queue_files_before_log(queues: Iterable[StoredQueue], log_start: int) -> Iterator[tuple[str, int]]:
    """Yield the first files of queues whose last unit points before the log, with the offset to which it points."""
    for queue in queues:
        if len(queue.files) == 1:
            continue
        first = queue.files[0]
        unit = queue.read_unit(first.end // queue.unit_size - 1)
        is_of_log = isinstance(unit, Unit) and not unit.is_pre_blank
        if is_of_log and unit is not None and 0 <= unit.physical_offset < log_start:
            yield first.path_facts.path, unit.physical_offset


def has_lost_end(store: Store, newest_offset: int, log_end: int) -> bool:
    """Return whether *newest_offset*, from queues or index files of a closed store, is lost, after the log's end."""
    if not log_end <= newest_offset < log_end + MAX_BYTES_PAST_LOG_END or _is_whole_at(newest_offset, store):
        return False
    promotion = find_last_promotion(store, log_end)
    return promotion is None or not promotion.has_truncated(newest_offset)


def _is_whole_at(offset: int, store: Store) -> bool:
    record = find_record(store, offset)
    return record is not None and tail_evidence(store).is_complete(record)


_PLACE = RECORD[0].offset("physical_offset")
_LONGEST_RECORD = 8 << 20


def _record_start(data: bytes) -> int:
    """Return the position of the record in *data*, which begins with it or with its entry header."""
    return DLEDGER_ENTRY.size if data.startswith(DLEDGER_MAGIC.to_bytes(4)) else 0


def find_right_segment_name(store: Store, segment: Segment, read: Read) -> int | None:
    """
    Return the right name of a segment whose first record states another offset; None if nothing proves it.

    The first record states an offset at which a segment is missing, or an offset before the log. Two pieces of evidence
    must agree: the record, with its CRC, and the gap or the record's unit. A changed bit would contradict one of them,
    and in a segment of another log the unit contradicts the record.
    """
    start = _record_start(bytes(read(0, 4)))
    right, size = int.from_bytes(read(start + _PLACE, 8)) - start, usual_segment_size(store.segments)[0]
    is_missing = any(start == right for _, start, _ in find_holes(store.segments))
    if not is_missing and not (right < store.start_offset and size and right % size == 0):
        return None
    try:
        first = decode_record(bytes(read(start, min(segment.size, _LONGEST_RECORD))))
    except FormatError:
        return None
    name = QueueName(QueueKind.PLAIN, first.topic, first.queue_id)
    queue = next((one for one in queues_in_files(store) if one.name == name), None)
    unit = queue.read_unit(first.queue_offset) if queue is not None else None
    is_proven = is_missing
    if unit is not None:
        is_proven = (unit.physical_offset, unit.size) == (first.physical_offset, first.total_size)
    return right if is_proven and has_right_body_crc(first) else None


def wrong_name_text(right_offset: int) -> str:
    """Return the finding for a segment whose name should be *right_offset*, as text."""
    return f"the file has the wrong name: its records belong to {file_name_of_offset(right_offset)}, which is missing"
