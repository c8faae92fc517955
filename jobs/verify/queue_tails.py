"""
The ends of queues: the bytes after the last unit, and the records that have no unit yet.

The bytes are zeros, unless the queue was cut or overwritten. A broker counts the messages of a queue in order, so the
first record without a unit has the number at which its queue ends, and each later one the next number. A record that
has another queue id, topic or queue offset than the broker gave it breaks that sequence.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from time import sleep

import numpy as np

from jobs.lake.findings import QUEUES, Finding
from jobs.products.queues.join import JoinResult
from jobs.store.queue_files import StoredQueue
from jobs.store.ranges import holes
from jobs.store.store import Store
from jobs.store.units import units_of
from jobs.store.workers import Workers
from rmq_formats.consumequeue.unit import LMQ_PREFIX, QueueKind, QueueName
from rmq_formats.store import name_of_offset

TAIL_NOT_ZERO = "tail_not_zero"
OUT_OF_SEQUENCE = "record_out_of_sequence"
_TAILS_A_TASK = 64
_READ_FIRST = 256  # units; after them is a hole in the file, mostly
_READ_AT_ONCE = 1 << 15
_LOOKS = 5
_PAUSE_S = 0.02
_CAUSE = (
    "undecided: topic, queue id or queue offset of this record, or of one before it, changed, or the queue lost its "
    "end; it has no unit yet, and a broker that starts makes one with what the record says"
)


def tail_findings(workers: Workers, store: Store, queues: Sequence[tuple[StoredQueue, int]]) -> Iterator[Finding]:
    """Yield the queues, each with its end, that have anything but zeros after it."""
    parts = [queues[at : at + _TAILS_A_TASK] for at in range(0, len(queues), _TAILS_A_TASK)]
    tails = partial(_tails, looks=1 if store.is_closed else _LOOKS)
    yield from chain.from_iterable(workers.map(parts, tails, "reading the ends of queues"))


def _tails(queues: Sequence[tuple[StoredQueue, int]], *, looks: int) -> list[Finding]:
    return [tail for queue, end in queues if (tail := _tail(queue, end, looks)) is not None]


def _tail(queue: StoredQueue, end: int, looks: int) -> Finding | None:
    """Return the bytes after the queue's end that are not zero; units that a broker appends meanwhile do not count."""
    found: Finding | None = None
    for look in range(looks):
        end = max(end, queue.written_end(end)) if looks > 1 else end
        found = _first_not_zero(queue, end)
        if found is None:
            return None
        if look + 1 < looks:
            sleep(_PAUSE_S)
    return found


def _first_not_zero(queue: StoredQueue, end: int) -> Finding | None:
    position, some = end, _READ_FIRST
    while (position := queue.next_written(position)) < queue.capacity:
        data = units_of(queue, position, min(position + some, queue.capacity)).view(np.uint8)
        if data.any():
            at = int(np.flatnonzero(data)[0])
            file = queue.file_at(position + at // queue.unit_size)
            base = file.base_offset if file else 0
            place = f"{queue.name.path}/{name_of_offset(base)}", position * queue.unit_size + at - base
            found = bytes(data[at : at + queue.unit_size]).hex()
            cause = "a recovery moved the queue's end back and left old units, or something else wrote to the file"
            return Finding(QUEUES, TAIL_NOT_ZERO, *place, "tail", found, "zeros", cause)
        position += some
        some = min(some * 2, _READ_AT_ONCE)
    return None


def sequence_findings(joined: JoinResult, store: Store) -> Iterator[Finding]:
    """Yield the records after the dispatched part of the log that do not continue their queues."""
    if not joined.queues or any(queue.in_rocksdb for queue in joined.queues):
        return  # the log alone was copied, or a killed broker had rows in memory
    lost = [end for _, _, end in holes(store.segments)] + [end for _, end in joined.damaged]
    if any(end > joined.dispatched for end in lost):
        return  # which records were there is not known
    queues = {queue.name: queue for queue in joined.queues}
    contradicted = {*joined.without_queue, *(difference.queue for difference in joined.differences)}
    of_other_kinds = {name.topic for name in queues if name.kind is not QueueKind.PLAIN}
    names = {run.queue for run in joined.newer} - contradicted
    for name in sorted(names):
        if not name.topic.startswith(LMQ_PREFIX) and name.topic not in of_other_kinds:
            yield from _breaks(name, queues.get(name), joined, is_complete=store.start_offset == 0)


def _breaks(name: QueueName, queue: StoredQueue | None, joined: JoinResult, *, is_complete: bool) -> Iterator[Finding]:
    """Yield the breaks in the sequence of a queue's records; of a queue without files only a *complete* log tells."""
    runs = [run for run in joined.newer if run.queue == name]
    before = expected = joined.ends[name] if queue else 0 if is_complete else runs[0].first
    for run in runs:
        # After one record that is of another queue the sequence goes on where it was.
        if run.first not in {expected, before} and not _is_stored(queue, run.first, run.log_offset):
            found = f"{run.first}, of the record at {run.log_offset:,}"
            place = name.path, None, "queue_offset"
            yield Finding(QUEUES, OUT_OF_SEQUENCE, *place, found, str(expected), _CAUSE, log_offset=run.log_offset)
        before, expected = expected, run.first + run.length


def _is_stored(queue: StoredQueue | None, position: int, log_offset: int) -> bool:
    """Return whether a unit is at its place by now: a broker goes on while it is looked at."""
    unit = queue.unit(position) if queue is not None and queue.start <= position < queue.capacity else None
    return unit is not None and unit.physical_offset == log_offset
