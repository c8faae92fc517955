"""The index files: how full each is, which numbers they were made with, and what their entries give away."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from jobs.inspect.problems import Problems
from jobs.storage.model import Reader
from jobs.store.record_places import find_record
from jobs.store.release import Marks
from jobs.store.store import Store, geometry_of_index
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.detection import slot_count_mark, tag_entry_mark
from rmq_formats.indexfile.layout import (
    DEFAULT_GEOMETRY,
    ENTRY,
    HEADER,
    Geometry,
    IndexEntry,
    IndexHeader,
    decode_entry,
    decode_header,
)

_ENTRIES_LOOKED_AT = 4096
_NEWEST_LOOKED_AT = 16


@dataclass(slots=True)
class IndexFileReport:
    """One index file: its header and its size."""

    file: str
    size: int
    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    hash_slot_count: int
    index_count: int

    @property
    def entries(self) -> int:
        """How many entries the header claims."""
        return max(self.index_count - 1, 0)


@dataclass(slots=True)
class IndexReport:
    """All index files."""

    files: list[IndexFileReport] = field(default_factory=list)
    hash_slots: int | None = None
    index_num: int | None = None
    geometry_origin: str = "unknown"

    @property
    def geometry(self) -> Geometry | None:
        """The numbers of slots and entries, where they are known."""
        if self.hash_slots is None or self.index_num is None:
            return None
        return Geometry(self.hash_slots, self.index_num)

    @property
    def last_offset(self) -> int | None:
        """The physical offset of the newest message that the index names."""
        return max((file.end_physical_offset for file in self.files if file.entries), default=None)


def inspect_index(store: Store, marks: Marks, problems: Problems) -> IndexReport:
    """Look at every header, and at some entries where the geometry is known."""
    report = IndexReport()
    headers: dict[str, IndexHeader] = {}
    # A broker that runs gives a file its length a moment after its name.
    is_new = bool(store.index_files) and not store.index_files[-1].size and not store.is_closed
    for file in store.index_files[: -1 if is_new else None]:
        with problems.noted(file.location):
            header = decode_header(store.read(file, 0, HEADER.size))
            headers[file.location] = header
            report.files.append(IndexFileReport(file.location, file.size, *header))
    _take_geometry(report, store)
    _check_sizes(report, problems)
    geometry = report.geometry
    if geometry is not None:
        for location, header in headers.items():
            with problems.noted(location), store.storage.open(location) as reader:
                marks.add(slot_count_mark(header, has_shared_slot=_shares_a_slot(reader, header, geometry)))
                for record, key_hashes in _tagged_records(reader, header, geometry, store):
                    marks.add(tag_entry_mark(record, key_hashes))
    return report


def _take_geometry(report: IndexReport, store: Store) -> None:
    stated = geometry_of_index(store)
    if stated is not None:
        report.hash_slots, report.index_num = stated.geometry
        shown = f"as {stated.files} full file{'s show' if stated.files > 1 else ' shows'}"
        is_default = stated.geometry == DEFAULT_GEOMETRY
        report.geometry_origin = "the default: the files have its size" if is_default else shown


def _check_sizes(report: IndexReport, problems: Problems) -> None:
    sizes = Counter(file.size for file in report.files)
    for file in report.files:
        usual = max(sizes, key=lambda size: (sizes[size], size))
        if file.size < usual:
            problems.damage(file.file, f"cut short: {file.size} bytes long, the others {usual}")
        elif file.size > usual:
            problems.note(file.file, f"{file.size} bytes long, the others {usual}")
        geometry = report.geometry
        if geometry is not None and file.index_count > geometry.index_num:
            problems.damage(file.file, f"index_count {file.index_count} where {geometry.index_num} fit", 36)


def _shares_a_slot(reader: Reader, header: IndexHeader, geometry: Geometry) -> bool:
    """Return whether one of the first entries follows another in its slot."""
    entries = _entries(reader, 1, min(header.entry_count, geometry.capacity, _ENTRIES_LOOKED_AT), geometry)
    return any(entry.prev_entry > 0 for entry in entries)


def _entries(reader: Reader, first: int, count: int, geometry: Geometry) -> list[IndexEntry]:
    raw = bytes(reader.read(geometry.entry_position(first), count * ENTRY.size))
    return [decode_entry(raw, position) for position in range(0, len(raw) - ENTRY.size + 1, ENTRY.size)]


def _tagged_records(
    reader: Reader, header: IndexHeader, geometry: Geometry, store: Store
) -> Iterator[tuple[MessageRecord, set[int]]]:
    """Yield some of the newest messages of a file with all their key hashes."""
    newest = min(header.entry_count, geometry.capacity)
    first = max(newest - _NEWEST_LOOKED_AT, 1)
    groups = groupby(_entries(reader, first, newest - first + 1, geometry), key=attrgetter("physical_offset"))
    # Some keys of the first and the last message may lie outside the range that was read.
    for offset, entries in [(offset, {entry.key_hash for entry in group}) for offset, group in groups][1:-1]:
        record = find_record(store, offset)
        if record is not None:
            yield record, entries
