"""
Search the log itself, where index or queue files are missing or not to be trusted.

A search looks at raw bytes first: a record is decoded only when the text in question is in it somewhere. Small logs
are walked by the scalar layer; the compiled scan, whose import takes longer than most answers, is for large ones.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from jobs.query.store_reader import StoreReader
from jobs.store.ranges import Range, plan_ranges
from rmq_formats.commitlog.layout import HEAD
from rmq_formats.commitlog.record import MessageRecord, decode_record
from rmq_formats.commitlog.segment import PieceKind, SegmentBytes, walk_segment

COMPILED_FROM = 32 << 20
_WHOLE = 1 << 62

Progress = Callable[[int, int], None]  # bytes done, bytes in all


class RecordBlock(NamedTuple):
    """Some records of the log."""

    data: bytes
    base_offset: int  # physical offset of the first byte
    positions: Sequence[int]  # ascending
    sizes: Sequence[int]

    def record(self, number: int) -> MessageRecord:
        """Decode one record."""
        position = self.positions[number]
        end = position + self.sizes[number]
        return decode_record(self.data[position:end], 0, self.base_offset + position)


class Sieve(Protocol):
    """Which records of a block are worth decoding."""

    def __call__(self, block: RecordBlock, /) -> Iterator[int]:
        """Yield their numbers, ascending."""
        ...


def holding(text: str) -> Sieve:
    """Return the sieve that keeps records that *text* is in."""
    needle = text.encode("utf-8", "replace")
    if not needle or "\N{REPLACEMENT CHARACTER}" in text:
        return _every  # the stored bytes were malformed: they cannot be looked for

    def sieve(block: RecordBlock) -> Iterator[int]:
        place = block.data.find(needle)
        while place >= 0:
            number = bisect_right(block.positions, place) - 1
            if number >= 0 and place < block.positions[number] + block.sizes[number]:
                yield number
                place = block.positions[number] + block.sizes[number] - 1
            place = block.data.find(needle, place + 1)

    return sieve


def _every(block: RecordBlock) -> Iterator[int]:
    yield from range(len(block.positions))


def of_queue(queue_id: int, queue_offset: int) -> Sieve:
    """Return the sieve that keeps records with one place in a queue, of whatever topic."""
    queue_at, offset_at = HEAD.offset("queue_id"), HEAD.offset("queue_offset")
    queue = queue_id.to_bytes(4, "big", signed=True)
    offset = queue_offset.to_bytes(8, "big", signed=True)

    def sieve(block: RecordBlock) -> Iterator[int]:
        data = block.data
        for number, position in enumerate(block.positions):
            if data.startswith(offset, position + offset_at) and data.startswith(queue, position + queue_at):
                yield number

    return sieve


def search(store: StoreReader, sieve: Sieve, progress: Progress) -> Iterator[MessageRecord]:
    """Yield the records that *sieve* keeps, in the order of the log."""
    # Whole segments: what chains from a segment's first byte is the truth, wherever else a record may seem to begin.
    ranges = plan_ranges(store.store, range_size=_WHOLE)
    total = sum(range_.end - range_.start for range_ in ranges)
    done = 0
    blocks = _compiled_blocks if total >= COMPILED_FROM else _scalar_blocks
    for range_ in ranges:
        for block in blocks(store, range_):
            for number in sieve(block):
                yield block.record(number)
            progress(done + block.base_offset + block.positions[-1] - range_.start_offset, total)
        done += range_.end - range_.start
        progress(done, total)


def _compiled_blocks(_store: StoreReader, range_: Range) -> Iterator[RecordBlock]:
    from jobs.store.range_reader import RangeReader
    from rmq_formats.commitlog.segment import Piece

    for item in RangeReader(range_).pieces():
        if not isinstance(item, Piece):
            yield RecordBlock(item.buffer.tobytes(), item.base_offset, item.positions.tolist(), item.sizes.tolist())


def _scalar_blocks(store: StoreReader, range_: Range) -> Iterator[RecordBlock]:
    segment = store.segment_for(range_.base_offset)
    if segment is None or range_.start:
        return  # a small log has segments of one range
    framing = store.framing(segment)
    data = bytes(store.file(segment.location).read(0, segment.readable))
    pieces = [
        piece
        for piece in walk_segment(SegmentBytes.of(data, segment.base_offset, framing), final=range_.final)
        if piece.kind is PieceKind.RECORD
    ]
    if not pieces:
        return
    positions = [piece.offset - segment.base_offset + framing.header_size for piece in pieces]
    yield RecordBlock(data, segment.base_offset, positions, [piece.size - framing.header_size for piece in pieces])


def silent(_done: int, _total: int) -> None:
    """Show no progress."""


__all__ = ["Progress", "holding", "of_queue", "search", "silent"]
