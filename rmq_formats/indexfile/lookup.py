"""
How a broker finds a key in its index files, on file bytes.

A file is given as `read(position, length)`, so that 420 MB are not read to follow one chain. Only hashes are compared:
the results are places in the log that may hold the key. A chain runs from new to old; one that runs in a circle,
which keeps a broker busy for ever, ends here with a word about it.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from rmq_formats.errors import CorruptData
from rmq_formats.hashing import index_key_hash, java_long
from rmq_formats.indexfile.layout import (
    ENTRY,
    HEADER,
    SLOT,
    Geometry,
    IndexEntry,
    IndexHeader,
    decode_entry,
    decode_header,
)
from rmq_formats.layout import Read


class Hop(NamedTuple):
    """One entry of a chain."""

    number: int
    entry: IndexEntry
    timestamp: int  # ms, the message's store time without its milliseconds, as the broker reads it


class Selection(NamedTuple):
    """The answer of one or more files about a key."""

    physical_offsets: list[int]
    damage: tuple[CorruptData, ...] = ()


class IndexReader:
    """One file, of which only the asked slots and entries are read."""

    def __init__(self, read: Read, geometry: Geometry, file: str | None = None) -> None:
        """Take `read(position, length)`, short only at the file's end; errors name *file*."""
        self.geometry = geometry
        self.file = file
        self._read = read

    @property
    def header(self) -> IndexHeader:
        """The header as a broker loads it: a count below 1 becomes 1."""
        header = decode_header(self._bytes(0, HEADER.size))
        return header._replace(index_count=max(header.index_count, 1))

    def newest_entry(self, slot: int) -> int:
        """Return the value of a slot."""
        (number,) = map(int, SLOT.unpack(self._bytes(self.geometry.slot_position(slot), SLOT.size)))
        return number

    def entry(self, number: int) -> IndexEntry:
        """Return one entry."""
        return decode_entry(self._bytes(self.geometry.entry_position(number), ENTRY.size))

    def chain(self, slot: int, header: IndexHeader | None = None) -> Iterator[Hop]:
        """
        Yield the entries of a slot, newest first, as far as a broker follows them; a *header* read before will do.

        `CorruptData` when the chain comes back to an entry it has passed.
        """
        header = header or self.header
        number = self.newest_entry(slot)
        if not 0 < number <= header.index_count or header.index_count <= 1:
            return
        # Brent's circle: the mark jumps forward in doubling strides, and a circle runs into it.
        mark, stride, hops = 0, 1, 0
        while True:
            entry = self.entry(number)
            if entry.time_diff_s < 0:
                return
            yield Hop(number, entry, java_long(header.begin_timestamp + entry.time_diff_s * 1000))
            previous = entry.prev_entry
            if previous <= 0 or previous > header.index_count or previous == number:
                return
            if previous == mark:
                reason = f"slot {slot}: the chain comes back to entry {previous}"
                raise CorruptData(reason, self.geometry.entry_position(number), self.file)
            hops += 1
            if hops == stride:
                mark, stride = number, stride * 2
            number = previous

    def hits(self, text: str, begin: int, end: int, header: IndexHeader | None = None) -> Iterator[Hop]:
        """Yield the entries that may belong to the hashed *text*, newest first; `CorruptData` as `chain`."""
        key_hash = index_key_hash(text)
        for hop in self.chain(self.geometry.slot_of(key_hash), header):
            if hop.entry.key_hash == key_hash and begin <= hop.timestamp <= end:
                yield hop
            if hop.timestamp < begin:
                return

    def select(self, text: str, begin: int, end: int, limit: int | None = None) -> Selection:
        """Return at most *limit* offsets of messages that may have the hashed *text*, newest first."""
        found: list[int] = []
        try:
            for hop in islice(self.hits(text, begin, end), limit):
                found.append(hop.entry.physical_offset)  # noqa: PERF401 - entries found stay when the chain is broken
        except CorruptData as damage:
            return Selection(found, (damage,))
        return Selection(found)

    def _bytes(self, position: int, length: int) -> bytes:
        # A broker maps the file at its configured size: missing bytes read as zeros.
        data = bytes(self._read(position, length))
        return data + bytes(length - len(data))


def select(files: Iterable[IndexReader], text: str, begin: int, end: int, limit: int | None = None) -> Selection:
    """
    Return the offsets of messages that may have the hashed *text*, as `IndexService#queryOffset` collects them.

    *files* come newest first; the places of each are newest first as well. A broker's own *limit* is never above 64.
    """
    found: list[int] = []
    damage: list[CorruptData] = []
    for file in files:
        if file.header.matches_time(begin, end):
            here = file.select(text, begin, end, None if limit is None else limit - len(found))
            found += here.physical_offsets
            damage += here.damage
        if file.header.begin_timestamp < begin or (limit is not None and len(found) >= limit):
            break
    return Selection(found, tuple(damage))
