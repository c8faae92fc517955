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
    takes: Callable[[str], bool] | None = None,
) -> Look:
    """
    Look at every queue twice; a store that was shut down in order was dispatched to its end.

    *takes* chooses topics: the others are looked at for how far the log was dispatched, no more.
    """
    every = stored_queues(listing)
    known = [(watermarks or {}).get(queue.name) for queue in every]
    first = _look_at_all(workers, every, known, listing.end_offset)
    dispatched = max((seen.physical_end for seen in first), default=0)
    chosen = [number for number, queue in enumerate(every) if takes is None or takes(queue.name.topic)]
    queues = [every[number] for number in chosen]
    ends = [first[number].end for number in chosen]
    closed = is_closed(listing)
    if not closed:
        ends = [seen.end for seen in _look_at_all(workers, queues, ends, listing.end_offset)]
    return Look(
        tuple(queues),
        tuple(first[number].watermark for number in chosen),
        tuple(ends),
        EVERYTHING if closed else dispatched,
    )


def _look_at_all(
    workers: Workers, queues: Sequence[StoredQueue], known: Sequence[int | None], limit: int
) -> list[_Seen]:
    work = list(zip(queues, known, strict=True))
    parts = [work[at : at + _AT_ONCE] for at in range(0, len(work), _AT_ONCE)]
    return [seen for part in workers.map(parts, partial(_look_at, limit=limit)) for seen in part]


def _look_at(work: Sequence[tuple[StoredQueue, int | None]], *, limit: int) -> list[_Seen]:
    return [_seen(queue, known, limit) for queue, known in work]


def _seen(queue: StoredQueue, known: int | None, limit: int) -> _Seen:
    if known is not None and known > queue.start and not is_written(queue.read(known - 1, known)).all():
        known = None  # the topic was deleted and made again: its queue begins anew
    end = queue.written_end(known)
    watermark = queue.start if known is None else max(known, queue.start)
    if end <= queue.start:
        return _Seen(watermark, end, 0)
    unit = queue.read(end - 1, end)[0]
    physical_end = int(unit["physical_offset"]) + int(unit["size"])
    # A unit that points behind all files says nothing about the log; nor does a blank.
    return _Seen(watermark, end, physical_end if physical_end <= limit else 0)
