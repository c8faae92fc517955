"""
Restores one segment from its rows, in constant memory, or only checks whether it can be restored.

Records are written to their offsets, then the bytes between them that the lake has kept. The file gets its name when
all of it is on disk, so a killed run leaves no incomplete segment under a segment's name. A check builds the same
bytes, and writes none.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from jobs.lake.snapshot_files import DamagedFileError, SnapshotFile, read_batches
from jobs.lake.tables import LOG_PIECES, MESSAGES, RECORD_CRC, Table
from jobs.products.log_pieces import (
    DAMAGE_ROW,
    END_ROW,
    ENTRIES_ROW,
    ENTRY_HEADER_SIZE,
    HEADER_ROW,
    build_entry_headers,
)
from jobs.restore import (
    PlannedSegment,
)
from jobs.storage.local import close_file, flush_directory, make_directory, sha256_of, start_flush, write_all
from jobs.store.intervals import Interval, merge_and_find_overlaps, uncovered_parts
from jobs.store.running_broker import FileState
from rmq_formats.commitlog.assembly import ASSEMBLED_COLUMNS, AssembledRecords, assemble_records
from rmq_formats.commitlog.columns import compute_record_crcs
from rmq_formats.commitlog.layout import BLANK, MAGIC_BLANK
from rmq_formats.kernels.integers import Integers, Sizes

ATTEMPT_PREFIX = ".attempt-"
_COLUMNS = ("store_id", "segment", *ASSEMBLED_COLUMNS, RECORD_CRC)
RowMask = NDArray[np.bool_]
_HEADERS_AT_ONCE = 8192
_BLOCK = 16 << 20


class RestoredSegment(NamedTuple):
    """The result of building a segment."""

    base_offset: int
    size: int
    sha256: str
    records: int
    missing: tuple[Interval, ...]  # offsets without a row: zeros in the file
    assumed: tuple[Interval, ...]  # ends of full files as releases from 4.9.1 write them: the lake does not keep them
    incomplete: tuple[int, ...]  # rows from which no record can be assembled
    twice: tuple[Interval, ...]
    unreadable: tuple[str, ...] = ()  # files of the lake that could not be read to their end
    changed: tuple[int, ...] = ()  # rows whose records do not have the CRC that they state
    unchecked: tuple[Interval, ...] = ()  # rows without a CRC of their record


@dataclass(slots=True)
class _Segment:
    """A file being written, or, without a descriptor, one that is only checked."""

    work: PlannedSegment
    descriptor: int | None
    covered: list[tuple[Integers, Integers]] = field(default_factory=list)  # starts and ends
    records: int = 0
    incomplete: list[int] = field(default_factory=list)
    flushing: int = 0

    def add(self, made: AssembledRecords) -> None:
        """Write records to their offsets."""
        base, limit = self.work.base_offset, self.work.base_offset + self.work.size
        ends = made.offsets + made.sizes
        fits = (made.offsets >= base) & (ends <= limit)
        self.incomplete += [*made.incomplete_offsets, *made.offsets[~fits].tolist()]
        offsets, positions, sizes, ends = made.offsets[fits], made.positions[fits], made.sizes[fits], ends[fits]
        if not offsets.size:
            return
        self.records += offsets.size
        # Records that are adjacent both in the log and in the buffer are one write.
        cuts = np.flatnonzero((offsets[1:] != ends[:-1]) | (positions[1:] != positions[:-1] + sizes[:-1])) + 1
        first, last = np.concatenate(([0], cuts)), np.concatenate((cuts - 1, [offsets.size - 1]))
        for start, end in zip(first.tolist(), last.tolist(), strict=True):
            run = made.buffer[int(positions[start]) : int(positions[end] + sizes[end])]
            self._write(run.data, int(offsets[start]))
        self.covered.append((offsets[first], ends[last]))

    def _write(self, data: memoryview, offset: int) -> None:
        if self.descriptor is None:
            return
        position = offset - self.work.base_offset
        write_all(self.descriptor, position, data)
        end = position + data.nbytes
        if end - self.flushing > _BLOCK:
            start_flush(self.descriptor, self.flushing, end - self.flushing)
            self.flushing = end

    def add_pieces(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """
        Write the bytes between records that the lake has kept.

        A row without bytes is a range of zeros, except where another row has its bytes. Earlier versions wrote that row
        before they read the range: offsets that the disk could not read are unknown.
        """
        base, limit = self.work.base_offset, min(self.work.base_offset + self.work.size, self.work.log_end)
        kept = sorted((row["physical_offset"], row["physical_offset"] + row["length"]) for row in rows if row["bytes"])
        unread = [part for place in self.work.unread_ranges for part in uncovered_parts(kept, *place)]
        for row in rows:
            data, offset = row["bytes"], row["physical_offset"]
            start, end = max(offset, base), min(offset + row["length"], limit)
            if data is not None and base <= offset and offset + len(data) <= limit:
                self._write(memoryview(data), offset)
            elif data is None and row["kind"] in {END_ROW, DAMAGE_ROW, HEADER_ROW} and start < end:
                known = np.array(list(uncovered_parts(unread, start, end)), np.int64).reshape(-1, 2)
                self.covered.append((known[:, 0], known[:, 1]))

    def add_entries(self, rows: Sequence[Mapping[str, Any]], places: Sequence[tuple[Integers, Sizes]]) -> None:
        """Write the headers of DLedger's entries before their records."""
        if not rows or not places:
            return
        offsets, sizes = (np.concatenate(column) for column in zip(*places, strict=True))
        order = np.argsort(offsets, kind="stable")
        offsets, sizes = offsets[order], sizes[order]
        for row in rows:
            start, end = row["physical_offset"], row["physical_offset"] + row["length"]
            some = slice(*np.searchsorted(offsets, [start, end]).tolist())
            at = offsets[some] - ENTRY_HEADER_SIZE
            self.covered.append((at, offsets[some]))
            if self.descriptor is None:
                continue
            headers = build_entry_headers(at, sizes[some], row["entry_index"] + np.arange(at.size), row["entry_term"])
            items = headers.view(np.uint8).reshape(-1, ENTRY_HEADER_SIZE)
            positions = at - self.work.base_offset
            os.posix_fallocate(self.descriptor, 0, self.work.size)  # else a full disk raises SIGBUS, not an error
            with mmap(self.descriptor, self.work.size) as mapped:
                target = np.frombuffer(mapped, np.uint8)
                for first in range(0, positions.size, _HEADERS_AT_ONCE):
                    part = slice(first, first + _HEADERS_AT_ONCE)
                    target[positions[part, None] + np.arange(ENTRY_HEADER_SIZE)] = items[part]
                del target

    def fill_end(self, covered: Sequence[Interval]) -> list[Interval]:
        """Write the blank at the end of a full file, unless records may be missing there; return its interval."""
        work = self.work
        limit = work.base_offset + work.size
        end = covered[-1][1] if covered else work.base_offset
        if work.is_last or not covered or limit - end < BLANK.size or any(stop > end for _, stop in work.lacking):
            return []
        self._write(memoryview(BLANK.pack(limit - end, MAGIC_BLANK)), end)
        return [(end, limit)]


