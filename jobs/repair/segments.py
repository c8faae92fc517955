"""
Correct segments, from the lake's rows and, if the lake lacks them, from the store's own bytes.

They are created outside the store. A directory that has them, and links to the store's other segments, represents the
planned log: queues and index files are compared with it before anything in the store changes.
"""

import os
from bisect import bisect_right
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from jobs.console.result import Severity
from jobs.diagnosis import kinds
from jobs.diagnosis.findings import INDEX, LOG, Finding
from jobs.diff import ONLY_IN_STORE, DiffSummary, LogDifference
from jobs.restore import (
    PlannedSegment,
    RestorePlan,
)
from jobs.restore.segment import RestoredSegment, restore_segment
from jobs.storage.local import LocalStorage, naming_file_in_errors
from jobs.storage.locations import local_path
from jobs.storage.model import Reader
from jobs.storage.paths import is_directory, path_exists
from jobs.storage.scratch import open_scratch_below_output
from jobs.store.intervals import Interval, uncovered_parts
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import WHOLE_SEGMENTS, Range, find_truncated_segments, plan_ranges
from jobs.store.store import Segment, Store
from jobs.store.workers import Workers
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.layout import DLEDGER_ENTRY
from rmq_formats.commitlog.record import decode_record, has_right_body_crc
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.errors import CorruptData
from rmq_formats.properties import PropertyParser
from rmq_formats.store import file_name_of_offset

_BLOCK = 16 << 20
_OPEN_ENDED = frozenset({kinds.LOST_END, kinds.WRONG_FILE_SIZE})


RepairedSegments = dict[int, tuple[str, str]]
"""Created segments by base offset: the path of each, and where it belongs."""


def segments_with_findings(findings: Sequence[Finding], store: Store) -> frozenset[int] | None:
    """
    Return the segments with a finding about a record, or about bytes that should be one; None for all segments.

    The lake's rows would not change any other segment.
    """
    places: list[Interval] = []
    for one in findings:
        if one.follows or not one.severity.is_alarm or one.file == "checkpoint":
            continue
        is_open = one.kind in _OPEN_ENDED
        if one.log_offset is not None:
            end = store.end_offset if is_open else max(one.log_offset + 1, one.log_end or 0)
            places.append((one.log_offset, end))
        elif one.part in {LOG, INDEX}:  # a key that an entry contradicts may be any record's
            return None
    # The segment before a hole may have lost its end.
    return frozenset(
        one.base_offset
        for one in store.segments
        if any(a <= one.limit_offset and one.base_offset < b for a, b in places)
    )


def segments_to_restore(summary: DiffSummary, plan: RestorePlan, known: Sequence[Finding]) -> list[int]:
    """
    Return the segments whose lost bytes the lake has.

    If the store lacks only what the lake has in addition, it lags behind the lake, or its messages were truncated: so
    at least one of the *known* findings on its log is required.
    """
    found = set()
    for one in summary.differences:
        if one.severity is Severity.GAP and not any(_is_lost_by(one, finding) for finding in known):
            continue
        if one.what != ONLY_IN_STORE and one.severity in {Severity.GAP, Severity.DAMAGE}:
            found |= {
                segment.base_offset
                for segment in plan.segments
                if segment.base_offset < one.end and one.start < segment.base_offset + plan.size.value
            }
    return sorted(found)


def _is_lost_by(difference: LogDifference, finding: Finding) -> bool:
    """Return whether records that only the lake has are where the store's log is known to have lost some."""
    if finding.log_offset is None:
        return False
    is_open = finding.kind in _OPEN_ENDED
    end = finding.log_offset if finding.log_end is None else finding.log_end
    return finding.log_offset <= difference.end and (is_open or end >= difference.start)


