"""
Timer messages in files (5.0.0+): a wheel of slots by time of delivery, a log of the slots' units, and the progress.

A slot is not cleared when its messages were delivered: slots before the progress's read time are obsolete. A message
whose delivery is beyond the range of the wheel is rolled: its unit has the time at which it is put into the wheel
again.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rmq_formats.errors import CorruptData
from rmq_formats.layout import Buffer, Layout, Read

SLOT = Layout(
    ("time", "q", "time of delivery, in units of timerPrecisionMs; the slot is this value modulo the number of slots"),
    ("first", "q", "position of the slot's first unit in the timer log"),
    ("last", "q", "position of the slot's last unit; each unit points to the one before it"),
    ("messages", "i", "pending messages: the slot's units, minus cancelled messages and the units that cancel them"),
    ("reserved", "i", "0"),
)
UNIT = Layout(
    ("unit_size", "i", "52"),
    ("previous", "q", "position of the previous unit of the slot; -1 for the first unit"),
    ("flags", "i", "1; plus 2 if the unit waits for the next roll, plus 4 if it cancels a message"),
    ("write_timestamp", "q", "ms, rounded to timerPrecisionMs; this value plus the delay is the time of the slot"),
    ("delay", "i", "ms"),
    ("physical_offset", "q", "offset of the record in `rmq_sys_wheel_timer`"),
    ("record_size", "i", "total_size of this record"),
    ("topic_hash", "i", "hash of the topic to which the message will be delivered"),
    ("reserved", "q", "0"),
)
TIMER_LOG_END = Layout(
    ("left", "i", "bytes from here to the end of the file"),
    ("zero", "q", "0"),
    ("magic", "i", "CBD43194"),
)
TIMER_PROGRESS = Layout(
    ("read_timestamp", "q", "ms; messages before this time were delivered: earlier slots are obsolete"),
    ("log_flushed_position", "q", "position up to which the timer log was flushed"),
    ("queue_offset", "q", "queue offset of the next unit of `rmq_sys_wheel_timer` to be put into the wheel"),
    ("master_queue_offset", "q", "the same value on the master"),
    ("version_state", "q", "state of the data version"),
    ("version_timestamp", "q", "ms"),
    ("version_counter", "q", "number of changes"),
)
TIMER_PROGRESS_SIZE = 4096

PRECISION_MS = 1000
"""The default of timerPrecisionMs; the units of a slot show the actual value."""
MAX_WHEEL_SIZE = 1 << 30  # slots of a second for two weeks are 37 MiB
NO_POSITION = -1  # instead of a position
WHEEL_SLOTS = 2 * 7 * 24 * 60 * 60  # with every timerPrecisionMs; a broker does not start with another number of slots
WHEEL_SIZE = WHEEL_SLOTS * SLOT.size
LATEST_START_SLOTS = 7 * 24 * 60 * 60 - 60
"""How many slots a broker reads back at its start: it never delivers messages that were due earlier."""
DEFAULT_LOG_FILE_SIZE = 100 << 20  # mappedFileSizeTimerLog

PLAIN_UNIT, ROLLED_UNIT = 1, 3
_PLAIN, _ROLLED, _CANCELS = 1, 2, 4
_FLAGS = frozenset({_PLAIN, _PLAIN | _ROLLED, _PLAIN | _CANCELS, _PLAIN | _ROLLED | _CANCELS})
_END_MAGIC = 0xCBD43194 - (1 << 32)
_WINDOW = SLOT.size << 15


class Slot(NamedTuple):
    """The units of one time."""

    time: int
    first: int
    last: int
    messages: int
    reserved: int = 0

    def due_ms(self, precision_ms: int = PRECISION_MS) -> int:
        """Return the time at which its messages are due."""
        return self.time * precision_ms


class TimerUnit(NamedTuple):
    """One unit of the timer log: a message, or the cancellation of one."""

    unit_size: int
    previous: int
    flags: int
    write_timestamp: int
    delay: int
    physical_offset: int
    record_size: int
    topic_hash: int
    reserved: int = 0

    @property
    def due_ms(self) -> int:
        """The time at which it is due, and is delivered or rolled."""
        return self.write_timestamp + self.delay

    @property
    def is_rolled(self) -> bool:
        """Whether it is put into the wheel again then, because its delivery is too far away."""
        return bool(self.flags & _ROLLED)

    @property
    def is_cancellation(self) -> bool:
        """Whether it cancels another message."""
        return bool(self.flags & _CANCELS)


class TimerProgress(NamedTuple):
    """The content of `config/timercheck`."""

    read_timestamp: int
    log_flushed_position: int
    queue_offset: int
    master_queue_offset: int
    version_state: int
    version_timestamp: int
    version_counter: int


def decode_timer_progress(buffer: Buffer) -> TimerProgress:
    """Return the progress of timer messages."""
    return TimerProgress(*map(int, TIMER_PROGRESS.unpack(buffer)))


def encode_timer_progress(progress: TimerProgress) -> bytes:
    """Return the content of `config/timercheck`."""
    return TIMER_PROGRESS.pack(*progress).ljust(TIMER_PROGRESS_SIZE, b"\0")


def find_cancelled_key(text: str) -> str:
    """Return the unique key in TIMER_DEL_UNIQKEY: the whole value, or (5.3.2+) the part after the topic."""
    return text.rpartition("+")[2]


def link_timer_units(
    units: Sequence[TimerUnit], file_size: int, precision_ms: int
) -> tuple[list[tuple[int, bytes]], dict[int, Slot]]:
    """
    Return the content of a timer log with *units*, in this order, and the slots of the wheel that point to them.

    The content is pieces with their positions; the last piece ends where the log ends. The `previous` of a unit is
    replaced. Slots are by number.
    """
    pieces, slots, at = list[tuple[int, bytes]](), dict[int, Slot](), 0
    for unit in units:
        left = file_size - at % file_size
        if left < UNIT.size + TIMER_LOG_END.size:
            pieces.append((at, TIMER_LOG_END.pack(left, 0, _END_MAGIC)))
            at += left
        time = unit.due_ms // precision_ms
        slot = slots.get(time % WHEEL_SLOTS, Slot(time, at, NO_POSITION, 0))
        pieces.append((at, UNIT.pack(*unit._replace(previous=slot.last))))
        slots[time % WHEEL_SLOTS] = slot._replace(last=at, messages=slot.messages + 1)
        at += UNIT.size
    return pieces, slots


def used_slots(read: Read, size: int) -> Iterator[tuple[int, Slot]]:
    """Yield the number and the content of every slot of a wheel that was ever used."""
    import numpy as np  # lazy import: a store without a wheel does not need it

    if size > MAX_WHEEL_SIZE:
        raise CorruptData(
            f"{size:,} bytes long, but brokers never write a timer wheel of more than {MAX_WHEEL_SIZE:,} bytes"
        )
    for start in range(0, size - size % SLOT.size, _WINDOW):
        window = bytes(read(start, min(_WINDOW, size - start)))
        slots = np.frombuffer(window, np.uint8, len(window) // SLOT.size * SLOT.size).reshape(-1, SLOT.size)
        for number in np.flatnonzero(slots.any(axis=1)).tolist():
            yield start // SLOT.size + number, Slot(*map(int, SLOT.unpack(window, number * SLOT.size)))


def decode_timer_unit(buffer: Buffer, at: int) -> TimerUnit | None:
    """Return the unit at position *at* of the timer log; None where the file ends, or nothing is written."""
    size = int.from_bytes(buffer[:4], "big", signed=True)
    if size != UNIT.size:
        is_end = len(buffer) >= TIMER_LOG_END.size and TIMER_LOG_END.unpack(buffer)[2] == _END_MAGIC
        if is_end or not any(buffer):
            return None
        raise CorruptData(f"unit size {size} instead of {UNIT.size}", at)
    unit = TimerUnit(*map(int, UNIT.unpack(buffer, 0, at)))
    if unit.flags not in _FLAGS or not NO_POSITION <= unit.previous < at:
        raise CorruptData(f"not a timer unit: flags {unit.flags}, previous unit at {unit.previous}", at)
    return unit
