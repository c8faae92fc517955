"""
Queues in RocksDB: the steps to repair wrong rows, and a comparison with queue files that the broker also writes.

Only a broker can write rows into its database, and a broker with queues in RocksDB does not read queue files. A broker
that finds no queue database rebuilds the rows from the log, so the step for a damaged database is to move it away.
A broker of 5.2.0 does not rebuild them.

With double write the broker reads the files. Before a switch to RocksDB, the database must have every unit. Units at
its beginning are missing if double write was enabled late; no start adds these. Units at its end are missing if double
write was disabled for a while; the next start with double write adds these. If files and database differ, the log
decides.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from shlex import quote

import numpy as np

from jobs.console.amounts import count_text
from jobs.console.process import tool_command
from jobs.console.result import RecommendedStep
from jobs.diagnosis import kinds
from jobs.diagnosis.findings import CONFIGURATION, QUEUES, Finding
from jobs.products.queues.join_result import DifferenceKind
from jobs.store.broker_config import has_topics_of_rocksdb_broker
from jobs.store.pending_messages import (
    open_rocksdb_store,
    read_timer_state,
    read_timers,
    read_transactions,
    read_waiting_units,
)
from jobs.store.queue_files import StoredQueue, queues_in_rocksdb, split_into_chunks
from jobs.store.queue_storage import QueueStorage, detect_queue_storage, rocksdb_queue_directory, rocksdbstore_directory
from jobs.store.record_places import segment_bytes
from jobs.store.rocksdb_queues import find_queue_database
from jobs.store.store import Segment, Store, relist_store
from jobs.store.units import is_of_deleted_file, read_stored_units
from jobs.verify.report import PartReport, unreadable_database_finding
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.commitlog.segment import SegmentBytes
from rmq_formats.consumequeue.dispatch import LMQ_PREFIX, QueueKind, QueueName
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE
from rmq_formats.detection import TIMER_TOPIC
from rmq_formats.errors import FormatError, UnsupportedFormat, is_disk_error
from rmq_formats.properties import MAX_LONG
from rmq_formats.rocksdb.layout import ROCKSDB_HALF_TOPIC
from rmq_formats.store import CONSUME_QUEUE_DIRECTORY, ROCKSDB_STORE_DIRECTORY

_AT_ONCE = 1 << 16  # units
_OF_ROWS = frozenset({kinds.DOUBLE_WRITE_DIFFERS, kinds.UNREADABLE_DATABASE, kinds.WRONG_QUEUE_END})
_ROOTS = frozenset(QueueKind)
_RECOVERED = 10  # segments, the newest ones, that a broker of 5.4.0 or later dispatches when it starts
_LITE_PREFIX = f"{LMQ_PREFIX}$"  # %LMQ%$parent$child: queues of LITE topics


@dataclass(slots=True)
class DoubleWriteComparison:
    """Both kinds of queues, compared unit by unit."""

    file_units: int = 0  # units, without those of expired records
    rocksdb_units: int = 0
    missing_oldest_units: int = 0  # units that RocksDB lacks before its first one of the queue
    missing_oldest_end: int = 0  # physical offset after the newest of those
    missing_newest_units: int = 0  # units that RocksDB lacks after its last one
    missing_newest_start: int = MAX_LONG  # physical offset of the oldest of those
    units_without_files: dict[QueueName, int] = field(default_factory=dict)  # units of queues that RocksDB alone has
    different_units: int = 0
    is_selective: bool = False  # some queues have no unit in RocksDB, and the others are all of LITE topics

    def switch_safety_text(self) -> str:
        """Return one line on whether switching to RocksDB is safe."""
        both = f"double write: the files have {count_text(self.file_units, 'unit')}, "
        both += f"RocksDB has {count_text(self.rocksdb_units, 'unit')}"
        if self.different_units:
            differ = f"{count_text(self.different_units, 'unit')} differ{'s' * (self.different_units == 1)}"
            return f"{both}; {differ}. Do not switch to RocksDB; the log shows which is right (see the findings)"
        if self.is_selective:
            setting = "rocksdbCQSelectiveDoubleWriteEnable"
            return f"{both}. Only LITE topics are written twice ({setting}), so do not switch to RocksDB"
        parts = []
        if self.missing_oldest_units:
            first, end = count_text(self.missing_oldest_units, "unit"), self.missing_oldest_end
            parts.append(f"RocksDB lacks {first} before log offset {end:,}, and a restart does not fill the gap")
        if self.missing_newest_units:
            last = count_text(self.missing_newest_units, "unit")
            parts.append(
                f"RocksDB lacks {last} from log offset {self.missing_newest_start:,} on, but a restart fills the gap"
            )
        if self.units_without_files:
            lost = count_text(sum(self.units_without_files.values()), "unit")
            parts.append(f"the files lack {lost} that RocksDB has (see the findings)")
        if not parts:
            return f"{both}, and all are the same. Switching to RocksDB is safe"
        step = (
            "Do not switch to RocksDB before a restart with double write"
            if self.missing_newest_units
            else "Switching to RocksDB is safe"
        )
        if self.missing_oldest_units:
            step = (
                f"Do not switch to RocksDB until retention has deleted the log up to offset {self.missing_oldest_end:,}"
            )
        return f"{both}; {'; '.join(parts)}. {step}"


def compare_double_write(store: Store, file_queues: Mapping[QueueName, StoredQueue]) -> DoubleWriteComparison | None:
    """Compare both kinds of queues; return None if a store does not have both."""
    if detect_queue_storage(store) is not QueueStorage.BOTH:
        return None
    result = DoubleWriteComparison()
    copies = {queue.name: queue for queue in queues_in_rocksdb(store)}
    plain = {
        name: queue for name, queue in file_queues.items() if name.kind is QueueKind.PLAIN and not queue.in_rocksdb
    }
    for name, queue in plain.items():
        _compare_copies(result, queue, copies.get(name), store.start_offset)
    lite = {name.topic.removeprefix(_LITE_PREFIX).partition("$")[0] for name in copies if _is_lite(name)}
    are_lite = bool(lite) and all(_is_lite(name) or name.topic in lite for name in copies)
    result.is_selective &= are_lite
    result.rocksdb_units = sum(copy.capacity_end - copy.first_unit_number for copy in copies.values())
    result.units_without_files = {
        name: copy.capacity_end - copy.first_unit_number
        for name, copy in copies.items()
        if name not in plain and not name.topic.startswith(LMQ_PREFIX)
    }
    return result


def findings_on_queue_ends(store: Store) -> Iterator[Finding]:
    """Yield findings on rows of last units; after a kill, such a row may be older or newer than the units."""
    database = find_queue_database(store) if store.has_clean_shutdown else None
    last_units = {} if database is None else database.read_bounds()[1]
    for queue in queues_in_rocksdb(store) if database is not None else ():
        last, stated = queue.capacity_end - 1, last_units.get(queue.name)
        if queue.capacity_end > queue.first_unit_number and (stated is None or stated.queue_offset != last):
            found = "none" if stated is None else str(stated.queue_offset)
            cause = (
                "the row was lost or overwritten; the broker numbers the next message after it, so that messages "
                "overwrite others, or consumers wait at a gap"
            )
            yield Finding(QUEUES, kinds.WRONG_QUEUE_END, queue.name.path, None, "last unit", found, str(last), cause)


def _is_lite(name: QueueName) -> bool:
    return name.topic.startswith(_LITE_PREFIX)


def _compare_copies(
    result: DoubleWriteComparison, queue: StoredQueue, copy: StoredQueue | None, log_start: int
) -> None:
    """Compare the two copies of a queue, in files and in RocksDB, and add the differences to *result*."""
    end = queue.find_written_end()
    start = queue.first_unit_pointing_from(log_start, end)  # units of deleted records may be deleted, of both kinds
    result.file_units += end - start
    if copy is None or copy.capacity_end == copy.first_unit_number:
        result.is_selective |= end > start
        _add_last(result, queue, start, end)
        return
    first, last = copy.first_unit_number, copy.capacity_end
    if start < first:
        result.missing_oldest_units += min(first, end) - start
        newest = read_stored_units(queue, min(first, end) - 1, min(first, end))[0]
        result.missing_oldest_end = max(result.missing_oldest_end, int(newest["physical_offset"]) + int(newest["size"]))
    _add_last(result, queue, max(last, start), end)
    for low, high in split_into_chunks(max(start, first), min(end, last), _AT_ONCE):
        own, other = read_stored_units(queue, low, high), read_stored_units(copy, low, high)
        are_blanks = (own["size"] == PRE_BLANK_SIZE) & (other["size"] == PRE_BLANK_SIZE)  # regardless of their targets
        are_equal = (own == other) | are_blanks | is_of_deleted_file(own)
        result.different_units += int(np.count_nonzero(~are_equal))


def _add_last(result: DoubleWriteComparison, queue: StoredQueue, start: int, end: int) -> None:
    if start < end:
        result.missing_newest_units += end - start
        result.missing_newest_start = min(
            result.missing_newest_start, int(read_stored_units(queue, start, start + 1)["physical_offset"][0])
        )


def queues_left_out_of_double_write(
    report: DoubleWriteComparison | None, missing: Iterable[QueueName]
) -> Iterator[QueueName]:
    """Yield the missing queues that selective double write leaves out; the broker also reports them as empty."""
    if report is not None and report.is_selective:
        yield from (name for name in missing if name.topic.startswith(LMQ_PREFIX) and not _is_lite(name))


def is_about_rocksdb_rows(finding: Finding, store: Store) -> bool:
    """Return whether a finding is about rows, which only a broker writes, and not about files."""
    directory = finding.file.partition("/")[0]
    if finding.kind in _OF_ROWS or directory == rocksdbstore_directory(store):
        return True
    return finding.part == QUEUES and directory in _ROOTS and step_for_rocksdb_queues(store) is not None


def lacks_only_first_row(findings: Iterable[Finding]) -> bool:
    """Return whether all that queues in RocksDB lack is the row of the message at the beginning of the log."""
    places = {(one.kind, one.log_offset, one.times) for one in findings}
    return places == {(DifferenceKind.MISSING, 0, 1)}


def steps_for_rocksdb_rows(findings: Sequence[Finding], store: Store) -> Iterator[RecommendedStep]:
    """Yield the remedies for findings on rows, each once."""
    other = rocksdbstore_directory(store)
    rows = [finding for finding in findings if is_about_rocksdb_rows(finding, store)]
    others = [finding for finding in rows if finding.file.partition("/")[0] == other]
    of_queues = [finding for finding in rows if finding not in others]
    is_of_files = any(finding.part == QUEUES and finding not in rows for finding in findings)
    if is_of_files:  # if files and rows both have findings, possibly only the files are wrong
        of_queues = [finding for finding in of_queues if finding.kind != kinds.DOUBLE_WRITE_DIFFERS]
    if of_queues:
        yield step_for_rocksdb_queues(store, of_queues) or _set_aside(store)
    if others:
        yield RecommendedStep(f"{other}: `repair` does not modify this database")


def step_for_rocksdb_queues(store: Store, findings: Iterable[Finding] = ()) -> RecommendedStep | None:
    """Return the remedy for wrong queues of a store that has them only in RocksDB; None if they are files."""
    storage = detect_queue_storage(store)
    if storage is QueueStorage.ROCKSDB and lacks_only_first_row(findings):
        command = f"{tool_command()} rebuild-consumequeue {store.command_words} --to rocksdb --out NEW-QUEUES"
        return RecommendedStep(
            "A broker that rebuilds queues in RocksDB never writes the row of the message at log offset 0, so "
            "consumers do not receive this message. Write a database with all rows, and run the two commands that this "
            "prints:",
            (command,),
        )
    if storage is QueueStorage.ROCKSDB:
        return _set_aside(store)
    if storage is QueueStorage.NONE and has_topics_of_rocksdb_broker(store):
        return RecommendedStep(
            "The store has no queues, and the topics are in RocksDB: RocketMQ 5.3.3 or later with "
            "storeType=defaultRocksDB rebuilds the queues from the log when the broker starts"
            f"{_recovery_limit(store)}. For other brokers, which read queue files, run `rebuild-consumequeue --install`"
        )
    return None


def unflushed_rows_note(store: Store) -> str:
    """Return the note on a database without queue units whose broker was killed."""
    return (
        "RocksDB has no queue units: they were still in memory when the broker was killed. Nothing is lost: "
        f"the broker rebuilds them from the log at its next start{_recovery_limit(store)}"
    )


def _recovery_limit(store: Store) -> str:
    """Return the setting with which a start from an empty database reads all of a long log, if it is long."""
    count = len(store.segments)
    if count <= _RECOVERED:
        return ""
    setting = f"commitLogRecoverMaxNum={count}"
    return f" (from 5.4.0 on, set {setting} or more; otherwise it reads only the {_RECOVERED} newest segments)"


def _set_aside(store: Store) -> RecommendedStep:
    directory = rocksdb_queue_directory(store) or CONSUME_QUEUE_DIRECTORY
    words = (
        f"{directory}: the queues are in a RocksDB database, which `repair` does not modify. Without the database, "
        f"RocketMQ 5.3.3 or later rebuilds the rows from the log when it starts{_recovery_limit(store)}. With the "
        "broker stopped, move the database aside:"
    )
    path, aside = quote(f"{store.root}/{directory}"), quote(f"{store.root}-{directory}-aside")
    # In the same directory as the queues of topics.
    if directory == CONSUME_QUEUE_DIRECTORY and detect_queue_storage(store) is QueueStorage.BOTH:
        return RecommendedStep(words, (f"mkdir {aside} && find {path} -maxdepth 1 -type f -exec mv -t {aside} {{}} +",))
    return RecommendedStep(words, (f"mv {path} {aside}",))


_Row = tuple[int, int, str]
"""Physical offset and size of a record, and its transaction id or unique key."""


# The number of rows of one kind, of those that do not point to a matching record, and the lowest log offset of these.
_Checked = tuple[int, int, int]


def verify_waiting_messages(part: PartReport, store: Store) -> None:
    """Add the pending transactions and timer messages in RocksDB, and findings on those without a record."""
    with ExitStack() as files:
        try:
            _verify_rocksdb(part, store, _record_reader(store, files))
        except UnsupportedFormat as error:
            part.doubts.append(f"transactions and timer messages: {error}")
        except FormatError as error:
            part.findings.append(unreadable_database_finding(QUEUES, error, store))


def verify_timer_files(part: PartReport, store: Store) -> None:
    """Add the number of pending timer messages in files, and findings on those without a record."""
    with ExitStack() as files:
        try:
            _verify_timer_files(part, store, _record_reader(store, files))
        except FormatError as error:
            place = store.path_below_root(error.file) or "timerwheel", error.offset, "unit"
            cause = "the timer file is damaged; a broker may fail to deliver the timer messages in it"
            part.findings.append(Finding(CONFIGURATION, kinds.DAMAGED_TIMER, *place, error.reason, "", cause))


_RecordAt = Callable[[int], MessageRecord | None]


def _record_reader(store: Store, files: ExitStack) -> _RecordAt:
    """Return a function that reads the record at an offset, if there is one, from segments that stay open."""

    @cache
    def open_segment(segment: Segment) -> SegmentBytes:
        return segment_bytes(segment, files.enter_context(store.open(segment)))

    newer = cache(partial(relist_store, store))  # rows of a running broker may point to a segment created meanwhile

    def record_at(offset: int) -> MessageRecord | None:
        segment = store.segment_at(offset)
        if segment is None and not store.has_clean_shutdown:
            segment = newer().segment_at(offset)
        if segment is None:
            return None
        try:
            log = open_segment(segment)
            return log.record_at(offset - log.framing.header_size - log.base_offset)
        except FormatError:
            return None
        except OSError as error:
            if not is_disk_error(error):
                raise
            return None  # the finding on the bytes that the disk cannot read explains it

    return record_at


def _verify_rocksdb(part: PartReport, store: Store, record_at: _RecordAt) -> None:
    with open_rocksdb_store(store) as database:
        if database is None:
            return
        half = ((row.physical_offset, row.size, row.transaction_id) for row in read_transactions(database))
        transactions = _count_wrong_rows(half, ROCKSDB_HALF_TOPIC, store.start_offset, record_at)
        delayed = ((row.physical_offset, row.size, row.unique_key) for row in read_timers(database))
        timers = _count_wrong_rows(delayed, TIMER_TOPIC, store.start_offset, record_at)
    if transactions[0] or timers[0]:
        part.notes.append(
            f"RocksDB has {count_text(transactions[0], 'pending transaction')} and "
            f"{count_text(timers[0], 'pending timer message')}"
        )
    part.findings += _make_findings(
        QUEUES, transactions, kinds.ORPHANED_TRANSACTION_ROW, ROCKSDB_HALF_TOPIC, ROCKSDB_STORE_DIRECTORY
    )
    part.findings += _make_findings(QUEUES, timers, kinds.ORPHANED_TIMER_ROW, TIMER_TOPIC, ROCKSDB_STORE_DIRECTORY)


def _verify_timer_files(part: PartReport, store: Store, record_at: _RecordAt) -> None:
    state = read_timer_state(store)
    if state is not None and state.slots:
        part.notes.append(f"{state.wheel} has {count_text(state.waiting_count, 'pending timer message')}")
        units = ((unit.physical_offset, unit.record_size, "") for unit in read_waiting_units(store, state))
        checked = _count_wrong_rows(units, TIMER_TOPIC, store.start_offset, record_at)
        part.findings += _make_findings(CONFIGURATION, checked, kinds.ORPHANED_TIMER_UNIT, TIMER_TOPIC, state.wheel)


def _count_wrong_rows(rows: Iterable[_Row], topic: str, start_offset: int, record_at: _RecordAt) -> _Checked:
    """Compare rows with the log, which begins at *start_offset*: rows of expired messages are not wrong."""
    count, wrong, lowest = 0, 0, MAX_LONG
    for offset, size, name in rows:
        count += 1
        if offset >= start_offset and not _is_message_of_row(size, name, record_at(offset), topic):
            wrong, lowest = wrong + 1, min(lowest, offset)
    return count, wrong, lowest


def _make_findings(part: str, checked: _Checked, kind: str, topic: str, place: str) -> Iterator[Finding]:
    _, wrong, lowest = checked
    if wrong:
        cause = f"these messages were lost or damaged in the log, or {place} belongs to another log"
        found = f"{count_text(wrong, 'row')}, the first for log offset {lowest}"
        yield Finding(part, kind, place, None, "rows", found, f"messages of {topic}", cause, wrong, lowest)


def _is_message_of_row(size: int, name: str, record: MessageRecord | None, topic: str) -> bool:
    if record is None or record.topic != topic or record.total_size != size:
        return False
    return name.encode() in record.properties_raw
