"""
Timer messages of a restored log: those that a broker has delivered, and the file from which it continues.

A lake has no timer files. Without them, a broker reads all timer messages of the log again, and delivers those that are
due at once: a second time. So `restore` writes `config/timercheck` with the queue offset of the first pending message.
The broker then puts only this message and later ones into its wheel. Delivered messages after the first pending one are
still delivered a second time; `restore` states their number.

Whether a message was delivered follows from the log: the delivered message has the same unique key. Near the end of the
log, each delivered message is read. Earlier messages need not be read, because a broker delivers messages in the order
of their due times: if a message was in the wheel before a delivered one, and was due before it, it was delivered.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import Limits, SnapshotFile, read_batches
from jobs.lake.tables import MESSAGES
from jobs.restore import find_table_files
from rmq_formats.detection import TIMER_TOPIC
from rmq_formats.timer_files import PRECISION_MS, TimerProgress, encode_timer_progress

_FIRST_WINDOW_MS = 10 * 60 * 1000  # at the end of the log, in which delivered messages are searched
_LARGEST = (1 << 63) - 1
_GROWTH = 8  # of the window, if it has no delivered message
_COLUMNS = ("store_id", "topic", "physical_offset", "queue_offset", "store_timestamp", "properties")
_DUE, _KEY, _CANCELS, _ENQUEUED = "TIMER_OUT_MS", "UNIQ_KEY", "TIMER_DEL_UNIQKEY", "TIMER_ENQUEUE_MS"
_NUMBER = "^[0-9]{1,18}$"


class RestoredTimers(NamedTuple):
    """The timer messages of a restored log."""

    progress: bytes | None  # the content of `config/timercheck`; None if the log has no timer messages
    repeated_count: int  # messages that a broker with this file delivers a second time


class _Timer(NamedTuple):
    queue_offset: int
    due_ms: int


def plan_timers(lake: Lake, store_id: str, start_offset: int, end_offset: int, newest_ms: int) -> RestoredTimers:
    """Return the progress of timer messages at the end of a log with the offsets in [start, end)."""
    log = _RestoredLog(lake, store_id, start_offset, end_offset)
    records: dict[str, list[_Timer]] = {}  # by unique key; a message that was put into the wheel again has several
    cancelled, next_offset = set[str](), 0
    for queue_offset, _, due, key, cancels, _ in log.read_messages(is_delivered=False):
        next_offset = max(next_offset, queue_offset + 1)
        if cancels is not None:
            cancelled.add(cancels.rpartition("+")[2])  # from some release on, with the topic before the key
        elif due is not None:
            records.setdefault(key or f"\0{queue_offset}", []).append(_Timer(queue_offset, due))
    if not next_offset:
        return RestoredTimers(None, 0)
    delivered = _find_delivered(log, records, newest_ms)
    last = {key: max(own) for key, own in records.items()}
    waiting = [timer.queue_offset for key, timer in last.items() if key not in delivered and key not in cancelled]
    first = min(waiting, default=next_offset)
    kept = set(waiting)
    repeated = sum(
        timer.queue_offset >= first and timer.queue_offset not in kept
        for key, own in records.items()
        if key not in cancelled
        for timer in own
    )
    read_ms = newest_ms - newest_ms % PRECISION_MS
    progress = TimerProgress(read_ms, 0, first, first, 0, read_ms, 0)
    return RestoredTimers(encode_timer_progress(progress), repeated)


def _find_delivered(log: "_RestoredLog", records: dict[str, list[_Timer]], newest_ms: int) -> set[str]:
    """Return the unique keys of delivered messages."""
    due = {key: max(own).due_ms for key, own in records.items() if max(own).due_ms <= newest_ms + PRECISION_MS}
    delivered = set[str]()
    window = _FIRST_WINDOW_MS
    while due.keys() - delivered:
        since = newest_ms - window
        surely = _Timer(-1, -1)  # a delivered message that was in the wheel: earlier ones were delivered before it
        for _, _, _, key, _, enqueued in log.read_messages(since, is_delivered=True):
            own = max(records.get(key or "", ()), default=None)
            if own is None or key is None:
                continue
            delivered.add(key)
            if enqueued is not None and enqueued + 2 * PRECISION_MS <= own.due_ms and own.due_ms > surely.due_ms:
                surely = own
        delivered |= {
            key
            for key in due.keys() - delivered
            if max(records[key]).queue_offset < surely.queue_offset and due[key] < surely.due_ms
        }
        if not any(due[key] < since + 2 * PRECISION_MS for key in due.keys() - delivered):
            break  # each message that was due in the window would have been found in it
        window *= _GROWTH
    return delivered


_Message = tuple[int, int, int | None, str | None, str | None, int | None]
"""Queue offset, physical offset, due time, unique key, key of the cancelled message, and time of the wheel."""


class _RestoredLog(NamedTuple):
    lake: Lake
    store_id: str
    start_offset: int
    end_offset: int

    def read_messages(self, since_ms: int = 0, *, is_delivered: bool) -> Iterator[_Message]:
        """Yield timer messages that wait in their topic, or delivered ones that were stored since a time."""
        log = {"physical_offset": (self.start_offset, self.end_offset - 1)}
        for file in find_table_files(self.lake, MESSAGES, self.store_id).files:
            if file.maximum("store_timestamp", since_ms) < since_ms:
                continue
            limits = {**log, "store_timestamp": (since_ms, _LARGEST)}
            if not is_delivered:
                limits = self._find_timer_rows(file, log)
            for batch in read_batches(self.lake, MESSAGES, file, _COLUMNS, limits) if limits else ():
                yield from self._select_messages(batch, since_ms, is_delivered=is_delivered)

    def _find_timer_rows(self, file: SnapshotFile, log: Limits) -> dict[str, tuple[int, int]]:
        """Return the limits of the offsets of a file's timer messages: properties are read only of these row groups."""
        first, last = _LARGEST, -1
        if file.may_have("topic", TIMER_TOPIC):
            for batch in read_batches(self.lake, MESSAGES, file, ("topic", "physical_offset"), log):
                found = batch.column("physical_offset").filter(pc.equal(batch.column("topic"), TIMER_TOPIC))
                if len(found) > found.null_count:
                    first, last = min(first, pc.min(found).as_py()), max(last, pc.max(found).as_py())
        return {"physical_offset": (first, last)} if last >= 0 else {}

    def _select_messages(self, batch: pa.RecordBatch, since_ms: int, *, is_delivered: bool) -> Iterator[_Message]:
        offsets = batch.column("physical_offset")
        chosen = pc.equal(batch.column("store_id"), self.store_id)
        chosen = pc.and_(chosen, pc.greater_equal(offsets, self.start_offset))
        chosen = pc.and_(chosen, pc.less(offsets, self.end_offset))
        is_waiting = pc.equal(batch.column("topic"), TIMER_TOPIC)
        chosen = pc.and_(chosen, pc.invert(is_waiting) if is_delivered else is_waiting)
        chosen = pc.and_(chosen, pc.greater_equal(batch.column("store_timestamp"), since_ms))
        rows = batch.filter(pc.fill_null(chosen, False))  # noqa: FBT003 - the value that replaces NULL
        due = _lookup(rows, _DUE)
        if is_delivered:
            rows = rows.filter(due.is_valid())
            due = _lookup(rows, _DUE)
        if rows.num_rows:
            columns = (
                rows.column("queue_offset"), rows.column("physical_offset"), _numbers(due), _lookup(rows, _KEY),
                _lookup(rows, _CANCELS), _numbers(_lookup(rows, _ENQUEUED)),
            )  # fmt: skip
            yield from zip(*(column.to_pylist() for column in columns), strict=True)


def _lookup(rows: pa.RecordBatch, name: str) -> pa.Array:
    return pc.map_lookup(rows.column("properties"), pa.scalar(name), "last")


def _numbers(texts: pa.Array) -> pa.Array:
    """Return numbers; NULL where a text is not one."""
    is_number = pc.fill_null(pc.match_substring_regex(texts, _NUMBER), False)  # noqa: FBT003 - as above
    return pc.if_else(is_number, texts, None).cast(pa.int64())
