"""
One CommitLog segment: its records, and how it ends.

`walk` cuts a segment into pieces that cover it without gap or overlap: records, damage, and one last piece that says
how it ends. Only the size of a record determines where the next one begins. Nothing else identifies records: bodies may
contain complete records, and stale records with right offsets may follow a blank or the end of the chain. A blank
states the number of remaining bytes. A blank with another number was not written by a broker, and ends the segment only
if no valid record follows.

Damage does not end a walk. It continues at the next record that is valid by its magic number, lengths, own offset and
body CRC. In the segment to which a broker is writing, bytes that may be an unfinished write are not damage: they are
left for the next run unless a later record contradicts them, and even then they are read again first, because the
broker may have completed them in the meantime (`TailClassifier`). Recovery moves the write position back and leaves
old records after it. So a later record whose store time is before that of the last valid record is a leftover, unless
queues prove that it is part of the log. An old blank after the last valid record is one if queues prove that the log
ends there. The new leader of a DLedger group causes the same in the logs of other members,
and an old entry may directly follow the last new one: an entry with a lower term than the one before it is a leftover.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum, unique
from functools import partial
from typing import NamedTuple, Self

from rmq_formats.commitlog.layout import (
    BLANK,
    DLEDGER_END_MAGIC,
    DLEDGER_ENTRY,
    DLEDGER_MAGIC,
    HEAD,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    TOPIC_LENGTH,
)
from rmq_formats.commitlog.record import (
    MessageRecord,
    decode_record,
    has_right_body_crc,
    read_record,
    require_right_lengths,
)
from rmq_formats.errors import CorruptData, FormatError, is_disk_error
from rmq_formats.layout import Buffer, Read
from rmq_formats.properties import ends_in_unused_crc_field

NextWritten = Callable[[int], int]  # the first position, at or after this one, that is not in a hole of the file
# Returns why an older record, at an offset after damage, does not belong to the log; empty if queues prove it does.
LeftoverCheck = Callable[[int, MessageRecord], str]
CompletenessCheck = Callable[[MessageRecord], bool]  # whether the newest record is written to its last byte
LogEndCheck = Callable[[int], bool]  # whether queues prove that the log ends at an offset


@unique
class Framing(StrEnum):
    """The header before each record: none, or DLedger's entry header."""

    PLAIN = "plain"
    DLEDGER = "dledger"

    @property
    def header_size(self) -> int:
        """Bytes before each record."""
        return DLEDGER_ENTRY.size if self is Framing.DLEDGER else 0


@unique
class PieceKind(StrEnum):
    """The kinds of a segment's pieces."""

    RECORD = "record"
    DAMAGE = "damage"  # bytes between or after records that do not form one
    BLANK = "blank"  # the end of a full segment; the bytes after its eight are meaningless
    UNWRITTEN = "unwritten"  # zeros to the end: not written yet
    WAITING = "waiting"  # not complete yet, and no valid record follows


@unique
class SegmentEnd(StrEnum):
    """How a segment ends."""

    SEALED = "sealed"
    OPEN = "open"
    DAMAGED = "damaged"


class Piece(NamedTuple):
    """Some bytes of a segment: a DLedger record's piece includes its entry header."""

    kind: PieceKind
    offset: int
    size: int
    reason: str = ""

    @property
    def end(self) -> int:
        """The physical offset after this piece."""
        return self.offset + self.size

    @property
    def may_lack_messages(self) -> bool:
        """Whether messages may be missing here."""
        return self.kind is PieceKind.DAMAGE or self.reason in {UNDECIDED_REASON, FOREIGN_BYTES_REASON}


END_BY_LAST_PIECE = {
    PieceKind.BLANK: SegmentEnd.SEALED,
    PieceKind.UNWRITTEN: SegmentEnd.OPEN,
    PieceKind.WAITING: SegmentEnd.OPEN,
    PieceKind.RECORD: SegmentEnd.OPEN,  # cut off after a record: the file is shorter than the broker made it
    PieceKind.DAMAGE: SegmentEnd.DAMAGED,
}


def is_fully_written(record: MessageRecord) -> bool:
    """
    Return whether the newest record of a log that a broker may be writing is complete.

    A record is written front to back, so zeros at its end may be missing bytes. A value that ends in them delays the
    record until the next one follows.
    """
    ends_in_zeros = record.properties_raw.endswith(b"\0") and not ends_in_unused_crc_field(record.properties_raw)
    return has_right_body_crc(record) and not ends_in_zeros


