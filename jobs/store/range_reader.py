"""Reads one range of the log: its pieces, and the facts by which the driver checks that ranges are contiguous."""

from collections.abc import Generator
from dataclasses import dataclass, field, replace

import numpy as np

from jobs.console.process import raise_if_stopped
from jobs.storage.model import Reader
from jobs.store.ranges import Range
from jobs.store.record_places import Fingerprint
from jobs.store.running_broker import may_have_running_broker
from rmq_formats.commitlog import kernels
from rmq_formats.commitlog.framing import find_framing
from rmq_formats.commitlog.scan import WINDOW_SIZE, RawRecords, scan
from rmq_formats.commitlog.segment import LARGE_RECORD_SIZE, Framing, Piece, PieceKind

STORED_TOO_RECENTLY = "stored too recently"
_MOST_LOOKS = 3  # times that one position is read again
_SLICE = 256 << 10  # bytes of a second read that are in memory at a time
TAIL_SIZE = 256 << 10  # bytes of a range's last records that its last fingerprint covers


@dataclass(slots=True)
class RangeFacts:
    """The boundaries and the end of a range, as far as it was read."""

    next_offset: int  # the start of the piece after the range's last one
    store_timestamp: int | None  # the store time of the range's last record
    first_offset: int | None = None  # the start of the range's first piece; None if no piece begins in the range
    last_kind: PieceKind | None = None  # the kind of the range's last piece
    last_reason: str = ""  # the reason of the last piece
    # The offset from which the log is unwritten or incomplete; a later run continues there.
    unfinished_from: int | None = None
    was_deleted: bool = False  # the file was deleted before all of it was read
    records: int = 0
    damaged_ranges: list[tuple[int, int]] = field(default_factory=list)  # start and end of bytes without a record
    # Fingerprints of the first record, of one before the end, and of the last ones.
    fingerprints: tuple[Fingerprint, ...] = ()


