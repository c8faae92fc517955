"""
The ends of a store's queues, and the part of its log that was dispatched.

While a broker runs, no two probes show the same state. The dispatcher processes the log in order, so once all queues
are probed, every record before a unit that the probe has seen has its unit. The files are listed again then, because
such a unit may be in a new file, and queues whose files have changed are probed again. The log is read afterwards, and
the units last: a queue may have more units than the probe has seen, but no record that was dispatched before lacks one.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from jobs.store.queue_files import (
    FIRST_PROBE_UNITS,
    LastUnits,
    StoredQueue,
    find_first_unwritten_unit,
    has_light_queues_only_in_rocksdb,
    hold_file,
    list_queues,
)
from jobs.store.record_places import find_record
from jobs.store.store import Store, relist_store
from jobs.store.workers import Workers
from rmq_formats.consumequeue.dispatch import BatchUnit, QueueName, Unit
from rmq_formats.properties import MAX_LONG

NO_LIMIT = MAX_LONG
_AT_ONCE = 500  # queues per task
_MOST_FOREIGN = 64  # ends of queues that are searched in the log


class QueueEnd(NamedTuple):
    """The end of a queue when it was probed."""

    processed_end: int  # earlier runs processed the units before it
    end: int  # the position after the last unit
    last_unit: Unit | BatchUnit | None = None
    has_zero_tail: bool = False  # whether only zeros were after the end; False if these bytes were not read


class ProbedQueue(NamedTuple):
    """A queue, with its end unless that is probed only when the queue's units are read."""

    queue: StoredQueue
    end: QueueEnd | None


class QueueEnds(NamedTuple):
    """The queues with their ends, and the offset up to which all were dispatched before the log was read."""

    probed_queues: tuple[ProbedQueue, ...]
    dispatched_offset: int  # physical offset: every record before it had its units
    newest_offset: int = -1  # newest physical offset at the end of a queue, with or without a record
    light_dispatched_offset: int = NO_LIMIT  # like `dispatched_offset`, for light queues that are only in RocksDB

    @property
    def queues(self) -> tuple[StoredQueue, ...]:
        """The queues, without what the probe found."""
        return tuple(one.queue for one in self.probed_queues)

    def with_ends(self, ends: Mapping[QueueName, QueueEnd]) -> "QueueEnds":
        """Return these queues, with the *ends* of those that were probed later."""
        queues = (ProbedQueue(queue, ends.get(queue.name, end)) for queue, end in self.probed_queues)
        return self._replace(probed_queues=tuple(queues))

    @property
    def last_units(self) -> LastUnits:
        """The last unit of each queue in files, as far as it is known."""
        return {
            queue.name: end.last_unit for queue, end in self.probed_queues if end is not None and not queue.in_rocksdb
        }


_QueueToProbe = tuple[StoredQueue, int | None, int]
"""A queue to probe, the position after its known units, and an offset that is past the records of these units."""


def list_unprobed_queues(store: Store) -> QueueEnds:
    """Return the queues of a closed store; their ends are probed when their units are compared."""
    return QueueEnds(tuple(ProbedQueue(queue, None) for queue in list_queues(store)), NO_LIMIT)


def probe_queue_ends(  # noqa: PLR0913, PLR0917 - the store, the state of the last run, and which queues are wanted
    workers: Workers,
    store: Store,
    processed_ends: Mapping[QueueName, int] | None = None,
    from_offset: int = 0,
    wants_topic: Callable[[str], bool] | None = None,
    topics: Collection[str] | None = None,
    *,
    with_tails: bool = False,
) -> QueueEnds:
    """
    Probe every queue; a store that was shut down properly was dispatched to its end.

    In any other store, queues whose files have changed since are probed a second time.

    Earlier runs processed every unit before *from_offset*, up to the *processed_ends*. *wants_topic* selects topics:
    other queues only show how far the log was dispatched. With *topics*, no queue of another topic is probed: no new
    record has a unit there. *with_tails* also reads the bytes after each end, while its file is open.
    """
    known = processed_ends or {}
    if topics is not None:
        store = relist_store(store, topics).with_queues_of(topics)
    every = list_queues(store)
    closed = store.is_closed
    looks = _probe_all(
        workers,
        [(queue, known.get(queue.name), from_offset) for queue in every],
        with_tails=with_tails,
    )
    dispatched = _find_dispatched_end(every, looks, store)
    first = {queue.name: look for queue, look in zip(every, looks, strict=True)}
    latest = dict(zip(every, looks, strict=True))
    # Dispatched units may be in a file, or a queue, that was created after the store was listed.
    queues = every if closed else list_queues(relist_store(store, topics))
    queues = [queue for queue in queues if wants_topic is None or wants_topic(queue.name.topic)]
    # From the end that the first probe found; new queues as a whole.
    changed = [queue for queue in queues if queue not in latest]
    to_probe = [
        (queue, first[queue.name].end, NO_LIMIT) if queue.name in first else (queue, known.get(queue.name), from_offset)
        for queue in changed
    ]
    latest |= zip(changed, _probe_all(workers, to_probe, with_tails=with_tails), strict=True)
    seen = [latest[queue] for queue in queues]
    starts = [first.get(queue.name, end).processed_end for queue, end in zip(queues, seen, strict=True)]
    return QueueEnds(
        tuple(
            ProbedQueue(queue, end._replace(processed_end=max(start, queue.first_unit_number)))
            for queue, end, start in zip(queues, seen, starts, strict=True)
        ),
        NO_LIMIT if closed else dispatched,
        max((look.last_unit.physical_offset for look in seen if look.last_unit is not None), default=-1),
        NO_LIMIT if closed else _light_dispatched(every, store),
    )


