"""
A store's log: single messages, and searches where index or queue files are missing or not to be trusted.

A search looks at raw bytes first: a record is decoded only when the text in question is in it somewhere. Small logs
are walked by the scalar layer; the compiled scan, whose import takes longer than most answers, is for large ones.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from jobs.query.message import Message
from jobs.query.source import Progress, Source, silent
from jobs.query.store_reader import StoreReader
from jobs.store.ranges import WHOLE_SEGMENTS, Range, holes, plan_ranges
from rmq_formats.commitlog.layout import BLANK, HEAD, MAGIC_BLANK
from rmq_formats.commitlog.record import MessageRecord, decode_record
from rmq_formats.commitlog.segment import Piece, PieceKind, SegmentBytes, walk_segment
from rmq_formats.consumequeue.unit import DEFAULT_DELAY_LEVELS, QueueRules
from rmq_formats.errors import FormatError
from rmq_formats.release import Release

COMPILED_FROM = 32 << 20
LOG_SEARCHED_UNASKED = 1 << 30  # bytes of log that are searched where index or queue files leave a question open
_FEW = 64  # records that are followed one by one before a search is worth its start

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

    def record(self, number: int) -> MessageRecord:
        """Decode one record."""
        position = self.positions[number]
        end = position + self.sizes[number]
        return decode_record(self.data[position:end], 0, self.base_offset + position)


Sieve = Callable[[RecordBlock], Iterator[int]]  # yields which records of a block are worth decoding, ascending


def holding(text: str) -> Sieve:
    """Return the sieve that keeps records that *text* is in."""
    needle = text.encode("utf-8", "replace")
    if not needle or "\N{REPLACEMENT CHARACTER}" in text:  # malformed bytes, as stored, cannot be looked for
        return lambda block: iter(range(len(block.positions)))

    def sieve(block: RecordBlock) -> Iterator[int]:
        place = block.data.find(needle)
        while place >= 0:
            number = bisect_right(block.positions, place) - 1
            if number >= 0 and place < block.positions[number] + block.sizes[number]:
                yield number
                place = block.positions[number] + block.sizes[number] - 1
            place = block.data.find(needle, place + 1)

    return sieve


def few_records(store: StoreReader, span: Span) -> list[MessageRecord] | None:
    """Return the records of a short span; None of one that is long, or whose records do not lead to its end."""
    records: list[MessageRecord] = []
    offset = span.start
    while offset < span.end and len(records) < _FEW:
        segment = store.store.segment_at(offset)
        if segment is None:
            return records if offset >= store.store.end_offset else None
        header = store.framing(segment).header_size
        record = store.read_record(offset + header)
        if record is not None:
            records.append(record)
            offset = record.end_offset
            continue
        position = offset - segment.base_offset
        beginning = bytes(store.file(segment.location).read(position, HEAD.size))
        is_last = segment is store.store.segments[-1]
        if is_last and not any(beginning):
            return records
        try:
            size, magic = (int(value) for value in BLANK.unpack(beginning))
        except FormatError:
            return None
        if magic != MAGIC_BLANK or size != segment.size - position:
            return None
        offset = segment.base_offset + segment.size
    return records if offset >= span.end else None


def search(
    store: StoreReader, sieve: Sieve, progress: Progress, span: Span = ALL, lose: Lose = silent
) -> Iterator[MessageRecord]:
    """Yield the records of *span* that *sieve* keeps, in the order of the log; call *lose* for unreadable parts."""
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
            for number in sieve(block):
                yield block.record(number)
            progress(done + block.base_offset + block.positions[-1] - range_.start_offset, total)
        done += range_.end - range_.start
        progress(done, total)


def _within(ranges: Sequence[Range], span: Span) -> Iterator[Range]:
    """Yield the parts of ranges that lie in *span*."""
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
        elif item.kind is PieceKind.DAMAGE:
            yield item


def _scalar_blocks(store: StoreReader, range_: Range) -> Iterator[RecordBlock | Piece]:
    segment = store.store.segment_at(range_.base_offset)
    if segment is None:
        return
    framing = store.framing(segment)
    start = range_.start_offset
    data = bytes(store.file(segment.location).read(range_.start, range_.end - range_.start))
    pieces = list(walk_segment(SegmentBytes.of(data, start, framing), final=range_.final, leads_to=range_.leads_to))
    yield from (piece for piece in pieces if piece.kind is PieceKind.DAMAGE)
    records = [piece for piece in pieces if piece.kind is PieceKind.RECORD]
    if records:
        positions = [piece.offset - start + framing.header_size for piece in records]
        yield RecordBlock(data, start, positions, [piece.size - framing.header_size for piece in records])


def _is_batch(topic: Mapping[str, object]) -> bool:
    attributes = topic.get("attributes")
    return isinstance(attributes, dict) and attributes.get("queue.type") == "BatchCQ"


@dataclass(eq=False)
class StoreView(Source):
    """A store's files, by whose rules they are read, and whether index and queue files are read."""

    reader: StoreReader
    release: Release
    through_log: bool = False  # as if index and queue files were lost
    progress: Progress = silent
    broker: str | None = None  # its name, where it is known
    releases: tuple[Release, ...] = ()  # that may have written the store, where it does not show which one did
    delay_levels: str = field(default=DEFAULT_DELAY_LEVELS, init=False)
    notes: list[str] = field(default_factory=list, init=False)  # remarks on the answers
    _reasons: list[str] = field(default_factory=list, init=False)  # why messages may be missing in the answers
    _lost: dict[str, list[int]] = field(default_factory=dict, init=False)  # pointer → places without a message

    @property
    def possible_releases(self) -> tuple[Release, ...]:  # type: ignore[override]
        """The releases that may have written the store."""
        return self.releases or (self.release,)

    @cached_property
    def rules(self) -> QueueRules:
        """The rules by which units follow from records."""
        batch_topics = frozenset(name for name, about in self.reader.topic_config.items() if _is_batch(about))
        return QueueRules(((0, self.release),), self.delay_levels, batch_topics)

    @property
    def searches_all(self) -> bool:  # type: ignore[override]
        """Whether the log itself is searched where index and queue files leave a question open."""
        return self.through_log or self.reader.log_size <= LOG_SEARCHED_UNASKED

    def by_offset(self, physical_offset: int) -> Message | None:
        """Return the message that begins at an offset."""
        record = self.reader.read_record(physical_offset)
        return Message(record, self.release) if record else None

    def pointed_at(self, physical_offset: int, pointer: str) -> Message | None:
        """Return the message that *pointer* of an index or a queue names; where it is lost, the answer lacks it."""
        message = self.by_offset(physical_offset)
        if message is not None:
            return message
        reader, store = self.reader, self.reader.store
        if reader.is_left_over(physical_offset):
            self.say(
                f"{pointer} points at offset {physical_offset}, whose message was taken back when another replica "
                f"became the master ({reader.takeover_text})"
            )
        elif physical_offset < store.start_offset:
            self._lose_pointed_at(
                physical_offset, pointer, f"where the log is deleted: it begins at {store.start_offset}"
            )
        elif store.segment_at(physical_offset) is None:
            self._lose_pointed_at(physical_offset, pointer, "that no file of the log has")
        else:
            self._lose_pointed_at(physical_offset, pointer, "where no whole record is")
        return None

    def _lose_pointed_at(self, offset: int, pointer: str, place: str) -> None:
        self._lost.setdefault(f"{pointer} points at an offset {place}", []).append(offset)

    @property
    def lacking(self) -> list[str]:
        """Why messages may be missing in the answers; many reasons of one kind are counted, and the first is given."""
        pointed_at = [(why, sorted(set(offsets))) for why, offsets in self._lost.items()]
        return [*self._reasons, *(f"{why} ({len(found)} offsets, the first {found[0]})" for why, found in pointed_at)]

    def search(self, sieve: Sieve, span: Span = ALL) -> Iterator[Message]:
        """Yield the messages of the log itself that *sieve* keeps, in its order; note the parts that are lost."""
        for record in search(self.reader, sieve, self.progress, span, self.lose):
            yield Message(record, self.release)

    def lose(self, start: int, end: int, reason: str) -> None:
        """Note that a part of the log holds no readable message."""
        self.lack(f"the log from offset {start} to {end} cannot be read as messages: {reason}")
