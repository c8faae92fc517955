"""Dump a file of a queue: plain units, batch units, extension units."""

from collections.abc import Callable, Iterator
from itertools import islice

from jobs.console.amounts import counted
from jobs.dump.file import DumpFile, siblings_of
from jobs.dump.items import DumpRequest, Item, counts_text, damage, layout_fields, time_text
from rmq_formats.consumequeue.layout import (
    BATCH_UNIT,
    EXT_END_MARK,
    EXT_UNIT,
    UNIT,
    ExtUnit,
    decode_ext_unit,
    offset_of_address,
)
from rmq_formats.consumequeue.unit import BatchUnit, Unit, decode_batch_unit, decode_unit
from rmq_formats.errors import FormatError
from rmq_formats.layout import Layout
from rmq_formats.store import FileKind, first_offset

_HASH_BITS = 31


_SHAPES: dict[FileKind, tuple[Layout, Callable[[bytes], Unit | BatchUnit]]] = {
    FileKind.CONSUME_QUEUE: (UNIT, decode_unit),
    FileKind.BATCH_CONSUME_QUEUE: (BATCH_UNIT, decode_batch_unit),
    FileKind.COMPACTION_QUEUE: (BATCH_UNIT, decode_batch_unit),
    FileKind.TIERED_QUEUE: (UNIT, decode_unit),
}


def dump(file: DumpFile, kind: FileKind, request: DumpRequest) -> Iterator[Item]:
    """Yield the units of a file, blanks and zeros as one; the last item says how it ends."""
    items = _ext_items(file, request) if kind is FileKind.CONSUME_QUEUE_EXT else _items(file, kind, request)
    end = min(request.start, file.size)
    units = damaged = 0
    is_open = False
    for item in islice(items, request.limit):
        if item.kind == "zeros" and item.offset + item.size == file.size:
            is_open = True
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
    state = "not full: zeros follow" if is_open else "full" if is_whole else "more follows from here on"
    counts = counts_text(counted(units, "unit"), damaged, min(request.start, file.size))
    values = {"end": state if is_whole else None, "units": units, "damaged_places": damaged}
    at = end if not is_open else item.offset
    yield Item(at, file.size - at if is_open else 0, "end", f"{state}; {counts}", values)


def _items(file: DumpFile, kind: FileKind, request: DumpRequest) -> Iterator[Item]:
    """Yield units one by one, and rows of blanks and of zeros as one item each."""
    layout, decode = _SHAPES[kind]
    size = layout.size
    base_offset = first_offset(file.name) or 0
    position = -(-request.start // size) * size
    while position + size <= file.size:
        raw = file.read(position, size)
        unit = decode(raw)
        if isinstance(unit, Unit) and unit.is_pre_blank:
            end = file.end_of_row(position, raw, file.size)
            yield Item(position, end - position, "blanks", f"{(end - position) // size} blank units", {})
        elif not any(raw):
            end = file.end_of_row(position, raw, file.size)
            is_hole = end < file.size
            text = f"{(end - position) // size} units of zeros"
            yield Item(position, end - position, "zeros", text, {"reason": text} if is_hole else {}, is_damage=is_hole)
        else:
            end = position + size
            yield _unit_item(layout, unit, position, (base_offset + position) // size, request)
        position = end
    if position < file.size and file.size - position < size:
        yield damage(position, file.size - position, f"{file.size - position} bytes, less than a unit")


def _unit_item(layout: Layout, unit: Unit | BatchUnit, position: int, number: int, request: DumpRequest) -> Item:
    fields = layout_fields(layout, unit, position) if request.with_fields else []
    # A unit has a size of its own: the record's.
    values = {"position_in_queue": number, "unit": unit._asdict()} if request.as_json else {}
    if isinstance(unit, BatchUnit):
        last = unit.base_offset + unit.batch_count - 1
        text = f"#{unit.base_offset} to #{last}  {_record(unit)}  {_tags(unit)}  {time_text(unit.store_timestamp)}"
    else:
        text = f"#{number}  {_record(unit)}  {_tags(unit)}"
    if unit.is_written:
        return Item(position, layout.size, "unit", text, values, fields)
    return Item(position, layout.size, "damage", f"{text}  NO UNIT", values, fields, is_damage=True)


def _record(unit: Unit | BatchUnit) -> str:
    return f"record at {unit.physical_offset}, {unit.size} bytes"


def _tags(unit: Unit | BatchUnit) -> str:
    """Explain the tags code: a hash has 32 bits, a time of delivery more, an address is far below zero."""
    code = unit.tags_code
    if isinstance(unit, Unit) and unit.has_ext_address:
        return f"extension at {offset_of_address(code)}"
    return f"due {time_text(code)}" if code >> _HASH_BITS not in (0, -1) else f"tags code {code}"


def _ext_items(file: DumpFile, request: DumpRequest) -> Iterator[Item]:
    """Yield extension units; where each begins, only the one before it tells."""
    position = 0
    while file.size - position >= EXT_UNIT.size:
        raw = file.read(position, EXT_UNIT.size)
        size = int(EXT_UNIT.unpack(raw)[0])
        if size <= 0:
            break
        try:
            unit = decode_ext_unit(file.read(position, max(size, EXT_UNIT.size)))
        except FormatError as error:
            yield damage(position, file.size - position, error.reason)
            return
        if position >= request.start:
            yield _ext_item(unit, position, request)
        position += unit.size
    yield from _ext_end(file, max(position, min(request.start, file.size)))


def _ext_item(unit: ExtUnit, position: int, request: DumpRequest) -> Item:
    text = f"tags code {unit.tags_code}  {time_text(unit.store_timestamp)}  bitmap of {len(unit.bitmap)} bytes"
    fixed = (unit.size, unit.tags_code, unit.store_timestamp, len(unit.bitmap))
    fields = layout_fields(EXT_UNIT, fixed, position) if request.with_fields else []
    values = {"unit": {**unit._asdict(), "bitmap": unit.bitmap.hex()}} if request.as_json else {}
    return Item(position, unit.size, "unit", text, values, fields)


def _ext_end(file: DumpFile, position: int) -> Iterator[Item]:
    """Return an item for the bytes after the last unit: an end mark, zeros, or something else."""
    rest = file.read(position, 2)
    if rest == EXT_END_MARK:
        yield Item(position, file.size - position, "end mark", "the file is full", {})
    elif position < file.size:
        is_zero = file.end_of_row(position, b"\0", file.size) == file.size
        text = "zeros" if is_zero else "neither a unit nor an end mark"
        kind = "zeros" if is_zero else "damage"
        yield Item(position, file.size - position, kind, text, {"reason": text}, is_damage=not is_zero)
