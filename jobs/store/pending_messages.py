"""
Pending messages: in the timer's files, and in the directory `rocksdbstore/` of brokers of 5.4.0+.

The wheel counts the messages by due time; the units in the timer log point to the messages. Slots before the read time
in the progress file are obsolete: a broker does not clear them. With timerRocksDBEnable the files still exist, but the
messages are in RocksDB, which also contains pending transactions and the rows of an index.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import cache
from operator import attrgetter
from typing import NamedTuple

from jobs.storage.locations import join_location
from jobs.storage.model import Reader
from jobs.store.queue_storage import rocksdbstore_directory
from jobs.store.rocksdb import Database, open_database
from jobs.store.store import Store
from rmq_formats.errors import CorruptData, FormatError
from rmq_formats.rocksdb import layout as rows_of
from rmq_formats.rocksdb.layout import PendingTransaction, TimerRow, decode_timer_row, decode_transaction_row
from rmq_formats.store import FileKind, file_name_of_offset
from rmq_formats.timer_files import (
    NO_POSITION,
    PRECISION_MS,
    TIMER_PROGRESS,
    UNIT,
    Slot,
    TimerProgress,
    TimerUnit,
    decode_timer_progress,
    decode_timer_unit,
    used_slots,
)


class TimerState(NamedTuple):
    """The slots of a wheel that are due at or after the read time."""

    wheel: str  # path of the file below the store's root
    slots: tuple[Slot, ...]
    precision_ms: int

    @property
    def waiting_count(self) -> int:
        """The number of waiting messages, without recalled ones."""
        return sum(slot.messages for slot in self.slots)

    @property
    def due_range_ms(self) -> tuple[int | None, int | None]:
        """The first and the last time at which one is due, in ms."""
        times = [slot.due_ms(self.precision_ms) for slot in self.slots]
        return min(times, default=None), max(times, default=None)


TIMER_PROGRESS_FILE = "config/timercheck"


def read_timer_progress(store: Store) -> TimerProgress | None:
    """Return the progress of timer messages; None without the file, `FormatError` if it is too short."""
    file = store.other_file(TIMER_PROGRESS_FILE)
    if file is None:
        return None
    try:
        return decode_timer_progress(store.read(file, 0, TIMER_PROGRESS.size))
    except FormatError as error:
        raise error.in_file(file.location) from None


def read_timer_state(store: Store) -> TimerState | None:
    """Return the waiting messages; None if the wheel or its progress file is missing. `FormatError` if damaged."""
    wheels = store.other_files_of_kind(FileKind.TIMER_WHEEL)
    # A broker loads the snapshot with the largest position in its name.
    wheel = max(wheels, key=lambda file: int(file.path_facts.path.partition(".")[2] or "-1"), default=None)
    progress = read_timer_progress(store)
    if wheel is None or progress is None:
        return None
    read_until = progress.read_timestamp
    with store.open(wheel) as file:
        used = [slot for _, slot in used_slots(file.read, file.size) if slot.messages > 0]
    with ExitStack() as files:
        precision_ms = _find_precision_ms(_timer_log_reader(store, files), used)
    slots = tuple(slot for slot in used if slot.due_ms(precision_ms) >= read_until)
    return TimerState(wheel.path_facts.path, slots, precision_ms)


def read_waiting_units(store: Store, state: TimerState) -> Iterator[TimerUnit]:
    """Yield the units of the slots that are due, each slot's newest first; `CorruptData` if the chain is broken."""
    with ExitStack() as files:
        unit_at = _timer_log_reader(store, files)
        for slot in state.slots:
            at = slot.last
            while at != NO_POSITION:
                unit = unit_at(at)
                if unit is None and not store.has_clean_shutdown:
                    break  # the wheel's page may be on disk before the log's
                if unit is None:
                    raise _missing_unit_error(store, state, at)
                yield unit
                at = unit.previous


def _missing_unit_error(store: Store, state: TimerState, at: int) -> CorruptData:
    """Return the error for a slot whose unit is not in the timer log: it names the file of the timer log, if lost."""
    progress = read_timer_progress(store)
    if progress is None or not 0 <= at <= progress.log_flushed_position - UNIT.size:
        reason = f"the wheel points to position {at:,} of the timer log, which the broker had not written"
        return CorruptData(reason, None, f"{store.root}/{state.wheel}")
    files = sorted(store.other_files_of_kind(FileKind.TIMER_LOG), key=attrgetter("base_offset"))
    if not files:  # a separate finding names the missing log
        reason = f"the wheel points to position {at:,} of the timer log, which is missing"
        return CorruptData(reason, None, f"{store.root}/{state.wheel}")
    size = max(file.size for file in files)
    before = [file for file in files if file.base_offset <= at]
    if before and (not size or at < before[-1].base_offset + size):
        return CorruptData("the wheel points to a unit here, and the file has none", at, before[-1].location)
    lost = f"/{file_name_of_offset(at // size * size)}" if size else ""
    reason = f"missing, but the wheel points to a unit at position {at:,} of the timer log"
    return CorruptData(reason, None, f"{store.root}/timerlog{lost}")


