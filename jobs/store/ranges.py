"""
Divides the part of the log that a run reads into ranges that tasks read in parallel.

The size of ranges is fixed, except that the last ranges are smaller, depending on the number of parallel tasks
(`balance_ranges`). Only the first range of a segment begins at a known record. The task of any other range searches for
the first record, and `jobs.store.chain` accepts the range only if the previous one ends exactly at this record. So the
division never changes the result, and planning needs no pass over the log.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import gcd

from jobs.storage import AnyStorage
from jobs.storage.model import Reader, Storage
from jobs.store.epochs import tail_evidence
from jobs.store.store import DEFAULT_RANGE_SIZE, Segment, Store
from rmq_formats.commitlog.layout import BLANK
from rmq_formats.commitlog.segment import NO_EVIDENCE, TailEvidence
from rmq_formats.errors import is_disk_error
from rmq_formats.store import file_name_of_offset

# A range size that gives one range per segment, so that no range has to search for its first record.
WHOLE_SEGMENTS = 1 << 62
_BEGINNING = 256
_CLOCKS_DIFFER_MS = 60_000  # the largest difference between the clocks of a broker and this machine
SMALL_LOG_SIZE = 64 << 20  # bytes of a log that the driver reads itself: a task would start later
_LEAST_PIECE = 32 << 20  # bytes of a range that is cut for balance: each is a task, and a file of a table
_STEP = 1 << 12
_BLOCK = 512  # bytes: the smallest write of a disk
_UNWRITTEN = 1 << 16  # zeros that are probably after the last record
_LONGEST_ZEROS = 4 << 20  # the longest run of zeros in a body, with the broker's default maxMessageSize
MAX_RANGES = 100_000  # ranges of one run; each is a task, and a file in the commit


# Two store times in ms: a record that was stored between them is too new to be read. A time after both is from a wrong
# clock: one message from next year must not stop every run.
SettleLimits = tuple[int, int]


def compute_settle_limits(min_age_ms: int) -> SettleLimits | None:
    """Return the limits that exclude records of the last *min_age_ms*; None for 0."""
    now = time.time_ns() // 1_000_000
    return (now - min_age_ms, now + _CLOCKS_DIFFER_MS) if min_age_ms else None


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of one segment: the pieces that start in them."""

    location: str
    base_offset: int
    segment_size: int
    start: int  # positions in the segment
    end: int
    starts_anywhere: bool  # find the first record: start is not a known boundary
    final: bool  # records follow in a later segment, so nothing here is incomplete
    store_timestamp: int | None = None  # the store time of the last record before *start*, if known
    settle_limits: SettleLimits | None = None  # records that are too new wait, unless the range is final
    window: int = 0  # bytes that are read at a time; 0: the scan decides
    storage: Storage = field(default_factory=AnyStorage, repr=False, compare=False)
    evidence: TailEvidence = field(default=NO_EVIDENCE, repr=False, compare=False)
    store_in_use: str | None = None  # the store whose broker may be writing these bytes meanwhile

    @property
    def start_offset(self) -> int:
        """The physical offset of the first byte."""
        return self.base_offset + self.start

    @property
    def end_offset(self) -> int:
        """The physical offset after the last byte."""
        return self.base_offset + self.end

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.end - self.start

    def open(self) -> AbstractContextManager[Reader]:
        """Open the segment."""
        return self.storage.open(self.location)


def plan_ranges(
    store: Store,
    from_offset: int = 0,
    range_size: int = DEFAULT_RANGE_SIZE,
    store_timestamp: int | None = None,
    settle_limits: SettleLimits | None = None,
) -> list[Range]:
    """
    Return the ranges of the log after the record boundary *from_offset*, in order.

    *store_timestamp* is that of the last record before *from_offset*; *settle_limits* says which of
    the newest records wait.
    """
    newest = find_newest_segment_offset(store)
    while store.end_offset - max(from_offset, store.start_offset) > range_size * MAX_RANGES:
        range_size *= 2  # so that the driver can hold the plan
    ranges, evidence = list[Range](), tail_evidence(store)  # shared, because there may be very many ranges
    for segment in store.segments:
        is_final = newest is not None and segment.base_offset < newest
        start = max(from_offset - segment.base_offset, 0)
        ranges += [
            Range(
                segment.location,
                segment.base_offset,
                segment.readable_bytes,
                begin,
                end,
                starts_anywhere=begin > start,
                final=is_final,
                store_timestamp=store_timestamp if from_offset > segment.base_offset and begin == start else None,
                settle_limits=settle_limits,
                storage=store.storage,
                evidence=NO_EVIDENCE if is_final else evidence,
                store_in_use=None if is_final else store.root,
            )
            for begin, end in _cuts(start, segment.readable_bytes, range_size)
        ]
    return ranges


