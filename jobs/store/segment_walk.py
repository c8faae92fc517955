"""
Walk a segment: record by record at first, by the compiled scan once that takes long.

The compiled scan, whose import takes a third of a second, counts every record and checks every body as the other does;
of the records themselves it shows some of each group, the last one always.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rmq_formats.commitlog.record import MessageRecord, decode_record, has_right_body_crc
from rmq_formats.commitlog.segment import LeadsTo, Piece, PieceKind, SegmentBytes, nothing_leads_to, walk_segment
from rmq_formats.properties import PropertyParser

COMPILED_BEHIND = 4 << 20  # bytes of records
_SHOWN = 32  # records of a group


class WalkedPiece(NamedTuple):
    """One piece of the log, or many records in a row."""

    piece: Piece
    records: int = 0
    topics: Mapping[str, int] = {}
    wrong: Sequence[int] = ()  # physical offsets of records whose body has another CRC
    shown: Sequence[MessageRecord] = ()  # the last one is the run's last


def walk(log: SegmentBytes, start: int, *, final: bool, leads_to: LeadsTo = nothing_leads_to) -> Iterator[WalkedPiece]:
    """Yield the pieces after position *start*."""
    for piece in walk_segment(log, final=final, start=start, leads_to=leads_to):
        if piece.kind is not PieceKind.RECORD:
            yield WalkedPiece(piece)
            continue
        record = log.record_at(piece.offset - log.base_offset)
        wrong = [] if has_right_body_crc(record) else [record.physical_offset]
        yield WalkedPiece(piece, 1, {record.topic: 1}, wrong, [record])
        position = piece.end - log.base_offset
        if position - start > COMPILED_BEHIND:
            yield from _in_groups(log, position, record.store_timestamp, leads_to, final=final)
            return


def _in_groups(log: SegmentBytes, start: int, newest: int, leads_to: LeadsTo, *, final: bool) -> Iterator[WalkedPiece]:
    from rmq_formats.commitlog.columns import message_batch
    from rmq_formats.commitlog.scan import scan

    found = scan(
        log.read, start, log.size, log.size, log.base_offset, log.framing,
        final=final, store_timestamp=newest, next_written=log.next_written, leads_to=leads_to,
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
        wrong = [offset for offset, _ in bad if not has_right_body_crc(_read_again(log, offset))]
        yield WalkedPiece(piece, count, topics, wrong, shown)


def _read_again(log: SegmentBytes, physical_offset: int) -> MessageRecord:
    return log.record_at(physical_offset - log.framing.header_size - log.base_offset)