def repair_segments(
    store: Store, plan: RestorePlan, base_offsets: Container[int], directory: Path, workers: Workers
) -> tuple[RepairedSegments, list[int]]:
    """Create the segments, one task each; also return the offsets of rows that another engine has changed."""
    there = {segment.base_offset: segment for segment in store.segments}
    every = plan_ranges(store, range_size=WHOLE_SEGMENTS)
    ranges = {range_.base_offset: replace(range_, store_in_use=None) for range_ in every}
    works = [
        replace(one, path=str(directory / file_name_of_offset(one.base_offset)), proven_only=True)
        for one in plan.segments
        if one.base_offset in base_offsets
    ]
    with open_scratch_below_output(str(directory), {}) as scratch:
        begun_in = Path(local_path(scratch.location))
        task = partial(repair_segment, segments=there, ranges=ranges, attempt_directory=begun_in)
        made = workers.map(works, task, "building segments")
    paths = {one.base_offset: one.path for one in plan.segments}
    made_segments: RepairedSegments = {}
    for work in works:
        segment, name = there.get(work.base_offset), file_name_of_offset(work.base_offset)
        target = (
            local_path(segment.location) if segment else str(_find_directory(store, paths[work.base_offset]) / name)
        )
        if path_exists(Path(work.path)):
            made_segments[work.base_offset] = work.path, target
    return made_segments, [offset for result in made for offset in result.changed]


def _find_directory(store: Store, recorded_path: str) -> Path:
    """Return the directory of a missing segment: of several directories, the one in which a run has seen it."""
    directories = [Path(local_path(one.location)).parent for one in store.segments]
    directories = directories or [Path(local_path(one)) for one in store.commitlog]
    own = Path(recorded_path).parent.parts
    places = (*directories, Path(local_path(store.root), *own))
    found = (one for one in places if is_directory(one) and one.parts[-len(own) :] == own)
    return next(found, directories[0] if directories else places[-1])


def repair_segment(
    work: PlannedSegment, *, segments: Mapping[int, Segment], ranges: Mapping[int, Range], attempt_directory: Path
) -> RestoredSegment:
    """
    Write a segment from the lake's rows, and from the store's bytes that are intact or that the lake lacks.

    A segment that equals the store's is not kept.
    """
    Path(work.path).unlink(missing_ok=True)  # a leftover of an earlier attempt of this task
    result = restore_segment(work, attempt_directory)
    segment, range_ = segments.get(work.base_offset), ranges.get(work.base_offset)
    if segment is None:
        return result
    base, limit = work.base_offset, work.base_offset + work.size
    stored, made = Path(local_path(segment.location)), Path(work.path)
    is_whole = stored.stat().st_size >= work.size
    kept = [*result.missing, *(result.assumed if is_whole else ()), (max(base, min(work.log_end, limit)), limit)]
    _copy(stored, made, [(a - base, b - base) for a, b in kept])
    sound = [] if range_ is None else list(_keep_sound_parts(work, range_, result.unchecked))
    others = [(start - base, end - base) for start, end in uncovered_parts(sound, base, limit)]
    if is_whole and _is_equal(stored, made, others):
        made.unlink()
    starts = [start for start, _ in sound]
    holes = [at for at in result.changed if not (n := bisect_right(starts, at)) or sound[n - 1][1] <= at]
    return result._replace(changed=tuple(holes))


def _keep_sound_parts(work: PlannedSegment, range_: Range, unchecked: Sequence[Interval]) -> Iterator[Interval]:
    """Write the parts of the store's segment that no row of the lake proves to be changed, and yield their offsets."""
    at = sound = range_.start_offset
    with closing(RangeReader(range_).pieces()) as pieces, Path(work.path).open("r+b", buffering=0) as made:
        for item in pieces:
            if isinstance(item, Piece):
                # *sound* is where the last sound record ends, *at* the last item: equal if nothing wrong is between.
                # After records of another log, the blank belongs to that log.
                if item.kind is PieceKind.BLANK and sound == at:
                    blank = item.offset - work.base_offset, item.end - work.base_offset
                    _copy(Path(local_path(range_.location)), Path(work.path), [blank])
                    yield item.offset, item.end
                at = item.end
                continue
            bodies = [offset for offset, _ in message_batch(item, PropertyParser.SCAN, with_body=False)[1]]
            places = item.positions + item.base_offset
            ends = places + item.sizes
            # A DLedger entry header precedes its record and is not a separate piece.
            starts = np.maximum(np.concatenate(([at], ends[:-1])), places - DLEDGER_ENTRY.size)
            is_wrong = np.isin(
                places, np.array([*bodies, *_find_changed_records(work, item, made, unchecked)], np.int64)
            )
            cuts = np.flatnonzero(np.diff(is_wrong) | (starts[1:] != ends[:-1])) + 1
            for run in np.split(np.arange(places.size), cuts):
                if not is_wrong[run[0]]:
                    start, sound = int(starts[run[0]]), int(ends[run[-1]])
                    data = item.buffer[start - item.base_offset : sound - item.base_offset].data
                    with naming_file_in_errors(work.path):
                        os.pwrite(made.fileno(), data, start - work.base_offset)
                    yield start, sound
            at = int(ends[-1])
        with naming_file_in_errors(work.path):
            os.fsync(made.fileno())