def assume_left_over(_gap: int, _record: MessageRecord) -> str:
    """Classify every older record as left over: for callers that have no queues as evidence."""
    return STALE_REASON


def assume_no_end(_offset: int) -> bool:
    """Deny that the log ends at an offset: for callers that have no queues as evidence."""
    return False


class TailEvidence(NamedTuple):
    """Evidence from outside the log about the end of a segment to which a broker may be writing."""

    why_left_over: LeftoverCheck = assume_left_over
    is_complete: CompletenessCheck = is_fully_written
    is_log_end: LogEndCheck = assume_no_end


NO_EVIDENCE = TailEvidence()


def walk(  # noqa: PLR0913 - facts about a segment besides its bytes
    segment: Buffer,
    base_offset: int,
    framing: Framing = Framing.PLAIN,
    *,
    final: bool = False,
    start: int = 0,
    store_timestamp: int | None = None,
) -> Iterator[Piece]:
    """Yield the pieces of a segment that is in memory; see `walk_segment`."""
    log = SegmentBytes.from_buffer(segment, base_offset, framing)
    return walk_segment(log, final=final, start=start, store_timestamp=store_timestamp)


def walk_segment(
    log: "SegmentBytes",
    *,
    final: bool = False,
    start: int = 0,
    store_timestamp: int | None = None,
    evidence: TailEvidence = NO_EVIDENCE,
) -> Iterator[Piece]:
    """
    Yield the pieces of a segment, starting at position *start*; never more than one record is in memory.

    *final*: records are known to follow in a later segment, so nothing here is unfinished. *store_timestamp* is that of
    the last record before *start*, if one is known.
    """
    yield from _walk_on(log, start, TailClassifier(log, log.find_record, store_timestamp, evidence, final=final))


def _walk_on(log: "SegmentBytes", position: int, tail: "TailClassifier") -> Iterator[Piece]:
    final = tail.final
    term = LOWEST_TERM if final else log.term_before(position)
    is_complete: Callable[[], bool] | None = None  # returns whether the last record is complete
    held: Piece | None = None  # the piece of the last record, until the next bytes show whether it is complete
    reason = ""
    while position < log.size:
        if log.is_end_of_file(position, tail.next_record):
            yield from filter(None, (held, log.make_piece(PieceKind.BLANK, position)))
            return
        try:
            found = log.record_at(position)
        except FormatError as error:
            resume = None if log.is_zero_from(position) else tail.next_record(position)
            if resume is None:
                reason = tail.stale_reason or error.reason
                break
            if tail.has_record_now(position):
                continue
            yield from filter(None, (held, log.make_piece(PieceKind.DAMAGE, position, resume, error.reason)))
            held, position = None, resume
            # Like a walk that begins here: damage does not show a term.
            term = LOWEST_TERM if final else log.term_before(resume)
            continue
        if not final and log.term_at(position) < term:
            reason = LEFTOVER_REASON
            break
        term = log.term_at(position)
        if held:
            yield held
        is_complete = None if final else tail.make_completeness_check(found)
        tail.newest_timestamp = found.store_timestamp
        end = position + log.framing.header_size + found.total_size
        del found  # the caller may be reading another large record
        held = log.make_piece(PieceKind.RECORD, position, end)
        position = end
    if held and is_complete and not is_complete():
        position, held, reason = held.offset - log.base_offset, None, tail.stale_reason or UNSETTLED_REASON
    if held:
        yield held
    pieces = tail.last_pieces(log, position, reason)
    yield from _walk_on(log, position, tail) if pieces is None else pieces


