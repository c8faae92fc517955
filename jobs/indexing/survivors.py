"""
The index files that are there, and where in the row of keys each of them stands.

A header says with which message a file begins, not with which key of it. The first entries say that: they are looked
for where an undisturbed broker would have gone on, then at every key of that message. What was found tells what
happened between two files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, unique

from jobs.indexing.building import RealFile
from jobs.indexing.keyrow import KeyRow, Place
from jobs.indexing.placement import Anchor
from jobs.source.listing import StoreListing
from jobs.storage import storage_of
from rmq_formats.indexfile.file import time_diff_s
from rmq_formats.indexfile.layout import HEADER, Geometry, IndexEntry, IndexHeader, decode_header
from rmq_formats.indexfile.lookup import IndexReader

COMPARED = 64  # entries that must match to believe a place


@unique
class Relation(StrEnum):
    """How a file follows the one before it."""

    FIRST = "first"  # nothing is known before it
    CONTINUED = "continued"
    RESTARTED = "restarted"  # the last message of the file before it is indexed again
    BEHIND_GAP = "behind a gap"
    BEFORE_LOG = "before the log"  # all its messages are gone


@dataclass(frozen=True, slots=True)
class Survivor:
    """A file and its place in the row."""

    real: RealFile
    start: int
    relation: Relation
    previous: IndexHeader | None  # what it was made behind, as its first entry tells
    head: int  # leading entries of messages before the log
    tail: int  # last entries of messages that the log does not hold yet
    begins: Place | None

    @property
    def end(self) -> int:
        """The number of the key behind its last one."""
        return self.start + self.real.header.entry_count

    def anchor(self, geometry: Geometry) -> Anchor:
        """Return its place for planning."""
        return Anchor(self.start, self.end, self.real.header.index_count >= geometry.index_num, self.begins)


def real_files(listing: StoreListing) -> list[RealFile]:
    """Return the index files of a store with their headers; one too short for a header has an empty one."""
    return [
        _real_file(file.about.path.rpartition("/")[2], file.location, file.size, listing)
        for file in listing.index_files
    ]


def _real_file(name: str, location: str, size: int, listing: StoreListing) -> RealFile:
    with storage_of(location, listing.options).open(location) as file:
        data = file.read(0, HEADER.size)
    return RealFile(name, location, size, decode_header(bytes(data).ljust(HEADER.size, b"\0")))


def refusal(real: RealFile, geometry: Geometry) -> str | None:
    """Say why a file cannot be what a broker left, by its size and header alone."""
    header = real.header
    if real.size < geometry.file_size:
        return f"truncated: {real.size} bytes of {geometry.file_size}"
    if real.size > geometry.file_size:
        return f"wrong geometry: {real.size} bytes, not {geometry.file_size}"
    if not any(header):
        return "zeroed: the header is empty"
    if not 0 <= header.index_count <= geometry.index_num:
        return f"header damaged: index_count {header.index_count}"
    if header.begin_physical_offset < 0 or header.end_physical_offset < header.begin_physical_offset:
        return f"header damaged: from offset {header.begin_physical_offset} to {header.end_physical_offset}"
    return None


def asked_offsets(files: Sequence[RealFile]) -> list[int]:
    """Return the messages whose places in the row must be known to place *files*."""
    return sorted({o for file in files for o in (file.header.begin_physical_offset, file.header.end_physical_offset)})


class Placing:
    """Finds the place of one file after the other."""

    def __init__(self, row: KeyRow, geometry: Geometry, listing: StoreListing) -> None:
        """Work on one row."""
        self._row = row
        self._geometry = geometry
        self._options = listing.options

    def place_all(self, files: Sequence[RealFile]) -> list[Survivor]:
        """Return the files with their places, in the order of their names."""
        placed: list[Survivor] = []
        for file in files:
            placed.append(self._place(file, placed[-1] if placed else None))
        return placed

    def _place(self, real: RealFile, before: Survivor | None) -> Survivor:
        with storage_of(real.location, self._options).open(real.location) as file:
            reader = IndexReader(file.read, self._geometry, real.location)
            count = real.header.entry_count
            head = _first_at_or_behind(reader, count, self._row.start_offset)
            entries = [reader.entry(number) for number in range(1, min(count, COMPARED) + 1)]
        begins = self._row.place(real.header.begin_physical_offset)
        if count and head == count:
            return Survivor(real, -count, Relation.BEFORE_LOG, None, head, 0, None)
        if head:
            relation = Relation.FIRST if before is None else Relation.CONTINUED
            return self._with_tail(Survivor(real, -head, relation, None, head, 0, None))
        start = self._start(entries, begins, before)
        found = Survivor(real, start, self._relation(start, begins, before), None, 0, 0, begins)
        return self._with_tail(replace(found, previous=self._previous(found, entries, before)))

    def _start(self, entries: Sequence[IndexEntry], begins: Place | None, before: Survivor | None) -> int:
        """Return the number of the key that the first entry is."""
        candidates = list(_candidates(begins, before))
        if not candidates:
            return 0 if before is None else before.end
        if not entries:
            return before.end if before else len(self._row)
        return next((start for start in candidates if self._matches(start, entries)), candidates[0])

    def _matches(self, start: int, entries: Sequence[IndexEntry]) -> bool:
        keys = self._row.keys(start, start + len(entries))
        pairs = zip(entries, keys, strict=False)
        return bool(keys) and all(entry[:2] == key[:2] for entry, key in pairs)

    @staticmethod
    def _relation(start: int, begins: Place | None, before: Survivor | None) -> Relation:
        if before is None or before.relation is Relation.BEFORE_LOG:
            return Relation.FIRST
        if start == before.end:
            return Relation.CONTINUED
        if start > before.end:
            return Relation.BEHIND_GAP
        del begins
        return Relation.RESTARTED

    def _previous(self, found: Survivor, entries: Sequence[IndexEntry], before: Survivor | None) -> IndexHeader | None:
        """Return the end that the first entry's seconds were counted from, among those it may have been."""
        candidates = list(self._may_be_before(found, before))
        keys = self._row.keys(found.start, found.start + 1)
        if not entries or not keys:
            return candidates[0]
        time = keys[0].store_timestamp
        fits = (
            header for header in candidates
            if time_diff_s(max(header.end_timestamp, 0) if header else 0, time) == entries[0].time_diff_s
        )  # fmt: skip
        return next(fits, candidates[0])

    def _may_be_before(self, found: Survivor, before: Survivor | None) -> Iterator[IndexHeader | None]:
        key_before = header_before(self._row, found.start)
        if before is not None and found.relation is not Relation.BEHIND_GAP:
            yield before.real.header
        if key_before is not None:
            yield key_before
        if before is not None:
            yield before.real.header
        yield None

    def _with_tail(self, found: Survivor) -> Survivor:
        missing = found.end - len(self._row)
        return replace(found, tail=min(max(missing, 0), found.real.header.entry_count - found.head))


def header_before(row: KeyRow, start: int) -> IndexHeader | None:
    """Return what matters of the header of a file that ends before key number *start*; None at the row's beginning."""
    keys = row.keys(start - 1, start) if start > 0 else []
    if not keys:
        return None
    (key,) = keys
    return IndexHeader(end_timestamp=key.store_timestamp, end_physical_offset=key.physical_offset)


def _candidates(begins: Place | None, before: Survivor | None) -> Iterator[int]:
    if before is not None and before.relation is not Relation.BEFORE_LOG:
        yield before.end
    if begins is not None:
        yield from range(begins.first, begins.first + max(begins.keys, 1))


def _first_at_or_behind(reader: IndexReader, count: int, offset: int) -> int:
    """Return how many of the entries, which ascend, are of messages before *offset*."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if reader.entry(middle + 1).physical_offset < offset:
            low = middle + 1
        else:
            high = middle
    return low
