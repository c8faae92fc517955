"""
Where a store's queues end, and how far its log was dispatched.

Beside a running broker no two looks show the same state. The dispatcher follows the log in order, so whatever lies
before the end of any unit that was seen once has its unit by the time of a second look. Hence two looks: the first
tells how far the log was dispatched, the second where the queues end, and the log is read after both.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from jobs.queues.files import StoredQueue, is_written, stored_queues
from jobs.queues.settings import is_closed
from jobs.source.listing import StoreListing
from jobs.source.workers import Workers
from rmq_formats.consumequeue.unit import QueueName

EVERYTHING = (1 << 63) - 1
_AT_ONCE = 500  # queues a task


class Look(NamedTuple):
    """What was seen of the queues before the log was read."""

    queues: tuple[StoredQueue, ...]
    watermarks: tuple[int, ...]  # position behind what earlier runs have taken, of each queue
    ends: tuple[int, ...]  # position behind the last unit of each queue
    dispatched: int  # physical offset: every record before it had its units


class _Seen(NamedTuple):
    """One queue at one look."""

    watermark: int
    end: int
    physical_end: int  # of its last unit's record


def look(
    workers: Workers,
    listing: StoreListing,
    watermarks: Mapping[QueueName, int] | None = None,
    from_offset: int = 0,
    takes: Callable[[str], bool] | None = None,
) -> Look:
    """
    Look at every queue twice; a store that was shut down in order was dispatched to its end.

    Earlier runs took every unit before *from_offset*, up to the *watermarks*. *takes* chooses topics: the others are
    looked at for how far the log was dispatched, no more.
    """
    every = stored_queues(listing)
    known = [(watermarks or {}).get(queue.name) for queue in every]
    first = _look_at_all(workers, every, known, from_offset, listing.end_offset)
    dispatched = max((seen.physical_end for seen in first), default=0)
    chosen = [number for number, queue in enumerate(every) if takes is None or takes(queue.name.topic)]
    queues = [every[number] for number in chosen]
    ends = [first[number].end for number in chosen]
    closed = is_closed(listing)
    if not closed:
        ends = [seen.end for seen in _look_at_all(workers, queues, ends, EVERYTHING, listing.end_offset)]
    return Look(
        tuple(queues),
        tuple(first[number].watermark for number in chosen),
        tuple(ends),
        EVERYTHING if closed else dispatched,
    )


def _look_at_all(
    workers: Workers, queues: Sequence[StoredQueue], known: Sequence[int | None], from_offset: int, limit: int
) -> list[_Seen]:
    work = list(zip(queues, known, strict=True))
    parts = [work[at : at + _AT_ONCE] for at in range(0, len(work), _AT_ONCE)]
    task = partial(_look_at, from_offset=from_offset, limit=limit)
    return [seen for part in workers.map(parts, task) for seen in part]


def _look_at(work: Sequence[tuple[StoredQueue, int | None]], *, from_offset: int, limit: int) -> list[_Seen]:
    return [_seen(queue, known, from_offset, limit) for queue, known in work]


def _seen(queue: StoredQueue, known: int | None, from_offset: int, limit: int) -> _Seen:
    is_valid = known is not None and _was_taken(queue, known, from_offset)
    end = queue.written_end(known if is_valid else None)
    watermark = queue.start
    if known is not None:
        watermark = max(known, queue.start) if is_valid else _first_new(queue, end, from_offset)
    if end <= queue.start:
        return _Seen(watermark, end, 0)
    unit = queue.read(end - 1, end)[0]
    physical_end = int(unit["physical_offset"]) + int(unit["size"])
    # A unit that points behind all files says nothing about the log; nor does a blank.
    return _Seen(watermark, end, physical_end if physical_end <= limit else 0)


def _was_taken(queue: StoredQueue, known: int, from_offset: int) -> bool:
    """Tell whether the unit before a watermark is still what an earlier run took."""
    if known <= queue.start:
        return True
    unit = queue.read(known - 1, known)
    return bool(is_written(unit).all()) and int(unit["physical_offset"][0]) < from_offset


def _first_new(queue: StoredQueue, end: int, from_offset: int) -> int:
    """
    Return where the units begin that no run has taken, in a queue that was cut or made again.

    A broker that recovers cuts its queues where it cuts its log; a topic that was deleted begins anew.
    """
    low, high = queue.start, end
    while low < high:
        middle = (low + high) // 2
        if int(queue.read(middle, middle + 1)["physical_offset"][0]) >= from_offset:
            high = middle
        else:
            low = middle + 1
    return low