class RangeReader:
    """Yields the pieces of a range, and remembers the records that it has seen."""

    def __init__(self, range_: Range, window: int = WINDOW_SIZE) -> None:
        """Read nothing yet; later *window* bytes at a time, or one record if it is larger."""
        self._range = range_
        self._window = range_.window or window
        self._seen = RangeFacts(range_.start_offset, range_.store_timestamp)
        self._looked = (-1, 0)  # the position that was last read again, and how often
        # First records of the range, of the group before the last one, and of the last group.
        self._firsts: list[Fingerprint] = []
        # The last records: their offset and bytes, or their fingerprint.
        self._tail: Fingerprint | tuple[int, bytes] = (0, b"")

    def pieces(self) -> Generator[RawRecords | Piece]:
        """Yield records in groups, everything else piece by piece; a group's buffer is valid until the next one."""
        range_ = self._range
        try:
            with range_.open() as file:
                framing = find_framing(file.read, range_.segment_size, range_.base_offset)
                start: int | None = range_.start
                while start is not None:
                    start = yield from self._read_from(file, framing, start)
        except FileNotFoundError:
            self._seen.was_deleted = True
            self._seen.next_offset = range_.end_offset

    def _read_from(self, file: Reader, framing: Framing, start: int) -> Generator[RawRecords | Piece, None, int | None]:
        """Yield the pieces after a position; return the position to read again if a broker has just written there."""
        range_ = self._range
        for item in scan(
            file.read,
            start,
            range_.end,
            range_.segment_size,
            range_.base_offset,
            framing,
            final=range_.final,
            store_timestamp=self._seen.store_timestamp,
            starts_anywhere=range_.starts_anywhere and start == range_.start,
            window=self._window,
            read_into=file.read_into,
            next_written=file.next_written,
            evidence=range_.evidence,
        ):
            raise_if_stopped()
            if isinstance(item, Piece):
                self._note_piece(item.offset, item.end, item.kind, item.reason)
                yield item
                continue
            at = int(item.positions[0]) + item.base_offset - framing.header_size - range_.base_offset
            if self._looks_again(at) and not self._is_unchanged(file, item, at):
                return at
            settled = self._count_settled_records(item)
            if settled:
                group = item._replace(positions=item.positions[:settled], sizes=item.sizes[:settled])
                self._note_records(group, framing.header_size)
                yield group
            if settled < item.positions.size:
                unread = item.base_offset + int(item.positions[settled]) - framing.header_size
                end = range_.base_offset + range_.segment_size
                self._note_piece(unread, end, PieceKind.WAITING)
                yield Piece(PieceKind.WAITING, unread, end - unread, STORED_TOO_RECENTLY)
                return None
        return None

    def _looks_again(self, at: int) -> bool:
        """
        Return whether to read the records at a position again, because a broker may have written to the file meanwhile.

        A page may have been read before the broker filled it, and the next page afterwards. Inside a body, no length
        field shows this. The broker writes in order, so a second read returns the complete page.
        """
        if self._range.store_in_use is None or not may_have_running_broker(self._range.store_in_use):
            return False
        place, times = self._looked
        self._looked = at, times + 1 if at == place else 1
        return self._looked[1] <= _MOST_LOOKS

    def _is_unchanged(self, file: Reader, group: RawRecords, at: int) -> bool:
        """Return whether a second read, from position *at* of the file, returns the same bytes of a group."""
        start = at + self._range.base_offset - group.base_offset
        end = int(group.positions[-1]) + int(group.sizes[-1])
        again = bytearray(min(_SLICE, end - start))
        for place in range(start, end, _SLICE):
            del again[end - place :]
            filled = file.read_into(at + place - start, memoryview(again))
            if filled < len(again) or again != group.buffer[place : place + filled].data:
                return False
        return True

    def _count_settled_records(self, group: RawRecords) -> int:
        """Return how many records of a group are old enough to be read."""
        settle_limits = self._range.settle_limits
        if settle_limits is None or self._range.final:
            return group.positions.size
        return int(kernels.count_settled_records(group.buffer, group.positions, *settle_limits))

    def _note_piece(self, start: int, end: int, kind: PieceKind, reason: str = "") -> None:
        """Note where a piece begins and ends, and whether it is damaged or unfinished."""
        seen = self._seen
        if seen.first_offset is None:
            seen.first_offset = start
        seen.next_offset, seen.last_kind, seen.last_reason = end, kind, reason
        if kind is PieceKind.DAMAGE:
            seen.damaged_ranges.append((start, end))
        if kind in (PieceKind.UNWRITTEN, PieceKind.WAITING):
            seen.unfinished_from = start

    def _note_records(self, group: RawRecords, header_size: int) -> None:
        """Note a group of records, and keep the fingerprints of its first record and its end."""
        count = len(group.positions)
        first, last = int(group.positions[0]), int(group.positions[-1])
        self._note_piece(
            group.base_offset + first - header_size, group.base_offset + last + int(group.sizes[-1]), PieceKind.RECORD
        )
        new = Fingerprint.from_bytes(group.base_offset + first, group.buffer[first : first + int(group.sizes[0])].data)
        # Keep the first record of the range and of its last two groups. `facts` returns the first and the last but one,
        # and hashes the tail itself. A truncation leaves the beginning of a log, and retention leaves its end.
        self._firsts = [*self._firsts[:1], *self._firsts[1:][-1:], new]
        end = last + int(group.sizes[-1])
        tail = int(group.positions[min(int(np.searchsorted(group.positions, end - TAIL_SIZE)), count - 1)])
        tail_offset = group.base_offset + tail
        if end - tail > LARGE_RECORD_SIZE:
            self._tail = Fingerprint.from_bytes(tail_offset, group.buffer[tail:end].data)
        else:
            self._tail = tail_offset, group.buffer[tail:end].tobytes()  # hashed if it is the last one
        self._seen.store_timestamp = int(kernels.read_store_timestamp(group.buffer, last))
        self._seen.records += count

    @property
    def facts(self) -> RangeFacts:
        """The facts of the range, once its pieces are read."""
        if not self._seen.records:
            return self._seen
        tail = self._tail if isinstance(self._tail, Fingerprint) else Fingerprint.from_bytes(*self._tail)
        return replace(self._seen, fingerprints=(*self._firsts[:2], tail))
