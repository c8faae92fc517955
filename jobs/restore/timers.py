"""
Timer messages of a restored log: those that a broker has delivered, and the files from which it continues.

A lake has no timer files. Without them, a broker reads all timer messages of the log again, and delivers those that are
due a second time. So `restore` writes the files of a broker that has read all timer messages: a timer log and a wheel
with the pending ones, and `config/timercheck`. If all messages after the first pending one are pending, too,
`config/timercheck` alone is sufficient: the broker then puts the first pending message and all later ones into its
wheel. Otherwise it would deliver the others again, and also cancelled ones that are due before it starts.

The records of a message have the same unique key, due time and topic: the first record, one for each time at which it
was put into the wheel again (it has TIMER_ROLL_TIMES), and the delivered message. Clients may send several messages
with one unique key, so that each delivered message accounts for one of them. A cancellation has the due time of its
message: at another time, a broker does not find the message, and delivers it. If it is in doubt whether a message was
delivered, it is pending: a broker rather delivers it twice than never.

At its start, a broker derives the queue offset at which it continues from the last unit of the timer log
(TimerMessageStore#recover, 5.0.0 to 5.5.1). So the last unit belongs to the last timer message of the log, even if it
was delivered: then the unit is due before the time from which the broker reads the wheel.

Whether a message was delivered follows from the log. Near its end, each delivered message is read. Earlier ones need
not be read, because a broker delivers messages in the order of their due times: if a message was in the wheel before a
delivered one, and was due before it, it was delivered.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from math import gcd
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import Limits, SnapshotFile, read_batches
from jobs.lake.tables import MESSAGES
from jobs.restore import find_table_files
from jobs.storage.local import flush_directory, naming_file_in_errors
from rmq_formats.detection import TIMER_TOPIC
from rmq_formats.properties import java_hash
from rmq_formats.store import file_name_of_offset
from rmq_formats.timer_files import (
    LATEST_START_SLOTS,
    NO_POSITION,
    PLAIN_UNIT,
    PRECISION_MS,
    ROLLED_UNIT,
    SLOT,
    UNIT,
    WHEEL_SIZE,
    TimerProgress,
    TimerUnit,
    find_cancelled_key,
    link_timer_units,
)

_FIRST_WINDOW_MS = 10 * 60 * 1000  # at the end of the log, in which delivered messages are searched
_LARGEST = (1 << 63) - 1
_GROWTH = 8  # of the window, if it has no delivered message
_OBSOLETE_MS = 10 * 60 * 1000  # a unit that is due this long before the read time is never read
_SLOTS_OF_A_DAY = 24 * 60 * 60
_COLUMNS = ("store_id", "topic", "physical_offset", "queue_offset", "store_timestamp", "properties", "total_size")
_TOPIC = "REAL_TOPIC"
_DUE, _KEY, _CANCELS, _ENQUEUED = "TIMER_OUT_MS", "UNIQ_KEY", "TIMER_DEL_UNIQKEY", "TIMER_ENQUEUE_MS"
_ROLLS = "TIMER_ROLL_TIMES"
_NUMBER = "^[0-9]{1,18}$"


class RestoredTimers(NamedTuple):
    """The timer messages of a restored log."""

    progress: TimerProgress | None  # for `config/timercheck`; None if the log has no timer messages
    pending_count: int = 0
    units: Sequence[TimerUnit] = ()  # of the timer log; empty if a broker needs neither this log nor the wheel
    precision_ms: int = PRECISION_MS

    @property
    def start_limit_ms(self) -> int:
        """The time from which a broker would start too late to deliver all messages of the timer log."""
        due = min(unit.due_ms for unit in self.units if unit.due_ms >= self.units[0].write_timestamp)
        return due + LATEST_START_SLOTS * self.precision_ms

    def write_files(self, wheel: Path, log_directory: Path, log_file_size: int) -> None:
        """Write the wheel and the timer log as sparse files."""
        pieces, slots = link_timer_units(self.units, log_file_size, self.precision_ms)
        with naming_file_in_errors(str(wheel)), wheel.open("xb") as file:
            for number, slot in sorted(slots.items()):
                file.seek(number * SLOT.size)
                file.write(SLOT.pack(*slot))
            file.truncate(WHEEL_SIZE)
            _flush(file)
        log_directory.mkdir(exist_ok=True)
        for base, own in groupby(pieces, lambda piece: piece[0] // log_file_size * log_file_size):
            path = log_directory / file_name_of_offset(base)
            with naming_file_in_errors(str(path)), path.open("xb") as file:
                for at, content in own:
                    file.seek(at - base)
                    file.write(content)
                file.truncate(log_file_size)
                _flush(file)
        for directory in (log_directory, wheel.parent):
            flush_directory(directory)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


class _Timer(NamedTuple):
    queue_offset: int
    due_ms: int
    physical_offset: int
    size: int
    real_topic: str = ""
    is_rolled: bool = False  # it was put into the wheel again, and replaces an earlier record


_Identity = tuple[str, int, str]
"""Unique key, due time and topic, which all records of a message have."""


def plan_timers(log: "RestoredLog", now_ms: int, given_precision_ms: int | None = None) -> RestoredTimers:
    """Return the timer messages of a log; a broker delivers pending ones that are due before *now_ms* at its start."""
    records: dict[_Identity, list[_Timer]] = {}
    cancelled, last = set[tuple[str, int]](), None
    for row in log.read_messages(is_delivered=False):
        topic = row.real_topic or ""
        timer = _Timer(row.queue_offset, row.due_ms or 0, row.physical_offset, row.size, topic, row.is_rolled)
        last = timer if last is None else max(last, timer)
        if row.due_ms is None:
            continue
        if row.cancels is not None:
            cancelled.add((find_cancelled_key(row.cancels), row.due_ms))
        else:
            records.setdefault((row.key or f"\0{row.queue_offset}", row.due_ms, topic), []).append(timer)
    if last is None:
        return RestoredTimers(None)
    in_wheel = {identity: _list_in_wheel(own) for identity, own in records.items()}
    delivered = _find_delivered(log, in_wheel)
    waiting = sorted(
        timer
        for (key, due_ms, _), own in in_wheel.items()
        if (key, due_ms) not in cancelled
        for timer in own
        if timer.queue_offset not in delivered
    )
    end = last.queue_offset + 1
    first = waiting[0].queue_offset if waiting else end
    later_count = sum(timer.queue_offset >= first for own in records.values() for timer in own)
    # A broker rounds due times down to its precision.
    precision = given_precision_ms or gcd(PRECISION_MS, *(timer.due_ms for own in records.values() for timer in own))
    if later_count == len(waiting):
        read_ms = log.newest_ms - log.newest_ms % precision
        return RestoredTimers(TimerProgress(read_ms, 0, first, first, 0, read_ms, 0), len(waiting))
    read_ms = now_ms - now_ms % precision
    units = [_plan_unit(timer, read_ms, precision) for timer in waiting]
    if waiting[-1].queue_offset != last.queue_offset:
        units.append(_plan_unit(last, read_ms, precision)._replace(write_timestamp=read_ms - _OBSOLETE_MS, delay=0))
    return RestoredTimers(TimerProgress(read_ms, 0, end, end, 0, read_ms, 0), len(waiting), units, precision)


def _plan_unit(timer: _Timer, read_ms: int, precision_ms: int) -> TimerUnit:
    """
    Return the unit of a pending message in the timer log of a broker that reads its wheel starting at *read_ms*.

    A slot has only messages with the same due time, so that it is right for any precision of the broker.
    """
    day = _SLOTS_OF_A_DAY * min(precision_ms, PRECISION_MS)
    rolls = max((timer.due_ms - read_ms) // day - 1, 0)  # a message is rolled after one to two days, as by a broker
    due_ms = max(timer.due_ms, read_ms) - rolls * day
    flags = ROLLED_UNIT if rolls else PLAIN_UNIT
    topic_hash = java_hash(timer.real_topic)
    return TimerUnit(
        UNIT.size, NO_POSITION, flags, read_ms, due_ms - read_ms, timer.physical_offset, timer.size, topic_hash
    )


def _list_in_wheel(own: list[_Timer]) -> list[_Timer]:
    """Return the records of messages with one identity, without those that a later record replaces."""
    kept = list[_Timer]()
    for timer in sorted(own):
        if timer.is_rolled and kept:
            del kept[0]
        kept.append(timer)
    return kept


def _find_delivered(log: "RestoredLog", in_wheel: dict[_Identity, list[_Timer]]) -> set[int]:
    """Return the queue offsets of delivered messages."""
    undecided = {timer.queue_offset: timer for own in in_wheel.values() for timer in own}
    window = _FIRST_WINDOW_MS
    delivered = set[int]()
    while undecided:
        since = log.newest_ms - window
        found = dict[_Identity, list[tuple[int, int]]]()
        for row in log.read_messages(since, is_delivered=True):
            identity = (row.key or "", row.due_ms or 0, row.topic)
            if identity in in_wheel:
                enqueued_ms = _LARGEST if row.enqueued_ms is None else row.enqueued_ms
                found.setdefault(identity, []).append((row.physical_offset, enqueued_ms))
        # A delivered message that was in the wheel: earlier ones that were due before it were delivered before it.
        surely = _Timer(-1, -1, -1, 0)
        for identity, places in found.items():
            own = iter(in_wheel[identity])
            timer = next(own)
            for physical_offset, enqueued_ms in sorted(places):
                if timer.physical_offset > physical_offset:
                    continue
                delivered.add(timer.queue_offset)
                if enqueued_ms + 2 * PRECISION_MS <= timer.due_ms and timer.due_ms > surely.due_ms:
                    surely = timer
                following = next(own, None)
                if following is None:
                    break
                timer = following
        delivered |= {
            number
            for number, timer in undecided.items()
            if number < surely.queue_offset and timer.due_ms < surely.due_ms
        }
        undecided = {number: timer for number, timer in undecided.items() if number not in delivered}
        if not any(timer.due_ms < since + 2 * PRECISION_MS for timer in undecided.values()):
            break  # each message that was due in the window would have been found in it
        window *= _GROWTH
    return delivered


class _Message(NamedTuple):
    queue_offset: int
    physical_offset: int
    size: int
    due_ms: int | None
    key: str | None  # unique key
    cancels: str | None  # the message that it cancels
    enqueued_ms: int | None  # when it was put into the wheel, in delivered messages
    real_topic: str | None
    topic: str
    is_rolled: bool


class RestoredLog(NamedTuple):
    """The rows of a restored log."""

    lake: Lake
    store_id: str
    start_offset: int
    end_offset: int
    newest_ms: int  # store time of the newest message

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
                rows.column("queue_offset"), rows.column("physical_offset"), rows.column("total_size"), _numbers(due),
                _lookup(rows, _KEY), _lookup(rows, _CANCELS), _numbers(_lookup(rows, _ENQUEUED)),
                _lookup(rows, _TOPIC), rows.column("topic"), _lookup(rows, _ROLLS).is_valid(),
            )  # fmt: skip
            yield from map(_Message, *(column.to_pylist() for column in columns))


def _lookup(rows: pa.RecordBatch, name: str) -> pa.Array:
    return pc.map_lookup(rows.column("properties"), pa.scalar(name), "last")


def _numbers(texts: pa.Array) -> pa.Array:
    """Return numbers; NULL where a text is not one."""
    is_number = pc.fill_null(pc.match_substring_regex(texts, _NUMBER), False)  # noqa: FBT003 - as above
    return pc.if_else(is_number, texts, None).cast(pa.int64())
