"""
Which queue offsets a broker says that a queue holds, as it does after a start.

The maximum is where the queue ends. The minimum is corrected to the log's first record, but by a look into the queue's
*first* file alone: where that file has no unit of a record that is still there, nothing is corrected, and 0 stays. From
5.0.0 on a queue whose records are all deleted begins where it ends.
"""

from collections.abc import Callable
from typing import NamedTuple

from rmq_formats.release import Release

PhysicalOffset = Callable[[int], int]  # of the unit at a position


class QueueBounds(NamedTuple):
    """The first queue offset that a queue holds, and the one that its next message gets."""

    minimum: int
    maximum: int


def queue_bounds(  # noqa: PLR0913, PLR0917 - where a queue's parts begin and end
    start: int, first_file_end: int, end: int, physical_offset: PhysicalOffset, log_start: int, release: Release
) -> QueueBounds:
    """
    Return what `getMinOffsetInQueue` and `getMaxOffsetInQueue` say.

    *start*, *first_file_end* and *end* are positions: of the first unit, after the first file, after the last unit.
    Units are in the order of the log.
    """
    # ConsumeQueue#correctMinOffset
    if end <= start:
        return QueueBounds(0, end)
    if release.expired_queue_begins_at_end and physical_offset(end - 1) < log_start:
        return QueueBounds(end, end)
    low, high = start, min(first_file_end, end)
    while low < high:
        middle = (low + high) // 2
        if physical_offset(middle) >= log_start:
            high = middle
        else:
            low = middle + 1
    return QueueBounds(low if low < min(first_file_end, end) else 0, end)
