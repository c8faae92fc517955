"""
Which offsets of the log the index files of a store cover, and which none of them does.

A file covers the log from its first entry's message to its last one's. What lies between two files was never indexed,
or the file that indexed it is lost: only the log tells which messages are there.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jobs.query.log_search import Span
from rmq_formats.errors import CorruptData
from rmq_formats.indexfile.lookup import IndexReader


class CoveredSpan(NamedTuple):
    """An index file, and the messages that its entries are of."""

    file: IndexReader
    first: int  # physical offset of the first entry's message
    last: int  # of the last one's, which the next file may have entries of, too


class UncoveredSpan(NamedTuple):
    """Offsets between two files: messages there, and entries of the message at its start, may be in no file."""

    span: Span
    before: CoveredSpan | None  # the file that ends where the span begins


def covered(file: IndexReader) -> CoveredSpan | None:
    """Return the span of a file, None of one without entries; `CorruptData` where header and entries disagree."""
    header = file.header
    if not header.entry_count:
        return None
    if header.index_count > file.geometry.index_num:
        raise CorruptData(f"the header counts {header.index_count} entries", 0, file.file)
    first, last = (file.entry(number).physical_offset for number in (1, header.entry_count))
    # A header that lies about its end would hide the messages of a file that is lost after it.
    if (first, last) != (header.begin_physical_offset, header.end_physical_offset):
        claimed = f"{header.begin_physical_offset} to {header.end_physical_offset}"
        raise CorruptData(f"the header names offsets {claimed}, the entries {first} to {last}", 0, file.file)
    return CoveredSpan(file, first, last)


def index_parts(files: Sequence[CoveredSpan], log_start: int, log_end: int) -> Iterator[CoveredSpan | UncoveredSpan]:
    """Yield the files, which come newest first, and the offsets before, between and after them, newest first."""
    newer_first = log_end
    for file in files:
        if file.last < newer_first:
            yield UncoveredSpan(Span(max(file.last, log_start), newer_first), file)
        yield file
        newer_first = min(newer_first, file.first)  # a broker that starts after a crash may index messages again
    if log_start < newer_first:
        yield UncoveredSpan(Span(log_start, newer_first), None)
