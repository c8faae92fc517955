"""The bytes after a queue's last unit: zeros, unless the queue was cut or overwritten."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from time import sleep

import numpy as np

from jobs.lake.findings import QUEUES, Finding
from jobs.store.queue_files import StoredQueue
from jobs.store.store import Store
from jobs.store.units import units_of
from jobs.store.workers import Workers
from rmq_formats.store import name_of_offset

TAIL_NOT_ZERO = "tail_not_zero"
_TAILS_A_TASK = 64
_READ_FIRST = 256  # units; after them is a hole in the file, mostly
_READ_AT_ONCE = 1 << 15
_LOOKS = 5
_PAUSE_S = 0.02


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
