"""
Finds a key in the bytes of index files, as a broker does.

A file is passed as a function `read(position, length)`, so that following one chain does not read all 420 MB. Only
hashes are compared: the results are offsets in the log of records that may have the key. A chain leads from new to old
entries. A chain with a loop, which a broker would follow forever, raises an error.

The numbers of slots and entries are derived from the files. A file's length is an equation with two unknowns; in a full
file, the number of the next free entry is the number of entries for which the file was created. Each assumption is
checked with the entries: each must be in the chain of the slot that its hash determines.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rmq_formats.errors import CorruptData, skip_lost_file
from rmq_formats.indexfile.layout import (
    DEFAULT_GEOMETRY,
    ENTRY,
    HEADER,
    SLOT,
    Geometry,
    IndexEntry,
    IndexHeader,
    decode_entry,
    decode_header,
)
from rmq_formats.layout import Content, Read
from rmq_formats.properties import index_key_hash, wrap_to_java_long


class ChainEntry(NamedTuple):
    """One entry of a chain."""

    number: int
    entry: IndexEntry
    timestamp: int  # ms: the message's store time rounded down to seconds, as the broker reads it


class IndexReader:
    """One file, of which only the requested slots and entries are read."""

    def __init__(self, read: Read, geometry: Geometry, file: str | None = None) -> None:
        """Take `read(position, length)`, short only at the file's end; errors name *file*."""
        self.geometry = geometry
        self.file = file
        self._read = read

    @property
    def header(self) -> IndexHeader:
        """The header as a broker loads it: a count below 1 becomes 1."""
        header = decode_header(self.bytes_at(0, HEADER.size))
        return header._replace(index_count=max(header.index_count, 1))

    def newest_entry(self, slot: int) -> int:
        """Return the value of a slot."""
        (number,) = map(int, SLOT.unpack(self.bytes_at(self.geometry.slot_position(slot), SLOT.size)))
        return number

    def entry(self, number: int) -> IndexEntry:
        """Return one entry."""
        return decode_entry(self.bytes_at(self.geometry.entry_position(number), ENTRY.size))

    def chain(self, slot: int, header: IndexHeader | None = None) -> Iterator[ChainEntry]:
        """
        Yield the entries of a slot, newest first, up to the last that a broker reads.

        Pass *header* if it was read already. `CorruptData` if the chain has a loop.
        """
        header = header or self.header
        number = self.newest_entry(slot)
        if not 0 < number <= header.index_count or header.index_count <= 1:
            return
        # Brent's cycle detection: the mark moves to later entries in doubling strides, and a loop returns to it.
        mark, stride, hops = 0, 1, 0
        while True:
            entry = self.entry(number)
            if entry.time_diff_s < 0:
                return
            yield ChainEntry(number, entry, wrap_to_java_long(header.begin_timestamp + entry.time_diff_s * 1000))
            previous = entry.prev_entry
            if previous <= 0 or previous > header.index_count or previous == number:
                return
            if previous == mark:
                reason = f"slot {slot}: the chain loops back to entry {previous}"
                raise CorruptData(reason, self.geometry.entry_position(number), self.file)
            hops += 1
            if hops == stride:
                mark, stride = number, stride * 2
            number = previous

    def find_entries(self, text: str, begin: int, end: int, header: IndexHeader | None = None) -> Iterator[ChainEntry]:
        """Yield the entries that may belong to the hashed *text*, newest first; `CorruptData` as `chain`."""
        key_hash = index_key_hash(text)
        for hop in self.chain(self.geometry.slot_of(key_hash), header):
            if hop.entry.key_hash == key_hash and begin <= hop.timestamp <= end:
                yield hop
            if hop.timestamp < begin:
                return

    def bytes_at(self, position: int, length: int) -> bytes:
        """Return bytes of the file; after its end there are zeros, as where a broker maps it at its full size."""
        data = bytes(self._read(position, length))
        return data + bytes(length - len(data))


_LOOKED_AT = 16  # entries at either end of a file
_HOPS = 64  # steps from a slot to one of these entries
_TRIED = 1 << 16
_BLOCK = 1 << 20


class StatedGeometry(NamedTuple):
    """A geometry, and how many files show it."""

    geometry: Geometry
    file_count: int


def find_stated_geometry(
    files: Sequence[Content], hash_slots: int | None = None, index_num: int | None = None
) -> StatedGeometry | None:
    """
    Return the geometry of index files; None if they do not show it.

    It is RocketMQ's default if files have the default size, otherwise that of most full files; *hash_slots* or
    *index_num*, if given, holds for every file. Files that cannot be read are ignored.
    """
    usual = 0 if hash_slots or index_num else sum(file.size == DEFAULT_GEOMETRY.file_size for file in files)
    for geometry, count in _guess_geometries(files, usual, hash_slots, index_num):
        if any(file.size == geometry.file_size and fits_geometry(file, geometry) for file in files):
            return StatedGeometry(geometry, count)
    return StatedGeometry(DEFAULT_GEOMETRY, usual) if usual else None


