"""What a restore makes: which segments, of which rows, and how long each file is."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.lake.commit import chosen, open_table
from jobs.lake.lake import Lake
from jobs.lake.runs import KnownStore
from jobs.lake.snapshot_files import StoredFile, files
from jobs.lake.tables import MESSAGES
from jobs.products.index.settings import ASSUMED, DETECTED, GIVEN, Known
from rmq_formats.commitlog.layout import DEFAULT_SEGMENT_SIZE


class NothingToRestoreError(ValueError):
    """The lake has no rows of what was asked for."""


class PlannedSegment(NamedTuple):
    """One file of the log, and the Parquet files that may hold its rows."""

    base_offset: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Every segment of a log."""

    segments: tuple[PlannedSegment, ...]
    size: Known[int]  # of each file
    end: int  # where the log ends

    @property
    def absent(self) -> list[tuple[int, int]]:
        """The offsets between two segments of which the lake has no row at all."""
        ends = [segment.base_offset + self.size.value for segment in self.segments]
        starts = [segment.base_offset for segment in self.segments[1:]]
        return [(end, start) for end, start in zip(ends, starts, strict=False) if start > end]


def plan_log(
    lake: Lake, known: KnownStore, *, start: int = 0, until: int | None = None, size: int | None = None
) -> Plan:
    """Return what there is to make of [start, until); a log begins with a whole file, so *start* is rounded down."""
    snapshot = open_table(lake, MESSAGES.name)
    stored = [file for file in files(snapshot) if file.may_hold(known.store_id)] if snapshot is not None else []
    end = known.newest.to_offset if known.newest else 0
    end = end if until is None else min(until, end)
    found: dict[int, list[StoredFile]] = {}
    for file in stored:
        for base in _segments_in(lake, file, known.store_id):
            found.setdefault(base, []).append(file)
    bases = sorted(base for base in found if base < end)
    if not bases:
        raise NothingToRestoreError(f"the lake has no message of store {known.store_id} before offset {end}")
    length = _file_size(bases, size)
    kept = [base for base in bases if base + length.value > start]
    if not kept:
        raise NothingToRestoreError(f"the lake's rows of store {known.store_id} end before offset {start}")
    return Plan(tuple(PlannedSegment(base, _names(found[base])) for base in kept), length, end)


def _names(some: Sequence[StoredFile]) -> tuple[str, ...]:
    return tuple(file.path for file in sorted(some, key=lambda file: int(file.low("physical_offset", 0))))


def _segments_in(lake: Lake, file: StoredFile, store_id: str) -> Iterator[int]:
    """Yield the segments that a file has rows of; mostly Delta's log tells, and nothing is read."""
    lowest, highest = file.low("segment", None), file.high("segment", None)
    is_ours = file.low("store_id", None) == file.high("store_id", None) == store_id
    if lowest is not None and lowest == highest and is_ours:
        yield int(lowest)
        return
    with lake.arrow_file(f"{MESSAGES.name}/{file.path}") as source:
        seen: set[int] = set()
        for batch in pq.ParquetFile(source).iter_batches(columns=["store_id", "segment"]):
            ours = batch.filter(pc.equal(batch.column("store_id").cast(pa.string()), store_id))
            seen.update(pc.unique(ours.column("segment")).to_pylist())
    yield from sorted(seen)


def _file_size(bases: Sequence[int], given: int | None) -> Known[int]:
    """Return how long the log's files are: their names are multiples of it."""
    if given is not None:
        odd = next((base for base in bases if (base - bases[0]) % given), None)
        if odd is not None:
            raise NothingToRestoreError(f"a file of the log began at offset {odd}: files are not {given} bytes long")
        return Known(given, GIVEN, "--segment-size")
    distances = Counter(after - before for before, after in pairwise(bases))
    if not distances:
        return Known(DEFAULT_SEGMENT_SIZE, ASSUMED, "the lake has rows of one file only")
    size = min(distances)
    odd = next((distance for distance in distances if distance % size), None)
    if odd is not None:
        raise NothingToRestoreError(
            f"files of the log began {size} and {odd} bytes after each other: give --segment-size"
        )
    return Known(size, DETECTED, f"files of the log began {size} bytes after each other")


def offset_at(lake: Lake, store_id: str, timestamp: int) -> int | None:
    """Return the offset of the first message that was stored at *timestamp* or later; None when there is none."""
    snapshot = open_table(lake, MESSAGES.name)
    if snapshot is None:
        return None
    wanted = (pc.field("store_id") == store_id) & (pc.field("store_timestamp") >= timestamp)
    found = pc.min(chosen(lake, snapshot, ["physical_offset"], wanted).column("physical_offset")).as_py()
    return None if found is None else int(found)
