"""
Compiled walk over a segment: yields the same pieces as `segment.walk`, at memory speed.

A range of a segment is read window by window into one buffer, and a compiled loop follows the chain of records through
it. Rare cases (damage, the end of the log) are decided in Python by the scalar module. Memory holds one window, or one
record if that is larger. Unreadable parts of the file are treated as damage, and reading continues after them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from rmq_formats.commitlog import kernels
from rmq_formats.commitlog.framing import DISK_BLOCK_SIZE
from rmq_formats.commitlog.layout import BLANK, HEAD, MIN_RECORD_SIZE
from rmq_formats.commitlog.record import MessageRecord, decode_record
from rmq_formats.commitlog.segment import (
    LARGE_RECORD_SIZE,
    LEFTOVER_REASON,
    NO_EVIDENCE,
    UNSETTLED_REASON,
    Framing,
    NextWritten,
    Piece,
    PieceKind,
    SegmentBytes,
    TailClassifier,
    TailEvidence,
)
from rmq_formats.errors import CorruptData, FormatError, is_disk_error
from rmq_formats.kernels.integers import Bytes, Integers, Sizes, read_i32
from rmq_formats.layout import Read
from rmq_formats.properties import MAX_LONG

_READ_BEYOND = 64 << 10  # bytes after a range that are read with it: its last record usually ends there
ReadInto = Callable[[int, memoryview], int]  # fills a buffer from a position; fewer bytes only at the end


class Window:
    """The bytes at `position`, as many as the buffer holds, or fewer up to the end or to unreadable blocks."""

    def __init__(self, read: Read, size: int, capacity: int, end: int, read_into: ReadInto | None = None) -> None:
        """Read nothing yet; *size* is that of the file, *capacity* that of the buffer, *end* that of the range."""
        self._read_into = read_into or partial(_copy_into, read)
        self._capacity = max(min(capacity, size), 1)
        self._beyond = end + _READ_BEYOND
        self.size = size  # less if the file turns out to be shorter
        self.buffer: Bytes = np.empty(self._capacity, np.uint8)
        self.position = 0
        self.filled = 0
        self.unreadable: tuple[int, int] | None = None  # blocks after the bytes that were read

    def buffer_position_of(self, position: int, wanted: int) -> int:
        """Return where *position* is in the buffer; *wanted* bytes follow unless the readable part of the file ends."""
        at = position - self.position
        is_exhausted = self.unreadable is not None or self.is_last
        if not 0 <= at <= self.filled or (at + wanted > self.filled and not is_exhausted):
            self._load_window(position, wanted)
            return 0
        return at

    def invalidate(self) -> None:
        """Discard the bytes; the next access reads the file again."""
        self.filled, self.unreadable = 0, None

    @property
    def is_last(self) -> bool:
        """Return whether the bytes reach the end of the file."""
        return self.position + self.filled >= self.size

    def _load_window(self, position: int, wanted: int) -> None:
        """Move the window to *position*, with at least *wanted* bytes if the segment has them."""
        capacity = max(self._capacity, wanted)
        start = position - self.position
        is_known = 0 <= start < self.filled
        kept = self.buffer[start : min(self.filled, start + capacity)] if is_known else self.buffer[:0]
        if self.buffer.size != capacity:
            self.buffer = np.empty(capacity, np.uint8)
        self.buffer[: kept.size] = kept
        self.position, self.filled, self.unreadable = position, kept.size, None
        useful = max(self._beyond - position, wanted) if position < self._beyond else capacity
        stop = min(capacity, useful, self.size - position)
        try:
            self._read_up_to(stop)
        except OSError as error:
            if not is_disk_error(error):
                raise
            self._append_blocks(stop)

    def _append_blocks(self, stop: int) -> None:
        while self.filled < min(stop, self.size - self.position):
            position = self.position + self.filled
            try:
                self._read_up_to(min(stop, self.filled + DISK_BLOCK_SIZE - position % DISK_BLOCK_SIZE))
            except OSError as error:
                if not is_disk_error(error):
                    raise
                self.unreadable = position, self._readable_from(position)
                return

    def _read_up_to(self, stop: int) -> None:
        """Read bytes into the window until it is filled up to *stop*."""
        wanted = stop - self.filled
        count = self._read_into(self.position + self.filled, self.buffer.data[self.filled : stop])
        self.filled += count
        if count < wanted:  # the file was truncated while it is read: there are no more bytes
            self.size = self.position + self.filled

    def _readable_from(self, position: int) -> int:
        """Return the end of the blocks that cannot be read; the one at *position* is the first."""
        probe = memoryview(bytearray(DISK_BLOCK_SIZE))
        while True:
            position = min(position + DISK_BLOCK_SIZE - position % DISK_BLOCK_SIZE, self.size)
            if position >= self.size:
                return position
            try:
                self._read_into(position, probe[: min(DISK_BLOCK_SIZE, self.size - position)])
            except OSError as error:
                if not is_disk_error(error):
                    raise
                continue
            return position


def _copy_into(read: Read, position: int, target: memoryview) -> int:
    data = memoryview(read(position, target.nbytes)).cast("B")[: target.nbytes]
    target[: data.nbytes] = data
    return data.nbytes


WINDOW_SIZE = 16 << 20
IO_ERROR = "io_error"

_MAGIC_SIZE = 4
UNCHECKED_TERM = kernels.UNCHECKED_TERM
_UNREADABLE = -1  # an additional kind, which the kernels do not return


class RawRecords(NamedTuple):
    """Some complete records in a buffer that is valid until the scan goes on."""

    buffer: Bytes
    base_offset: int  # physical offset of the buffer's first byte
    positions: Integers  # the start of each record, after its DLedger entry header if it has one
    sizes: Sizes
    header_size: int = 0  # the size of the DLedger entry header before each record

    @property
    def byte_count(self) -> int:
        """The size of all records."""
        return int(self.sizes.sum(dtype=np.int64))


def scan(
    read: Read,
    start: int,
    end: int,
    segment_size: int,
    base_offset: int,
    framing: Framing = Framing.PLAIN,
    *,
    final: bool,
    store_timestamp: int | None = None,
    starts_anywhere: bool = False,
    window: int = WINDOW_SIZE,
    read_into: ReadInto | None = None,
    next_written: NextWritten = int,
    evidence: TailEvidence = NO_EVIDENCE,
) -> Iterator[RawRecords | Piece]:
    """
    Yield the pieces that begin in positions [start, end) of a segment; the last one may reach beyond.

    Records come in groups, all other pieces one by one. A piece begins at *start*; with *starts_anywhere*, *start* is
    any position, and the range begins at the first valid record. *read* raises `OSError` for unreadable bytes; with
    *read_into*, bytes are not copied a second time; with *next_written*, holes of the file are not searched. *final*,
    *store_timestamp* and *evidence* are those of `segment.walk_segment`.
    """
    if base_offset + segment_size > MAX_LONG:
        raise CorruptData("a file at this offset would extend past the largest 64-bit offset", base_offset)
    file = SegmentBytes(read, segment_size, base_offset, framing)
    log = _Log(Window(read, segment_size, window, end, read_into), file, next_written)
    try:
        if starts_anywhere:
            first = log.find_record(start, stop=end)
            if first is None:
                return
            start = first
        tail = TailClassifier(file, log.find_record, store_timestamp, evidence, final=final)
        term_before = file.term_before if framing is Framing.DLEDGER and not final else lambda _: UNCHECKED_TERM
        yield from _Walker(log, end, tail, term_before, term_before(start)).walk(start)
    finally:
        del log.read  # a bound method: the buffer would stay until Python collects cycles


@dataclass(slots=True)
class _Walker:
    log: "_Log"
    end: int
    tail: TailClassifier
    term_before: Callable[[int], int]  # returns the term of the entry that ends at a position
    term: int  # the term of the last entry, if leftovers may follow it
    held: RawRecords | None = None  # a copy of the last record, until the next bytes show whether it is complete

    def walk(self, position: int) -> Iterator[RawRecords | Piece]:
        log, tail = self.log, self.tail
        reason = ""
        while position < min(self.end, log.size):
            records, position, found = log.chain(position, self.end, self.term)
            if records is not None:
                yield from self._yield_held()
                yield from self._hold(records)
            if found == kernels.LEFTOVER:
                reason = LEFTOVER_REASON
                break
            if found == kernels.END_OF_FILE and log.is_end_of_file(position, tail.next_record):
                yield from self._yield_held()
                yield log.make_piece(PieceKind.BLANK, position)
                return
            if found in (kernels.BAD, kernels.END_OF_FILE, _UNREADABLE):
                reason, unreadable_end = log.refusal(position, found)
                after = tail.next_record(position)
                if after is None:
                    after = unreadable_end
                if after is None:
                    reason = tail.stale_reason or reason
                    break
                if tail.has_record_now(position):
                    log.forget()
                    continue
                yield from self._yield_held()
                yield log.make_piece(PieceKind.DAMAGE, position, after, reason)
                position, self.term = after, self.term_before(after)
        if self.held is not None and not self._is_followed(position):
            position, self.held = self.held.base_offset - log.base_offset, None
            reason = tail.stale_reason or UNSETTLED_REASON
        yield from self._yield_held()
        pieces = tail.last_pieces(log, position, reason) if position < self.end else []
        if pieces is None:
            log.forget()
            yield from self.walk(position)
        else:
            yield from (piece for piece in pieces if piece.offset < log.base_offset + self.end)

    def _hold(self, records: RawRecords) -> Iterator[RawRecords]:
        """Yield *records*, without the last one if it may be unfinished."""
        last = int(records.positions[-1])
        self.tail.newest_timestamp = int(kernels.read_store_timestamp(records.buffer, last))
        if self.term != UNCHECKED_TERM:
            self.term = kernels.read_entry_term(records.buffer, last)
        end = last + int(records.sizes[-1])
        if not (self.tail.final or kernels.is_fully_written(records.buffer, last) or self._is_complete(records, end)):
            header_size = self.log.framing.header_size
            self.held = RawRecords(
                records.buffer[last - header_size : end].copy(),
                records.base_offset + last - header_size,
                np.array([header_size], np.int64),
                records.sizes[-1:],
                header_size,
            )
            records = records._replace(positions=records.positions[:-1], sizes=records.sizes[:-1])
        if records.positions.size:
            yield records

    def _is_complete(self, records: RawRecords, end: int) -> bool:
        last = int(records.positions[-1])
        return self.tail.evidence.is_complete(
            decode_record(records.buffer.data[last:end], 0, records.base_offset + last)
        )

    def _yield_held(self) -> Iterator[RawRecords]:
        if self.held is not None:
            yield self.held
            self.held = None

    def _is_followed(self, position: int) -> bool:
        """Return whether something after the range shows that the record before *position* is complete."""
        if not self.end <= position < self.log.size:
            return False
        _, _, found = self.log.chain(position, position + 1, self.term)
        is_end = found in {kernels.BAD, kernels.LEFTOVER}
        return not is_end or self.tail.next_record(position) is not None


class _Log(SegmentBytes):
    """A segment's bytes, window by window; compiled code does the searches that `SegmentBytes` does in Python."""

    def __init__(self, window: Window, file: SegmentBytes, next_written: NextWritten) -> None:
        super().__init__(self._read_window, window.size, file.base_offset, file.framing, next_written)
        self._window = window
        self._file = file
        self._header_size = file.framing.header_size
        self._group_size = window.buffer.size  # a buffer that grew for one record would hold too many small ones
        self._zeros_from = window.size  # all bytes after this position are known to be zero
        self._known = (0, 0)  # the window whose end of zeros is known
        self._known_end = 0
        self._positions: Integers = np.empty(window.buffer.size // MIN_RECORD_SIZE + 1, np.int64)
        self._sizes: Sizes = np.empty(self._positions.size, np.int32)

    def _seek(self, position: int, wanted: int) -> int:
        """Return the place of a position in the buffer, followed by *wanted* bytes if the file has them."""
        at = self._window.buffer_position_of(position, min(wanted, self.size - position))
        self.size = self._window.size
        return at

    def _read_window(self, position: int, length: int) -> memoryview:
        """Return the bytes in the window, which `record_at` never enlarges."""
        at = self._seek(position, self._header_size + HEAD.size)
        return self._window.buffer.data[at : min(at + length, self._window.filled)]

    def chain(self, position: int, stop: int, term: int = UNCHECKED_TERM) -> tuple[RawRecords | None, int, int]:
        """
        Return the consecutive records at *position*, their end, and the kind of the next bytes.

        *term* is that of the previous entry, if leftovers are to be detected.
        """
        window = self._window
        stop = min(stop, position + self._group_size)
        head = wanted = self._header_size + HEAD.size
        while True:
            at = self._seek(position, wanted)
            base = self.base_offset + window.position
            count, next_at, found = kernels.follow_chain(
                window.buffer, at, window.filled, stop - window.position, base, self._header_size,
                self._positions, self._sizes, term,
            )  # fmt: skip
            if count:
                buffer, positions, sizes = window.buffer[: window.filled], self._positions, self._sizes
                records = RawRecords(buffer, base, positions[:count].copy(), sizes[:count].copy(), self._header_size)
                return records, window.position + int(next_at), int(found)
            if found != kernels.INCOMPLETE:
                return None, position, int(found)
            there = window.filled - at
            left = self.size - position
            if there < head:
                return None, position, _UNREADABLE if there < left else kernels.BAD
            needed = self._header_size + int(read_i32(window.buffer, at + self._header_size + kernels.TOTAL_SIZE_AT))
            # The stated size was requested already, and bytes are still missing: reading again would loop forever.
            if needed > left or needed == wanted:
                return None, position, kernels.BAD if needed > left else _UNREADABLE
            is_large = needed > max(self._group_size, LARGE_RECORD_SIZE + self._header_size)
            if is_large and not self._has_right_lengths(position + self._header_size):
                return None, position, kernels.BAD
            wanted = needed

    def _has_right_lengths(self, at: int) -> bool:
        """Return whether a record that is larger than the window has the right lengths, or cannot be read."""
        try:
            self._file.require_right_lengths(at)
        except FormatError:
            return False
        except OSError as error:
            if not is_disk_error(error):
                raise
        return True

    def read_large_record(self, at: int) -> MessageRecord:
        return self._file.read_large_record(at)

    def refusal(self, position: int, found: int) -> tuple[str, int | None]:
        """Return why no record is at *position*, and where to continue if it could not be read."""
        window = self._window
        if found == _UNREADABLE and window.unreadable is not None:
            return IO_ERROR, window.unreadable[1]
        try:
            self.record_at(position)
        except FormatError as error:
            return error.reason, None
        except OSError as error:
            if not is_disk_error(error):
                raise
            return IO_ERROR, None
        return "", None

    def forget(self) -> None:
        """Discard all bytes; the next access reads the file again."""
        self._window.invalidate()
        self._known, self._zeros_from = (0, 0), self.size

    def find_record(self, start: int, stop: int | None = None) -> int | None:
        """Return the position of the next valid record before *stop*, like the scalar `find_record`."""
        window = self._window
        magic_at = self._header_size + kernels.MAGIC_CODE_AT
        reach = magic_at + _MAGIC_SIZE
        position = written = start
        while True:
            position = max(position, self.next_written(position) - magic_at)  # a magic number has no zeros
            if position >= (self.size if stop is None else min(stop, self.size)):
                break
            at = self._seek(position, reach)
            end = self._written_end()
            if end > at:
                written = window.position + end
            found = int(kernels.find_magic(window.buffer, at + magic_at, end))
            if found < end:
                position = window.position + found - magic_at
                if stop is not None and position >= stop:
                    return None
                records, _, _ = self.chain(position, position + 1)
                if records is not None and kernels.has_right_body_crc(records.buffer, records.positions[0]):
                    return position
                position += 1
            elif window.unreadable is not None:
                position = written = window.unreadable[1]
            elif window.is_last:
                break
            else:
                position = window.position + window.filled - reach + 1
        if stop is None:
            self._zeros_from = min(written, self.size)
        return None

    def _written_end(self) -> int:
        window = self._window
        if self._known != (window.position, window.filled):
            self._known = window.position, window.filled
            self._known_end = int(kernels.find_trailing_zeros(window.buffer, 0, window.filled))
        return self._known_end

    def find_end_of_file(self, start: int) -> int | None:
        window, position = self._window, start
        while position < min(self._zeros_from + BLANK.size, self.size):
            at = self._seek(position, BLANK.size)
            limit = min(window.filled, self._zeros_from + BLANK.size - window.position)
            found = int(kernels.find_end_of_file(window.buffer, at, limit, self.size - position, self._header_size))
            if found >= 0:
                return window.position + found
            if window.unreadable is not None:
                position = window.unreadable[1]
            elif window.is_last:
                break
            else:
                position = window.position + window.filled - BLANK.size + 1
        return None

    def is_zero_from(self, position: int) -> bool:
        window = self._window
        while position < min(self._zeros_from, self.size):
            at = self._seek(position, 1)
            if at == window.filled or kernels.find_trailing_zeros(window.buffer, at, window.filled) > at:
                return False
            position = window.position + window.filled
        return True
