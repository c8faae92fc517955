"""Finds records without decoding them: all records of a segment by following their sizes, or one by its offset."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from jobs.storage.model import Reader
from jobs.store.store import Segment, Store
from rmq_formats.commitlog.framing import find_framing
from rmq_formats.commitlog.layout import HEAD, MIN_RECORD_SIZE, TOPIC_LENGTH
from rmq_formats.commitlog.record import MessageRecord, decode_record, has_right_body_crc
from rmq_formats.commitlog.segment import (
    LEFTOVER_REASON,
    NO_EVIDENCE,
    STALE_REASON,
    Piece,
    PieceKind,
    SegmentBytes,
    TailEvidence,
    walk_segment,
)
from rmq_formats.errors import FormatError, skip_lost_file
from rmq_formats.layout import Buffer
from rmq_formats.properties import PropertyParser

_WINDOW = 1 << 20
_TOTAL_SIZE, _MAGIC_CODE, _PHYSICAL_OFFSET = (
    HEAD.index(name) for name in ("total_size", "magic_code", "physical_offset")
)


def _sha256(data: Buffer) -> str:
    from hashlib import sha256  # lazy import: it loads OpenSSL

    return sha256(data).hexdigest()


class Fingerprint(NamedTuple):
    """The digest of bytes at an offset; it identifies a store regardless of its path."""

    offset: int
    size: int
    sha256: str

    @classmethod
    def from_bytes(cls, offset: int, data: Buffer) -> Self:
        """Return the fingerprint of bytes."""
        return cls(offset, len(data), _sha256(data))

    @property
    def end(self) -> int:
        """The offset after the bytes."""
        return self.offset + self.size

    def matches(self, data: bytes) -> bool:
        """Return whether *data* are the bytes of the fingerprint."""
        return _sha256(data) == self.sha256


def record_bounds(log: SegmentBytes, start: int = 0) -> Iterator[tuple[int, int]]:
    """
    Yield the physical offsets at which each record of a segment begins and ends, up to the first byte without a record.

    Follows the sizes from the segment's first byte, or from a known boundary at position *start*: other bytes that look
    like a record are not one.
    """
    header = log.framing.header_size
    window, window_start = b"", 0
    position = start + header
    while True:
        at = position - window_start
        if not 0 <= at <= len(window) - HEAD.size:
            window_start, at = position, 0
            window = bytes(log.read(window_start, min(_WINDOW, log.size - window_start)))
        try:
            head = HEAD.unpack(window, at)
        except FormatError:
            return
        size, offset = int(head[_TOTAL_SIZE]), int(head[_PHYSICAL_OFFSET])
        is_record = offset == log.base_offset + position and int(head[_MAGIC_CODE]) in TOPIC_LENGTH
        if not is_record or not MIN_RECORD_SIZE <= size <= log.size - position:
            return
        yield offset, offset + size
        position += size + header


def leftover_size(log: SegmentBytes, piece: Piece) -> int:
    """Return the size of a piece up to the last of older records; 0 if it is not the leftover of a cut-back log."""
    if piece.reason not in {STALE_REASON, LEFTOVER_REASON}:  # a broker is writing there
        return 0
    older = log.find_record(piece.offset - log.base_offset)
    if older is None:
        return 0
    *_, (_, end) = record_bounds(log, older)
    return end - piece.offset


def segment_bytes(segment: Segment, reader: Reader) -> SegmentBytes:
    """Return the bytes of a segment, framed as its beginning shows."""
    framing = find_framing(reader.read, segment.readable_bytes, segment.base_offset)
    return SegmentBytes(reader.read, segment.readable_bytes, segment.base_offset, framing, reader.next_written)


def records_from(log: SegmentBytes, position: int = 0) -> Iterator[MessageRecord]:
    """Yield the records of a segment from the piece at *position* on, up to the first other piece."""
    with suppress(FormatError):  # a piece that is not a record ends the walk
        while True:
            record = log.record_at(position)
            yield record
            position = record.end_offset - log.base_offset


def find_record(store: Store, physical_offset: int) -> MessageRecord | None:
    """Return the record at *physical_offset*, if one is there."""
    segment = store.segment_at(physical_offset)
    if segment is None:
        return None
    with skip_lost_file(), store.open(segment) as reader:  # also if no record begins there
        log = SegmentBytes(reader.read, segment.readable_bytes, segment.base_offset)
        return log.record_at(physical_offset - segment.base_offset)
    return None


COMPILED_WALK_MIN_BYTES = 4 << 20  # bytes of records
_SHOWN = 32  # records of a group


class WalkedPiece(NamedTuple):
    """One piece of the log, or several consecutive records."""

    piece: Piece
    record_count: int = 0
    topic_counts: Mapping[str, int] = {}
    wrong_crc_offsets: Sequence[int] = ()  # physical offsets of records whose body does not match its CRC
    sample_records: Sequence[MessageRecord] = ()  # the last one is the last record of the run


def walk_pieces(
    log: SegmentBytes, start: int, *, final: bool, evidence: TailEvidence = NO_EVIDENCE
) -> Iterator[WalkedPiece]:
    """Yield the pieces after position *start*."""
    for piece in walk_segment(log, final=final, start=start, evidence=evidence):
        if piece.kind is not PieceKind.RECORD:
            yield WalkedPiece(piece)
            continue
        record = log.record_at(piece.offset - log.base_offset)
        wrong = [] if has_right_body_crc(record) else [record.physical_offset]
        yield WalkedPiece(piece, 1, {record.topic: 1}, wrong, [record])
        position = piece.end - log.base_offset
        if position - start > COMPILED_WALK_MIN_BYTES:
            yield from _walk_in_groups(log, position, record.store_timestamp, evidence, final=final)
            return


def _walk_in_groups(
    log: SegmentBytes, start: int, newest: int, evidence: TailEvidence, *, final: bool
) -> Iterator[WalkedPiece]:
    from rmq_formats.commitlog.columns import message_batch
    from rmq_formats.commitlog.scan import scan

    found = scan(
        log.read, start, log.size, log.size, log.base_offset, log.framing,
        final=final, store_timestamp=newest, next_written=log.next_written, evidence=evidence,
    )  # fmt: skip
    for item in found:
        if isinstance(item, Piece):
            yield WalkedPiece(item)
            continue
        view, count = memoryview(item.buffer.data), item.positions.size

        def record(position: int, view: memoryview = view, base_offset: int = item.base_offset) -> MessageRecord:
            return decode_record(view, position, base_offset + position)

        batch, bad = message_batch(item, PropertyParser.SCAN, with_body=False)
        topics = Counter(record(offset - item.base_offset).topic for offset, _ in bad)
        for entry in batch.column("topic").value_counts().to_pylist():
            topics[entry["values"]] += entry["counts"]
        places = {*range(0, count, -(-count // _SHOWN)), count - 1}
        shown = [record(int(item.positions[place])) for place in sorted(places)]
        first, end = item.base_offset + int(item.positions[0]) - log.framing.header_size, shown[-1].end_offset
        piece = Piece(PieceKind.RECORD, first, end - first)
        # A page of a body may have been read before the broker filled it, and the one after it later.
        shift = log.framing.header_size + log.base_offset
        wrong = [offset for offset, _ in bad if not has_right_body_crc(log.record_at(offset - shift))]
        yield WalkedPiece(piece, count, topics, wrong, shown)
