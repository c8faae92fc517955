"""
The timer messages of a broker: a wheel of slots by time, a log of their units, and the progress.

`TimerWheel` does what TimerMessageStore of 5.0.0 and later does to its files, one message after the other.
`list_deliveries` says what it will deliver if it starts on files.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.properties import PropertyParser, java_hash, parse_properties
from rmq_formats.store import file_name_of_offset
from rmq_formats.timer_files import (
    SLOT,
    TIMER_LOG_END,
    UNIT,
    Slot,
    TimerProgress,
    TimerUnit,
    decode_timer_progress,
    decode_timer_unit,
    encode_timer_progress,
    used_slots,
)

PRECISION_MS = 1000
_SLOTS = 2 * 7 * 86_400
_ROLL_WINDOW_MS = 2 * 86_400 * PRECISION_MS
_EARLIEST_MS = (7 * 86_400 - 60) * PRECISION_MS  # how far a broker reads its wheel back at its start
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
            key = cancelled.rpartition("+")[2]  # of a message in the same slot
            self.waiting = [one for one in self.waiting if (one.properties["UNIQ_KEY"], one.time_ms) != (key, due_ms)]

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


def list_deliveries(root: Path, records: Iterable[MessageRecord], now_ms: int) -> list[int]:
    """
    Return the physical offsets of the timer messages that a broker delivers if it starts on a store, in their order.

    *records* are those of the topic of timer messages. The broker reads them from the one after the last unit of its
    timer log on, or, if there is none, from its progress on (TimerMessageStore#recover). One that is already due is
    delivered even if a later one cancels it. It finds the others in the slots of the wheel since its progress.
    """
    path = root / "config/timercheck"
    progress = decode_timer_progress(path.read_bytes()) if path.exists() else TimerProgress(0, 0, 0, 0, 0, 0, 0)
    of_offset = {record.physical_offset: record for record in records}
    units = _read_log(root)
    number = of_offset[units[max(units)].physical_offset].queue_offset + 1 if units else progress.queue_offset
    number = min(number, progress.master_queue_offset)
    read_ms = max(progress.read_timestamp, now_ms - _EARLIEST_MS)
    in_slots = [(unit.due_ms, of_offset[unit.physical_offset]) for unit in _read_slots(root, units, read_ms)]
    delivered = list[int]()
    for record in of_offset.values():
        properties = parse_properties(record.properties_raw, PropertyParser.SPLIT)
        if record.queue_offset < number:
            continue
        if (due_ms := int(properties["TIMER_OUT_MS"])) >= now_ms:
            in_slots.append((due_ms, record))
        elif "TIMER_DEL_UNIQKEY" not in properties:
            delivered.append(record.physical_offset)
    cancelled = set[tuple[int, str]]()
    waiting = list[tuple[int, str, int]]()
    for due_ms, record in in_slots:
        properties = parse_properties(record.properties_raw, PropertyParser.SPLIT)
        if "TIMER_DEL_UNIQKEY" in properties:
            cancelled.add((due_ms, properties["TIMER_DEL_UNIQKEY"].rpartition("+")[2]))
        else:
            waiting.append((due_ms, properties["UNIQ_KEY"], record.physical_offset))
    return sorted(delivered + [offset for due_ms, key, offset in waiting if (due_ms, key) not in cancelled])


def _read_log(root: Path) -> dict[int, TimerUnit]:
    """Return the units of a timer log by position."""
    units = dict[int, TimerUnit]()
    for path in sorted(root.glob("timerlog/*")):
        data, base = path.read_bytes(), int(path.name)
        for at in range(0, len(data), UNIT.size):
            unit = decode_timer_unit(data[at : at + UNIT.size], base + at)
            if unit is None:
                break
            units[base + at] = unit
    return units


def _read_slots(root: Path, units: dict[int, TimerUnit], read_ms: int) -> list[TimerUnit]:
    """Return the units in the slots of a wheel from a time on."""
    found = list[TimerUnit]()
    path = root / "timerwheel"
    data = path.read_bytes() if path.exists() else b""
    for _, slot in used_slots(lambda offset, size: data[offset : offset + size], len(data)):
        at = slot.last if slot.time * PRECISION_MS >= read_ms else _EMPTY
        while at != _EMPTY:
            found.append(units[at])
            at = units[at].previous
    return found
