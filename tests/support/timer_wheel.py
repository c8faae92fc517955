"""
The timer messages of a broker: a wheel of slots by time, a log of their units, and the progress.

`TimerWheel` does what TimerMessageStore of 5.0.0 and later does to its files, one message after the other.
"""

import json
from dataclasses import dataclass, field
from typing import NamedTuple

from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.properties import java_hash
from rmq_formats.store import file_name_of_offset
from rmq_formats.timer_files import (
    SLOT,
    TIMER_LOG_END,
    UNIT,
    Slot,
    TimerProgress,
    TimerUnit,
    encode_timer_progress,
)

PRECISION_MS = 1000
_SLOTS = 2 * 7 * 86_400
_ROLL_WINDOW_MS = 2 * 86_400 * PRECISION_MS
_EMPTY = -1
_END_MAGIC = 0xCBD43194 - (1 << 32)
_DEFAULT, _ROLLS, _CANCELS = 1, 2, 4


class WaitingTimer(NamedTuple):
    """A timer message in the wheel."""

    record: MessageRecord
    properties: dict[str, str]
    time_ms: int  # of its slot
    enqueued_ms: int
    is_rolled: bool


@dataclass
class TimerWheel:
    """The state of the timer messages, and their files."""

    log_file_size: int
    read_ms: int  # slots before it were delivered
    queue_offset: int = 0
    log: bytearray = field(default_factory=bytearray)
    slots: dict[int, Slot] = field(default_factory=dict)
    waiting: list[WaitingTimer] = field(default_factory=list)

    def add(self, record: MessageRecord, properties: dict[str, str]) -> None:
        """Put a message, or the cancellation of one, into the wheel."""
        self.queue_offset = record.queue_offset + 1
        write_ms, due_ms = self.read_ms, int(properties["TIMER_OUT_MS"])
        flags = _DEFAULT
        is_rolled = due_ms - write_ms >= _ROLL_WINDOW_MS
        if is_rolled:
            flags |= _ROLLS
            is_last_roll = due_ms - write_ms - _ROLL_WINDOW_MS < _ROLL_WINDOW_MS // 3
            due_ms = write_ms + (_ROLL_WINDOW_MS // 2 if is_last_roll else _ROLL_WINDOW_MS)
        cancelled = properties.get("TIMER_DEL_UNIQKEY")
        if cancelled is not None:
            flags |= _CANCELS
        number = due_ms // PRECISION_MS
        slot = self.slots.get(number % _SLOTS)
        if slot is None or slot.time != number:  # one of an earlier turn of the wheel
            slot = Slot(number, _EMPTY, _EMPTY, 0)
        position = self._append(
            TimerUnit(
                UNIT.size, slot.last, flags, write_ms, due_ms - write_ms, record.physical_offset, record.total_size,
                java_hash(properties["REAL_TOPIC"]),
            )
        )  # fmt: skip
        first = position if slot.first == _EMPTY else slot.first
        change = 1 if cancelled is None else -1
        self.slots[number % _SLOTS] = Slot(number, first, position, slot.messages + change)
        if cancelled is None:
            self.waiting.append(WaitingTimer(record, properties, due_ms, write_ms, is_rolled))
        else:
            key = cancelled.rpartition("+")[2]
            self.waiting = [one for one in self.waiting if one.properties["UNIQ_KEY"] != key]

    def _append(self, unit: TimerUnit) -> int:
        left = self.log_file_size - len(self.log) % self.log_file_size
        if left < UNIT.size + TIMER_LOG_END.size:
            self.log += TIMER_LOG_END.pack(left, 0, _END_MAGIC).ljust(left, b"\0")
        position = len(self.log)
        self.log += UNIT.pack(*unit)
        return position

    def take_due(self, now_ms: int) -> list[WaitingTimer]:
        """Move the wheel on to a time, and return the messages that are due, in the order of their slots."""
        self.read_ms = max(self.read_ms, now_ms // PRECISION_MS * PRECISION_MS)
        due = sorted((one for one in self.waiting if one.time_ms < self.read_ms), key=lambda one: one.time_ms)
        self.waiting = [one for one in self.waiting if one.time_ms >= self.read_ms]
        return due

    def encode_progress(self) -> bytes:
        """Return the content of `config/timercheck`."""
        next_offset = self.queue_offset
        progress = TimerProgress(self.read_ms, len(self.log), next_offset, next_offset, 0, self.read_ms, 1)
        return encode_timer_progress(progress)

    def list_files(self, progress: bytes) -> dict[str, bytes]:
        """Return the files by path."""
        wheel = bytearray(_SLOTS * SLOT.size)
        for number, slot in self.slots.items():
            wheel[number * SLOT.size : (number + 1) * SLOT.size] = SLOT.pack(*slot)
        files = {"timerwheel": bytes(wheel), "config/timercheck": progress}
        for base in range(0, len(self.log) or 1, self.log_file_size):
            data = bytes(self.log[base : base + self.log_file_size])
            files[f"timerlog/{file_name_of_offset(base)}"] = data.ljust(self.log_file_size, b"\0")
        counts = {"Orders": {"count": len(self.waiting), "timeStamp": self.read_ms}}
        files["config/timermetrics"] = json.dumps({"timingCount": counts}).encode()
        return files
