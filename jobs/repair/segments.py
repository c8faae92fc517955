"""
Segments as they should be: what the lake has of them, and the store's own bytes wherever the lake has none.

They are made beside the store. A folder that has them, and links to the store's other segments, is the log as it will
be: queues and index files are compared with it before anything in the store changes.
"""

import os
import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

from jobs.console.severity import Severity
from jobs.diff.run import Difference, DiffSummary
from jobs.diff.segment import ONLY_IN_STORE
from jobs.lake.findings import LOST_END, WRONG_FILE_SIZE, Finding
from jobs.lake.lake import Lake
from jobs.lake.runs import KnownStore
from jobs.restore.plan import Plan
from jobs.restore.segment import RestoredSegment, SegmentWork, restore_segment
from jobs.storage.locations import local_path
from jobs.store.ranges import cut_short
from jobs.store.store import Segment, Store
from jobs.store.workers import Workers
from rmq_formats.store import name_of_offset

_BLOCK = 16 << 20


class Source(NamedTuple):
    """A store, and where its log is kept besides."""

    lake: Lake
    known: KnownStore
    store: Store


class MendWork(NamedTuple):
    """One segment to be made: the lake's rows, and the store's file, if it has one."""

    lake: SegmentWork
    segment: Segment | None


class MendedSegment(NamedTuple):
    """A segment that is made."""

    base_offset: int
    path: str
    target: str  # where it belongs
    records: int  # that the lake gave


def damaged_bases(summary: DiffSummary, plan: Plan, known: Sequence[Finding]) -> list[int]:
    """
    Return the segments of which the lake has what the store has lost.

    Where the store itself misses nothing that the lake has besides, it is behind the lake or took messages back: of the
    findings that are *known* of its log one must be there.
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


def _is_lost_by(difference: Difference, finding: Finding) -> bool:
    """Return whether records that the lake alone has are where the store's own log is known to have lost some."""
    if finding.log_offset is None:
        return False
    ends = [int(number) for number in re.findall(r"\d+", finding.found)] if finding.field == "offsets" else []
    is_open = finding.kind in {LOST_END, WRONG_FILE_SIZE}
    end = max([finding.log_offset, *ends])
    return finding.log_offset <= difference.end and (is_open or end >= difference.start)


def lost_bases(lost_from: int | None, start: int, plan: Plan) -> list[int]:
    """Return the segments before the log's *start* that were lost, from the one with offset *lost_from* on."""
    if lost_from is None:
        return []
    size = plan.size.value
    bases = (segment.base_offset for segment in plan.segments)
    return [base for base in bases if base < start and base + size > lost_from]


def mend(source: Source, plan: Plan, bases: list[int], folder: Path, workers: Workers) -> list[MendedSegment]:
    """Make the segments; one task each."""
    store = source.store
    there = {segment.base_offset: segment for segment in store.segments}
    works = []
    for segment in plan.segments:
        if segment.base_offset in bases:
            work = SegmentWork(
                source.lake,
                source.known.store_id,
                segment.base_offset,
                plan.size.value,
                str(folder / name_of_offset(segment.base_offset)),
                plan.end,
                is_last=segment is plan.segments[-1],
                files=segment.files,
                pieces=plan.pieces,
            )
            works.append(MendWork(work, there.get(segment.base_offset)))
    made = workers.map(works, mend_segment, "making segments")
    home = Path(local_path(store.segments[0].location)).parent
    return [
        MendedSegment(
            result.base_offset,
            work.lake.path,
            local_path(work.segment.location) if work.segment else str(home / name_of_offset(result.base_offset)),
            result.records,
        )
        for work, result in zip(works, made, strict=True)
    ]


def mend_segment(work: MendWork) -> RestoredSegment:
    """Write a segment from the lake's rows, then what the lake lacks from the store's file."""
    result = restore_segment(work.lake)
    if work.segment is not None:
        base, limit = work.lake.base_offset, work.lake.base_offset + work.lake.size
        whole = Path(local_path(work.segment.location)).stat().st_size >= work.lake.size
        kept = [*result.missing, *(result.assumed if whole else ()), (max(base, min(work.lake.end, limit)), limit)]
        _copy(Path(local_path(work.segment.location)), Path(work.lake.path), [(a - base, b - base) for a, b in kept])
    return result


def complete(store: Store, besides: Container[int], folder: Path) -> list[MendedSegment]:
    """Make the segments that are cut short, with zeros after what is there: a broker loads no log with such a file."""
    made = []
    for segment, size in cut_short(store.segments):
        if segment.base_offset not in besides:
            source = Path(local_path(segment.location))
            path = folder / name_of_offset(segment.base_offset)
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.truncate(size)
            _copy(source, path, [(0, segment.size)])
            made.append(MendedSegment(segment.base_offset, str(path), str(source), 0))
    return made


def _copy(source: Path, target: Path, ranges: list[tuple[int, int]]) -> None:
    """Copy some ranges of bytes, as far as there are any."""
    with source.open("rb") as stored, target.open("r+b") as made:
        for start, end in ranges:
            position = start
            while position < end:
                data = os.pread(stored.fileno(), min(_BLOCK, end - position), position)
                if not data:
                    break
                os.pwrite(made.fileno(), data, position)
                position += len(data)
        made.flush()
        os.fsync(made.fileno())


def link_log(store: Store, mended: list[MendedSegment], folder: Path) -> None:
    """Make a folder that is the log as it will be: links to segments."""
    folder.mkdir(parents=True)
    for base, path in {
        **{segment.base_offset: local_path(segment.location) for segment in store.segments},
        **{one.base_offset: one.path for one in mended},
    }.items():
        (folder / name_of_offset(base)).symlink_to(path)