def _find_changed_records(
    work: PlannedSegment, records: RawRecords, made: BinaryIO, unchecked: Sequence[Interval]
) -> Iterator[int]:
    """Yield the records that differ from rows that have the CRC of the record as it was read."""
    first, end = int(records.positions[0]), int(records.positions[-1] + records.sizes[-1])
    found = os.pread(made.fileno(), end - first, records.base_offset + first - work.base_offset)
    other = np.frombuffer(found.ljust(end - first, b"\0"), np.uint8)
    bytes_ = np.flatnonzero(other != records.buffer[first:end]) + first
    for number in np.unique(np.searchsorted(records.positions, bytes_, "right") - 1).tolist():
        at, size = int(records.positions[number]) - first, int(records.sizes[number])
        offset = records.base_offset + first + at
        try:
            row = decode_record(other[at : at + size].tobytes(), 0, offset)
        except CorruptData:  # the lake has no row
            continue
        if has_right_body_crc(row) and not any(start <= offset < end for start, end in unchecked):
            yield offset


def extend_truncated_segments(store: Store, excluded_offsets: Container[int], directory: Path) -> RepairedSegments:
    """Extend truncated segments with zeros: a broker does not load a log with a segment of another size."""
    made: RepairedSegments = {}
    for segment, size in find_truncated_segments(store.segments):
        if segment.base_offset not in excluded_offsets:
            source = Path(local_path(segment.location))
            path = directory / file_name_of_offset(segment.base_offset)
            directory.mkdir(parents=True, exist_ok=True)
            with naming_file_in_errors(str(path)), path.open("xb") as file:
                file.truncate(size)
            _copy(source, path, [(0, segment.size)])
            made[segment.base_offset] = str(path), str(source)
    return made


def _copy(source: Path, target: Path, ranges: Sequence[Interval]) -> None:
    """Copy ranges of bytes, except those that are holes in both files."""
    with _open_both(source, target) as (stored, begun), target.open("r+b") as made:
        for position, size in _written_blocks(stored, begun, ranges):
            data = stored.read(position, size)
            with naming_file_in_errors(str(target)):
                os.pwrite(made.fileno(), data, position)
        with naming_file_in_errors(str(target)):
            os.fsync(made.fileno())


def _is_equal(one: Path, other: Path, ranges: Sequence[Interval]) -> bool:
    """Return whether two files have the same size, and the same bytes in some ranges."""
    with _open_both(one, other) as (a, b):
        blocks = _written_blocks(a, b, ranges)
        return a.size == b.size and all(a.read(*block) == b.read(*block) for block in blocks)


@contextmanager
def _open_both(one: Path, other: Path) -> Iterator[tuple[Reader, Reader]]:
    storage = LocalStorage()
    with storage.open(str(one)) as a, storage.open(str(other)) as b:
        yield a, b


def _written_blocks(one: Reader, other: Reader, ranges: Sequence[Interval]) -> Iterator[tuple[int, int]]:
    """Yield the positions and sizes of blocks that cover ranges, except those that are holes in both files."""
    for start, end in ranges:
        position = start
        while (position := max(position, min(one.next_written(position), other.next_written(position)))) < end:
            size = min(_BLOCK, end - position)
            yield position, size
            position += size


def link_planned_log(store: Store, repaired_segments: RepairedSegments, directory: Path) -> None:
    """Create a directory with links to segments, which represents the planned log."""
    directory.mkdir(parents=True)
    for base, path in {
        **{segment.base_offset: local_path(segment.location) for segment in store.segments},
        **{base: path for base, (path, _) in repaired_segments.items()},
    }.items():
        (directory / file_name_of_offset(base)).symlink_to(path)
