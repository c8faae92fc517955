"""
Searches in a store's log, where index or queue files are missing or not to be trusted.

A search looks at raw bytes first: a record is decoded only when the text in question is in it somewhere. Small logs
are walked by the scalar layer; the compiled scan, whose import takes longer than most answers, is for large ones.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from jobs.query.mqadmin.text import OffsetRange
from jobs.query.source import Progress, silent
from jobs.query.store_reader import StoreReader
from jobs.store.ranges import WHOLE_SEGMENTS, Range, holes, plan_ranges
from rmq_formats.commitlog.record import MessageRecord, decode_record
from rmq_formats.commitlog.segment import Piece, PieceKind, SegmentBytes, walk_segment
from rmq_formats.consumequeue.dispatch import ExpectedUnit

COMPILED_FROM = 32 << 20
LOG_SEARCHED_UNASKED = 1 << 30  # bytes of log that are searched where index or queue files leave a question open

Lose = Callable[[int, int, str], None]  # offsets of the log that hold no readable message, and why


class Span(NamedTuple):
    """Offsets of the log, from a record's beginning to another's."""

    start: int
    end: int


ALL = Span(0, 1 << 62)  # no log is as long


class RecordBlock(NamedTuple):
    """Some records of the log."""

    data: bytes
    base_offset: int  # physical offset of the first byte
    positions: Sequence[int]  # ascending
    sizes: Sequence[int]


def _holding(block: RecordBlock, text: str) -> Iterator[int]:
    """Yield which records of a block *text* is in, ascending."""
    needle = text.encode("utf-8", "replace")
    if not needle or "\N{REPLACEMENT CHARACTER}" in text:  # malformed bytes, as stored, cannot be looked for
        yield from range(len(block.positions))
        return
    place = block.data.find(needle)
    while place >= 0:
        number = bisect_right(block.positions, place) - 1
        if number >= 0 and place < block.positions[number] + block.sizes[number]:
            yield number
            place = block.positions[number] + block.sizes[number] - 1
        place = block.data.find(needle, place + 1)


def search(
    store: StoreReader, text: str, progress: Progress, span: Span = ALL, lose: Lose = silent
) -> Iterator[MessageRecord]:
    """Yield the records of *span* that *text* is in, in the order of the log; call *lose* for unreadable parts."""
    for before, start, end in holes(store.store.segments):
        if start < span.end and end > span.start:
            lose(start, end, f"no file holds it; {before.location} ends before it")
    # Whole segments: what chains from a segment's first byte is the truth, wherever else a record may seem to begin.
    ranges = list(_within(plan_ranges(store.store, range_size=WHOLE_SEGMENTS), span))
    total = sum(range_.end - range_.start for range_ in ranges)
    done = 0
    blocks = _compiled_blocks if total >= COMPILED_FROM else _scalar_blocks
    for range_ in ranges:
        for block in blocks(store, range_):
            if isinstance(block, Piece):
                lose(block.offset, block.end, block.reason)
                continue
            for number in _holding(block, text):
                position = block.positions[number]
                data = block.data[position : position + block.sizes[number]]
                yield decode_record(data, 0, block.base_offset + position)
            progress(done + block.base_offset + block.positions[-1] - range_.start_offset, total)
        done += range_.end - range_.start
        progress(done, total)


def _within(ranges: Sequence[Range], span: Span) -> Iterator[Range]:
    for range_ in ranges:
        start, end = max(range_.start_offset, span.start), min(range_.end_offset, span.end)
        if start < end:
            base = range_.base_offset
            is_final = range_.final or end < range_.end_offset  # a record begins where the span ends
            yield replace(range_, start=start - base, end=end - base, final=is_final)


def _compiled_blocks(_store: StoreReader, range_: Range) -> Iterator[RecordBlock | Piece]:
    from jobs.store.range_reader import RangeReader

    for item in RangeReader(range_).pieces():
        if not isinstance(item, Piece):
            yield RecordBlock(item.buffer.tobytes(), item.base_offset, item.positions.tolist(), item.sizes.tolist())
        elif item.is_lost:
            yield item


def _scalar_blocks(store: StoreReader, range_: Range) -> Iterator[RecordBlock | Piece]:
    segment = store.store.segment_at(range_.base_offset)
    if segment is None:
        return
    framing = store.framing(segment)
    start = range_.start_offset
    data = bytes(store.file(segment.location).read(range_.start, range_.end - range_.start))
    log = SegmentBytes.of(data, start, framing)
    pieces = list(walk_segment(log, final=range_.final, why_left_over=range_.why_left_over))
    yield from (piece for piece in pieces if piece.is_lost)
    records = [piece for piece in pieces if piece.kind is PieceKind.RECORD]
    if records:
        positions = [piece.offset - start + framing.header_size for piece in records]
        yield RecordBlock(data, start, positions, [piece.size - framing.header_size for piece in records])


class LogQueue:
    """One queue by the log: the numbers that its messages have, ascending, and where their records are."""

    def __init__(self) -> None:
        self.firsts = array("q")
        self._counts = array("q")  # 1, or the messages of a batch
        self._places = array("q")

    @property
    def offsets(self) -> OffsetRange:
        """Which offsets the queue holds."""
        return OffsetRange(self.firsts[0], self.firsts[-1] + self._counts[-1])

    def add(self, unit: ExpectedUnit) -> None:
        """Take a unit of a record; of several with one number, the first one stays."""
        at = bisect_right(self.firsts, unit.queue_offset)
        if at == 0 or self.firsts[at - 1] != unit.queue_offset:
            self.firsts.insert(at, unit.queue_offset)
            self._counts.insert(at, unit.batch_count or 1)
            self._places.insert(at, unit.physical_offset)

    def place(self, queue_offset: int) -> int | None:
        """Return the physical offset of the record with a number; None where the log has none."""
        at = bisect_right(self.firsts, queue_offset) - 1
        return self._places[at] if at >= 0 and queue_offset < self.firsts[at] + self._counts[at] else None