def _guess_geometries(
    files: Sequence[Content], usual: int, hash_slots: int | None, index_num: int | None
) -> Iterator[tuple[Geometry, int]]:
    """Yield possible geometries, each with the number of files that fit; headers are read if the default does not."""
    if usual:
        yield DEFAULT_GEOMETRY, usual
    if hash_slots or index_num:
        each = [_geometry_with_one_given(file.size, hash_slots, index_num) for file in files]
    else:
        each = [_geometry_of_full_file(file) for file in files]
    yield from Counter(geometry for geometry in each if geometry is not None).most_common()


def _geometry_with_one_given(file_size: int, hash_slots: int | None, index_num: int | None) -> Geometry | None:
    index_num = index_num or (file_size - HEADER.size - SLOT.size * (hash_slots or 0)) // ENTRY.size
    hash_slots = hash_slots or (file_size - HEADER.size - ENTRY.size * index_num) // SLOT.size
    geometry = Geometry(hash_slots, index_num)
    return geometry if min(geometry) > 0 and geometry.file_size == file_size else None


def _geometry_of_full_file(file: Content) -> Geometry | None:
    with skip_lost_file():
        return detect_geometry(file.size, IndexReader(file.read, DEFAULT_GEOMETRY).header)
    return None


def detect_geometry(file_size: int, header: IndexHeader) -> Geometry | None:
    """Return the geometry of a *full* file, which has as many entries as its header counts; None if none fits."""
    return _geometry_with_one_given(file_size, None, header.index_count) if header.index_count > 1 else None


def find_geometries(file: Content) -> list[Geometry]:
    """Return the geometries of a file that is not full with which its entries are in the right slots."""
    count = IndexReader(file.read, DEFAULT_GEOMETRY).header.index_count
    if count <= 1:
        return []
    largest = (file.size - HEADER.size - SLOT.size) // ENTRY.size
    tried = range(count, min(count + _TRIED, largest + 1))
    supposed = (_geometry_with_one_given(file.size, None, index_num) for index_num in tried)
    return [geometry for geometry in supposed if geometry is not None and fits_geometry(file, geometry)]


def find_other_slot_count(file: Content, geometry: Geometry) -> int | None:
    """
    Return the number of slots by which a file's entries are chained, if not that of *geometry*; None if unknown.

    A broker that is started with a larger maxHashSlotNum extends its old files, and reads them by the new number.
    """
    count = IndexReader(file.read, DEFAULT_GEOMETRY).header.index_count
    end = _written_end(file)
    for at in range(end, end + ENTRY.size):  # the newest entry may end with zeros
        slots, rest = divmod(at - HEADER.size - count * ENTRY.size, SLOT.size)
        if (
            count > 1
            and slots > 0
            and not rest
            and slots != geometry.hash_slots
            and fits_geometry(file, Geometry(slots, count))
        ):
            return slots
    return None


def _written_end(file: Content) -> int:
    end = file.size
    while end > 0:
        start = max(end - _BLOCK, 0)
        written = len(bytes(file.read(start, end - start)).rstrip(b"\0"))
        if written:
            return start + written
        end = start
    return 0


def fits_geometry(file: Content, geometry: Geometry) -> bool:
    """
    Return whether the entries of a file are chained in the slots that *geometry* determines.

    Most of the newest or most of the first entries must be, because a damaged file also has its geometry. A file
    without entries fits any geometry, a lost file none.
    """
    with skip_lost_file():
        reader = IndexReader(file.read, geometry)
        count = reader.header.entry_count
        if count > geometry.capacity:
            return False
        first = range(1, min(count, _LOOKED_AT) + 1)
        newest = range(max(count - _LOOKED_AT, 0) + 1, count + 1)
        return not count or any(
            2 * sum(_is_in_its_chain(reader, at) for at in some) > len(some) for some in (newest, first)
        )
    return False


def _is_in_its_chain(reader: IndexReader, number: int) -> bool:
    entry = reader.entry(number)
    if entry.key_hash < 0 or not any(entry):
        return False
    at = reader.newest_entry(reader.geometry.slot_of(entry.key_hash))
    hops = 0
    while number < at <= reader.geometry.capacity and hops < _HOPS:
        at = reader.entry(at).prev_entry
        hops += 1
    return at == number