def restore_segment(
    work: PlannedSegment, attempt_directory: Path, note: Callable[[RestoredSegment, FileState], None] = lambda *_: None
) -> RestoredSegment:
    """
    Write one segment of the log durably in *attempt_directory*, and rename it when it is complete.

    *note* is called before the renaming. Raises `FileExistsError` if another file has its name.
    """
    target = Path(work.path)
    make_directory(target.parent)
    attempt = attempt_directory / f"{ATTEMPT_PREFIX}{target.name}-{uuid4()}"
    descriptor = os.open(attempt, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(descriptor, work.size)
        built = _build_segment(work, descriptor)
        result = built._replace(sha256=sha256_of(attempt))
        os.fsync(descriptor)
        note(result, FileState.from_status(os.fstat(descriptor)))
        os.link(attempt, target)
        flush_directory(target.parent)
    finally:
        close_file(descriptor, work.path)
        attempt.unlink(missing_ok=True)
    return result


def check_segment(work: PlannedSegment) -> RestoredSegment:
    """Build one segment of the log as `restore_segment` does, but write nothing; the result has no SHA-256."""
    return _build_segment(work, None)


def _build_segment(work: PlannedSegment, descriptor: int | None) -> RestoredSegment:
    """Write one segment to an open file, or only check it; the result has no SHA-256 yet."""
    segment = _Segment(work, descriptor)
    unreadable: list[str] = []
    pieces = [
        row
        for file in work.piece_files
        for batch in _read_readable_rows(work, LOG_PIECES, file, unreadable)
        for row in batch.filter(_find_rows_of_segment(work, batch)).to_pylist()
        if row["physical_offset"] is not None and row["length"] is not None  # emptied by another engine
    ]
    places: list[tuple[Integers, Sizes]] | None = [] if any(row["kind"] == ENTRIES_ROW for row in pieces) else None
    changed, unchecked = list[int](), list[tuple[Integers, Integers]]()
    for batch in read_segment_rows(work, unreadable):
        made = assemble_records(batch)
        is_changed, is_unchecked = check_crcs(batch, made)
        changed += made.offsets[is_changed].tolist()
        unchecked.append(made.select(is_unchecked).offset_bounds)
        made = made.select(~is_changed) if work.proven_only else made
        segment.add(made)
        if places is not None:
            places.append((made.offsets, made.sizes))
    segment.add_pieces(pieces)
    segment.add_entries([row for row in pieces if row["kind"] == ENTRIES_ROW], places or [])
    covered, twice = merge_and_find_overlaps(segment.covered)
    assumed = segment.fill_end(covered)
    limit = min(work.base_offset + work.size, work.log_end)
    lost = tuple(uncovered_parts([*covered, *assumed], work.base_offset, limit))
    return RestoredSegment(
        work.base_offset, work.size, "", segment.records, lost, tuple(assumed),
        tuple(sorted(segment.incomplete)), tuple(twice), tuple(unreadable), tuple(sorted({*changed})),
        tuple(merge_and_find_overlaps(unchecked)[0]),
    )  # fmt: skip


def check_crcs(batch: pa.RecordBatch, assembled: AssembledRecords) -> tuple[RowMask, RowMask]:
    """Return which records do not have the CRC that their rows state, and which rows state none."""
    stated = batch.column(RECORD_CRC).take(pa.array(assembled.row_numbers))
    is_unchecked: RowMask = stated.is_null().to_numpy(zero_copy_only=False)
    crcs = compute_record_crcs(assembled.buffer, assembled.positions, assembled.sizes)
    is_changed: RowMask = stated.fill_null(0).to_numpy() != crcs
    return is_changed & ~is_unchecked, is_unchecked


def read_segment_rows(work: PlannedSegment, unreadable: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the segment's rows, with the columns from which records are assembled."""
    for file in work.message_files:
        for batch in _read_readable_rows(work, MESSAGES, file, unreadable, _COLUMNS):
            wanted = _find_rows_of_segment(work, batch)
            yield batch if pc.all(wanted, skip_nulls=False).as_py() else batch.filter(wanted)  # no copy of all bodies


def _read_readable_rows(
    work: PlannedSegment, table: Table, file: SnapshotFile, unreadable: list[str], columns: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield rows of a file; if its bytes are wrong, note the file and leave out its other rows."""
    first, last = work.base_offset, work.base_offset + work.size - 1
    wanted = {"physical_offset": (first, last)} if table is MESSAGES else {"segment": (first, first)}
    try:
        yield from read_batches(work.lake, table, file, columns, wanted)
    except DamagedFileError:
        unreadable.append(f"{table.name}/{file.path}")


def _find_rows_of_segment(work: PlannedSegment, batch: pa.RecordBatch) -> pa.Array:
    """Return which rows are the segment's; if another engine has changed one, segment and offset may disagree."""
    is_ours = pc.equal(batch.column("store_id"), work.store_id)
    offset = batch.column("physical_offset")
    is_inside = pc.and_(pc.greater_equal(offset, work.base_offset), pc.less(offset, work.base_offset + work.size))
    is_here = pc.or_kleene(pc.equal(batch.column("segment"), work.base_offset), is_inside)
    return pc.and_(pc.and_kleene(is_ours, is_here), pc.fill_null(pc.less(offset, work.log_end), fill_value=True))
