"""
The ends of a store's queues, and the part of its log that was dispatched.

While a broker runs, no two looks show the same state. The dispatcher follows the log in order, so all that lies
before the end of any unit that was seen once has its unit by the time of a second look. Hence two looks: the first
tells how far the log was dispatched, the second, at files listed again, where the queues end, and the log is read after
both.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jobs.store.queue_files import (
    FIRST_PROBE_UNITS,
    StoredQueue,
    first_unwritten,
    keeps_light_in_rocksdb,
    stored_queues,
)
from jobs.store.record_places import find_record
from jobs.store.store import Store, list_again
from jobs.store.workers import Workers
from rmq_formats.consumequeue.dispatch import BatchUnit, QueueName, Unit
from rmq_formats.properties import MAX_LONG

NO_LIMIT = MAX_LONG
_AT_ONCE = 500  # queues a task
_MOST_FOREIGN = 64  # ends of queues that are looked for in the log


class QueueEnds(NamedTuple):
    """The queues as they were before the log was read."""

    queues: tuple[StoredQueue, ...]
    watermarks: tuple[int, ...]  # position after what earlier runs have taken, of each queue
    ends: tuple[int, ...]  # position after the last unit of each queue
    dispatched: int  # physical offset: every record before it had its units
    newest: int = -1  # physical offset of the newest record that the end of a queue leads to, be it there or not
    light_dispatched: int = NO_LIMIT  # the same as `dispatched`, of light queues that are in RocksDB alone


class _Seen(NamedTuple):
    watermark: int
    end: int
    last: Unit | BatchUnit | None = None  # its last unit, if there is one


_Wish = tuple[StoredQueue, int | None, int]
"""A queue to look at; the position after its known units; the offset before which their records are."""


def probe_queue_ends(
    workers: Workers,
    store: Store,
    watermarks: Mapping[QueueName, int] | None = None,
    from_offset: int = 0,
    takes: Callable[[str], bool] | None = None,
) -> QueueEnds:
    """
    Look at every queue twice; a store that was shut down in order was dispatched to its end.

    Earlier runs took every unit before *from_offset*, up to the *watermarks*. *takes* chooses topics: the others are
    looked at for how far the log was dispatched, no more.
    """
    known = watermarks or {}
    every = stored_queues(store)
    looks = _look_at_all(workers, [(queue, known.get(queue.name), from_offset) for queue in every])
    dispatched = _dispatched(looks, store)
    closed = store.is_final
    first = {queue.name: seen for queue, seen in zip(every, looks, strict=True)}
    # What was dispatched may lie in a file, or a queue, that was made after the store was listed.
    queues = every if closed else stored_queues(list_again(store))
    queues = [queue for queue in queues if takes is None or takes(queue.name.topic)]
    if closed:
        seen = [first[queue.name] for queue in queues]
    else:
        # From the end that was seen first on; queues that are new are looked at as a whole.
        seen = _look_at_all(
            workers,
            [
                (queue, first[queue.name].end, NO_LIMIT)
                if queue.name in first
                else (queue, known.get(queue.name), from_offset)
                for queue in queues
            ],
        )
    return QueueEnds(
        tuple(queues),
        tuple(max(first.get(queue.name, at).watermark, queue.start) for queue, at in zip(queues, seen, strict=True)),
        tuple(at.end for at in seen),
        NO_LIMIT if closed else dispatched,
        max((at.last.physical_offset for at in seen if at.last is not None), default=-1),
        NO_LIMIT if closed else _light_dispatched(every, store),
    )


def _dispatched(looks: Sequence[_Seen], store: Store) -> int:
    """Return the end of the newest record that the last unit of a queue leads to: a foreign one leads to no record."""
    units = (one.last for one in looks if one.last is not None)
    last = {(unit.physical_offset + unit.size, unit.physical_offset) for unit in units}
    # A unit that points after all files says nothing about the log; nor does a blank.
    ends = sorted((one for one in last if one[0] <= store.end_offset), reverse=True)
    for end, offset in ends[:_MOST_FOREIGN]:
        record = find_record(store, offset)
        if record is not None and record.end_offset == end:
            return end
    return max((end for end, _ in ends), default=0)


def _light_dispatched(queues: Sequence[StoredQueue], store: Store) -> int:
    """
    Return how far the log was dispatched to light queues that are in RocksDB alone.

    What a killed broker had in memory for RocksDB is not there before the next start, while its files are complete.
    """
    if not keeps_light_in_rocksdb(store, queues):
        return NO_LIMIT
    from jobs.store.rocksdb_queues import rocksdb_queues  # lazy import: numpy is slow to load

    stored = rocksdb_queues(store)
    if stored is None:
        return NO_LIMIT
    if stored.dispatched_end is not None:
        return stored.dispatched_end
    return max((bound.physical_offset + 1 for bound in stored.bounds.values()), default=0)


def _look_at_all(workers: Workers, wishes: Sequence[_Wish]) -> list[_Seen]:
    parts = [wishes[at : at + _AT_ONCE] for at in range(0, len(wishes), _AT_ONCE)]
    return [seen for part in workers.map(parts, _look_at, "reading queues") for seen in part]


def _look_at(wishes: Sequence[_Wish]) -> list[_Seen]:
    return [probe_queue_end(*wish) for wish in wishes]


def probe_queue_end(queue: StoredQueue, known: int | None, from_offset: int) -> _Seen:
    """Return the end of a queue at one look."""
    return _end_near(queue, known, from_offset) or _end_anywhere(queue, known, from_offset)


def _end_near(queue: StoredQueue, known: int | None, from_offset: int) -> _Seen | None:
    """
    Return the end of a queue that was taken up to *known* and ends a few units after it; None of any other.

    One read says it, where the general way takes three: most queues of a store have few new units.
    """
    if known is None or known <= queue.start:
        return None
    data = queue.read(known - 1, min(known + FIRST_PROBE_UNITS, queue.capacity))
    written = first_unwritten(queue.name.kind, data)
    # The first unit read is the last that was taken. If it is not written, or leads past *from_offset*, the queue was
    # cut or rebuilt; if all that was read is written, the end lies farther on.
    if not 0 < written * queue.unit_size < len(data) or queue.decode(data).physical_offset >= from_offset:
        return None
    return _Seen(known, known - 1 + written, queue.decode(data, written - 1))


def _end_anywhere(queue: StoredQueue, known: int | None, from_offset: int) -> _Seen:
    if known is None:
        end, watermark = queue.written_end(), queue.start
    else:
        # A broker that recovers cuts its queues where it cuts its log; a topic that was deleted starts again: then the
        # unit before the watermark is not that which an earlier run took.
        unit = queue.unit(known - 1) if known > queue.start else None
        if known <= queue.start or (unit is not None and unit.physical_offset < from_offset):
            end, watermark = queue.written_end(known), max(known, queue.start)
        else:
            end = queue.written_end()
            watermark = queue.first_from(from_offset, end)
    return _Seen(watermark, end, queue.unit(end - 1) if end > queue.start else None)
