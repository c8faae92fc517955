"""
The index files: how full each is, which numbers they were made with, and what their entries give away.

Index files form a chain: where one ends and the next begins tells which messages no file has.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from operator import attrgetter

from jobs.inspect.report import IndexFileReport, IndexReport, Problems
from jobs.store.record_places import records_from, segment_bytes
from jobs.store.release import Marks, index_marks
from jobs.store.store import Store, geometry_of_index
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.errors import ignore_lost
from rmq_formats.indexfile.file import index_keys
from rmq_formats.indexfile.layout import DEFAULT_GEOMETRY, HEADER, Geometry, IndexHeader, decode_header
from rmq_formats.release import OLDEST

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
            with problems.noted(location):
                marks.add_all(index_marks(store, location, header, geometry))
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
    for segment in store.segments:
        position = start - segment.base_offset
        if position >= segment.readable:
            continue
        with ignore_lost(), store.open(segment) as reader:
            log = segment_bytes(segment, reader)
            # An offset is that of the record itself, a position that of what frames it.
            yield from records_from(log, position - log.framing.header_size if position > 0 else 0)