def plan_earlier_ranges(store: Store, start: int, end: int, range_size: int) -> list[Range]:
    """
    Return the ranges of the log from *start* to *end*.

    A run has ended at *end*, so every record before it is complete.
    """
    ranges = (one for one in plan_ranges(store, start, range_size) if one.start_offset < end)
    return [replace(one, end=min(one.end, end - one.base_offset), final=True) for one in ranges]


def _cuts(start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [start, end), cut at multiples of *size*: a cut does not depend on where a run began."""
    while start < end:
        stop = min((start // size + 1) * size, end)
        yield start, stop
        start = stop


def written_sizes(ranges: Sequence[Range]) -> list[int]:
    """Return the written bytes of each range; in the last file, which is mostly unwritten, up to twice as many."""
    doubled = [_STEP << doubling for doubling in range(max((one.size for one in ranges), default=0).bit_length())]
    return [one.size if one.final else _estimate_written(one, doubled) for one in ranges]


def written_size(ranges: Sequence[Range]) -> int:
    """
    Return the written bytes of all ranges, up to 4 KiB more for each range of the last file.

    Errors of reads are raised: a dry run ends without a task that would report them.
    """
    return sum(one.size if one.final else _written_steps(one) for one in ranges)


def _written_steps(range_: Range) -> int:
    """Return the written bytes of a range, rounded up to whole steps; zeros in bodies may be as long as a message."""
    first = 0
    while True:
        written = _written_in(range_, range(first, range_.size, _STEP))
        with range_.open() as file:
            after = bytes(file.read(range_.start + written, min(_LONGEST_ZEROS, range_.size - written)))
        if not (data := after.rstrip(b"\0")):
            return written
        first = written + -(-len(data) // _STEP) * _STEP


def _estimate_written(range_: Range, candidates: Sequence[int]) -> int:
    try:
        return _written_in(range_, candidates)
    except OSError:  # this is an estimate; the task that reads the range reports the error
        return range_.size


def _written_in(range_: Range, candidates: Sequence[int]) -> int:
    """Return the lowest of the ascending *candidates* that zeros follow in a range, otherwise its size."""
    steps = candidates[: bisect_left(candidates, range_.size)]
    with range_.open() as file:

        def is_unwritten(step: int) -> int:
            start, size = range_.start + step, min(_UNWRITTEN, range_.size - step)
            return file.next_written(start) >= start + size or not any(file.read(start, size))

        number = bisect_left(steps, 1, key=is_unwritten)
        return steps[number] if number < len(steps) else range_.size


def balance_ranges(
    ranges: Sequence[Range], sizes: Sequence[int], width: int, min_size: int = _LEAST_PIECE
) -> tuple[list[Range], list[int]]:
    """
    Cut *ranges* further, so that *width* parallel tasks end at about the same time; return ranges and their sizes.

    Each piece is a *width*-th of half of the rest, or *min_size* bytes. So the first pieces are as large as the plan
    allows, and the last ones are small, so all workers finish within the time of one small piece.
    """
    cut: list[tuple[Range, int]] = []
    left = sum(sizes)
    for range_, size in zip(ranges, sizes, strict=True):
        start, rest = range_.start, size
        while width > 1 and rest > (piece := max(left // (2 * width), min_size)) * 3 // 2:
            cut.append((_cut_range(range_, start, start + piece), piece))
            start, rest, left = start + piece, rest - piece, left - piece
        cut.append((_cut_range(range_, start, range_.end), rest))
        left -= rest
    return [range_ for range_, _ in cut], [size for _, size in cut]


def _cut_range(range_: Range, start: int, end: int) -> Range:
    if start == range_.start:
        return replace(range_, end=end)
    return replace(range_, start=start, end=end, starts_anywhere=True, store_timestamp=None)


NewestSegment = tuple[Segment, bytes | None]
"""A segment and its first bytes: empty if they cannot be read, None if the segment has been deleted since."""


def find_newest_segment(store: Store) -> NewestSegment | None:
    """
    Return the newest segment that has been written to; all segments before it are final as long as it exists.

    A broker creates the next file before it needs it, so the last one may be all zeros.
    """
    for segment in reversed(store.segments):
        try:
            beginning = read_segment_beginning(segment, store)
        except OSError as error:  # the bytes cannot be read from the disk
            if not is_disk_error(error):
                raise
            return segment, b""
        if beginning is None or any(beginning[: BLANK.size]):  # a segment that retention deleted had been written
            return segment, beginning
    return None


def find_newest_segment_offset(store: Store) -> int | None:
    """Return the offset of the newest segment that has been written to."""
    newest = find_newest_segment(store)
    return newest[0].base_offset if newest else None


def read_segment_beginning(segment: Segment, store: Store) -> bytes | None:
    """Return the first bytes of a segment, enough to identify its first record; None if the segment is missing."""
    try:
        return store.read(segment, 0, _BEGINNING)
    except FileNotFoundError:
        return None


def find_holes(segments: Sequence[Segment]) -> Iterator[tuple[Segment, int, int]]:
    """
    Yield the offsets inside the log that no file contains, ascending: the segment before, the start and the end.

    The segment before was truncated, or the next file is missing.
    """
    for before, after in pairwise(segments):
        end = before.base_offset + before.size
        if end < after.base_offset:
            yield before, end, after.base_offset


def locate_hole(before: Segment, segments: Sequence[Segment]) -> tuple[str, int | None]:
    """Return the file *before* a hole if it was cut short, and where it ends; or the file that is missing."""
    if before.size < usual_segment_size(segments)[0]:
        return before.location, before.size
    return f"{before.location.rpartition('/')[0]}/{file_name_of_offset(before.base_offset + before.size)}", None


def usual_segment_size(segments: Sequence[Segment]) -> tuple[int, bool]:
    """
    Return the size that most segments have, or that their names show; 0 without segments.

    Also return whether it is doubtful, because only the length of a possibly truncated file shows it.
    """
    sizes = Counter(segment.size for segment in segments)
    # A broker names each segment by a multiple of its size.
    names = [one.base_offset for one in segments if one.base_offset]
    named = Counter(size for size in sizes for name in names if size and not name % size)
    steps = [after.base_offset - before.base_offset for before, after in pairwise(segments)]
    are_all_longer = bool(steps) and min(steps) < min(sizes) and not named
    # Two files of one length outweigh a name; if all lengths differ, only names are left.
    is_none_right = 1 < len(segments) == len(sizes) and not named
    if steps and (min(steps) in sizes or are_all_longer):  # if two are equally frequent, names show the right one
        size = min(steps)
    else:
        by_names = _size_by_names(segments) if is_none_right else None
        size = by_names or max(sizes, key=lambda size: (sizes[size], named[size], size), default=0)
    is_alone_and_odd = len(segments) == 1 and size % _BLOCK != 0  # not a multiple of a disk block
    return size, (is_alone_and_odd or (is_none_right and size in sizes))


def _size_by_names(segments: Sequence[Segment]) -> int | None:
    """Return the only size of which all names are multiples, and which no segment exceeds; None if several are."""
    size = gcd(*(one.base_offset for one in segments))
    longest = max(one.size for one in segments)
    return size if size // 2 < longest <= size and not size % _BLOCK else None


def find_truncated_segments(segments: Sequence[Segment]) -> Iterator[tuple[Segment, int]]:
    """
    Yield segments that are shorter than most, and the size they should have.

    A broker does not load a log with such a segment, except 4.9.2 and releases up to 4.4.0. An empty newest segment is
    not damage: every broker deletes it at its start.
    """
    usual, is_doubtful = usual_segment_size(segments)
    for segment in segments:
        if not is_doubtful and segment.size < usual and (segment.size or segment is not segments[-1]):
            yield segment, usual


def describe_plan(ranges: Sequence[Range], size: int) -> dict[str, int | None]:
    """Return the figures of a plan for `--dry-run`: of *size* bytes, without the preallocated rest of the last file."""
    return {
        "ranges": len(ranges),
        "segments": len({range_.location for range_ in ranges}),
        "bytes": size,
        "from_offset": ranges[0].start_offset if ranges else None,
        "to_offset": ranges[-1].end_offset if ranges else None,
    }
