"""
One CommitLog segment: where its records are, and how it ends.

`walk` cuts a segment into pieces that cover it without gap or overlap: records, damage, and one last piece that says how
it ends. Records follow each other by size alone, so walking reads heads and decodes nothing. The chain is the truth:
bodies may contain whole records, and behind a blank or the end of the chain lie stale ones with right offsets.

Damage does not end a walk. It goes on at the next record that proves itself: magic, lengths that add up, the physical
offset where it stands, the body's CRC. In the segment that the broker still writes, nothing is damage that may be
unfinished: what no later record contradicts waits. Nor is a later record believed there whose store time is before
that of the last good one: recovery moves the write position back and leaves old records behind it.
"""

from collections.abc import Iterator
from enum import StrEnum, unique
from typing import NamedTuple

from rmq_formats.commitlog.layout import (
    BLANK,
    DLEDGER_END_MAGIC,
    DLEDGER_ENTRY,
    DLEDGER_MAGIC,
    HEAD,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
)
from rmq_formats.commitlog.record import MessageRecord, decode_record, has_right_body_crc
from rmq_formats.errors import CorruptData, FormatError
from rmq_formats.layout import Buffer


@unique
class Framing(StrEnum):
    """What stands before each record: nothing, or DLedger's entry header."""

    PLAIN = "plain"
    DLEDGER = "dledger"

    @property
    def header_size(self) -> int:
        """Bytes before each record."""
        return DLEDGER_ENTRY.size if self is Framing.DLEDGER else 0


@unique
class PieceKind(StrEnum):
    """What a piece of a segment is."""

    RECORD = "record"
    DAMAGE = "damage"  # bytes that are no record, between or behind records
    BLANK = "blank"  # the end of a full segment; whatever follows its eight bytes is meaningless
    UNWRITTEN = "unwritten"  # zeros to the end: not written yet
    WAITING = "waiting"  # not whole yet, and nothing behind it proves itself


@unique
class SegmentEnd(StrEnum):
    """How a segment ends."""

    SEALED = "sealed"
    OPEN = "open"
    DAMAGED = "damaged"


ENDS = {
    PieceKind.BLANK: SegmentEnd.SEALED,
    PieceKind.UNWRITTEN: SegmentEnd.OPEN,
    PieceKind.WAITING: SegmentEnd.OPEN,
    PieceKind.RECORD: SegmentEnd.OPEN,  # cut off behind a record: the file is shorter than the broker made it
    PieceKind.DAMAGE: SegmentEnd.DAMAGED,
}


class Piece(NamedTuple):
    """Some bytes of a segment: a DLedger record's piece includes its entry header."""

    kind: PieceKind
    offset: int
    size: int
    reason: str = ""

    @property
    def end(self) -> int:
        """The physical offset behind this piece."""
        return self.offset + self.size


def detect_framing(buffer: Buffer) -> Framing:
    """Tell by a segment's first bytes what its records stand behind; plain when they say nothing."""
    view = memoryview(buffer)
    if view.nbytes < BLANK.size:
        return Framing.PLAIN
    first, second = BLANK.unpack(view)
    plain = second in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)
    return Framing.DLEDGER if not plain and first in (DLEDGER_MAGIC, DLEDGER_END_MAGIC) else Framing.PLAIN


def walk(
    segment: Buffer,
    base_offset: int,
    framing: Framing = Framing.PLAIN,
    *,
    final: bool = False,
    start: int = 0,
    store_timestamp: int | None = None,
) -> Iterator[Piece]:
    """
    Yield the pieces of *segment*, whose first byte has the physical offset *base_offset*, from position *start* on.

    *final*: records are known to follow in a later segment, so nothing here is unfinished. *store_timestamp* is that of
    the last record before *start*, if one is known.
    """
    log = _Log(memoryview(segment), base_offset, framing)
    position = start
    newest = store_timestamp
    held: Piece | None = None  # the last record: whether it is whole, only what follows can tell
    reason = ""
    while position < log.size:
        if log.is_end_at(position):
            yield from filter(None, (held, log.piece(PieceKind.BLANK, position)))
            return
        try:
            record = log.record_at(position)
        except FormatError as error:
            reason = error.reason
            resume = log.find_record(position + 1, None if final else newest)
            if resume is None:
                break
            yield from filter(None, (held, log.piece(PieceKind.DAMAGE, position, resume, reason)))
            held, position = None, resume
            continue
        if held:
            yield held
        newest = record.store_timestamp
        end = position + framing.header_size + record.total_size
        held = log.piece(PieceKind.RECORD, position, end)
        position = end
    if held and not final and not is_settled(log.record_at(held.offset - base_offset)):
        position, held, reason = held.offset - base_offset, None, "the newest record is not whole yet"
    if held:
        yield held
    if position < log.size:
        yield from log.tail(position, reason, final=final)


