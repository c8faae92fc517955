"""
Dump the small files of a broker: the checkpoint, and the timer's progress, wheel and log.

A wheel shows the slots that were ever used; a log shows its units, each with the position of the unit before it in the
same slot. Positions of a log are those of the full log, as its files' names say.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from jobs.console.amounts import counted
from jobs.dump.file import DumpFile
from jobs.dump.items import DumpRequest, Item, damage, layout_fields, time_text
from rmq_formats.errors import CorruptData
from rmq_formats.layout import Layout
from rmq_formats.store import CHECKPOINT, CHECKPOINT_SIZE, FileKind, offset_of_name
from rmq_formats.timer_files import (
    PRECISION_MS,
    PROGRESS,
    PROGRESS_SIZE,
    SLOT,
    UNIT,
    Slot,
    TimerUnit,
    decode_timer_unit,
    written_slots,
)

_LAYOUTS: dict[FileKind, tuple[Layout, int]] = {
    FileKind.CHECKPOINT: (CHECKPOINT, CHECKPOINT_SIZE),
    FileKind.TIMER_PROGRESS: (PROGRESS, PROGRESS_SIZE),
}
_MORE = "more follows from here on"


def dump(file: DumpFile, kind: FileKind, request: DumpRequest) -> Iterator[Item]:
    """Yield numbers, slots, or units; the last item says how the file ends."""
    if kind in _LAYOUTS:
        return _numbers(file, kind, request)
    return _wheel(file, request) if kind is FileKind.TIMER_WHEEL else _log(file, request)


def _numbers(file: DumpFile, kind: FileKind, request: DumpRequest) -> Iterator[Item]:
    """Yield each number; the last item says whether the file is as long as a broker makes it."""
    layout, size = _LAYOUTS[kind]
    values = map(int, layout.unpack(file.read(0, size)))
    rows = ((row, value) for row, value in zip(layout.rows(), values, strict=True) if row.offset >= request.start)
    for row, value in islice(rows, request.limit):
        shown = time_text(value) if row.name.endswith("timestamp") and value else value
        yield Item(row.offset, row.size, "field", f"{row.name} = {shown}", {"name": row.name, "value": value})
    rest = file.read(layout.size, size)
    odd = [] if file.size == size else [f"{file.size} bytes instead of {size}"]
    odd += ["bytes that are not zero"] if any(rest) else []
    text = ", ".join(odd) or "zeros to the end"
    yield Item(layout.size, file.size - layout.size, "end", text, {"end": text}, is_damage=bool(odd))


def _wheel(file: DumpFile, request: DumpRequest) -> Iterator[Item]:
    count = file.size // SLOT.size
    used = shown = 0
    for number, slot in written_slots(file.read, file.size):
        used += 1
        if number * SLOT.size >= request.start and (request.limit is None or shown < request.limit):
            shown += 1
            yield _slot(number, slot, count, request)
    rest = file.size % SLOT.size
    text = f"{used:,} of {counted(count, 'slot')} were ever used; times for timerPrecisionMs={PRECISION_MS}"
    text += f"; {rest} bytes after the last slot" if rest else ""
    yield Item(file.size - rest, rest, "end", text, {"end": text}, is_damage=bool(rest) or not count)


def _slot(number: int, slot: Slot, count: int, request: DumpRequest) -> Item:
    is_wrong = slot.time % count != number
    text = f"slot {number}: {slot.messages} due {time_text(slot.due_ms())}, units {slot.first} to {slot.last}"
    text += f"; time {slot.time} is not of this slot" if is_wrong else ""
    values = {"slot": number, **slot._asdict()}
    fields = layout_fields(SLOT, slot, number * SLOT.size) if request.with_fields else ()
    return Item(number * SLOT.size, SLOT.size, "slot", text, values, fields, is_damage=is_wrong)


def _log(file: DumpFile, request: DumpRequest) -> Iterator[Item]:
    base = offset_of_name(file.name) or 0
    end = min(-(-max(request.start - base, 0) // UNIT.size) * UNIT.size, file.size)
    for item in islice(_log_items(file, base, end, request), request.limit):
        yield item
        end = item.offset + item.size - base
    state = _state_at(file, end)
    yield Item(base + end, file.size - end, "end", state or _MORE, {"end": state})


def _state_at(file: DumpFile, position: int) -> str | None:
    """Return how the log ends at a position; None where it goes on."""
    data = file.read(position, UNIT.size)
    with suppress(CorruptData):  # reported as the next item
        if decode_timer_unit(data, position) is None:
            return "end of the file" if position >= file.size or any(data) else "nothing is written after this"
    return None


def _log_items(file: DumpFile, base: int, position: int, request: DumpRequest) -> Iterator[Item]:
    while position < file.size:
        start = position
        unit, position, reason = _next_unit(file, base, position)
        if reason:
            yield damage(base + start, position - start, reason)
        if unit is None:
            break
        yield _unit(base + position, unit, request)
        position += UNIT.size


def _next_unit(file: DumpFile, base: int, position: int) -> tuple[TimerUnit | None, int, str]:
    """Return the next unit and its position, with the damage before it; no unit where the log ends."""
    reason = ""
    while position < file.size:
        try:
            return decode_timer_unit(file.read(position, UNIT.size), base + position), position, reason
        except CorruptData as error:
            reason = reason or error.reason
        position = min(position + UNIT.size, file.size)
    return None, position, reason


def _unit(at: int, unit: TimerUnit, request: DumpRequest) -> Item:
    text = f"due {time_text(unit.due_ms)}, record of {unit.record_size} bytes at offset {unit.physical_offset}"
    text += ", rolled" if unit.is_rolled else ""
    text += ", takes a message back" if unit.takes_back else ""
    text += "" if unit.previous < 0 else f"; before it {unit.previous}"
    fields = layout_fields(UNIT, unit, at) if request.with_fields else ()
    return Item(at, UNIT.size, "unit", text, {"due": unit.due_ms, **unit._asdict()}, fields)
