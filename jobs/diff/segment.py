"""
One segment of a log, in the store and in the lake.

Each record of the lake is compared with the store's own bytes at its offset, in the task: nothing but runs
of records that one side lacks, or that differ, leaves it.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jobs.lake.tables import RECORD_CRC
from jobs.restore.plan import Coverage, Interval
from jobs.restore.segment import Flags, SegmentWork, check_crcs, rows_of_segment
from jobs.storage.model import Reader
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import Range
from jobs.store.selection import TopicChoices
from rmq_formats.arrays import slices
from rmq_formats.commitlog.assembly import Assembled, assemble
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.errors import is_unreadable
from rmq_formats.kernels.integers import Integers
from rmq_formats.properties import PropertyParser

ONLY_IN_STORE, ONLY_IN_LAKE, DIFFERENT = "only in the store", "only in the lake", "different"
CHANGED = "changed in the lake"
TWICE = "twice in the lake"
_MOST_RUNS = 64  # of one kind in a segment: every second record may be of a topic that was not chosen


class DiffWork(NamedTuple):
    """One segment; the store has no file of it, or the lake no row."""

    lake: SegmentWork | None
    store: Range | None
    until: int  # the lake's rows end here
    choices: TopicChoices = TopicChoices()  # of the runs that wrote the lake's rows


class Run(NamedTuple):
    """A range of consecutive records with the same difference between store and lake."""

    what: str
    start: int
    end: int
    records: int
    is_damaged: bool = False  # the store has bytes there that are not records, or bodies with another CRC
    is_changed: bool = False  # the log goes on as it was: the store was damaged since, or the lake changed
    is_unwritten: bool = False  # the store's log ends before
    is_checked: bool = False  # the rows have the CRCs of the records that were read
    is_chosen: bool = True  # a run that read them took their topics


class SegmentDiff(NamedTuple):
    """The result of comparing a segment."""

    runs: tuple[Run, ...]
    equal: int  # records that are the same on both sides
    incomplete: int  # rows that no record can be made of: their bodies were left out
    unreadable: tuple[str, ...]
    is_gone: bool  # the store's file was deleted meanwhile
    unchecked: tuple[Interval, ...]  # rows without a CRC of their record
    last_equal: int  # the offset of the last record that is the same on both sides; -1: there is none


class _Places:
    """Records of one side, ascending."""

    def __init__(self) -> None:
        self._columns: list[tuple[NDArray[Any], ...]] = [_column_set(np.empty(0, np.int64), np.empty(0, np.int64))]

    def add(self, starts: Integers, ends: Integers, *flags: Flags) -> None:
        self._columns.append(_column_set(starts, ends, *flags))

    def sorted(self) -> tuple[NDArray[Any], ...]:
        """Return starts and ends of records; which are equal, which another engine changed, which have no CRC."""
        columns = [np.concatenate(column) for column in zip(*self._columns, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return tuple(column[order] for column in columns)


def _column_set(starts: Integers, ends: Integers, *flags: Flags) -> tuple[NDArray[Any], ...]:
    return (starts, ends, *(flags or [np.zeros(starts.size, np.bool_)] * 3))


def diff_segment(work: DiffWork) -> SegmentDiff:
    """Compare both sides' records of a segment."""
    store, pieces, is_gone = _of_store(work)
    lake, rest = _of_lake(work)
    store_starts, store_ends, is_chosen, *_ = store.sorted()
    lake_starts, lake_ends, equal, changed, unchecked = lake.sorted()
    is_known = np.isin(store_starts, lake_starts) | np.isin(store_starts, np.array(rest.incomplete, np.int64))
    is_there = np.isin(lake_starts, store_starts)
    is_new = store_starts >= work.until
    is_again = np.diff(lake_starts, prepend=-1) == 0
    differing = _Differing(is_there & ~equal & ~changed, equal, unchecked)
    runs = [
        *_runs(ONLY_IN_STORE, store_starts, store_ends, ~is_known & ~is_new & is_chosen),
        *(
            run._replace(is_chosen=False)
            for run in _runs(ONLY_IN_STORE, store_starts, store_ends, ~is_known & ~is_new & ~is_chosen)
        ),
        *_runs(ONLY_IN_STORE, store_starts, store_ends, ~is_known & is_new),
        *_runs(CHANGED, lake_starts, lake_ends, changed),
        *(
            _explained(run, pieces)
            for run in _runs(ONLY_IN_LAKE, lake_starts, lake_ends, ~is_there & ~equal & ~changed)
        ),
        *_different(work.store, lake_starts, lake_ends, differing),
        *_runs(TWICE, lake_starts[is_again], lake_ends[is_again], is_again[is_again]),
    ]
    same = int(np.count_nonzero(equal & ~is_again & ~changed))
    last_equal = int(lake_starts[equal].max(initial=-1))
    return SegmentDiff(
        tuple(runs), same, len(rest.incomplete), tuple(dict.fromkeys(rest.unreadable)), is_gone,
        tuple(rest.unchecked.merged()[0]), last_equal,
    )  # fmt: skip


class _Differing(NamedTuple):
    """Which of the lake's records have other bytes in the store, and which the same."""

    chosen: Flags
    equal: Flags
    unchecked: Flags


