"""
Pending transactions and timer messages that wait, in RocksDB and in the timer's files, compared with the log.

A row or a unit leads to its record by physical offset: the half message, or the message in the timer's topic. After a
kill some may be missing that were in memory; the next start makes them from the log, so only those found are compared.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import cache

from jobs.console.amounts import counted
from jobs.lake.findings import DAMAGED_TIMER, QUEUES, Finding
from jobs.store.record_places import segment_bytes
from jobs.store.rocksdb_state import rocksdb_state
from jobs.store.store import Segment, Store
from jobs.store.timers import timer_state, waiting_units
from jobs.verify.findings import PartReport, unreadable_database
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.commitlog.segment import SegmentBytes
from rmq_formats.detection import TIMER_TOPIC
from rmq_formats.errors import FormatError, UnsupportedFormat
from rmq_formats.rocksdb.transactions import HALF_TOPIC

TRANSACTION_OF_NOTHING = "transaction_row_of_no_message"
TIMER_OF_NOTHING = "timer_row_of_no_message"
TIMER_UNIT_OF_NOTHING = "timer_unit_of_no_message"


_Row = tuple[int, int, str]
"""Physical offset and size of a record; transaction id or unique key: a property of the record."""
_Waiting = tuple[str, str, str, Iterable[_Row]]
"""The messages that wait in one place: the kind of a finding on them, their topic, the place, and their rows."""


def add_what_waits(part: PartReport, store: Store) -> None:
    """Add to the part how much waits, and what of it leads to no record."""
    try:
        waiting = _in_rocksdb(part, store)
    except UnsupportedFormat as error:
        part.doubts.append(f"transactions and timer messages: {error}")
        waiting = []
    except FormatError as error:
        part.findings.append(unreadable_database(QUEUES, error, store))
        waiting = []
    part.findings += _findings(waiting, store)
    try:
        part.findings += _findings(_in_files(part, store), store)
    except FormatError as error:
        place = store.below(error.file) or "timerwheel", error.offset, "unit"
        cause = "the timer file is damaged; a broker may not deliver what waits there"
        part.findings.append(Finding(QUEUES, DAMAGED_TIMER, *place, error.reason, "one that a broker writes", cause))


def _in_rocksdb(part: PartReport, store: Store) -> list[_Waiting]:
    state = rocksdb_state(store)
    if state is None or not (state.transactions or state.timers):
        return []
    part.notes.append(
        f"in RocksDB: {len(state.transactions)} pending transactions, {len(state.timers)} timer messages that wait"
    )
    transactions = ((row.physical_offset, row.size, row.transaction_id) for row in state.transactions)
    timers = ((row.physical_offset, row.size, row.unique_key) for row in state.timers)
    return [
        (TRANSACTION_OF_NOTHING, HALF_TOPIC, state.folder, transactions),
        (TIMER_OF_NOTHING, TIMER_TOPIC, state.folder, timers),
    ]


def _in_files(part: PartReport, store: Store) -> list[_Waiting]:
    state = timer_state(store)
    if state is None or not state.slots:
        return []
    part.notes.append(f"{counted(state.waiting, 'timer message')} in {state.wheel} wait")
    units = ((unit.physical_offset, unit.record_size, "") for unit in waiting_units(store, state))
    return [(TIMER_UNIT_OF_NOTHING, TIMER_TOPIC, state.wheel, units)]


def _findings(waiting: Iterable[_Waiting], store: Store) -> Iterator[Finding]:
    with ExitStack() as stack:

        @cache
        def opened(segment: Segment) -> SegmentBytes:
            return segment_bytes(segment, stack.enter_context(store.open(segment)))

        def record_at(offset: int) -> MessageRecord | None:
            segment = store.segment_at(offset)
            if segment is None:
                return None
            log = opened(segment)
            try:
                return log.record_at(offset - log.framing.header_size - log.base_offset)
            except FormatError:
                return None

        for kind, topic, place, rows in waiting:
            live = (row for row in rows if row[0] >= store.start_offset)  # the others are expired
            wrong = [offset for offset, size, name in live if not _leads_to(size, name, record_at(offset), topic)]
            if wrong:
                cause = f"the log lost or damaged these messages, or {place} is of another log"
                found = f"{len(wrong)} rows, the first of offset {min(wrong)}", f"messages of {topic}"
                yield Finding(QUEUES, kind, place, None, "rows", *found, cause, len(wrong), min(wrong))


def _leads_to(size: int, name: str, record: MessageRecord | None, topic: str) -> bool:
    if record is None or record.topic != topic or record.total_size != size:
        return False
    return name.encode() in record.properties_raw
