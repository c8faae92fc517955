"""
A queue as its broker writes it. The readable truth that the compiled build is held to.

The broker *appends*. It compares a unit's place by its queue offset with the place where it writes, but only to drop
what comes too low; too high a unit is written all the same, where the last one ended. And a queue offset of 0 is never
compared. So in a healthy log the n-th unit is at n * 20, and in any other the order of the log decides.
"""

from collections.abc import Iterator
from enum import StrEnum, unique

from rmq_formats.consumequeue.layout import BATCH_UNIT, UNIT
from rmq_formats.consumequeue.unit import (
    PRE_BLANK,
    BatchUnit,
    ExpectedUnit,
    Unit,
    decode_batch_unit,
    decode_unit,
    logical_offset,
)
from rmq_formats.layout import Buffer
from rmq_formats.release import Release, UnitSkip


@unique
class Appended(StrEnum):
    """What became of a unit."""

    IN_PLACE = "in place"
    ELSEWHERE = "not where its queue offset says"
    REPEATED = "taken for built already"
    DROPPED = "dropped: its queue offset is below the queue's end"


class ConsumeQueue:
    """A plain queue that begins empty."""

    def __init__(self, file_size: int) -> None:
        """Make files of *file_size* bytes, a multiple of a unit's."""
        self._file_size = file_size
        self._start: int | None = None  # of the first file
        self._data = bytearray()
        self._files = 0
        self._last_offset = -1
        self._last_end = -1

    def append(self, unit: ExpectedUnit, release: Release) -> Appended:
        """Write *unit* as *release* does."""
        # ConsumeQueue#putMessagePositionInfo
        if self._is_built(unit, release):
            return Appended.REPEATED
        expected = logical_offset(unit.queue_offset)
        self._make_room(expected)
        end = self.end
        if unit.queue_offset and expected < end and release.drops_low_queue_offset:
            return Appended.DROPPED
        self._last_offset = unit.physical_offset
        self._last_end = unit.physical_offset + unit.size
        self._data += unit.encoded
        return Appended.IN_PLACE if expected == end else Appended.ELSEWHERE

    def _is_built(self, unit: ExpectedUnit, release: Release) -> bool:
        if release.unit_skip is UnitSkip.OFFSET_NOT_BEYOND_LAST:
            return unit.physical_offset <= self._last_offset
        return unit.physical_offset + unit.size <= self._last_end

    def _make_room(self, expected: int) -> None:
        """Make the file that the next unit goes to; the first one ever is filled up to *expected* with blanks."""
        if self._start is None:
            blanks = max(expected, 0) % self._file_size // UNIT.size
            self._start = max(expected, 0) // self._file_size * self._file_size
            self._data += UNIT.pack(*PRE_BLANK) * blanks
            self._files = 1
        elif len(self._data) == self._files * self._file_size:
            self._files += 1  # made before the unit is looked at: it stays empty when the unit is dropped

    @property
    def end(self) -> int:
        """The logical offset after the last unit."""
        return (self._start or 0) + len(self._data)

    def files(self) -> Iterator[tuple[int, bytes]]:
        """Yield the logical offset and the bytes of each file, filled up with zeros."""
        for number in range(self._files):
            at = number * self._file_size
            yield (self._start or 0) + at, bytes(self._data[at : at + self._file_size]).ljust(self._file_size, b"\0")


class BatchConsumeQueue:
    """A queue of batch units that begins empty: nothing is compared but the order of the log."""

    def __init__(self, file_size: int) -> None:
        """Make files of *file_size* bytes, a multiple of a unit's."""
        self._file_size = file_size
        self._data = bytearray()
        self._last_offset = -1

    def append(self, unit: ExpectedUnit, _release: Release) -> Appended:
        """Write *unit*."""
        # BatchConsumeQueue#putBatchMessagePositionInfo
        if unit.physical_offset <= self._last_offset:
            return Appended.REPEATED
        self._last_offset = unit.physical_offset
        self._data += unit.encoded
        return Appended.IN_PLACE

    @property
    def end(self) -> int:
        """The logical offset after the last unit."""
        return len(self._data)

    def files(self) -> Iterator[tuple[int, bytes]]:
        """Yield the logical offset and the bytes of each file, filled up with zeros."""
        for at in range(0, len(self._data), self._file_size):
            yield at, bytes(self._data[at : at + self._file_size]).ljust(self._file_size, b"\0")


def walk_units(buffer: Buffer) -> Iterator[Unit]:
    """Yield the units of a plain queue's file that are written, up to the first that is not."""
    for position in range(0, len(buffer) - UNIT.size + 1, UNIT.size):
        unit = decode_unit(buffer, position)
        if not unit.is_written:
            return
        yield unit


def walk_batch_units(buffer: Buffer) -> Iterator[BatchUnit]:
    """Yield the units of a BatchConsumeQueue's file that are written, up to the first that is not."""
    for position in range(0, len(buffer) - BATCH_UNIT.size + 1, BATCH_UNIT.size):
        unit = decode_batch_unit(buffer, position)
        if not unit.is_written:
            return
        yield unit