@dataclass
class TailClassifier:
    """
    Distinguishes damage from leftovers in a segment that a broker may be writing to.

    A broker writes in order. So all bytes before a record were complete when the record was written, and a second read
    returns all of them.
    """

    file: "SegmentBytes"  # each access reads the file again
    find_record: Callable[[int], int | None]
    newest_timestamp: int | None  # store time of the last record that is part of the log
    evidence: TailEvidence
    final: bool  # no broker writes here any more, and nothing is left over
    stale_reason: str = ""  # why the record that the last search found is left over
    _place: int = -1
    _looks: int = 0

    def next_record(self, position: int) -> int | None:
        """Return the position of the next record after *position*, if it is part of the log."""
        self.stale_reason = ""
        found = self.find_record(position + 1)
        if found is None or self.newest_timestamp is None or self.final:
            return found
        try:
            record = self.file.record_at(found)
        except FormatError:  # a broker cut the file, or overwrites leftovers
            return None
        gap = self.file.base_offset + position + self.file.framing.header_size
        is_older = record.store_timestamp < self.newest_timestamp
        self.stale_reason = self.evidence.why_left_over(gap, record) if is_older else ""
        return None if self.stale_reason else found

    def last_pieces(self, log: "SegmentBytes", position: int, reason: str) -> list[Piece] | None:
        """Return the pieces after the last record; None if bytes that looked damaged have become a record."""
        pieces = list(log.tail_pieces(position, reason, final=self.final)) if position < log.size else []
        has_damage = any(piece.kind is PieceKind.DAMAGE for piece in pieces)
        if has_damage and not self.final and self.evidence.is_log_end(log.base_offset + position):
            return [log.make_piece(PieceKind.WAITING, position, None, STALE_REASON)]
        return None if has_damage and self.has_record_now(position) else pieces

    def make_completeness_check(self, record: MessageRecord) -> Callable[[], bool]:
        """Return a function that returns whether *record* is complete; it does not keep a large one in memory."""
        if record.total_size <= LARGE_RECORD_SIZE:
            return partial(self.evidence.is_complete, record)
        is_complete = self.evidence.is_complete(record)
        return lambda: is_complete

    def has_record_now(self, position: int) -> bool:
        """Return whether a record is complete now; each position is read again only a few times."""
        self._looks = self._looks + 1 if position == self._place else 1
        self._place = position
        if self.final or self._looks > _MOST_LOOKS:
            return False
        try:
            return self.file.has_record_at(position)
        except OSError as error:
            if not is_disk_error(error):
                raise
            return False


