"""
The keys of a log as one long row, in scratch files.

Each range of the log gives a stretch of the row: packed keys, in a file of its own. Their counts, summed up, say where
in the row each stretch begins, and so which keys an index file holds: nothing is sorted and nothing is shuffled. The
place of a message in the row is found in the same pass, for the messages that somebody asks about.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from jobs.indexing.scratch import Scratch
from jobs.source.planning import Range
from jobs.source.workers import Workers
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.indexfile.build import PACKED_KEY, RuleTable, pack_keys
from rmq_formats.indexfile.file import Rules

KEYS_AT_ONCE = 1 << 18


class Key(NamedTuple):
    """One packed key."""

    key_hash: int
    physical_offset: int
    store_timestamp: int


class Place(NamedTuple):
    """Where the keys of a message stand in the row, and how many there are."""

    first: int
    keys: int


class Stretch(NamedTuple):
    """The keys of one range."""

    file: str
    keys: int
    records: int
    last_record: int | None  # physical offset of the last record, with keys or without
    last_keyed: int | None  # of the last one with keys
    places: dict[int, Place]  # of the messages asked about; in this stretch's own numbers
    damage: int  # bytes that are no record


class RowPart(NamedTuple):
    """Consecutive keys in one scratch file."""

    file: str
    first: int
    keys: int


@dataclass(frozen=True)
class KeyRow:
    """The keys of a log, stretch behind stretch."""

    scratch: Scratch
    stretches: tuple[Stretch, ...]
    start_offset: int  # of the log
    _ends: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Sum up the counts."""
        object.__setattr__(self, "_ends", tuple(accumulate(stretch.keys for stretch in self.stretches)))

    def __len__(self) -> int:
        """How many keys the log has."""
        return self._ends[-1] if self._ends else 0

    @property
    def records(self) -> int:
        """How many messages the log has."""
        return sum(stretch.records for stretch in self.stretches)

    @property
    def damage(self) -> int:
        """How many bytes of the log are no record and never will be."""
        return sum(stretch.damage for stretch in self.stretches)

    @property
    def ends_without_keys(self) -> bool:
        """Whether a message without keys comes after the last one with keys."""
        record = max((stretch.last_record for stretch in self.stretches if stretch.last_record is not None), default=-1)
        keyed = max((stretch.last_keyed for stretch in self.stretches if stretch.last_keyed is not None), default=-1)
        return record > keyed

    def parts(self, start: int, end: int) -> list[RowPart]:
        """Return where keys number *start* to *end* are, in order."""
        found = []
        number = bisect_right(self._ends, start)
        while start < end:
            stretch = self.stretches[number]
            first = start - (self._ends[number] - stretch.keys)
            count = min(stretch.keys - first, end - start)
            if count:
                found.append(RowPart(stretch.file, first, count))
            start += count
            number += 1
        return found

    def keys(self, start: int, end: int) -> list[Key]:
        """Return a few keys."""
        wanted = self.parts(max(start, 0), min(end, len(self)))
        return [Key(*key) for block in read_keys(self.scratch, wanted) for key in block.tolist()]

    def place(self, physical_offset: int) -> Place | None:
        """Return the place of a message that was asked about; None when the log does not hold it."""
        for stretch, end in zip(self.stretches, self._ends, strict=True):
            place = stretch.places.get(physical_offset)
            if place is not None:
                return Place(place.first + end - stretch.keys, place.keys)
        return None

    def drop(self) -> None:
        """Remove the scratch files."""
        for stretch in self.stretches:
            self.scratch.delete(stretch.file)


def collect_keys(
    workers: Workers, ranges: Sequence[Range], rules: Rules, scratch: Scratch, asked: Sequence[int] = ()
) -> KeyRow:
    """Read ranges of the log and return their keys; *asked* are offsets of messages whose places are wanted."""
    task = partial(collect_range, rules=rules, scratch=scratch, asked=tuple(sorted(set(asked))))
    outcomes = workers.ranges(ranges, task, lambda stretch: scratch.delete(stretch.file))
    start = min((range_.start_offset for range_ in ranges), default=0)
    return KeyRow(scratch, tuple(outcome.payload for outcome in outcomes), start)


def collect_range(
    range_: Range, pieces: Iterator[Records | Piece], *, rules: Rules, scratch: Scratch, asked: tuple[int, ...]
) -> Stretch:
    """Write the keys of one range to a scratch file."""
    table = RuleTable.of(rules)
    name = f"{range_.start_offset:020d}-{uuid4()}.keys"
    count = records = damage = 0
    last_record: int | None = None
    last_keyed: int | None = None
    places: dict[int, Place] = {}
    with scratch.create(name) as file:
        for item in pieces:
            if isinstance(item, Piece):
                damage += item.size if item.kind is PieceKind.DAMAGE else 0
                continue
            records += len(item.positions)
            first, last = (item.base_offset + int(item.positions[at]) for at in (0, -1))
            wanted = asked[bisect_right(asked, first - 1) : bisect_right(asked, last)]
            starts = _starts(item, wanted)
            for block in pack_keys(item, table):
                if not len(block.keys):
                    continue
                if starts:
                    _note_places(places, starts, block.keys["physical_offset"], count)
                last_keyed = int(block.keys["physical_offset"][-1])
                count += len(block.keys)
                file.write(block.keys.view(np.uint8).data)
            for offset in starts:
                places.setdefault(offset, Place(count, 0))
            last_record = last
    return Stretch(name, count, records, last_record, last_keyed, places, damage)


def _starts(records: Records, wanted: Sequence[int]) -> list[int]:
    """Return those of the wanted offsets at which a record begins."""
    positions = np.array(wanted, np.int64) - records.base_offset
    return [offset for offset, there in zip(wanted, np.isin(positions, records.positions), strict=True) if there]


def _note_places(places: dict[int, Place], starts: Sequence[int], offsets: NDArray[np.int64], before: int) -> None:
    """Note where messages stand in a block of keys that begins with number *before*; blocks hold whole messages."""
    native = offsets.astype(np.int64)
    first, end = (np.searchsorted(native, np.array(starts, np.int64), side) for side in ("left", "right"))
    for offset, low, high in zip(starts, first.tolist(), end.tolist(), strict=True):
        if high > low:
            places[offset] = Place(before + low, high - low)


def read_keys(scratch: Scratch, parts: Sequence[RowPart]) -> Iterator[NDArray[np.void]]:
    """Yield keys in blocks that may be changed; a block never spans two parts."""
    for part in parts:
        with scratch.open(part.file) as file:
            first, left = part.first, part.keys
            while left:
                count = min(left, KEYS_AT_ONCE)
                data = bytearray(file.read(first * PACKED_KEY.itemsize, count * PACKED_KEY.itemsize))
                yield np.frombuffer(data, PACKED_KEY)
                first, left = first + count, left - count