def find_timer_log_end(store: Store) -> int | None:
    """Return the position after the last file of the timer log; None if there is no file."""
    files = store.other_files_of_kind(FileKind.TIMER_LOG)
    return max((file.base_offset + file.size for file in files), default=None)


_MOST_UNITS_AFTER_PROGRESS = 10_000


def read_last_timer_unit(store: Store) -> TimerUnit | None:
    """
    Return the last unit of the timer log, a few thousand after its flushed position at most; None without one.

    In a closed store no unit is after that position, unless the progress file is an earlier version.
    """
    progress = read_timer_progress(store)
    if progress is None:
        return None
    size = max((file.size for file in store.other_files_of_kind(FileKind.TIMER_LOG)), default=0)
    with ExitStack() as files:
        unit_at = _timer_log_reader(store, files)
        at = progress.log_flushed_position
        last = unit_at(at - UNIT.size) if at >= UNIT.size else None
        for _ in range(_MOST_UNITS_AFTER_PROGRESS if size else 0):
            following = unit_at(at)
            if following is None:  # a file may end here, and the next one continue
                at = (at // size + 1) * size
                following = unit_at(at)
            if following is None:
                break
            last, at = following, at + UNIT.size
        return last


_UnitAt = Callable[[int], TimerUnit | None]


def _timer_log_reader(store: Store, opened_files: ExitStack) -> _UnitAt:
    """
    Return a function that reads the unit of the timer log at a position, from files that stay open.

    It returns None where nothing is written, and raises `CorruptData` if the bytes are not a unit.
    """
    files = sorted(store.other_files_of_kind(FileKind.TIMER_LOG), key=attrgetter("base_offset"))

    @cache
    def open_file(number: int) -> Reader:
        return opened_files.enter_context(store.open(files[number]))

    def unit_at(at: int) -> TimerUnit | None:
        number = bisect_right(files, at, key=attrgetter("base_offset")) - 1
        if number < 0:
            return None
        try:
            return decode_timer_unit(open_file(number).read(at - files[number].base_offset, UNIT.size), at)
        except CorruptData as damage:
            raise damage.in_file(files[number].location) from None

    return unit_at


def _find_precision_ms(unit_at: _UnitAt, slots: Sequence[Slot]) -> int:
    """Return timerPrecisionMs, derived from the unit of a slot and the slot's own number."""
    for slot in slots:
        with suppress(FormatError):  # a damaged unit: try another slot
            unit = unit_at(slot.last)
            if unit is not None and slot.time > 0 and unit.due_ms % slot.time == 0:
                return unit.due_ms // slot.time
    return PRECISION_MS


MAX_INDEX_ROWS_COUNTED = 1 << 20  # so that inspecting a store with a large index stays fast


def open_rocksdb_store(store: Store) -> AbstractContextManager[Database | None]:
    """Open the database in `rocksdbstore/`; None if there is none. `FormatError` if it cannot be read."""
    directory = rocksdbstore_directory(store)
    return nullcontext() if directory is None else open_database(join_location(store.root, directory), store.storage)


def count_index_rows(database: Database) -> int:
    """Return the number of rows of the index, at most `MAX_INDEX_ROWS_COUNTED`."""
    progress = {rows_of.LAST_OFFSET_KEY, rows_of.LAST_TIME_KEY}
    count = 0
    for keys, _ in database.rows(rows_of.INDEX_FAMILY):
        count += len(keys) - sum(key in progress for key in keys)
        if count >= MAX_INDEX_ROWS_COUNTED:
            return MAX_INDEX_ROWS_COUNTED
    return count


def read_transactions(database: Database) -> Iterator[PendingTransaction]:
    """Yield the pending transactions."""
    for key, value in database.items(rows_of.TRANSACTION_FAMILY):
        if key != rows_of.LAST_OFFSET_KEY:
            yield decode_transaction_row(key, value)


def read_timers(database: Database) -> Iterator[TimerRow]:
    """Yield the pending timer messages, without the rows of messages that were already delivered."""
    progress = {rows_of.TIMER_DELIVERY_PROGRESS_KEY, rows_of.TIMER_SCAN_PROGRESS_KEY}
    # The progress row sorts after the rows of messages. Rows of delivered messages are left out below.
    found = next(database.items(rows_of.TIMER_FAMILY, rows_of.TIMER_DELIVERY_PROGRESS_KEY), (b"", b""))
    delivered_to = rows_of.decode_progress(found[1]) if found[0] == rows_of.TIMER_DELIVERY_PROGRESS_KEY else 0
    for key, value in database.items(rows_of.TIMER_FAMILY):
        if key not in progress and (row := decode_timer_row(key, value)).delivery_ms >= delivered_to:
            yield row
