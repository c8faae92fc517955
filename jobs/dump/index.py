"""Dump an index file: header, slots in use, entries; or the chain of one slot, newest first."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice

from jobs.dump.file import DumpFile, DumpRequest, Item, damage, listed, open_file, time_text
from rmq_formats.errors import CorruptData, UnsupportedFormat
from rmq_formats.indexfile.layout import ENTRY, HEADER, SLOT, Geometry, IndexHeader, decode_entry
from rmq_formats.indexfile.lookup import IndexReader, find_geometries, stated_geometry
from rmq_formats.layout import Content
from rmq_formats.properties import index_key_hash
from rmq_formats.store import FileKind, is_index_name

_BROKEN_SHOWN = 100
_MOST_OTHERS = 20  # other index files that are asked for the geometry


def dump_index(file: DumpFile, kind: FileKind, request: DumpRequest) -> Iterator[Item]:
    """Yield the items of a file, or one chain of it; the last item counts the entries and has the verdict."""
    del kind
    reader = IndexReader(file.read, _geometry(file, request), file.location)
    return _whole(file, reader, request) if request.chain is None else _chain(reader, request.chain, request)


def _geometry(file: DumpFile, request: DumpRequest) -> Geometry:
    if request.hash_slots and request.index_num:
        return Geometry(request.hash_slots, request.index_num)
    index_bytes = Content(file.size, file.read)
    stated = stated_geometry([index_bytes], request.hash_slots, request.index_num)
    if stated is not None:
        return stated.geometry
    found = find_geometries(index_bytes)
    if len(found) == 1:
        return found[0]
    with ExitStack() as stack:
        names = [name for name, _ in listed(file) if is_index_name(name) and name != file.name]
        opened = [stack.enter_context(open_file(f"{file.folder}/{name}")) for name in names[:_MOST_OTHERS]]
        others = [Content(other.size, other.read) for other in opened]
        stated = stated_geometry(others, request.hash_slots, request.index_num)
    if stated is None:
        reason = "the file does not tell how many slots and entries it has: give --hash-slots and --index-num"
        raise UnsupportedFormat(reason, None, file.location)
    return stated.geometry


def _whole(file: DumpFile, reader: IndexReader, request: DumpRequest) -> Iterator[Item]:
    geometry, header = reader.geometry, reader.header
    parts = (_header(file, request), _slots(file, reader, request), _entries(file, reader, request))
    wanted = (item for part in parts for item in part if item.offset + item.size > request.start)
    damaged = printed = 0
    for item in islice(wanted, request.limit):
        yield item
        damaged += item.is_damage
        printed += 1
    is_whole = request.start == 0 and (request.limit is None or printed < request.limit)
    if is_whole:
        from rmq_formats.arrays import broken_links

        for link in islice(broken_links(file.read, geometry), _BROKEN_SHOWN):
            size = SLOT.size if link.part == "slot" else ENTRY.size
            yield Item(link.position, size, "broken", str(link), link._asdict(), is_damage=True)
            damaged += 1
    room = geometry.index_num - header.index_count
    state = f"room for {room}" if room > 0 else "full"
    text = f"{header.entry_count} entries of {geometry.capacity}, {state}; {damaged} damaged places"
    text += "" if is_whole else " in the part that is shown; the rest was not read"
    values = {"entries": header.entry_count, "hash_slots": geometry.hash_slots, "index_num": geometry.index_num}
    yield Item(file.size, 0, "end", text, values | {"damaged_places": damaged})


def _header(file: DumpFile, request: DumpRequest) -> Iterator[Item]:
    stored = IndexHeader(*map(int, HEADER.unpack(file.read(0, HEADER.size))))
    text = (
        f"{time_text(stored.begin_timestamp)} to {time_text(stored.end_timestamp)}, offsets "
        f"{stored.begin_physical_offset} to {stored.end_physical_offset}, {stored.hash_slot_count} slots counted, "
        f"next entry {stored.index_count}"
    )
    yield request.item(HEADER, stored, (0, "header", text), **stored._asdict())


def _slots(file: DumpFile, reader: IndexReader, request: DumpRequest) -> Iterator[Item]:
    geometry, count = reader.geometry, reader.header.entry_count
    position = max(geometry.slot_position(0), request.start // SLOT.size * SLOT.size)
    while position < geometry.entries_position:
        (newest,) = map(int, SLOT.unpack(file.read(position, SLOT.size).ljust(SLOT.size, b"\0")))
        if not newest:
            end = file.end_of_row(position, bytes(SLOT.size), geometry.entries_position)
            yield Item(position, end - position, "empty", f"{(end - position) // SLOT.size} empty slots", {})
            position = end
            continue
        item = _slot_item((position - geometry.slot_position(0)) // SLOT.size, newest, position)
        is_lost = not 0 < newest <= count
        yield item._replace(text=f"{item.text}  POINTS NOWHERE", is_damage=True) if is_lost else item
        position += SLOT.size


def _slot_item(slot: int, newest: int, position: int) -> Item:
    return Item(position, SLOT.size, "slot", f"slot {slot} → entry {newest}", {"slot": slot, "newest_entry": newest})


def _entries(file: DumpFile, reader: IndexReader, request: DumpRequest) -> Iterator[Item]:
    geometry, header = reader.geometry, reader.header
    unused = geometry.entry_position(0)
    yield Item(unused, ENTRY.size, "unused", "entry 0 is never used", {})
    first = max((request.start - unused) // ENTRY.size, 1)
    count = min(header.entry_count, geometry.capacity)
    for number in range(first, count + 1):
        yield _entry(file, reader, number, request)
    position = max(geometry.entry_position(count + 1), request.start)
    end = min(file.size, geometry.file_size)
    if position < end:
        zeros = file.end_of_row(position, b"\0", end)
        if zeros < end:
            reason = f"{end - zeros} bytes after the last entry that the header counts"
            yield damage(position, end - position, reason)
        else:
            yield Item(position, end - position, "free", f"room for {(end - position) // ENTRY.size} entries", {})
    if file.size != geometry.file_size:
        at = min(file.size, geometry.file_size)
        yield damage(at, file.size - at, f"{file.size} bytes, where {geometry.file_size} are {geometry}")


def _entry(file: DumpFile, reader: IndexReader, number: int, request: DumpRequest) -> Item:
    position = reader.geometry.entry_position(number)
    entry = decode_entry(file.read(position, ENTRY.size).ljust(ENTRY.size, b"\0"))
    slot = reader.geometry.slot_of(entry.key_hash)
    is_wrong = entry.key_hash < 0 or not 0 <= entry.prev_entry < number
    time = time_text(reader.header.begin_timestamp + entry.time_diff_s * 1000)
    text = (
        f"#{number}  slot {slot}  hash {entry.key_hash}  record at {entry.physical_offset}  "
        f"+{entry.time_diff_s} s = {time}  before it #{entry.prev_entry}{'  POINTS FORWARD' if is_wrong else ''}"
    )
    values = {"entry": number, "slot": slot, **entry._asdict()} if request.as_json else {}
    return request.item(ENTRY, entry, (position, "entry", text), **values)._replace(is_damage=is_wrong)


def _chain(reader: IndexReader, wanted: str, request: DumpRequest) -> Iterator[Item]:
    geometry, is_slot = reader.geometry, wanted.isascii() and wanted.isdigit()
    if is_slot and int(wanted) >= geometry.hash_slots:
        raise UnsupportedFormat(f"slot {wanted} of {geometry.hash_slots}", None, reader.file)
    key_hash = None if is_slot else index_key_hash(wanted)
    slot = int(wanted) if key_hash is None else geometry.slot_of(key_hash)
    position = geometry.slot_position(slot)
    yield _slot_item(slot, reader.newest_entry(slot), position)
    hops = 0
    try:
        for hop in islice(reader.chain(slot), request.limit):
            hops += 1
            entry, is_hit = hop.entry, hop.entry.key_hash == key_hash
            text = (
                f"#{hop.number}  hash {entry.key_hash}  record at {entry.physical_offset}  {time_text(hop.timestamp)}"
                f"  before it #{entry.prev_entry}{'  this hash' if is_hit else ''}"
            )
            values = {"entry": hop.number, **entry._asdict(), "timestamp": hop.timestamp, "is_hit": is_hit}
            yield Item(geometry.entry_position(hop.number), ENTRY.size, "entry", text, values)
    except CorruptData as error:
        yield damage(error.offset or 0, ENTRY.size, error.reason)
    yield Item(position, 0, "end", f"{hops} entries in the chain", {"hops": hops})
