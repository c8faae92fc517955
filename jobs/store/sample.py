"""
A look at the log that takes seconds, whatever its size: a short log is read whole, of a long one a few stretches.

They lie evenly between its first and its last byte. What is counted in them stands for the rest, so a figure that comes
of it is about right, and no more is said of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from jobs.storage import storage_of
from jobs.storage.model import Reader
from jobs.store.chain import Task, run_range
from jobs.store.listing import Segment, StoreListing
from jobs.store.ranges import Range, newest_written, plan_ranges
from jobs.store.workers import OneByOne

T = TypeVar("T")

STRETCH_SIZE = 4 << 20
_STRETCHES = 8
_LOOK = 64 << 10  # so many zeros are taken for the log's end


class Stretch(NamedTuple, Generic[T]):
    """Some of the log, and what was made of the records that begin in it."""

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
    is_whole: bool  # all of them were looked at
    stretches: tuple[Stretch[T], ...]

    @property
    def seen(self) -> int:
        """How many bytes were looked at."""
        return sum(stretch.end - stretch.start for stretch in self.stretches)

    def scaled(self, count: int) -> int:
        """Return how many there are in the log, about, of what was met *count* times."""
        return count if self.is_whole else round(count * self.size / max(self.seen, 1))

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
    def origin(self) -> str:
        """Where a figure comes from, for people."""
        return "counted" if self.is_whole else f"by a sample of {self.seen} bytes"

    @property
    def text(self) -> str:
        """The same for people."""
        return f"{self.size} bytes of the log in {self.segments} segments, offsets {self.start} to {self.end}"


def sample_log(listing: StoreListing, task: Task[T], stretch_size: int = STRETCH_SIZE) -> Sample[T]:
    """Run *task* on some of the log, here."""
    end = _written_end(listing)
    segments = [segment for segment in listing.segments if segment.base_offset < end]
    size = sum(_written(segment, end) for segment in segments)
    is_whole = size <= _STRETCHES * stretch_size
    if is_whole:
        outcomes = OneByOne(listing.options).ranges(plan_ranges(listing), task)
        stretches = [
            Stretch(seen.first, seen.next if seen.open_at is None else seen.open_at, payload)
            for _, seen, payload in outcomes
            if seen.first is not None
        ]
    else:
        outcomes = [run_range(range_, task) for range_ in _some(listing, segments, end, stretch_size)]
        # What began before a range is not of it, and its last record may reach beyond: on average that is the same.
        stretches = [
            Stretch(range_.start_offset, range_.end_offset if seen.open_at is None else seen.open_at, payload)
            for range_, seen, payload in outcomes
            if not seen.gone
        ]
    last = max((outcome.seen.open_at for outcome in outcomes if outcome.seen.open_at is not None), default=end)
    return Sample(len(segments), listing.start_offset, last, size + last - end, is_whole, tuple(stretches))


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
            low, high = (middle, high) if _is_written(reader, middle) else (low, middle)
    return segment.base_offset + high


def _is_written(reader: Reader, position: int) -> bool:
    try:
        return any(reader.read(position, _LOOK))
    except OSError:  # what a file system never stored is read from no disk: here something was
        return True
