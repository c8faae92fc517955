"""
One segment of a log, in the store and in the lake.

Each record that the lake gives back is compared with the store's own bytes at its offset, in the task: nothing but runs
of records that one side lacks, or that differ, leaves it.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jobs.restore.segment import SegmentWork, rows_of_segment
from jobs.storage.model import Reader
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import Range
from rmq_formats.commitlog.assembly import Assembled, assemble
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.errors import is_unreadable
from rmq_formats.kernels.integers import Integers
from rmq_formats.properties import PropertyParser

ONLY_IN_STORE, ONLY_IN_LAKE, DIFFERENT = "only in the store", "only in the lake", "different"
TWICE = "twice in the lake"
_MOST_RUNS = 64  # of one kind in a segment: every second record may be of a topic that was not chosen

Flags = npt.NDArray[np.bool_]


class DiffWork(NamedTuple):
    """One segment; the store has no file of it, or the lake no row."""

    lake: SegmentWork | None
    store: Range | None
    until: int  # the lake's rows end here


class Run(NamedTuple):
    """Records that follow each other, of which one thing is to be said."""

    what: str
    start: int
    end: int
    records: int
    is_damaged: bool = False  # the store has bytes there that are no records, or bodies that their CRC denies
    is_changed: bool = False  # the log goes on as it was: the store was damaged since, or the lake changed
    is_unwritten: bool = False  # the store's log ends before


class SegmentDiff(NamedTuple):
    """What a segment has turned out to be."""

    runs: tuple[Run, ...]
    equal: int  # records that are the same on both sides
    incomplete: int  # rows that no record can be made of: their bodies were left out
    unreadable: tuple[str, ...]
    is_gone: bool  # the store's file was deleted meanwhile


@dataclass(slots=True)
class _Places:
    """Records of one side, ascending."""

    starts: list[Integers] = field(default_factory=list)
    ends: list[Integers] = field(default_factory=list)
    equal: list[Flags] = field(default_factory=list)

    def add(self, starts: Integers, ends: Integers, equal: Flags | None = None) -> None:
        self.starts.append(starts)
        self.ends.append(ends)
        self.equal.append(np.zeros(starts.size, np.bool_) if equal is None else equal)

    def sorted(self) -> tuple[Integers, Integers, Flags]:
        if not self.starts:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_)
        starts, ends, equal = np.concatenate(self.starts), np.concatenate(self.ends), np.concatenate(self.equal)
        order = np.argsort(starts, kind="stable")
        return starts[order], ends[order], equal[order]


def diff_segment(work: DiffWork) -> SegmentDiff:
    """Compare what both sides have of a segment."""
    store, pieces, is_gone = _of_store(work.store)
    unreadable: list[str] = []
    lake, incomplete = _of_lake(work, unreadable)
    store_starts, store_ends, _ = store.sorted()
    lake_starts, lake_ends, equal = lake.sorted()
    is_known = np.isin(store_starts, lake_starts) | np.isin(store_starts, np.array(incomplete, np.int64))
    is_there = np.isin(lake_starts, store_starts)
    is_new = store_starts >= work.until
    is_again = np.diff(lake_starts, prepend=-1) == 0
    runs = [
        *_runs(ONLY_IN_STORE, store_starts, store_ends, ~is_known & ~is_new),
        *_runs(ONLY_IN_STORE, store_starts, store_ends, ~is_known & is_new),
        *(_explained(run, pieces) for run in _runs(ONLY_IN_LAKE, lake_starts, lake_ends, ~is_there & ~equal)),
        *_different(work.store, lake_starts, lake_ends, _Differing(is_there & ~equal, equal)),
        *_runs(TWICE, lake_starts[is_again], lake_ends[is_again], is_again[is_again]),
    ]
    same = int(np.count_nonzero(equal & ~is_again))
    return SegmentDiff(tuple(runs), same, len(incomplete), tuple(dict.fromkeys(unreadable)), is_gone)


class _Differing(NamedTuple):
    """Which of the lake's records have other bytes in the store, and which the same."""

    chosen: Flags
    equal: Flags


