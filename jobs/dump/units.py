"""
Dumps a file of a store: detects its kind, and yields its items.

This module also dumps files of units: queues (plain, batch and extension units), index files, the checkpoint, and timer
files. Positions in a timer log are those of the whole log, according to the files' names.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain, islice

from jobs.console.amounts import count_text
from jobs.dump import (
    KINDS_BY_NAME,
    MORE_FOLLOWS,
    DumpFile,
    DumpItem,
    DumpRequest,
    compare_with_sibling_files,
    counts_text,
    damage_item,
    list_numbered_files,
    open_file,
    short_time_text,
)
from jobs.dump.commitlog import dump_log
from rmq_formats.commitlog.layout import BLANK, DLEDGER_END_MAGIC, DLEDGER_MAGIC, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from rmq_formats.consumequeue.dispatch import BatchUnit, Unit, decode_batch_unit, decode_unit
from rmq_formats.consumequeue.layout import (
    BATCH_UNIT,
    EXT_END_MARK,
    EXT_UNIT,
    UNIT,
    decode_ext_unit,
    ext_address_offset,
)
from rmq_formats.errors import CorruptData, FormatError, UnsupportedFormat
from rmq_formats.indexfile.layout import ENTRY, HEADER, SLOT, Geometry, IndexHeader, decode_entry
from rmq_formats.indexfile.lookup import IndexReader, find_geometries, find_stated_geometry
from rmq_formats.layout import Content, Layout
from rmq_formats.properties import index_key_hash
from rmq_formats.store import (
    CHECKPOINT,
    CHECKPOINT_SIZE,
    FileKind,
    classify,
    is_loadable_index_name,
    parse_offset_name,
)
from rmq_formats.timer_files import PRECISION_MS, TIMER_PROGRESS, TIMER_PROGRESS_SIZE, decode_timer_unit, used_slots
from rmq_formats.timer_files import SLOT as TIMER_SLOT
from rmq_formats.timer_files import UNIT as TIMER_UNIT

_HASH_BITS = 31
_BROKEN_SHOWN = 100
_MOST_OTHERS = 20  # other index files that are examined to find the geometry

Dumper = Callable[[DumpFile, DumpRequest], Iterator[DumpItem]]


def dump_queue(read_items: Dumper, file: DumpFile, request: DumpRequest) -> Iterator[DumpItem]:
    """Yield the units of a file, with blanks and zeros merged into one item; the last item describes the end."""
    end = min(request.start, file.size)
    units = damaged = 0
    is_open = False
    for item in islice(read_items(file, request), request.limit):
        if item.kind == "zeros" and item.offset + item.size == file.size:
            is_open, end = True, item.offset
        else:
            yield item
            end = item.offset + item.size
        units += item.kind == "unit"
        damaged += item.is_damage
    is_whole = is_open or end >= file.size
    _, cut_short = compare_with_sibling_files(file) if is_whole else (None, None)
    if cut_short is not None:
        damaged += 1
        yield damage_item(file.size, 0, cut_short)
    state = "not full: zeros follow" if is_open else "full" if is_whole else MORE_FOLLOWS
    counts = counts_text(count_text(units, "unit"), damaged, min(request.start, file.size) or None)
    shown = state if cut_short is None else "truncated"
    values = {"end": state if is_whole else None, "units": units, "damaged_places": damaged}
    yield DumpItem(end, file.size - end if is_open else 0, "end", f"{shown}; {counts}", values)


def _dump_units(
    layout: Layout, decode: Callable[[bytes], Unit | BatchUnit], file: DumpFile, request: DumpRequest
) -> Iterator[DumpItem]:
    """Yield the units of a queue file, of any layout."""
    size = layout.size
    base_offset = parse_offset_name(file.name) or 0
    position = -(-request.start // size) * size
    while position + size <= file.size:
        raw = file.read(position, size)
        unit = decode(raw)
        is_blank = isinstance(unit, Unit) and unit.is_pre_blank
        end = file.end_of_equal_units(position, raw, file.size) if is_blank or not any(raw) else position + size
        if is_blank:
            yield DumpItem(position, end - position, "blanks", count_text((end - position) // size, "blank unit"), {})
        elif not any(raw):
            is_hole = end < file.size
            text = f"{count_text((end - position) // size, 'unit')} of zeros"
            yield DumpItem(
                position, end - position, "zeros", text, {"reason": text} if is_hole else {}, is_damage=is_hole
            )
        else:
            yield _unit_item(layout, unit, position, (base_offset + position) // size, request)
        position = end
    if position < file.size and file.size - position < size:
        yield damage_item(position, file.size - position, f"{file.size - position} bytes, which is less than a unit")


def _unit_item(layout: Layout, unit: Unit | BatchUnit, position: int, number: int, request: DumpRequest) -> DumpItem:
    code = unit.tags_code
    # A hash has 32 bits, a time of delivery has more, and an address is a large negative number.
    tags = f"due {short_time_text(code)}" if code >> _HASH_BITS not in (0, -1) else f"tags code {code}"
    if isinstance(unit, Unit) and unit.has_ext_address:
        tags = f"extension at {ext_address_offset(code)}"
    text = f"record at {unit.physical_offset}, {unit.size} bytes  {tags}"
    if isinstance(unit, BatchUnit):
        last = unit.base_offset + unit.batch_count - 1
        text = f"#{unit.base_offset} to #{last}  {text}  {short_time_text(unit.store_timestamp)}"
    else:
        text = f"#{number}  {text}"
    kind, text = ("unit", text) if unit.is_written else ("damage", f"{text}  INVALID UNIT")
    # A unit's own field `size` is that of the record.
    values = {"position_in_queue": number, "unit": unit._asdict()} if request.as_json else {}
    return request.make_item(layout, unit, (position, kind, text), **values)._replace(is_damage=not unit.is_written)


def _ext_items(file: DumpFile, request: DumpRequest) -> Iterator[DumpItem]:
    """Yield extension units; the position of each follows from the one before it."""
    position = 0
    while file.size - position >= EXT_UNIT.size:
        size = int(EXT_UNIT.unpack(file.read(position, EXT_UNIT.size))[0])
        if size <= 0:
            break
        try:
            unit = decode_ext_unit(file.read(position, max(size, EXT_UNIT.size)))
        except FormatError as error:
            yield damage_item(position, file.size - position, error.reason)
            return
        if position >= request.start:
            bitmap = unit.bitmap
            text = f"tags code {unit.tags_code}  {short_time_text(unit.store_timestamp)}  bitmap of {len(bitmap)} bytes"
            fixed = (unit.size, unit.tags_code, unit.store_timestamp, len(bitmap))
            values = {"unit": {**unit._asdict(), "bitmap": bitmap.hex()}}
            yield request.make_item(EXT_UNIT, fixed, (position, "unit", text), **values)._replace(size=unit.size)
        position += unit.size
    position = max(position, min(request.start, file.size))
    if file.read(position, 2) == EXT_END_MARK:
        yield DumpItem(position, file.size - position, "end mark", "the file is full", {})
    elif position < file.size:
        is_zero = file.end_of_equal_units(position, b"\0", file.size) == file.size
        rest = damage_item(position, file.size - position, "neither a unit nor an end mark")
        yield DumpItem(*rest[:2], "zeros", "zeros", {"reason": "zeros"}) if is_zero else rest


# index files


def dump_index(file: DumpFile, request: DumpRequest) -> Iterator[DumpItem]:
    """Yield the items of a file, or of one chain; the last item has the number of entries and the verdict."""
    if file.size < HEADER.size:
        return dump_numbers(HEADER, HEADER.size, file, request)
    reader = IndexReader(file.read, _find_geometry(file, request), file.location)
    return (
        _dump_whole_index(file, reader, request)
        if request.chain is None
        else _dump_chain(file, reader, request.chain, request)
    )


def _find_geometry(file: DumpFile, request: DumpRequest) -> Geometry:
    if request.hash_slots and request.index_num:
        return Geometry(request.hash_slots, request.index_num)
    index_bytes = Content(file.size, file.read)
    stated = find_stated_geometry([index_bytes], request.hash_slots, request.index_num)
    if stated is not None:
        return stated.geometry
    found = find_geometries(index_bytes)
    if len(found) == 1:
        return found[0]
    with ExitStack() as stack:
        names = [name for name, _ in list_numbered_files(file) if is_loadable_index_name(name) and name != file.name]
        opened = [stack.enter_context(open_file(f"{file.directory}/{name}")) for name in names[:_MOST_OTHERS]]
        others = [Content(other.size, other.read) for other in opened]
        stated = find_stated_geometry(others, request.hash_slots, request.index_num)
    if stated is None:
        reason = "the file does not show how many slots and entries it has: pass --hash-slots and --index-num"
        raise UnsupportedFormat(reason, None, file.location)
    return stated.geometry


def _dump_whole_index(file: DumpFile, reader: IndexReader, request: DumpRequest) -> Iterator[DumpItem]:
    geometry, header = reader.geometry, reader.header
    stored = IndexHeader(*map(int, HEADER.unpack(file.read(0, HEADER.size))))
    text = (
        f"{short_time_text(stored.begin_timestamp)} to {short_time_text(stored.end_timestamp)}, offsets "
        f"{stored.begin_physical_offset} to {stored.end_physical_offset}, {stored.hash_slot_count} slots counted, "
        f"next entry {stored.index_count}"
    )
    first = request.make_item(HEADER, stored, (0, "header", text), **stored._asdict())
    items = chain([first], _dump_slots(file, reader, request), _dump_entries(file, reader, request))
    wanted = (item for item in items if item.offset + item.size > request.start)
    damaged = printed = 0
    for item in islice(wanted, request.limit):
        yield item
        damaged += item.is_damage
        printed += 1
    is_whole = request.start == 0 and (request.limit is None or printed < request.limit)
    if is_whole:
        from rmq_formats.arrays import find_broken_links

        for link in islice(find_broken_links(file.read, geometry), _BROKEN_SHOWN):
            size = SLOT.size if link.part == "slot" else ENTRY.size
            yield DumpItem(link.position, size, "broken", str(link), link._asdict(), is_damage=True)
            damaged += 1
    room = geometry.index_num - header.index_count
    state = f"room for {room}" if room > 0 else "full"
    text = f"{count_text(header.entry_count, 'entry')} of {geometry.capacity}, {state}; "
    text += count_text(damaged, "damaged range")
    text += "" if is_whole else " in the part that is shown; the rest was not read"
    values = {"entries": header.entry_count, "hash_slots": geometry.hash_slots, "index_num": geometry.index_num}
    yield DumpItem(file.size, 0, "end", text, values | {"damaged_places": damaged})


def _dump_slots(file: DumpFile, reader: IndexReader, request: DumpRequest) -> Iterator[DumpItem]:
    geometry, count = reader.geometry, reader.header.entry_count
    position = max(geometry.slot_position(0), request.start // SLOT.size * SLOT.size)
    while position < geometry.entries_position:
        (newest,) = map(int, SLOT.unpack(file.read(position, SLOT.size).ljust(SLOT.size, b"\0")))
        if not newest:
            end = file.end_of_equal_units(position, bytes(SLOT.size), geometry.entries_position)
            yield DumpItem(position, end - position, "empty", f"{(end - position) // SLOT.size} empty slots", {})
            position = end
            continue
        item = _slot_item((position - geometry.slot_position(0)) // SLOT.size, newest, position)
        is_lost = not 0 < newest <= count
        yield item._replace(text=f"{item.text}  INVALID ENTRY NUMBER", is_damage=True) if is_lost else item
        position += SLOT.size


def _slot_item(slot: int, newest: int, position: int) -> DumpItem:
    return DumpItem(
        position, SLOT.size, "slot", f"slot {slot} → entry {newest}", {"slot": slot, "newest_entry": newest}
    )


def _dump_entries(file: DumpFile, reader: IndexReader, request: DumpRequest) -> Iterator[DumpItem]:
    geometry, header = reader.geometry, reader.header
    unused = geometry.entry_position(0)
    yield DumpItem(unused, ENTRY.size, "unused", "entry 0 is never used", {})
    first = max((request.start - unused) // ENTRY.size, 1)
    count = min(header.entry_count, geometry.capacity)
    for number in range(first, count + 1):
        position = geometry.entry_position(number)
        entry = decode_entry(file.read(position, ENTRY.size).ljust(ENTRY.size, b"\0"))
        slot = geometry.slot_of(entry.key_hash)
        is_wrong = entry.key_hash < 0 or not 0 <= entry.prev_entry < number
        time = short_time_text(header.begin_timestamp + entry.time_diff_s * 1000)
        text = (
            f"#{number}  slot {slot}  hash {entry.key_hash}  record at {entry.physical_offset}  "
            f"+{entry.time_diff_s} s = {time}  previous entry #{entry.prev_entry}"
            f"{'  POINTS FORWARD' if is_wrong else ''}"
        )
        values = {"entry": number, "slot": slot, **entry._asdict()} if request.as_json else {}
        yield request.make_item(ENTRY, entry, (position, "entry", text), **values)._replace(is_damage=is_wrong)
    position = max(geometry.entry_position(count + 1), request.start)
    end = min(file.size, geometry.file_size)
    if position < end:
        zeros = file.end_of_equal_units(position, b"\0", end)
        if zeros < end:
            reason = f"{end - zeros} bytes after the last entry that the header counts"
            yield damage_item(position, end - position, reason)
        else:
            yield DumpItem(position, end - position, "free", f"room for {(end - position) // ENTRY.size} entries", {})
    if file.size != geometry.file_size:
        at = min(file.size, geometry.file_size)
        yield damage_item(at, file.size - at, f"{file.size} bytes, expected {geometry.file_size} for {geometry}")


def _dump_chain(file: DumpFile, reader: IndexReader, key_or_slot: str, request: DumpRequest) -> Iterator[DumpItem]:
    """Yield the slot of a key, or the one with a number, and the entries of its chain."""
    geometry, is_slot = reader.geometry, key_or_slot.isascii() and key_or_slot.isdigit()
    if is_slot and int(key_or_slot) >= geometry.hash_slots:
        raise UnsupportedFormat(
            f"--chain {key_or_slot}: no such slot; the file has slots 0 to {geometry.hash_slots - 1}", None, reader.file
        )
    key_hash = None if is_slot else index_key_hash(key_or_slot)
    slot = int(key_or_slot) if key_hash is None else geometry.slot_of(key_hash)
    position = geometry.slot_position(slot)
    yield _slot_item(slot, reader.newest_entry(slot), position)
    if position + SLOT.size > file.size:
        yield damage_item(position, SLOT.size, f"the file is truncated: it is {file.size:,} bytes long")
    hops = 0
    try:
        for hop in islice(reader.chain(slot), request.limit):
            hops += 1
            entry, is_hit = hop.entry, hop.entry.key_hash == key_hash
            text = (
                f"#{hop.number}  hash {entry.key_hash}  record at {entry.physical_offset}  "
                f"{short_time_text(hop.timestamp)}"
                f"  previous entry #{entry.prev_entry}{'  matches the hash of the key' if is_hit else ''}"
            )
            values = {"entry": hop.number, **entry._asdict(), "timestamp": hop.timestamp, "is_hit": is_hit}
            yield DumpItem(geometry.entry_position(hop.number), ENTRY.size, "entry", text, values)
    except CorruptData as error:
        yield damage_item(error.offset or 0, ENTRY.size, error.reason)
    yield DumpItem(position, 0, "end", f"{count_text(hops, 'entry')} in the chain", {"hops": hops})


# the broker's own numbers, and its timer


def dump_numbers(layout: Layout, size: int, file: DumpFile, request: DumpRequest) -> Iterator[DumpItem]:
    """Yield each number; the last item says whether the file has the length that a broker gives it."""
    values = map(int, layout.unpack(bytes(file.read(0, size)).ljust(layout.size, b"\0")))
    rows = (
        (row, value)
        for row, value in zip(layout.describe_fields(), values, strict=True)
        if request.start <= row.offset <= file.size - row.size
    )
    for row, value in islice(rows, request.limit):
        shown = short_time_text(value) if row.name.endswith("timestamp") and value else value
        yield DumpItem(row.offset, row.size, "field", f"{row.name} = {shown}", {"name": row.name, "value": value})
    odd = [] if file.size == size else [f"{file.size} bytes long instead of {size}"]
    odd += ["the bytes after the fields are not all zero"] if any(file.read(layout.size, size)) else []
    text = "; ".join(odd) or "zeros to the end"
    end = min(layout.size, file.size)
    yield DumpItem(end, file.size - end, "end", text, {"end": text}, is_damage=bool(odd))


def dump_wheel(file: DumpFile, request: DumpRequest) -> Iterator[DumpItem]:
    """Yield the used slots of a timer wheel; the last item counts them."""
    count = file.size // TIMER_SLOT.size
    used = shown = 0
    for number, slot in used_slots(file.read, file.size):
        used += 1
        if number * TIMER_SLOT.size < request.start or shown == request.limit:
            continue
        shown += 1
        is_wrong = slot.time % count != number
        text = f"slot {number}: {count_text(slot.messages, 'message')} due {short_time_text(slot.due_ms())}"
        text += f", units {slot.first} to {slot.last}"
        text += f"; time {slot.time} does not belong in this slot" if is_wrong else ""
        item = request.make_item(
            TIMER_SLOT, slot, (number * TIMER_SLOT.size, "slot", text), slot=number, **slot._asdict()
        )
        yield item._replace(is_damage=is_wrong)
    rest = file.size % TIMER_SLOT.size
    text = f"{used:,} of {count_text(count, 'slot')} have been used; times assume timerPrecisionMs={PRECISION_MS}"
    text += f"; {rest} bytes after the last slot" if rest else ""
    yield DumpItem(file.size - rest, rest, "end", text, {"end": text}, is_damage=bool(rest) or not count)


def dump_timer_log(file: DumpFile, request: DumpRequest) -> Iterator[DumpItem]:
    """Yield the units of a timer log; the last item describes its end."""
    base = parse_offset_name(file.name) or 0
    end = min(-(-max(request.start - base, 0) // TIMER_UNIT.size) * TIMER_UNIT.size, file.size)
    for item in islice(_timer_units(file, base, end, request), request.limit):
        yield item
        end = item.offset + item.size - base
    state = None
    data = file.read(end, TIMER_UNIT.size)
    with suppress(CorruptData):  # reported as the next item
        if decode_timer_unit(data, end) is None:
            state = "end of the file" if end >= file.size or any(data) else "no data after this position"
    yield DumpItem(base + end, file.size - end, "end", state or MORE_FOLLOWS, {"end": state})


def _timer_units(file: DumpFile, base: int, position: int, request: DumpRequest) -> Iterator[DumpItem]:
    start, reason = position, ""  # start and reason of damage before the next unit
    while position < file.size:
        unit = None
        try:
            unit = decode_timer_unit(file.read(position, TIMER_UNIT.size), base + position)
        except CorruptData as error:
            reason = reason or error.reason
            position = min(position + TIMER_UNIT.size, file.size)
            if position < file.size:
                continue
        if reason:
            yield damage_item(base + start, position - start, reason)
        if unit is None:
            break
        text = (
            f"due {short_time_text(unit.due_ms)}, record of {unit.record_size} bytes at offset {unit.physical_offset}"
        )
        text += ", rolled" if unit.is_rolled else ""
        text += ", cancels a timer message" if unit.is_cancellation else ""
        text += "" if unit.previous < 0 else f"; previous unit at {unit.previous}"
        yield request.make_item(TIMER_UNIT, unit, (base + position, "unit", text), due=unit.due_ms, **unit._asdict())
        position += TIMER_UNIT.size
        start, reason = position, ""


# the kind of a file, by its place in a store or by its first bytes


_DEPTH = 5  # parts of the longest path that names a kind: compaction/compactionLog/topic/queue id/file
_LOGS = (FileKind.COMMITLOG, FileKind.DLEDGER_LOG, FileKind.COMPACTION_LOG)
_UNITS = partial(dump_queue, partial(_dump_units, UNIT, decode_unit))
_BATCH_UNITS = partial(dump_queue, partial(_dump_units, BATCH_UNIT, decode_batch_unit))
# The last item describes the end of the file.
_DUMPERS: dict[FileKind, Dumper] = {
    **{kind: partial(dump_log, kind) for kind in _LOGS},
    FileKind.CONSUME_QUEUE: _UNITS,
    **dict.fromkeys((FileKind.BATCH_CONSUME_QUEUE, FileKind.COMPACTION_QUEUE), _BATCH_UNITS),
    FileKind.CONSUME_QUEUE_EXT: partial(dump_queue, _ext_items),
    FileKind.INDEX: dump_index,
    FileKind.CHECKPOINT: partial(dump_numbers, CHECKPOINT, CHECKPOINT_SIZE),
    FileKind.TIMER_PROGRESS: partial(dump_numbers, TIMER_PROGRESS, TIMER_PROGRESS_SIZE),
    FileKind.TIMER_WHEEL: dump_wheel,
    FileKind.TIMER_LOG: dump_timer_log,
}


def recognize_kind(file: DumpFile) -> FileKind:
    """Return the kind of *file*; raise `UnsupportedFormat` if neither its path nor its bytes show it."""
    parts = file.location.split("/")
    kinds = [classify("/".join(parts[-depth:])).kind for depth in range(_DEPTH, 0, -1)]
    known = [kind for kind in kinds if kind is not FileKind.UNKNOWN]
    if known:
        # A directory above the store may have the name of a store's directory: a kind that can be dumped comes first.
        return next((kind for kind in known if kind in _DUMPERS), known[0])
    head = file.read(0, BLANK.size)
    if len(head) == BLANK.size:
        first, second = BLANK.unpack(head)
        if second in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
            return FileKind.COMMITLOG
        if first in (DLEDGER_MAGIC, DLEDGER_END_MAGIC):
            return FileKind.DLEDGER_LOG
    if file.size == CHECKPOINT_SIZE and "checkpoint" in file.name:
        return FileKind.CHECKPOINT
    names = "|".join(KINDS_BY_NAME)
    reason = f"cannot detect the file type from its path or its first bytes; pass the type with --as {names}"
    raise UnsupportedFormat(reason, None, file.location)


def dump_items(file: DumpFile, kind: FileKind, request: DumpRequest) -> Iterator[DumpItem]:
    """Return the items of a file of a kind."""
    if kind not in _DUMPERS:
        raise UnsupportedFormat(f"this kind of file ({kind}) is not supported", None, file.location)
    return _DUMPERS[kind](file, request)
