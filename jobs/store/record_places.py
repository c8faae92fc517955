"""Finds records in a store: one by its offset, or all pieces of a segment, with samples of its records."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from jobs.storage.model import Reader
from jobs.store.store import Segment, Store
from rmq_formats.commitlog.framing import find_framing
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
from rmq_formats.errors import skip_lost_file
from rmq_formats.layout import Buffer
from rmq_formats.properties import PropertyParser


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


def leftover_size(log: SegmentBytes, piece: Piece) -> int:
    """Return the size of a piece up to the last of older records; 0 if it is not the leftover of a truncated log."""
    if piece.reason not in {STALE_REASON, LEFTOVER_REASON}:  # a broker is writing there
        return 0
    older = log.find_record(piece.offset - log.base_offset)
    if older is None:
        return 0
    *_, (_, end) = log.walk_record_bounds(older)
    return end - piece.offset


def segment_bytes(segment: Segment, reader: Reader) -> SegmentBytes:
    """Return the bytes of a segment, framed as its beginning shows."""
    framing = find_framing(reader.read, segment.readable_bytes, segment.base_offset)
    return SegmentBytes(reader.read, segment.readable_bytes, segment.base_offset, framing, reader.next_written)


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
