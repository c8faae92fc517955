"""
Where a store's queues end, and how far its log was dispatched.

Beside a running broker no two looks show the same state. The dispatcher follows the log in order, so whatever lies
before the end of any unit that was seen once has its unit by the time of a second look. Hence two looks: the first
tells how far the log was dispatched, the second where the queues end, and the log is read after both.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from jobs.queues.files import StoredQueue, stored_queues
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


class _End(NamedTuple):
    position: int
    physical_end: int  # of its last unit's record


def look(workers: Workers, listing: StoreListing, watermarks: Mapping[QueueName, int] | None = None) -> Look:
    """Look at every queue twice; a store that was shut down in order was dispatched to its end."""
    queues = stored_queues(listing)
    known: Sequence[int | None] = [(watermarks or {}).get(queue.name) for queue in queues]
    limit = listing.end_offset
    first = _ends(workers, queues, known, limit)
    dispatched = max((end.physical_end for end in first), default=0)
    closed = is_closed(listing)
    second = first if closed else _ends(workers, queues, [end.position for end in first], limit)
    return Look(
        tuple(queues),
        tuple(queue.start if at is None else max(at, queue.start) for queue, at in zip(queues, known, strict=True)),
        tuple(end.position for end in second),
        EVERYTHING if closed else dispatched,
    )


def _ends(workers: Workers, queues: Sequence[StoredQueue], known: Sequence[int | None], limit: int) -> list[_End]:
    work = list(zip(queues, known, strict=True))
    parts = [work[at : at + _AT_ONCE] for at in range(0, len(work), _AT_ONCE)]
    return [end for part in workers.map(parts, partial(_look_at, limit=limit)) for end in part]


def _look_at(work: Sequence[tuple[StoredQueue, int | None]], *, limit: int) -> list[_End]:
    return [_end_of(queue, known, limit) for queue, known in work]


def _end_of(queue: StoredQueue, known: int | None, limit: int) -> _End:
    position = queue.written_end(known)
    if position <= queue.start:
        return _End(position, 0)
    unit = queue.read(position - 1, position)[0]
    physical_end = int(unit["physical_offset"]) + int(unit["size"])
    # A unit that points behind all files says nothing about the log; nor does a blank.
    return _End(position, physical_end if physical_end <= limit else 0)
