"""
What a range of the log holds beside messages, so that the lake gives every byte back.

Kept are: how long a file is and where it lies, the end of a full file with what stale bytes follow it, damaged bytes,
and the numbers of DLedger's entries. Entries follow each other: a run of them is one row. Zeros are not kept.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.storage.model import Reader
from jobs.store.ranges import Range
from rmq_formats.arrays import slices
from rmq_formats.commitlog.framing import framing_of
from rmq_formats.commitlog.layout import DLEDGER_ENTRY, DLEDGER_MAGIC
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Framing, Piece, PieceKind
from rmq_formats.kernels.integers import Integers

FILE, END, DAMAGE, ENTRIES, HEADER = "file", "end", "damage", "entries", "entry header"
ROW_SIZE = 1 << 20  # most bytes of a row
_GROUP_SIZE = 4 << 20
_ROWS_AT_ONCE = 4096
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


class _Entries(NamedTuple):
    """Entries of one term, numbered one after the other."""

    first: int  # physical offset of the first header
    end: int
    number: int  # of the first one
    term: int
    entries: int


class PieceCollector:
    """Collects the bytes between the records of one range; few of them, but for damage and stale bytes."""

    def __init__(self, range_: Range, from_offset: int, *, with_damage: bool) -> None:
        """Note nothing yet; what ends before *from_offset* was kept by an earlier run."""
        self._range = range_
        self._from_offset = from_offset
        self._with_damage = with_damage
        self._framing: Framing | None = None
        self._kept: list[tuple[str, int, int]] = []  # kind, offset, size
        self._entries: list[_Entries] = []

    def add(self, item: Records | Piece) -> None:
        """Note the bytes of *item* that no row holds."""
        if isinstance(item, Piece):
            if item.kind is PieceKind.BLANK and item.end > self._from_offset:
                self._kept.append((END, item.offset, item.size))
            elif item.kind is PieceKind.DAMAGE:
                self.damage(item.offset, item.size)
            return
        if item.positions.size and self._is_framed():
            self._note_entries(item)

    def damage(self, offset: int, size: int) -> None:
        """Note bytes that are no message."""
        if self._with_damage and offset + size > self._from_offset:
            self._kept.append((DAMAGE, offset, size))

    def row_groups(self) -> Iterator[list[LogPiece]]:
        """Yield the rows, some at a time."""
        group: list[LogPiece] = []
        size = 0
        for row in self._rows():
            group.append(row)
            size += len(row.bytes or b"")
            if size >= _GROUP_SIZE or len(group) >= _ROWS_AT_ONCE:
                yield group
                group, size = [], 0
        if group:
            yield group

    def _rows(self) -> Iterator[LogPiece]:
        """Yield the rows, their bytes read once more, without those of files that are deleted by now."""
        range_ = self._range
        if range_.start == 0 and range_.base_offset >= self._from_offset:
            yield LogPiece(FILE, range_.base_offset, range_.segment_size, None, path=_path_below(range_.location))
        for run in self._entries:
            yield LogPiece(ENTRIES, run.first, run.end - run.first, None, entry_index=run.number, entry_term=run.term)
        with suppress(OSError), range_.open() as file:
            for kind, offset, size in sorted(self._kept, key=lambda kept: kept[1:]):
                yield from self._bytes(file, kind, offset, size)

    def _bytes(self, file: Reader, kind: str, offset: int, size: int) -> Iterator[LogPiece]:
        yield LogPiece(kind, offset, size, None)
        position, end = offset - self._range.base_offset, offset - self._range.base_offset + size
        while position < end:
            start = file.next_written(position) // _BLOCK * _BLOCK
            position = max(position, start)
            if position >= end:
                return
            data = bytes(file.read(position, min(ROW_SIZE, end - position)))
            if not data:
                return
            if any(data):
                kept = data.rstrip(b"\0")
                yield LogPiece(kind, self._range.base_offset + position, len(kept), kept)
            position += len(data)

    def _is_framed(self) -> bool:
        """Return whether the range's records are in DLedger's entries."""
        if self._framing is None:
            range_ = self._range
            with range_.open() as file:
                self._framing = framing_of(file.read, range_.segment_size, range_.base_offset)
        return self._framing is Framing.DLEDGER

    def _note_entries(self, group: Records) -> None:
        starts = group.positions - ENTRY_HEADER_SIZE
        raw = np.lib.stride_tricks.sliding_window_view(group.buffer, ENTRY_HEADER_SIZE)[starts]
        headers = np.ascontiguousarray(raw).view(_FIELDS)[:, 0]
        offsets, ends = starts + group.base_offset, group.positions + group.base_offset + group.sizes
        new = offsets >= self._from_offset
        # What follows from its index and term alone is no row of its own.
        usual = (headers == _usual_headers(offsets, group.sizes, headers["index"], headers["term"])) & new
        for at in np.flatnonzero(~usual & new).tolist():
            self._kept.append((HEADER, int(offsets[at]), ENTRY_HEADER_SIZE))
        offsets, ends, headers = offsets[usual], ends[usual], headers[usual]
        index, term = headers["index"].astype(np.int64), headers["term"].astype(np.int64)
        breaks = (offsets[1:] != ends[:-1]) | (index[1:] != index[:-1] + 1) | (term[1:] != term[:-1])
        for some in slices(offsets.size, breaks):
            first, last = some.start, some.stop - 1
            self._append(
                _Entries(int(offsets[first]), int(ends[last]), int(index[first]), int(term[first]), last - first + 1)
            )

    def _append(self, run: _Entries) -> None:
        """Add entries, to the run before where they continue it."""
        last = self._entries[-1] if self._entries else None
        if last and (last.end, last.term, last.number + last.entries) == (run.first, run.term, run.number):
            self._entries[-1] = last._replace(end=run.end, entries=last.entries + run.entries)
        else:
            self._entries.append(run)


def _usual_headers(offsets: Integers, sizes: Sizes, index: Integers, term: Integers | int) -> NDArray[np.void]:
    """Return the headers, at these *offsets*, of entries that hold records of these *sizes*, as DLedger writes them."""
    headers = np.zeros(offsets.size, _FIELDS)  # nothing of the rest is set: no channel, no CRC
    headers["magic"] = DLEDGER_MAGIC
    headers["size"] = sizes + ENTRY_HEADER_SIZE
    headers["index"] = index
    headers["term"] = term
    headers["pos"] = offsets
    headers["body_length"] = sizes
    return headers


def entry_headers(offsets: Integers, sizes: Sizes, index: int, term: int) -> bytes:
    """Return the headers of entries that follow each other from *index* on; records have these offsets and sizes."""
    return _usual_headers(offsets - ENTRY_HEADER_SIZE, sizes, index + np.arange(offsets.size), term).tobytes()


def _path_below(location: str) -> str:
    """Return the last folders of a segment's path: `commitlog/…`, `dledger-n0/data/…`."""
    parts = location.split("/")
    is_data = len(parts) > 2 and parts[-2] == "data"  # noqa: PLR2004 - a folder, `data`, a file
    return os.path.join(*parts[-3:] if is_data else parts[-2:])  # noqa: PTH118 - no path of this machine