def is_settled(record: MessageRecord) -> bool:
    """
    Tell whether the newest record of a log is written to its last byte.

    The broker copies a record front to back; a stored text never ends in a zero byte.
    """
    return has_right_body_crc(record) and not record.properties_raw.endswith(b"\0")


class _Log(NamedTuple):
    """A segment's bytes and where they stand."""

    view: memoryview
    base_offset: int
    framing: Framing

    @property
    def size(self) -> int:
        return self.view.nbytes

    def piece(self, kind: PieceKind, position: int, end: int | None = None, reason: str = "") -> Piece:
        return Piece(kind, self.base_offset + position, (self.size if end is None else end) - position, reason)

    def is_end_at(self, position: int) -> bool:
        """Tell whether the broker closed the file here. It never checks the size that a blank states."""
        if self.size - position < BLANK.size:
            return False
        first, second = BLANK.unpack(self.view, position)
        return first == DLEDGER_END_MAGIC if self.framing is Framing.DLEDGER else second == MAGIC_BLANK

    def record_at(self, position: int) -> MessageRecord:
        """Return the record whose piece begins at *position*; `FormatError` when there is none."""
        at = position + self.framing.header_size
        if self.framing is Framing.PLAIN:
            return decode_record(self.view, at, self.base_offset + at)
        entry = DLEDGER_ENTRY.unpack(self.view, position)
        magic, size, _, _, pos, _, _, _, body_length = entry
        place = self.base_offset + position
        if magic != DLEDGER_MAGIC or pos != place or size != self.framing.header_size + int(body_length):
            reason = f"entry header says magic {magic}, pos {pos}, size {size}, body {body_length!r}"
            raise CorruptData(reason, place)
        record = decode_record(self.view, at, self.base_offset + at)
        if record.total_size != body_length:
            reason = f"entry of {body_length!r} bytes around a record of {record.total_size}"
            raise CorruptData(reason, place)
        return record

    def find_record(self, start: int, not_before: int | None) -> int | None:
        """
        Return where the next record that proves itself begins.

        With *not_before*, the first one found must have been stored then or later: an older one is a leftover, and so
        is what follows it.
        """
        for magic in self._magics(start + self.framing.header_size + _MAGIC_POSITION):
            position = magic - _MAGIC_POSITION - self.framing.header_size
            try:
                record = self.record_at(position)
            except FormatError:
                continue
            if has_right_body_crc(record):
                return None if not_before is not None and record.store_timestamp < not_before else position
        return None

    def _magics(self, start: int) -> Iterator[int]:
        data = self.view.obj if isinstance(self.view.obj, bytes) else bytes(self.view)
        found = data.find(_MAGIC_START, start)
        while found >= 0:
            yield found
            found = data.find(_MAGIC_START, found + 1)

    def tail(self, position: int, reason: str, *, final: bool) -> Iterator[Piece]:
        """Yield what lies behind the last record that can be believed."""
        end = self._find_end(position)
        if end is not None and self.find_record(position + 1, None) is None:
            yield self.piece(PieceKind.DAMAGE, position, end, reason)
            yield self.piece(PieceKind.BLANK, end)
        elif final:
            yield self.piece(PieceKind.DAMAGE, position, None, reason)
        elif not any(self.view[position:]):
            yield self.piece(PieceKind.UNWRITTEN, position)
        else:
            yield self.piece(PieceKind.WAITING, position, None, reason)

    def _find_end(self, start: int) -> int | None:
        """Return where a blank stands that names exactly the bytes left."""
        for position in range(start + 1, self.size - BLANK.size + 1):
            first, second = BLANK.unpack(self.view, position)
            size = second if self.framing is Framing.DLEDGER else first
            if self.is_end_at(position) and size == self.size - position:
                return position
        return None


_MAGIC_POSITION = HEAD.offset("magic_code")
_MAGIC_START = MAGIC_V1.to_bytes(4, "big", signed=True)[:3]  # V1 and V2 differ in the last byte only
assert MAGIC_V2.to_bytes(4, "big", signed=True).startswith(_MAGIC_START)