@dataclass
class SegmentBytes:
    """A segment's bytes, read by position, with their offset in the log; `scan` has a similar class for a window."""

    read: Read
    size: int
    base_offset: int
    framing: Framing = Framing.PLAIN
    next_written: NextWritten = int

    @classmethod
    def from_buffer(cls, buffer: Buffer, base_offset: int, framing: Framing = Framing.PLAIN) -> Self:
        """Return the segment that *buffer* holds."""
        view = memoryview(buffer)
        return cls(lambda position, length: view[position : position + length], view.nbytes, base_offset, framing)

    def make_piece(self, kind: PieceKind, position: int, end: int | None = None, reason: str = "") -> Piece:
        """Return the piece from *position* to *end*, or to the end of the segment."""
        return Piece(kind, self.base_offset + position, (self.size if end is None else end) - position, reason)

    def stated_blank_size(self, position: int) -> int | None:
        """Return the size that an end of file at *position* states, which no broker checks; None without one."""
        head = self.read(position, BLANK.size)
        if len(head) < BLANK.size:
            return None
        first, second = map(int, BLANK.unpack(head))
        if self.framing is Framing.DLEDGER:
            return second if first == DLEDGER_END_MAGIC and second > 0 else None
        return first if second == MAGIC_BLANK else None

    def is_end_of_file(self, position: int, next_record: Callable[[int], int | None]) -> bool:
        """Return whether *position* has an end of file that states the remaining bytes, or that no record follows."""
        stated = self.stated_blank_size(position)
        if stated is None or stated == self.size - position:
            return stated is not None
        return next_record(position) is None

    def record_at(self, position: int) -> MessageRecord:
        """Return the record whose piece begins at *position*; `FormatError` without one."""
        if self.framing is Framing.PLAIN:
            return self._decode(position)
        place = self.base_offset + position
        header_size = self.framing.header_size
        magic, size, _, _, pos, _, _, _, length = map(int, DLEDGER_ENTRY.unpack(self.read(position, header_size)))
        if magic != DLEDGER_MAGIC or pos != place or size != header_size + length:
            raise CorruptData(f"entry header has magic {magic}, pos {pos}, size {size}, body {length}", place)
        record = self._decode(position + header_size)
        if record.total_size != length:
            raise CorruptData(f"entry of {length} bytes around a record of {record.total_size}", place)
        return record

    def term_at(self, position: int) -> int:
        """Return the term of the entry at *position*; 0 where the log has no entries."""
        if self.framing is Framing.PLAIN:
            return 0
        return int(DLEDGER_ENTRY.unpack(self.read(position, DLEDGER_ENTRY.size))[_TERM])

    def term_before(self, position: int) -> int:
        """Return the term of the entry that ends at *position*; the lowest one if no entry is found."""
        reach, limit = 0, 0 if self.framing is Framing.PLAIN else min(position, _LARGEST_ENTRY)
        try:
            while reach < limit:
                reach = min(max(16 * reach, _NEAR), position)
                term = _last_term(bytes(self.read(position - reach, reach)), self.base_offset + position)
                if term is not None:
                    return max(term, LOWEST_TERM)
        except OSError as error:
            if not is_disk_error(error):
                raise
            return LOWEST_TERM  # unreadable bytes prove nothing
        return LOWEST_TERM

    def has_record_at(self, position: int) -> bool:
        """Return whether a record's piece begins at *position*."""
        try:
            self.record_at(position)
        except FormatError:
            return False
        return True

    def decode_records(self, position: int = 0) -> Iterator[MessageRecord]:
        """Yield the records that begin at *position*, up to the first piece of another kind."""
        with suppress(FormatError):  # a piece that is not a record ends the walk
            while True:
                record = self.record_at(position)
                yield record
                position = record.end_offset - self.base_offset

    def walk_record_bounds(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """
        Yield the physical offsets at which each record begins and ends, up to the first byte without a record.

        Reads only the heads. Follows the sizes from the segment's first byte, or from a known boundary at position
        *start*: other bytes that look like a record are not one.
        """
        header = self.framing.header_size
        window, window_start = b"", 0
        position = start + header
        while True:
            at = position - window_start
            if not 0 <= at <= len(window) - HEAD.size:
                window_start, at = position, 0
                window = bytes(self.read(window_start, min(_WINDOW, self.size - window_start)))
            try:
                head = HEAD.unpack(window, at)
            except FormatError:
                return
            size, offset = int(head[_TOTAL_SIZE]), int(head[_PHYSICAL_OFFSET])
            is_record = offset == self.base_offset + position and int(head[_MAGIC_CODE]) in TOPIC_LENGTH
            if not is_record or not MIN_RECORD_SIZE <= size <= self.size - position:
                return
            yield offset, offset + size
            position += size + header

    def _decode(self, at: int) -> MessageRecord:
        # A corrupt size must not cause a read of a gigabyte: a record with an invalid head is not read.
        head = self.read(at, HEAD.size)
        total_size, magic_code = map(int, BLANK.unpack(head))
        is_possible = magic_code in TOPIC_LENGTH and HEAD.size < total_size <= self.size - at
        if is_possible and total_size > LARGE_RECORD_SIZE:
            return self.read_large_record(at)
        return decode_record(self.read(at, total_size) if is_possible else head, 0, self.base_offset + at)

    def read_large_record(self, at: int) -> MessageRecord:
        """Return the record at position *at*; its body is read only if all lengths are right, and not copied."""
        return read_record(partial(self._read_after, at), self.size - at, self.base_offset + at)

    def require_right_lengths(self, at: int) -> None:
        """Raise `FormatError` if the lengths of the record at position *at* are wrong; its body is not read."""
        require_right_lengths(partial(self._read_after, at), self.size - at, self.base_offset + at)

    def _read_after(self, at: int, position: int, length: int) -> Buffer:
        return self.read(at + position, length)

    def find_record(self, start: int) -> int | None:
        """Return the position of the next record with valid fields and the right body CRC; None if there is none."""
        header_size = self.framing.header_size
        for magic in self._find(_MAGIC_START, start + header_size + _MAGIC_POSITION):
            position = magic - _MAGIC_POSITION - header_size
            try:
                record = self.record_at(position)
            except FormatError:
                continue
            if has_right_body_crc(record):
                return position
        return None

    def tail_pieces(self, position: int, reason: str, *, final: bool) -> Iterator[Piece]:
        """Yield the pieces after the last sound record."""
        is_zero = self.is_zero_from(position)
        end = None if is_zero or reason == LEFTOVER_REASON else self.find_end_of_file(position + 1)
        if end is not None and self.find_record(position + 1) is None:
            yield self.make_piece(PieceKind.DAMAGE, position, end, reason)
            yield self.make_piece(PieceKind.BLANK, end)
        elif final:
            yield self.make_piece(PieceKind.DAMAGE, position, None, reason)
        elif is_zero:
            yield self.make_piece(PieceKind.UNWRITTEN, position)
        else:
            is_foreign = position == 0 and not self.may_begin_with_record()
            yield self.make_piece(PieceKind.WAITING, position, None, FOREIGN_BYTES_REASON if is_foreign else reason)

    def may_begin_with_record(self) -> bool:
        """Return whether the first bytes are those of a record, or of one that a broker has begun to write."""
        head = bytes(self.read(0, BLANK.size))
        if len(head) < BLANK.size or head.startswith(_ENTRY_START):
            return True
        written = head[_MAGIC_POSITION:].rstrip(b"\0")
        return any(magic.startswith(written) for magic in (_V1, _V2, _BLANK_MAGIC))

    def is_zero_from(self, position: int) -> bool:
        """Return whether nothing but zeros follows."""
        return all(window.count(0) == len(window) for _, window in self._windows(position))

    def find_end_of_file(self, start: int) -> int | None:
        """Return the position of a blank that states the right number of remaining bytes."""
        magic, magic_at = (_BLANK_MAGIC, _MAGIC_POSITION)
        if self.framing is Framing.DLEDGER:
            magic, magic_at = _DLEDGER_END_MAGIC, 0
        positions = (found - magic_at for found in self._find(magic, start + magic_at))
        return next(
            (position for position in positions if self.stated_blank_size(position) == self.size - position), None
        )

    def _find(self, wanted: bytes, start: int) -> Iterator[int]:
        for position, window in self._windows(start, len(wanted) - 1):
            found = window.find(wanted)
            while found >= 0:
                yield position + found
                found = window.find(wanted, found + 1)

    def _windows(self, start: int, overlap: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes, starting at *start*, each window with the first *overlap* bytes of the next."""
        position = start
        while (position := self.next_written(position)) < self.size:
            yield position, bytes(self.read(position, _WINDOW + overlap))
            position += _WINDOW


def _last_term(data: bytes, end_offset: int) -> int | None:
    """Return the term of the last entry in *data*, which ends at *end_offset*."""
    at = len(data)
    while (at := data.rfind(_ENTRY_START, 0, at + len(_ENTRY_START) - 1)) >= 0:
        size = len(data) - at
        if size >= DLEDGER_ENTRY.size:
            entry = DLEDGER_ENTRY.unpack(data[at:])
            if (entry[_SIZE], entry[_POS]) == (size, end_offset - size):
                return int(entry[_TERM])
    return None


LOWEST_TERM = -(1 << 63) + 1  # up to 4.7.1, groups of one member begin with term -1
LEFTOVER_REASON = "an entry with a lower term than the previous one: it was truncated, but has not been overwritten yet"
STALE_REASON = "older records or an old end of the file follow: they are left over from before the log was truncated"
UNDECIDED_REASON = (
    "older records follow, and queues of this store, which was shut down cleanly, point to them: it is undecided "
    "whether they are left over"
)
UNSETTLED_REASON = "the newest record is not complete yet"
# Not damage, because a broker that starts on such a segment overwrites it: a later run must read these offsets again.
FOREIGN_BYTES_REASON = (
    "the segment begins with neither a record nor zeros; it was overwritten, encrypted, or not written by a broker"
)

LARGE_RECORD_SIZE = 1 << 20  # bytes; all lengths of a larger record are checked before it is read
_MOST_LOOKS = 3  # times that the same position is examined
_WINDOW = 1 << 20
_NEAR = 1 << 16
_LARGEST_ENTRY = 16 << 20
_ENTRY_START = DLEDGER_MAGIC.to_bytes(4)
_SIZE, _TERM, _POS = map(DLEDGER_ENTRY.index, ("size", "term", "pos"))
_MAGIC_POSITION = HEAD.offset("magic_code")
_TOTAL_SIZE, _MAGIC_CODE, _PHYSICAL_OFFSET = map(HEAD.index, ("total_size", "magic_code", "physical_offset"))
_V1, _V2, _BLANK_MAGIC, _DLEDGER_END_MAGIC = (
    magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK, DLEDGER_END_MAGIC)
)
_MAGIC_START = _V1[:3]  # the common part of V1 and V2
