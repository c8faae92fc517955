"""
A look at the log that takes seconds, whatever its size: a short log is read whole, of a long one a few stretches.

They lie evenly from its first to its last record. What is counted in them stands for the rest, so a figure that comes
of it is about right, and no more is said of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from jobs.source.distribute import Outcome, Task, run_range
from jobs.source.listing import Segment, StoreListing
from jobs.source.planning import Range, newest_written, plan_ranges
from jobs.source.workers import OneByOne
from jobs.storage import storage_of

T = TypeVar("T")

_STRETCHES = 8
_STRETCH_SIZE = 4 << 20
_LOOK = 64 << 10  # so many zeros are taken for the log's end


class Stretch(NamedTuple, Generic[T]):
    """Some of the log, from a record's beginning to another's, and what was made of it."""

    start: int
    end: int
    payload: T


@dataclass(frozen=True, slots=True)
class Sample(Generic[T]):
    """What was looked at of a log, and how much there is."""

    segments: int
    start: int
    end: int  # of what is written, nearly
    size: int  # bytes on disk between the two
    stretches: tuple[Stretch[T], ...]

    @property
    def seen(self) -> int:
        """How many bytes were looked at."""
        return sum(stretch.end - stretch.start for stretch in self.stretches)

    def scaled(self, count: int) -> int:
        """Return how many there are in the log, about, of what was met *count* times."""
        return round(count * max(self.size / self.seen, 1)) if self.seen else 0

    def describe(self) -> dict[str, Any]:
        """Return what a run would read of the log, and what was read to say so."""
        return {
            "segments": self.segments,
            "bytes": self.size,
            "from_offset": self.start,
            "to_offset": self.end,
            "sampled_bytes": self.seen,
        }

    @property
    def text(self) -> str:
        """The same for people."""
        return f"{self.size} bytes of the log in {self.segments} segments, offsets {self.start} to {self.end}"


def sample_log(listing: StoreListing, task: Task[T], stretch_size: int = _STRETCH_SIZE) -> Sample[T]:
    """Run *task* on some of the log, here."""
    end = _written_end(listing)
    segments = [segment for segment in listing.segments if segment.base_offset < end]
    size = sum(_written(segment, end) for segment in segments)
    if size <= _STRETCHES * stretch_size:
        outcomes = OneByOne(listing.options).ranges(plan_ranges(listing), task)
    else:
        outcomes = [run_range(range_, task) for range_ in _some(listing, segments, end, stretch_size)]
    stretches = tuple(_stretches(outcomes))
    last = stretches[-1].end if stretches else end
    return Sample(len(segments), listing.start_offset, last, size - max(end - last, 0), stretches)


def _stretches(outcomes: list[Outcome[T]]) -> Iterator[Stretch[T]]:
    for outcome in outcomes:
        first, next_, open_at = outcome.seen.first, outcome.seen.next, outcome.seen.open_at
        if first is not None:
            yield Stretch(first, next_ if open_at is None else open_at, outcome.payload)


def _some(listing: StoreListing, segments: list[Segment], end: int, size: int) -> Iterator[Range]:
    """Yield ranges as far from each other as they can be, the first and the last bytes of the log among them."""
    wholes = {range_.location: range_ for range_ in plan_ranges(listing, range_size=1 << 62)}
    total = sum(_written(segment, end) for segment in segments)
    for number in range(_STRETCHES):
        position = (total - size) * number // (_STRETCHES - 1)
        for segment in segments:
            if position < _written(segment, end):
                stop = min(position + size, _written(segment, end))
                yield replace(wholes[segment.location], start=position, end=stop, sync=position > 0)
                break
            position -= _written(segment, end)


def _written(segment: Segment, end: int) -> int:
    return min(segment.readable, end - segment.base_offset)


def _written_end(listing: StoreListing) -> int:
    """Return the offset behind which the newest segment is zeros; not to the byte."""
    newest = newest_written(listing)
    segment = next((segment for segment in listing.segments if segment.base_offset == newest), None)
    if segment is None:
        return listing.start_offset
    with storage_of(segment.location, listing.options).open(segment.location) as reader:
        low, high = 0, segment.readable
        while high - low > _LOOK:
            middle = (low + high) // 2
            low, high = (middle, high) if any(reader.read(middle, _LOOK)) else (low, middle)
    return segment.base_offset + high
