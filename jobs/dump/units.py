"""
Dump files of units: of queues (plain, batch and extension units), the checkpoint, and the timer's files.

A timer wheel shows the slots that were ever used; a timer log shows its units, each with the position of the unit
before it in the same slot. Positions of a timer log are those of the full log, as its files' names say.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

from jobs.console.amounts import counted
from jobs.dump.file import MORE, DumpFile, DumpRequest, Item, counts_text, damage, siblings_of, time_text
from rmq_formats.consumequeue.layout import BATCH_UNIT, EXT_END_MARK, EXT_UNIT, UNIT, decode_ext_unit, offset_of_address
from rmq_formats.consumequeue.unit import BatchUnit, Unit, decode_batch_unit, decode_unit
from rmq_formats.errors import CorruptData, FormatError
from rmq_formats.layout import Layout
from rmq_formats.store import CHECKPOINT, CHECKPOINT_SIZE, FileKind, first_offset, offset_of_name
from rmq_formats.timer_files import (
    PRECISION_MS,
    PROGRESS,
    PROGRESS_SIZE,
    SLOT,
    TimerUnit,
    decode_timer_unit,
    written_slots,
)
from rmq_formats.timer_files import UNIT as TIMER_UNIT

_HASH_BITS = 31
_SHAPES: dict[FileKind, tuple[Layout, Callable[[bytes], Unit | BatchUnit]]] = {
    FileKind.CONSUME_QUEUE: (UNIT, decode_unit),
    FileKind.BATCH_CONSUME_QUEUE: (BATCH_UNIT, decode_batch_unit),
    FileKind.COMPACTION_QUEUE: (BATCH_UNIT, decode_batch_unit),
    FileKind.TIERED_QUEUE: (UNIT, decode_unit),
}
_NUMBERS = {FileKind.CHECKPOINT: (CHECKPOINT, CHECKPOINT_SIZE), FileKind.TIMER_PROGRESS: (PROGRESS, PROGRESS_SIZE)}


def dump_queue(file: DumpFile, kind: FileKind, request: DumpRequest) -> Iterator[Item]:
    """Yield the units of a file, blanks and zeros as one; the last item says how it ends."""
    items = _ext_items(file, request) if kind is FileKind.CONSUME_QUEUE_EXT else _items(file, kind, request)
    end = min(request.start, file.size)
    units = damaged = 0
    is_open = False
    for item in islice(items, request.limit):
        if item.kind == "zeros" and item.offset + item.size == file.size:
            is_open, end = True, item.offset
        else:
            yield item
            end = item.offset + item.size
        units += item.kind == "unit"
        damaged += item.is_damage
    is_whole = is_open or end >= file.size
    siblings = siblings_of(file) if is_whole else None
    if siblings is not None and siblings.missing is not None:
        damaged += 1
        yield damage(file.size, 0, siblings.missing)
    state = "not full: zeros follow" if is_open else "full" if is_whole else MORE
    counts = counts_text(counted(units, "unit"), damaged, min(request.start, file.size))
    values = {"end": state if is_whole else None, "units": units, "damaged_places": damaged}
    yield Item(end, file.size - end if is_open else 0, "end", f"{state}; {counts}", values)


def _items(file: DumpFile, kind: FileKind, request: DumpRequest) -> Iterator[Item]:
    """Yield units one by one, and rows of blanks and of zeros as one item each."""
    layout, decode = _SHAPES[kind]
    size = layout.size
    base_offset = first_offset(file.name) or 0
    position = -(-request.start // size) * size
    while position + size <= file.size:
        raw = file.read(position, size)
        unit = decode(raw)
        is_blank = isinstance(unit, Unit) and unit.is_pre_blank
        end = file.end_of_row(position, raw, file.size) if is_blank or not any(raw) else position + size
        if is_blank:
            yield Item(position, end - position, "blanks", f"{(end - position) // size} blank units", {})
        elif not any(raw):
            is_hole = end < file.size
            text = f"{(end - position) // size} units of zeros"
            yield Item(position, end - position, "zeros", text, {"reason": text} if is_hole else {}, is_damage=is_hole)
        else:
            yield _unit_item(layout, unit, position, (base_offset + position) // size, request)
        position = end
    if position < file.size and file.size - position < size:
        yield damage(position, file.size - position, f"{file.size - position} bytes, less than a unit")


def _unit_item(layout: Layout, unit: Unit | BatchUnit, position: int, number: int, request: DumpRequest) -> Item:
    code = unit.tags_code
    # A hash has 32 bits, a time of delivery more, an address is far below zero.
    tags = f"due {time_text(code)}" if code >> _HASH_BITS not in (0, -1) else f"tags code {code}"
    if isinstance(unit, Unit) and unit.has_ext_address:
        tags = f"extension at {offset_of_address(code)}"
    text = f"record at {unit.physical_offset}, {unit.size} bytes  {tags}"
    if isinstance(unit, BatchUnit):
        last = unit.base_offset + unit.batch_count - 1
        text = f"#{unit.base_offset} to #{last}  {text}  {time_text(unit.store_timestamp)}"
    else:
        text = f"#{number}  {text}"
    kind, text = ("unit", text) if unit.is_written else ("damage", f"{text}  NO UNIT")
    # A unit has a size of its own: the record's.
    values = {"position_in_queue": number, "unit": unit._asdict()} if request.as_json else {}
    return request.item(layout, unit, (position, kind, text), **values)._replace(is_damage=not unit.is_written)


def _ext_items(file: DumpFile, request: DumpRequest) -> Iterator[Item]:
    """Yield extension units; where each begins, only the one before it tells."""
    position = 0
    while file.size - position >= EXT_UNIT.size:
        size = int(EXT_UNIT.unpack(file.read(position, EXT_UNIT.size))[0])
        if size <= 0:
            break
        try:
            unit = decode_ext_unit(file.read(position, max(size, EXT_UNIT.size)))
        except FormatError as error:
            yield damage(position, file.size - position, error.reason)
            return
        if position >= request.start:
            bitmap = unit.bitmap
            text = f"tags code {unit.tags_code}  {time_text(unit.store_timestamp)}  bitmap of {len(bitmap)} bytes"
            fixed = (unit.size, unit.tags_code, unit.store_timestamp, len(bitmap))
            values = {"unit": {**unit._asdict(), "bitmap": bitmap.hex()}}
            yield request.item(EXT_UNIT, fixed, (position, "unit", text), **values)._replace(size=unit.size)
        position += unit.size
    position = max(position, min(request.start, file.size))
    if file.read(position, 2) == EXT_END_MARK:
        yield Item(position, file.size - position, "end mark", "the file is full", {})
    elif position < file.size:
        is_zero = file.end_of_row(position, b"\0", file.size) == file.size
        rest = damage(position, file.size - position, "neither a unit nor an end mark")
        yield Item(*rest[:2], "zeros", "zeros", {"reason": "zeros"}) if is_zero else rest


# the broker's own numbers, and its timer


def dump_numbers(file: DumpFile, kind: FileKind, request: DumpRequest) -> Iterator[Item]:
    """Yield each number; the last item says whether the file is as long as a broker makes it."""
    layout, size = _NUMBERS[kind]
    values = map(int, layout.unpack(file.read(0, size)))
    rows = ((row, value) for row, value in zip(layout.rows(), values, strict=True) if row.offset >= request.start)
    for row, value in islice(rows, request.limit):
        shown = time_text(value) if row.name.endswith("timestamp") and value else value
        yield Item(row.offset, row.size, "field", f"{row.name} = {shown}", {"name": row.name, "value": value})
    odd = [] if file.size == size else [f"{file.size} bytes instead of {size}"]
    odd += ["bytes that are not zero"] if any(file.read(layout.size, size)) else []
    text = ", ".join(odd) or "zeros to the end"
    yield Item(layout.size, file.size - layout.size, "end", text, {"end": text}, is_damage=bool(odd))


def dump_wheel(file: DumpFile, kind: FileKind, request: DumpRequest) -> Iterator[Item]:
    """Yield the slots of a timer wheel that were used; the last item counts them."""
    del kind
    count = file.size // SLOT.size
    used = shown = 0
    for number, slot in written_slots(file.read, file.size):
        used += 1
        if number * SLOT.size < request.start or shown == request.limit:
            continue
        shown += 1
        is_wrong = slot.time % count != number
        text = f"slot {number}: {slot.messages} due {time_text(slot.due_ms())}, units {slot.first} to {slot.last}"
        text += f"; time {slot.time} is not of this slot" if is_wrong else ""
        item = request.item(SLOT, slot, (number * SLOT.size, "slot", text), slot=number, **slot._asdict())
        yield item._replace(is_damage=is_wrong)
    rest = file.size % SLOT.size
    text = f"{used:,} of {counted(count, 'slot')} were ever used; times for timerPrecisionMs={PRECISION_MS}"
    text += f"; {rest} bytes after the last slot" if rest else ""
    yield Item(file.size - rest, rest, "end", text, {"end": text}, is_damage=bool(rest) or not count)


def dump_timer_log(file: DumpFile, kind: FileKind, request: DumpRequest) -> Iterator[Item]:
    """Yield the units of a timer log; the last item says how it ends."""
    del kind
    base = offset_of_name(file.name) or 0
    end = min(-(-max(request.start - base, 0) // TIMER_UNIT.size) * TIMER_UNIT.size, file.size)
    for item in islice(_timer_units(file, base, end, request), request.limit):
        yield item
        end = item.offset + item.size - base
    state = None
    data = file.read(end, TIMER_UNIT.size)
    with suppress(CorruptData):  # reported as the next item
        if decode_timer_unit(data, end) is None:
            state = "end of the file" if end >= file.size or any(data) else "nothing is written after this"
    yield Item(base + end, file.size - end, "end", state or MORE, {"end": state})


def _timer_units(file: DumpFile, base: int, position: int, request: DumpRequest) -> Iterator[Item]:
    while position < file.size:
        start = position
        unit, position, reason = _next_timer_unit(file, base, position)
        if reason:
            yield damage(base + start, position - start, reason)
        if unit is None:
            break
        text = f"due {time_text(unit.due_ms)}, record of {unit.record_size} bytes at offset {unit.physical_offset}"
        text += ", rolled" if unit.is_rolled else ""
        text += ", takes a message back" if unit.takes_back else ""
        text += "" if unit.previous < 0 else f"; before it {unit.previous}"
        yield request.item(TIMER_UNIT, unit, (base + position, "unit", text), due=unit.due_ms, **unit._asdict())
        position += TIMER_UNIT.size


def _next_timer_unit(file: DumpFile, base: int, position: int) -> tuple[TimerUnit | None, int, str]:
    """Return the next unit and its position, with the damage before it; no unit where the log ends."""
    reason = ""
    while position < file.size:
        try:
            return decode_timer_unit(file.read(position, TIMER_UNIT.size), base + position), position, reason
        except CorruptData as error:
            reason = reason or error.reason
        position = min(position + TIMER_UNIT.size, file.size)
    return None, position, reason
