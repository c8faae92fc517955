"""
Pending transactions and waiting timer messages in RocksDB, compared with the log.

A row leads to its record by physical offset: the half message, or the message in the timer's topic. After a kill rows
may be missing that were in memory; the next start makes them from the log, so only rows that are there are compared.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import NamedTuple

from jobs.lake.findings import QUEUES, Finding
from jobs.store.rocksdb_state import RocksState, rocksdb_state
from jobs.store.store import Segment, Store
from jobs.verify.findings import PartReport, unreadable_database
from rmq_formats.commitlog.framing import framing_of
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.commitlog.segment import SegmentBytes
from rmq_formats.detection import TIMER_TOPIC
from rmq_formats.errors import FormatError, UnsupportedFormat
from rmq_formats.rocksdb.transactions import HALF_TOPIC

TRANSACTION_OF_NOTHING = "transaction_row_of_no_message"
TIMER_OF_NOTHING = "timer_row_of_no_message"


class _Row(NamedTuple):
    """What a row of either family says of its record."""

    physical_offset: int
    size: int
    name: str  # transaction id, or unique key: a property of the record


def add_rocksdb_rows(part: PartReport, store: Store) -> None:
    """Add to the part what is wrong with the rows, and how many there are."""
    try:
        state = rocksdb_state(store)
    except UnsupportedFormat as error:
        part.untold.append(f"transactions and timer messages: {error}")
        return
    except FormatError as error:
        part.findings.append(unreadable_database(QUEUES, error, store))
        return
    if state is None or not (state.transactions or state.timers):
        return
    part.findings += _findings(state, store)
    part.notes.append(
        f"in RocksDB: {len(state.transactions)} pending transactions, {len(state.timers)} timer messages that wait"
    )


def _findings(state: RocksState, store: Store) -> Iterator[Finding]:
    transactions = [_Row(row.physical_offset, row.size, row.transaction_id) for row in state.transactions]
    timers = [_Row(row.physical_offset, row.size, row.unique_key) for row in state.timers]
    with ExitStack() as stack:

        @cache
        def opened(segment: Segment) -> SegmentBytes:
            reader = stack.enter_context(store.open(segment))
            framing = framing_of(reader.read, segment.readable, segment.base_offset)
            return SegmentBytes(reader.read, segment.readable, segment.base_offset, framing)

        def record_at(offset: int) -> MessageRecord | None:
            segment = next((one for one in store.segments if 0 <= offset - one.base_offset < one.readable), None)
            if segment is None:
                return None
            log = opened(segment)
            try:
                return log.record_at(offset - log.framing.header_size - log.base_offset)
            except FormatError:
                return None

        for kind, topic, rows in (
            (TRANSACTION_OF_NOTHING, HALF_TOPIC, transactions),
            (TIMER_OF_NOTHING, TIMER_TOPIC, timers),
        ):
            wrong = [row for row in _live(rows, store) if not _leads_to(row, record_at(row.physical_offset), topic)]
            if wrong:
                yield _finding(kind, topic, wrong, state.folder)


def _live(rows: Iterable[_Row], store: Store) -> Iterator[_Row]:
    """Yield the rows whose segments retention has not deleted."""
    return (row for row in rows if row.physical_offset >= store.start_offset)


def _leads_to(row: _Row, record: MessageRecord | None, topic: str) -> bool:
    if record is None or record.topic != topic or record.total_size != row.size:
        return False
    return row.name.encode() in record.properties_raw


def _finding(kind: str, topic: str, wrong: list[_Row], folder: str) -> Finding:
    first = min(row.physical_offset for row in wrong)
    cause = "the log lost or damaged these messages, or the database is of another log"
    found = f"{len(wrong)} rows, the first of offset {first}"
    return Finding(QUEUES, kind, folder, None, "rows", found, f"messages of {topic}", cause, len(wrong), first)