def _find_dispatched_end(queues: Sequence[StoredQueue], looks: Sequence[QueueEnd], store: Store) -> int:
    """
    Return the end of the newest record to which units at the ends of queues point; a foreign unit has no record.

    Where the end of the log was lost, earlier units of the same queue still have their records.
    """
    last = {}
    for queue, look in zip(queues, looks, strict=True):
        if look.last_unit is not None:
            last[look.last_unit.physical_offset + look.last_unit.size] = queue, look.end
    # A unit that points after all files proves nothing about the log; neither does a blank.
    ends = sorted((end for end in last if end <= store.end_offset), reverse=True)
    newest = 0
    for end in ends[:_MOST_FOREIGN]:
        if end > newest:
            newest = max(newest, _end_of_records(*last[end], max(newest, store.start_offset, 1), store))
    return newest or max(ends, default=0)


def _end_of_records(queue: StoredQueue, queue_end: int, known: int, store: Store) -> int:
    """Return the end of the newest record of a queue, one after the offset *known*; 0 if the log has none."""

    def end_of_record(position: int) -> int | None:
        unit = queue.read_unit(position)
        if unit is not None and unit.physical_offset < known:
            return 0
        record = find_record(store, unit.physical_offset) if unit is not None else None
        return record.end_offset if record and unit and record.total_size == unit.size else None

    last = end_of_record(queue_end - 1)
    if last is None:
        lost = bisect_left(
            range(queue_end), x=True, lo=queue.first_unit_number, key=lambda position: end_of_record(position) is None
        )
        last = end_of_record(lost - 1) if lost > queue.first_unit_number else 0
    return last or 0


def _light_dispatched(queues: Sequence[StoredQueue], store: Store) -> int:
    """
    Return how far the log was dispatched to light queues that are only in RocksDB.

    Rows that a killed broker had in memory are missing until its next start, while its files are complete.
    """
    if not has_light_queues_only_in_rocksdb(store, queues):
        return NO_LIMIT
    from jobs.store.rocksdb_queues import find_queue_database  # lazy import: numpy is slow to load

    database = find_queue_database(store)
    if database is None:
        return NO_LIMIT
    dispatched_end, last_units = database.read_bounds()
    if dispatched_end is not None:
        return dispatched_end
    return max((bound.physical_offset + 1 for bound in last_units.values()), default=0)


def _probe_all(workers: Workers, queues_to_probe: Sequence[_QueueToProbe], *, with_tails: bool) -> list[QueueEnd]:
    """Probe queues in tasks; return their ends in the same order."""
    parts = [queues_to_probe[at : at + _AT_ONCE] for at in range(0, len(queues_to_probe), _AT_ONCE)]
    look = partial(_probe_part, with_tails=with_tails)
    return [seen for part in workers.map(parts, look, "reading queues") for seen in part]


def _probe_part(queues_to_probe: Sequence[_QueueToProbe], *, with_tails: bool) -> list[QueueEnd]:
    """Probe the queues of one task."""
    return [probe_queue_end(*one, with_tail=with_tails) for one in queues_to_probe]


def probe_queue_end(
    queue: StoredQueue, known_end: int | None, from_offset: int, *, with_tail: bool = False
) -> QueueEnd:
    """Return the current end of a queue; *with_tail* also reads the bytes after it."""
    with hold_file(queue, in_blocks=known_end is None) as held:
        return _probe(held, known_end, from_offset, with_tail=with_tail)


def probe_held_queue(held: StoredQueue) -> QueueEnd:
    """Return the end of a queue whose file is held open; the bytes after it are read as well."""
    return _probe(held, None, 0, with_tail=True)


def _probe(queue: StoredQueue, known_end: int | None, from_offset: int, *, with_tail: bool) -> QueueEnd:
    seen = _end_near(queue, known_end, from_offset) or _find_end_in_any_file(queue, known_end, from_offset)
    return seen._replace(has_zero_tail=queue.find_nonzero_byte(seen.end) is None) if with_tail else seen


def _end_near(queue: StoredQueue, known: int | None, from_offset: int) -> QueueEnd | None:
    """
    Return the end of a queue that ends a few units after *known*; None for any other queue.

    This takes one read instead of three: most queues of a store have few new units.
    """
    if known is None or known <= queue.first_unit_number:
        return None
    data = queue.read(known - 1, min(known + FIRST_PROBE_UNITS, queue.capacity_end))
    written = find_first_unwritten_unit(queue.name.kind, data)
    # The first unit read is the last known one. If it is not written, or points past *from_offset*, the queue was
    # truncated or rebuilt; if all units read are written, the end is farther on.
    if not 0 < written * queue.unit_size < len(data) or queue.decode_unit(data).physical_offset >= from_offset:
        return None
    return QueueEnd(known, known - 1 + written, queue.decode_unit(data, written - 1))


def _find_end_in_any_file(queue: StoredQueue, known: int | None, from_offset: int) -> QueueEnd:
    if known is None:
        end, processed_end = queue.find_written_end(), queue.first_unit_number
    else:
        # A recovering broker truncates its queues where it truncates its log, and a deleted topic starts at 0 again:
        # then the unit before this end is not the one that an earlier run processed.
        unit = queue.read_unit(known - 1) if known > queue.first_unit_number else None
        if known <= queue.first_unit_number or (unit is not None and unit.physical_offset < from_offset):
            end, processed_end = queue.find_written_end(known), max(known, queue.first_unit_number)
        else:
            end = queue.find_written_end()
            processed_end = queue.first_unit_pointing_from(from_offset, end)
    return QueueEnd(processed_end, end, queue.read_last_unit(end))
