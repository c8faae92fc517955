"""
The index files: how full each is, which numbers they were made with, and what their entries give away.

Index files form a chain: where one ends and the next begins tells which messages no file has.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import groupby, islice, pairwise
from operator import attrgetter

from jobs.inspect.report import IndexFileReport, IndexReport, Problems
from jobs.storage.model import Reader
from jobs.store.record_places import find_record, records_from, segment_bytes
from jobs.store.release import Marks
from jobs.store.store import Store, geometry_of_index
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.detection import slot_count_mark, tag_entry_mark
from rmq_formats.errors import ignore_lost
from rmq_formats.indexfile.file import index_keys
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
from rmq_formats.release import OLDEST

_ENTRIES_LOOKED_AT = 4096
_NEWEST_LOOKED_AT = 16
_RECORDS_LOOKED_AT = 500  # after an index file's end, until one has a key


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
    stated = geometry_of_index(store)
    if stated is not None:
        report.hash_slots, report.index_num = stated.geometry
        shown = f"as {stated.files} full file{'s show' if stated.files > 1 else ' shows'}"
        is_default = stated.geometry == DEFAULT_GEOMETRY
        report.geometry_origin = "the default: the files have its size" if is_default else shown
    geometry = report.geometry
    _check_sizes(report, geometry, problems)
    if geometry is not None:
        for location, header in headers.items():
            with problems.noted(location), store.storage.open(location) as reader:
                first = _entries(reader, 1, min(header.entry_count, geometry.capacity, _ENTRIES_LOOKED_AT), geometry)
                has_shared_slot = any(entry.prev_entry > 0 for entry in first)
                marks.add(slot_count_mark(header, has_shared_slot=has_shared_slot))
                for record, key_hashes in _tagged_records(reader, header, geometry, store):
                    marks.add(tag_entry_mark(record, key_hashes))
    return report


def _check_sizes(report: IndexReport, geometry: Geometry | None, problems: Problems) -> None:
    sizes = Counter(file.size for file in report.files)
    usual = max(sizes, key=lambda size: (sizes[size], size), default=0)
    for file in report.files:
        if file.size < usual:
            problems.damage(file.file, f"cut short: {file.size} bytes long, the others {usual}")
        elif file.size > usual:
            problems.note(file.file, f"{file.size} bytes long, the others {usual}")
        if geometry is not None and file.index_count > geometry.index_num:
            problems.damage(file.file, f"index_count {file.index_count} where {geometry.index_num} fit", 36)


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


def compare_index(store: Store, index: IndexReport, problems: Problems, end: int | None) -> None:
    """Note the messages between and before the index files, and after them up to *end* where it is given."""
    files = sorted((file for file in index.files if file.entries), key=attrgetter("begin_physical_offset"))
    for before, after in pairwise([None, *files, None] if files else []):
        start = store.start_offset if before is None else before.end_physical_offset
        limit = end if after is None else after.begin_physical_offset
        found = None if limit is None else first_keyed(store, start, limit, is_indexed=before is not None)
        nearest = after or before
        if found is not None and nearest is not None:
            which = "the first" if before is None else "this"
            until = "to the end of the log" if after is None else f"up to offset {limit}, where {which} one begins"
            text = f"no index file has the keys of messages from offset {found} {until}"
            problems.gap(nearest.file, f"{text}: a file is missing, or index was off", found)


def first_keyed(store: Store, start: int, limit: int, *, is_indexed: bool = False) -> int | None:
    """Return the first message with a key between two offsets; that at *start* is none where it *is_indexed*."""
    if limit <= start:
        return None
    records = _records(store, start)
    if is_indexed and next(records, None) is None:  # the last message of an index file is not in the log any more
        return None
    for record in islice(records, _RECORDS_LOOKED_AT):
        if record.physical_offset >= limit:
            return None
        if index_keys(record, OLDEST):
            return record.physical_offset
    return None


def _records(store: Store, start: int) -> Iterator[MessageRecord]:
    """Yield the records from the one at the physical offset *start* on, segment after segment."""
    for segment in store.segments:
        position = start - segment.base_offset
        if position >= segment.readable:
            continue
        with ignore_lost(), store.open(segment) as reader:
            log = segment_bytes(segment, reader)
            # An offset is that of the record itself, a position that of what frames it.
            yield from records_from(log, position - log.framing.header_size if position > 0 else 0)
