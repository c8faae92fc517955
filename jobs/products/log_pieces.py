"""
The bytes of a range that are not messages, stored so that a log can be restored byte for byte.

Rows record the size and path of each file, the end of a full file with the stale bytes after it, damaged bytes, and the
numbers of DLedger entries. Consecutive entries are one row. Zeros are not stored.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.lake.runs import UNKNOWN_PIECE
from jobs.storage.model import Reader
from jobs.store.ranges import Range
from jobs.store.selection import Selection
from jobs.store.store import Segment, Store
from rmq_formats.arrays import slices_between_cuts
from rmq_formats.commitlog.layout import BLANK, DLEDGER_ENTRY, DLEDGER_MAGIC
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.errors import is_disk_error
from rmq_formats.kernels.integers import Integers

FILE_ROW, END_ROW, DAMAGE_ROW, ENTRIES_ROW, HEADER_ROW = "file", "end", "damage", "entries", "entry header"
UNKNOWN_ROW = UNKNOWN_PIECE  # bytes that the lake does not have: they must not be read as zeros
MAX_ROW_BYTES = 1 << 20  # most bytes of a row
_BLOCK = 4096
ENTRY_HEADER_SIZE = DLEDGER_ENTRY.size
Sizes = NDArray[np.int32] | Integers
_FIELDS = np.dtype(
    [
        ("magic", ">i4"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8"), ("pos", ">i8"), ("channel", ">i4"),
        ("chain_crc", ">i4"), ("body_crc", ">i4"), ("body_length", ">i4"),
    ]
)  # fmt: skip


class LogPiece(NamedTuple):
    """A row of `log_pieces`."""

    kind: str
    physical_offset: int
    length: int
    bytes: bytes | None
    path: str | None = None
    entry_index: int | None = None
    entry_term: int | None = None


WritePiece = Callable[[LogPiece], None]


class PieceCollector:
    """
    Writes the bytes between the records of one range, which are few unless there is damage or a stale part.

    Bytes in the ranges of `end`, `damage` and `entry header` that no row contains are zeros. Bytes that were not read,
    or that may not be stored, have a row of the kind `unknown`, and are in no other row.
    """

    def __init__(
        self, range_: Range, from_offset: int, selection: Selection, files: ExitStack, write: WritePiece
    ) -> None:
        """Start; pieces before *from_offset* were written by an earlier run."""
        self.was_deleted = False  # whether the file was deleted before all wanted bytes were read
        self._range = range_
        self._from_offset = from_offset
        self._files = files
        self._write = write
        self._with_damage = selection.with_damage
        # Damage, and bytes after the end of a full file, may belong to messages that were not selected.
        self.with_bytes = selection.topic_filter is None
        self._reader: Reader | None = None
        self._entries: list[LogPiece] = []
        self._next_entry = (-1, -1, -1)  # offset, term and index of an entry that continues the last of them
        if range_.start == 0 and range_.base_offset >= from_offset:
            parts = range_.location.split("/")  # ends with `commitlog/…` or `dledger-n0/data/…`
            path = "/".join(parts[-3:] if parts[-2:-1] == ["data"] else parts[-2:])
            write(LogPiece(FILE_ROW, range_.base_offset, range_.segment_size, None, path=path))

    def add(self, item: RawRecords | Piece) -> list[tuple[int, int]]:
        """Write the bytes of *item* that no message row contains; return offsets and sizes of unreadable parts."""
        if isinstance(item, RawRecords):
            if item.positions.size and item.header_size == ENTRY_HEADER_SIZE:
                self._add_entries(item)
        elif item.end > self._from_offset:
            if item.kind is PieceKind.BLANK:
                return self._copy(END_ROW, item.offset, item.size)
            if item.kind is PieceKind.DAMAGE and self._with_damage:
                return self._copy(DAMAGE_ROW, item.offset, item.size)
        return []

    def add_damage(self, offset: int, data: memoryview) -> None:
        """Write the bytes of a record that is not a message."""
        if self._with_damage and self.with_bytes:
            self._write_bytes(DAMAGE_ROW, offset, data)
        elif self._with_damage:
            self._write(LogPiece(UNKNOWN_ROW, offset, len(data), None))

    def read(self, offset: int, size: int) -> bytes | None:
        """Return bytes of the segment; None if they are unreadable."""
        reader = self._open_segment()
        if reader is None:
            return None
        try:
            return bytes(reader.read(offset - self._range.base_offset, size))
        except FileNotFoundError:  # opening does nothing on an object store: retention may delete between two reads
            self.was_deleted = True
        except OSError as error:
            if not is_disk_error(error):
                raise
        return None

    def finish(self) -> None:
        """Write the rows of entries."""
        for entries in self._entries:
            self._write(entries)

    def _open_segment(self) -> Reader | None:
        """Open the segment once per range; None if retention has deleted it since it was listed."""
        if self._reader is None and not self.was_deleted:
            try:
                self._reader = self._files.enter_context(self._range.open())
            except FileNotFoundError:
                self.was_deleted = True
        return None if self.was_deleted else self._reader

    def _copy(self, kind: str, offset: int, size: int) -> list[tuple[int, int]]:
        """Write the bytes of a piece, without zeros; return the unreadable parts."""
        known, unread = offset, []
        for start, end, can_be_read in self._unknown_parts(kind, offset, size):
            self._write_place(kind, known, start)
            self._write(LogPiece(UNKNOWN_ROW, start, end - start, None))
            known = end
            if not can_be_read and not self.was_deleted:
                unread.append((start, end - start))
        self._write_place(kind, known, offset + size)
        return unread

    def _unknown_parts(self, kind: str, offset: int, size: int) -> Iterator[tuple[int, int, bool]]:
        """Write the stored bytes of a piece; yield the other parts, and whether they are readable."""
        start = end = offset  # bounds of the unreadable part, if any
        for position, length, data in self._blocks(offset, size):
            if end > start and (data is not None or position > end):
                yield start, end, False
            if data is None:
                start, end = (start if end == position else position), position + length
                continue
            start = end = position + length
            kept = data.rstrip(b"\0")
            own = len(kept)
            if not self.with_bytes:  # the mark of an end is the broker's own; messages may follow it
                own = min(BLANK.size, own) if kind == END_ROW and position == offset else 0
            if any(kept[:own]):
                self._write(LogPiece(kind, position, own, kept[:own]))
            if any(kept[own:]):
                yield position + own, position + len(kept), True
        if end > start:
            yield start, end, False

    def _blocks(self, offset: int, size: int) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield offset, length and bytes of the parts that may contain non-zero bytes; bytes are None if unreadable."""
        base, end = self._range.base_offset, offset + size
        careful_until = offset  # up to here single blocks are read
        while offset < end:
            reader = self._open_segment()
            if reader is not None:
                offset = max(offset, base + reader.next_written(offset - base) // _BLOCK * _BLOCK)
                if offset >= end:
                    return
            to_block = _BLOCK - (offset - base) % _BLOCK
            length = min(to_block if offset < careful_until else MAX_ROW_BYTES, end - offset)
            data = self.read(offset, length)
            if not data and length > to_block and not self.was_deleted:
                careful_until = offset + length
                continue
            length = len(data) if data else (end - offset if self.was_deleted else length)
            yield offset, length, data or None
            offset += length

    def _write_place(self, kind: str, start: int, end: int) -> None:
        if end > start:
            self._write(LogPiece(kind, start, end - start, None))

    def _write_bytes(self, kind: str, offset: int, data: memoryview) -> None:
        self._write(LogPiece(kind, offset, len(data), None))
        for start in range(0, len(data), MAX_ROW_BYTES):
            kept = bytes(data[start : start + MAX_ROW_BYTES]).rstrip(b"\0")
            if kept:
                self._write(LogPiece(kind, offset + start, len(kept), kept))

    def _add_entries(self, group: RawRecords) -> None:
        starts = group.positions - ENTRY_HEADER_SIZE
        raw = np.lib.stride_tricks.sliding_window_view(group.buffer, ENTRY_HEADER_SIZE)[starts]
        headers = np.ascontiguousarray(raw).view(_FIELDS)[:, 0]
        offsets, ends = starts + group.base_offset, group.positions + group.base_offset + group.sizes
        new = offsets >= self._from_offset
        # A header that follows from its index and term alone needs no row.
        usual = (headers == build_entry_headers(offsets, group.sizes, headers["index"], headers["term"])) & new
        for at in np.flatnonzero(~usual & new).tolist():
            header = group.buffer[int(starts[at]) : int(starts[at]) + ENTRY_HEADER_SIZE]
            self._write_bytes(HEADER_ROW, int(offsets[at]), header.data)
        offsets, ends, headers = offsets[usual], ends[usual], headers[usual]
        index, term = headers["index"].astype(np.int64), headers["term"].astype(np.int64)
        breaks = (offsets[1:] != ends[:-1]) | (index[1:] != index[:-1] + 1) | (term[1:] != term[:-1])
        for some in slices_between_cuts(offsets.size, breaks):
            first, last = some.start, some.stop - 1
            start, end, number, own_term = int(offsets[first]), int(ends[last]), int(index[first]), int(term[first])
            if (start, own_term, number) == self._next_entry:
                known = self._entries[-1]
                self._entries[-1] = known._replace(length=end - known.physical_offset)
            else:
                run = LogPiece(ENTRIES_ROW, start, end - start, None, entry_index=number, entry_term=own_term)
                self._entries.append(run)
            self._next_entry = end, own_term, number + some.stop - first


def read_unknown_bytes(store: Store, unknown: Iterable[tuple[int, int]], ends: Sequence[int]) -> Iterator[LogPiece]:
    """
    Yield rows with the bytes of *unknown* rows (offset and length), as far as the store has them.

    *ends* are the offsets at which full files end, ascending: what follows in the same file belongs to that piece.
    """
    for offset, length in unknown:
        segment, last_end = store.segment_at(offset), max((one for one in ends if one <= offset), default=-1)
        kind = END_ROW if segment is not None and last_end >= segment.base_offset else DAMAGE_ROW
        for start in range(offset, offset + length, MAX_ROW_BYTES):
            size = min(MAX_ROW_BYTES, offset + length - start)
            data = b"" if segment is None else _read_if_possible(store, segment, start, size)
            if len(data) != size:
                yield LogPiece(UNKNOWN_ROW, start, size, None)
                continue
            yield LogPiece(kind, start, size, None)
            kept = data.rstrip(b"\0")
            if kept:
                yield LogPiece(kind, start, len(kept), kept)


def _read_if_possible(store: Store, segment: Segment, offset: int, size: int) -> bytes:
    try:
        return bytes(store.read(segment, offset - segment.base_offset, size))
    except FileNotFoundError:  # retention has deleted it meanwhile
        return b""
    except OSError as error:
        if not is_disk_error(error):
            raise
        return b""


def build_entry_headers(offsets: Integers, sizes: Sizes, index: Integers, term: Integers | int) -> NDArray[np.void]:
    """Return the headers that DLedger writes for entries at these *offsets* with records of these *sizes*."""
    headers = np.zeros(offsets.size, _FIELDS)  # the other fields are zero: no channel, no CRC
    headers["magic"] = DLEDGER_MAGIC
    headers["size"] = sizes + ENTRY_HEADER_SIZE
    headers["index"] = index
    headers["term"] = term
    headers["pos"] = offsets
    headers["body_length"] = sizes
    return headers