def _different(range_: Range | None, starts: Integers, ends: Integers, flags: _Differing) -> Iterator[Run]:
    """
    Yield the records that both sides have, with other bytes.

    A body that its CRC denies has been damaged since. A record after which the log goes on as it was has been changed
    on one of the sides (a broker that cuts its log off writes all that follows again): in the store, where the row has
    the CRC of the record that was read. What differs to the segment's end is judged by the segments after it.
    """
    if range_ is None or not flags.chosen.any():
        return
    damaged: list[int] = []
    with closing(RangeReader(range_).pieces()) as pieces:
        for item in pieces:
            if not isinstance(item, Piece):
                damaged += [offset for offset, _ in message_batch(item, PropertyParser.SCAN, with_body=False)[1]]
    goes_on = starts < starts[flags.equal].max(initial=-1)
    is_damaged = np.isin(starts, np.array(damaged, np.int64)) | (goes_on & ~flags.unchecked)
    is_changed = goes_on & ~is_damaged
    rest = flags.chosen & ~is_damaged & ~is_changed
    yield from (run._replace(is_damaged=True) for run in _runs(DIFFERENT, starts, ends, flags.chosen & is_damaged))
    yield from (run._replace(is_changed=True) for run in _runs(DIFFERENT, starts, ends, flags.chosen & is_changed))
    yield from (run._replace(is_checked=True) for run in _runs(DIFFERENT, starts, ends, rest & ~flags.unchecked))
    yield from _runs(DIFFERENT, starts, ends, rest & flags.unchecked)


def judged_by_others(run: Run, own_last_equal: int, last_equal: int) -> Run:
    """
    Return what differs to the end of a segment as segments after it show: their log may go on as it was.

    A segment without any record that is the same may be another log's, so nothing after it speaks for its damage.
    """
    if run.what != DIFFERENT or own_last_equal < 0 or run.start > last_equal:
        return run
    return run._replace(is_damaged=run.is_damaged or run.is_checked, is_changed=not run.is_checked)


def _of_store(work: DiffWork) -> tuple[_Places, list[Piece], bool]:
    """Return the places of the store's records, whether their topics were chosen, and the other pieces."""
    places, others = _Places(), list[Piece]()
    if work.store is None:
        return places, others, False
    reader = RangeReader(work.store)
    with closing(reader.pieces()) as pieces:
        for item in pieces:
            if isinstance(item, Piece):
                others.append(item)
                continue
            starts = item.positions + item.base_offset
            none = np.zeros(starts.size, np.bool_)
            places.add(starts, starts + item.sizes, _are_chosen(item, starts, work.choices), none, none)
    return places, others, reader.was_deleted


def _are_chosen(records: Records, starts: Integers, choices: TopicChoices) -> Flags:
    """Return which records are of topics that every run took; before `until`, none where the choices are not known."""
    is_later: Flags = starts >= choices.until
    if is_later.all() or not choices.choices:
        return is_later

    def takes(topic: str) -> bool:
        return all(choice.takes(topic) for choice in choices.choices)

    taken, _ = message_batch(records, PropertyParser.SCAN, takes=takes, with_body=False)
    return is_later | np.isin(starts, taken.column("physical_offset").to_numpy())


@dataclass(slots=True)
class _Rest:
    """Rows of the lake that cannot be compared."""

    incomplete: list[int] = field(default_factory=list)  # without a body
    unreadable: list[str] = field(default_factory=list)  # files
    unchecked: Coverage = field(default_factory=Coverage)


def _of_lake(work: DiffWork) -> tuple[_Places, _Rest]:
    """Return the places of the lake's records, which of them are the store's bytes, and rows that make no record."""
    places, rest = _Places(), _Rest()
    if work.lake is None:
        return places, rest
    for batch in rows_of_segment(work.lake, rest.unreadable):
        made = assemble(batch)
        none = np.setdiff1d(np.arange(batch.num_rows), made.rows)
        has_crc = batch.column(RECORD_CRC).take(pa.array(none)).is_valid().to_numpy(zero_copy_only=False)
        incomplete = np.array(made.incomplete, np.int64)
        rest.incomplete += incomplete[~has_crc].tolist()
        broken = incomplete[has_crc]  # a row of which a record was made once
        places.add(broken, broken + 1, ~has_crc[has_crc], has_crc[has_crc], ~has_crc[has_crc])
        is_changed, is_unchecked = check_crcs(batch, made)
        rest.unchecked.add(*made.only(is_unchecked).places)
        if made.offsets.size:
            places.add(*made.places, _compared(made, work.store), is_changed, is_unchecked)
    return places, rest


def _compared(made: Assembled, range_: Range | None) -> Flags:
    """Return which records are the bytes that the store has at their offsets."""
    equal = np.zeros(made.offsets.size, np.bool_)
    if range_ is None:
        return equal
    ends = made.offsets + made.sizes
    cuts = (made.offsets[1:] != ends[:-1]) | (made.positions[1:] != (made.positions + made.sizes)[:-1])
    try:
        with range_.open() as file:
            for some in slices(made.offsets.size, cuts):
                if made.offsets[some.start] >= range_.base_offset:  # else a row that another engine has changed
                    equal[some] = _equal_to(file, range_, made, some)
    except FileNotFoundError:  # retention: the reader reports it as well
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
    cuts = np.diff(places) != 1
    cuts &= np.count_nonzero(cuts) < _MOST_RUNS
    for some in slices(places.size, cuts):
        run = places[some]
        yield Run(what, int(starts[run[0]]), int(ends[run[-1]]), run.size)


def _explained(run: Run, pieces: list[Piece]) -> Run:
    """Return a run that the store lacks with what the store has in its place."""
    here = [piece for piece in pieces if piece.offset < run.end and run.start < piece.end]
    kinds = {piece.kind for piece in here}
    return run._replace(
        is_damaged=PieceKind.DAMAGE in kinds,
        is_unwritten=not kinds.isdisjoint({PieceKind.UNWRITTEN, PieceKind.WAITING}),
    )