def _different(range_: Range | None, starts: Integers, ends: Integers, flags: _Differing) -> Iterator[Run]:
    """
    Yield the records that both sides have, with other bytes.

    A body that its CRC denies has been damaged since. A record after which the log goes on as it was has been changed
    on one of the sides: a broker that cuts its log off writes all that follows again.
    """
    if range_ is None or not flags.chosen.any():
        return
    damaged: list[int] = []
    with closing(RangeReader(range_).pieces()) as pieces:
        for item in pieces:
            if not isinstance(item, Piece):
                damaged += [offset for offset, _ in message_batch(item, PropertyParser.SCAN, with_body=False)[1]]
    last_equal = int(starts[flags.equal][-1]) if flags.equal.any() else -1
    is_damaged = np.isin(starts, np.array(damaged, np.int64))
    is_changed = (starts < last_equal) & ~is_damaged
    yield from (run._replace(is_damaged=True) for run in _runs(DIFFERENT, starts, ends, flags.chosen & is_damaged))
    yield from (run._replace(is_changed=True) for run in _runs(DIFFERENT, starts, ends, flags.chosen & is_changed))
    yield from _runs(DIFFERENT, starts, ends, flags.chosen & ~is_damaged & ~is_changed)


def _of_store(range_: Range | None) -> tuple[_Places, list[Piece], bool]:
    """Return where the store has records, and what else it has."""
    places, others = _Places(), list[Piece]()
    if range_ is None:
        return places, others, False
    reader = RangeReader(range_)
    with closing(reader.pieces()) as pieces:
        for item in pieces:
            if isinstance(item, Piece):
                others.append(item)
                continue
            starts = item.positions + item.base_offset
            places.add(starts, starts + item.sizes)
    return places, others, reader.was_deleted


def _of_lake(work: DiffWork, unreadable: list[str]) -> tuple[_Places, list[int]]:
    """Return where the lake has records, which of them are the store's own bytes, and rows that make no record."""
    places, incomplete = _Places(), list[int]()
    if work.lake is None:
        return places, incomplete
    for batch in rows_of_segment(work.lake, unreadable):
        made = assemble(batch)
        incomplete += made.incomplete
        if made.offsets.size:
            places.add(made.offsets, made.offsets + made.sizes, _compared(made, work.store))
    return places, incomplete


def _compared(made: Assembled, range_: Range | None) -> Flags:
    """Return which records are the bytes that the store has at their offsets."""
    equal = np.zeros(made.offsets.size, np.bool_)
    if range_ is None:
        return equal
    ends = made.offsets + made.sizes
    cuts = np.flatnonzero((made.offsets[1:] != ends[:-1]) | (made.positions[1:] != (made.positions + made.sizes)[:-1]))
    first, last = np.concatenate(([0], cuts + 1)), np.concatenate((cuts, [made.offsets.size - 1]))
    try:
        with range_.open() as file:
            for start, end in zip(first.tolist(), last.tolist(), strict=True):
                some = slice(start, end + 1)
                equal[some] = _equal_to(file, range_, made, some)
    except FileNotFoundError:  # retention: the reader says so, too
        return equal
    return equal


def _equal_to(file: Reader, range_: Range, made: Assembled, some: slice) -> Flags:
    """Return which records of a run without gaps are the file's own bytes."""
    positions, sizes = made.positions[some], made.sizes[some]
    start, end = int(positions[0]), int(positions[-1] + sizes[-1])
    try:
        data = bytes(file.read(int(made.offsets[some][0]) - range_.base_offset, end - start))
    except OSError as error:
        if not is_unreadable(error):
            raise
        return np.zeros(positions.size, np.bool_)
    found = np.frombuffer(data.ljust(end - start, b"\0"), np.uint8)
    differs = found != made.buffer[start:end]
    return ~np.logical_or.reduceat(differs, positions - start) if differs.any() else np.ones(positions.size, np.bool_)


def _runs(what: str, starts: Integers, ends: Integers, chosen: Flags) -> Iterator[Run]:
    """Yield the runs of records that are chosen; where they are many, one that reaches from the first to the last."""
    places = np.flatnonzero(chosen)
    if not places.size:
        return
    cuts = np.flatnonzero(np.diff(places) != 1) + 1
    if cuts.size >= _MOST_RUNS:
        cuts = cuts[:0]
    for run in np.split(places, cuts):
        yield Run(what, int(starts[run[0]]), int(ends[run[-1]]), run.size)


def _explained(run: Run, pieces: list[Piece]) -> Run:
    """Return a run that the store lacks with what the store has in its place."""
    here = [piece for piece in pieces if piece.offset < run.end and run.start < piece.end]
    kinds = {piece.kind for piece in here}
    return run._replace(
        is_damaged=PieceKind.DAMAGE in kinds,
        is_unwritten=not kinds.isdisjoint({PieceKind.UNWRITTEN, PieceKind.WAITING}),
    )
