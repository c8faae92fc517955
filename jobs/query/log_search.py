"""
Searches of a store's log: the records that contain a text, and the queues that the log has.

A search scans raw bytes first: a record is decoded only if it contains the text. Small logs are walked by the scalar
reader; the compiled scan, whose import takes longer than most queries, is for large ones.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from jobs.query.mqadmin import OffsetRange
from jobs.query.source import OnProgress, do_nothing
from jobs.query.store_reader import StoreReader
from jobs.store.ranges import WHOLE_SEGMENTS, Range, find_holes, plan_ranges
from rmq_formats.commitlog.layout import HEAD
from rmq_formats.commitlog.record import MessageRecord, decode_record
from rmq_formats.commitlog.segment import Piece, PieceKind, SegmentBytes, walk_segment
from rmq_formats.consumequeue.dispatch import ExpectedUnit

COMPILED_SCAN_MIN_BYTES = 32 << 20

OnLoss = Callable[[int, int, str], None]  # offsets of the log that hold no readable message, and why
_FEW = 64  # records that are read one by one before a search becomes worthwhile


WHOLE_LOG = range(1 << 62)  # a part of the log is a range between two record boundaries; no log is as long


# Some records of the log: bytes, the physical offset of the first one, and ascending positions and sizes of records.
_Block = tuple[bytes, int, Sequence[int], Sequence[int]]


def _records_with(text: str, data: bytes, positions: Sequence[int], sizes: Sequence[int]) -> Iterator[int]:
    needle = text.encode("utf-8", "replace")
    if not needle or "\N{REPLACEMENT CHARACTER}" in text:  # malformed bytes cannot be searched for
        yield from range(len(positions))
        return
    place = data.find(needle)
    while place >= 0:
        number = bisect_right(positions, place) - 1
        if number >= 0 and place < positions[number] + sizes[number]:
            yield number
            place = positions[number] + sizes[number] - 1
        place = data.find(needle, place + 1)


def search_records(
    store: StoreReader, text: str, progress: OnProgress, span: range = WHOLE_LOG, on_loss: OnLoss = do_nothing
) -> Iterator[MessageRecord]:
    """
    Yield the records of *span* that contain *text*, in log order; call *on_loss* for unreadable parts.

    The last call of *progress* reports the search as complete, even if the caller needs no more records.
    """
    for before, start, end in find_holes(store.store.segments):
        if start < span.stop and end > span.start:
            on_loss(start, end, f"no segment contains this range; {before.location} ends before it")
    ranges: list[Range] = []
    # Whole segments: only records that chain from a segment's first byte are valid, others only look like records.
    span = range(store.entry_start(span.start), store.entry_start(span.stop))
    for range_ in plan_ranges(store.store, range_size=WHOLE_SEGMENTS):
        start, end = max(range_.start_offset, span.start), min(range_.end_offset, span.stop)
        if start < end:
            base = range_.base_offset
            is_final = range_.final or end < range_.end_offset  # a record begins where the span ends
            ranges.append(replace(range_, start=start - base, end=end - base, final=is_final))
    total = sum(range_.end - range_.start for range_ in ranges)
    done = 0
    blocks = _compiled_blocks if total >= COMPILED_SCAN_MIN_BYTES else _scalar_blocks
    try:
        for range_ in ranges:
            for block in blocks(store, range_):
                if isinstance(block, Piece):
                    on_loss(block.offset, block.end, block.reason)
                    continue
                data, base, positions, sizes = block
                for number in _records_with(text, data, positions, sizes):
                    position = positions[number]
                    yield decode_record(data[position : position + sizes[number]], 0, base + position)
                progress(done + base + positions[-1] - range_.start_offset, total)
            done += range_.end - range_.start
    finally:
        progress(total, total)


def _compiled_blocks(_store: StoreReader, range_: Range) -> Iterator[_Block | Piece]:
    from jobs.store.range_reader import RangeReader

    for item in RangeReader(range_).pieces():
        if not isinstance(item, Piece):
            yield item.buffer.tobytes(), item.base_offset, item.positions.tolist(), item.sizes.tolist()
        elif item.may_lack_messages:
            yield item


def _scalar_blocks(store: StoreReader, range_: Range) -> Iterator[_Block | Piece]:
    segment = store.store.segment_at(range_.base_offset)
    if segment is None:
        return
    framing = store.segment_bytes(segment).framing
    start = range_.start_offset
    data = bytes(store.open_cached(segment.location).read(range_.start, range_.end - range_.start))
    log = SegmentBytes.from_buffer(data, start, framing)
    pieces = list(walk_segment(log, final=range_.final, evidence=range_.evidence))
    yield from (piece for piece in pieces if piece.may_lack_messages)
    records = [piece for piece in pieces if piece.kind is PieceKind.RECORD]
    if records:
        positions = [piece.offset - start + framing.header_size for piece in records]
        yield data, start, positions, [piece.size - framing.header_size for piece in records]


class LogQueue:
    """One queue derived from the log: its ascending queue offsets, and the positions of their records."""

    def __init__(self) -> None:
        self.firsts = array("q")
        self._counts = array("q")  # 1, or the messages of a batch
        self._places = array("q")

    @property
    def offsets(self) -> OffsetRange:
        """The range of the queue's offsets."""
        return OffsetRange(self.firsts[0], self.firsts[-1] + self._counts[-1])

    def add(self, unit: ExpectedUnit) -> None:
        """Add a unit of a record; of several with the same queue offset, the first one is kept."""
        at = bisect_right(self.firsts, unit.queue_offset)
        if at == 0 or self.firsts[at - 1] != unit.queue_offset:
            self.firsts.insert(at, unit.queue_offset)
            self._counts.insert(at, unit.batch_count or 1)
            self._places.insert(at, unit.physical_offset)

    def physical_offset_of(self, queue_offset: int) -> int | None:
        """Return the physical offset of the record with a queue offset; None if the log has none."""
        at = bisect_right(self.firsts, queue_offset) - 1
        return self._places[at] if at >= 0 and queue_offset < self.firsts[at] + self._counts[at] else None


def read_few_records(store: StoreReader, span: range) -> Sequence[MessageRecord] | None:
    """Return the records of a short span; None if it is long, or if its records do not lead to its end."""
    records: list[MessageRecord] = []
    offset = span.start
    while offset < span.stop and len(records) < _FEW:
        segment = store.store.segment_at(offset)
        if segment is None:
            return records if offset >= store.store.end_offset else None
        log, position = store.segment_bytes(segment), offset - segment.base_offset
        record = store.read_record(offset + log.framing.header_size)
        if record is not None:
            records.append(record)
            offset = record.end_offset
            continue
        if segment is store.store.segments[-1] and not any(log.read(position, HEAD.size)):
            return records
        if log.stated_blank_size(position) != log.size - position:
            return None
        offset = segment.base_offset + segment.size
    return records if offset >= span.stop else None
