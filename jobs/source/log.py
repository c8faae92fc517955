"""
From one proven record boundary of a log to a later one: the end of a micro-batch, and its tasks' ranges.

The records are followed from the place where the last micro-batch ended; only where one ends may the next begin. A
place remembers the record before it, so that another log, or one that its broker has cut back, is not read on.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from errno import ENOENT
from hashlib import sha256
from operator import itemgetter
from typing import Any, NamedTuple, Self

import numpy as np

from jobs.console.log import say
from jobs.lake.history import leads_to
from jobs.lake.identity import holds
from jobs.store.log_ends import LostPart
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import WHOLE_SEGMENTS, Range, holes, plan_ranges
from jobs.store.record_places import Fingerprint
from jobs.store.store import Store
from rmq_formats.commitlog import kernels
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.errors import CorruptData, FormatError
from rmq_formats.kernels.integers import Integers
from rmq_formats.properties import MAX_LONG

_NO_PLACE = "the checkpoint of the query names no place in a log"
_ENDS_OF_LOG = (PieceKind.UNWRITTEN, PieceKind.WAITING)


class DataLossError(FormatError):
    """Part of the log was deleted before it was read."""


def data_loss(start: int, end: int, location: str) -> DataLossError:
    """Return the error that names these offsets and the remedy."""
    reason = (
        f"offsets {start} to {end} are in no file of the log: retention deleted them before they were read, or a "
        "segment is missing; with option failOnDataLoss=false they are left out"
    )
    return DataLossError(reason, start, location)


def lost_files(store: Store) -> Iterator[LostPart]:
    """Yield offsets inside a log that no file of it holds."""
    for before, start, end in holes(store.segments):
        reason = f"no file of the log holds offsets {start} to {end}: a segment is missing or cut short"
        yield LostPart(start, end, f"{before.location}: {reason}")


def lose(parts: Iterable[LostPart], start: int, end: int, *, fails: bool) -> None:
    """Raise `DataLossError` of *parts* that are of offsets from *start* to *end*; else warn of them."""
    for first, next_one, reason in parts:
        if first < end and next_one >= start:
            if fails:
                hint = "with options failOnDataLoss=false and mode=PERMISSIVE they are left out"
                raise DataLossError(f"{reason}; {hint}", first)
            say(f"rmq-lake: {reason}; its messages are left out", "warning")


class Place(NamedTuple):
    """A proven record boundary, and the identity of the record before it."""

    offset: int
    store_timestamp: int | None = None
    record: Fingerprint | None = None

    def to_json(self) -> dict[str, object]:
        """Return the form that a checkpoint keeps."""
        record = self.record._asdict() if self.record else None
        return {"offset": self.offset, "store_timestamp": self.store_timestamp, "record": record}

    @classmethod
    def from_json(cls, kept: Mapping[str, object]) -> Self:
        """Read the form that a checkpoint keeps; `CorruptData` where it is of another source, or damaged."""
        values: Any = kept  # of another source's checkpoint, or a damaged one, anything
        try:
            record = values.get("record")
            place = cls(values["offset"], values.get("store_timestamp"), Fingerprint(**record) if record else None)
        except (AttributeError, KeyError, TypeError) as error:
            raise CorruptData(f"{_NO_PLACE}: {str(values)[:60]!r}") from error
        numbers = [place.offset, *(place.record[:2] if place.record else ())]
        if not all(isinstance(number, int) and 0 <= number <= MAX_LONG for number in numbers):
            raise CorruptData(f"{_NO_PLACE}: {str(values)[:60]!r}")
        return place


Way = tuple[Place, tuple[Range, ...]]
"""The end of a walk along the log, and the ranges on the way."""


def way_from(  # noqa: PLR0913 - how far the log is followed
    start: Place,
    store: Store,
    *,
    limit: int = MAX_LONG,
    stop: int = MAX_LONG,
    part_size: int = MAX_LONG,
    fails_on_data_loss: bool,
) -> Way:
    """
    Follow the log from *start* to its last boundary within *limit* bytes, but at least to the first one after *start*.

    Nothing after the offset *stop* is taken; ranges have about *part_size* bytes. `DataLossError` if files are missing,
    unless they may be; `FileNotFoundError` if one is deleted meanwhile.
    """
    end, taken = start, list[Range]()
    ranges = plan_ranges(store, start.offset, WHOLE_SEGMENTS, start.store_timestamp)
    aim = min(stop, ranges[0].start_offset + limit) if ranges else stop
    for range_ in ranges:
        if range_.start_offset >= (aim if end.offset > start.offset else stop):
            break
        if range_.start_offset > end.offset:
            if fails_on_data_loss:
                raise data_loss(end.offset, range_.start_offset, store.root)
            lost = f"offsets {end.offset} to {range_.start_offset} were deleted before they were read"
            say(f"rmq-lake: {store.root}: {lost}", "warning")
        step = _Step(range_, aim, stop if end.offset == start.offset else aim, part_size, end)
        taken += step.take()
        end = step.end
        if step.is_last or end.offset < range_.end_offset:
            break
    return end, tuple(taken)


class _Last(NamedTuple):
    offset: int
    size: int
    store_timestamp: int

    @classmethod
    def of(cls, group: Records, number: int) -> Self:
        position = int(group.positions[number])
        return cls(
            group.base_offset + position,
            int(group.sizes[number]),
            int(kernels.store_timestamp(group.buffer, position)),
        )


@dataclass(slots=True)
class _Step:
    """The part taken of one segment."""

    range: Range
    aim: int  # no more is taken, unless the first piece is longer
    stop: int  # nothing is taken that ends after it
    part_size: int
    end: Place
    is_last: bool = False  # the log ends here
    cuts: list[tuple[int, int | None]] = field(default_factory=list)  # offset, store time before it

    def take(self) -> Iterator[Range]:
        """Follow the records; return the range's parts."""
        range_ = self.range
        reached = start = range_.start_offset
        self.cuts = [(start, range_.store_timestamp)]
        limit = max(self.aim - range_.base_offset, range_.start + 1)
        reader = RangeReader(replace(range_, end=min(range_.end, limit)))
        # A place must be a boundary that the log itself proves: the end of a record, of damage or of a file. So the
        # range is cut at the aim only as far as boundaries allow, and a first piece that is longer than the aim is
        # taken in full: a batch that takes nothing would be asked for again for ever.
        first: tuple[int, _Last | None] = MAX_LONG, None  # where the first piece ends, and the record that it is
        last: _Last | None = None
        for item in reader.pieces():
            if isinstance(item, Piece):
                self.is_last = item.kind in _ENDS_OF_LOG
                if not self.is_last:
                    first = min(first, (item.end, None), key=itemgetter(0))
                    reached = max(reached, item.end) if item.end <= self.aim else reached
                continue
            ends = item.base_offset + item.positions + item.sizes
            if ends[0] < first[0]:
                first = int(ends[0]), _Last.of(item, 0)
            taken = int(np.searchsorted(ends, self.aim, side="right"))
            if taken:
                self._cut(item, ends[:taken])
                reached, last = max(reached, int(ends[taken - 1])), _Last.of(item, taken - 1)
        if reader.was_deleted:
            raise FileNotFoundError(ENOENT, "deleted while it was read", range_.location)
        if reached == start and first[0] <= min(self.stop, range_.end_offset):  # after the range where it has no piece
            reached, last = first
        time = last.store_timestamp if last else range_.store_timestamp
        self.end = Place(reached, time, self._fingerprint(last) if last else self.end.record)
        return self._parts()

    def _cut(self, group: Records, ends: Integers) -> None:
        while True:
            number = int(np.searchsorted(ends, self.cuts[-1][0] + self.part_size))
            if number >= ends.size:
                return
            time = int(kernels.store_timestamp(group.buffer, int(group.positions[number])))
            self.cuts.append((int(ends[number]), time))

    def _fingerprint(self, record: _Last) -> Fingerprint:
        with self.range.open() as file:
            data = bytes(file.read(record.offset - self.range.base_offset, record.size))
        return Fingerprint(record.offset, record.size, sha256(data).hexdigest())

    def _parts(self) -> Iterator[Range]:
        base = self.range.base_offset
        stops = [offset for offset, _ in self.cuts[1:]]
        for (start, time), stop in zip(self.cuts, [*stops, self.end.offset], strict=True):
            if stop > start:
                yield replace(self.range, start=start - base, end=stop - base, store_timestamp=time)


def check_place(place: Place, store: Store) -> None:
    """Raise `CorruptData` where the log is not the one that *place* was found in, or not any more."""
    if place.offset > store.end_offset:
        reason = f"the log ends at {store.end_offset}, before the place that was read up to"
        raise CorruptData(f"{reason}; a new checkpoint begins from scratch", place.offset, store.root)
    if place.record is not None and holds(place.record, store) is False:
        reason = "this is not the record that was read before: another log, or one that its broker has cut back"
        raise CorruptData(f"{reason}; a new checkpoint begins from scratch", place.record.offset, store.root)


def check_chain(place: Place, store: Store) -> None:
    """Raise `CorruptData` where the record before *place* is there, and no record leads to it any more."""
    segment = store.segment_at(place.record.offset) if place.record else None
    if place.record and segment and holds(place.record, store) and not leads_to(
        place.record.offset, segment.base_offset, store
    ):  # fmt: skip
        reason = "the record that was read before is not reached any more: the log was cut back"
        raise CorruptData(f"{reason}; a new checkpoint begins from scratch", place.record.offset, store.root)
