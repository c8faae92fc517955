"""
Records that the dispatcher has not come to, by their queue offsets: a broker counts the messages of a queue in order.

No unit speaks of such a record yet. But the first one of a queue has the number at which the queue ends, and each next
one the next: one that has another queue id, topic or queue offset than the broker gave it breaks that sequence.
"""

from collections.abc import Iterator

from jobs.lake.findings import QUEUES, Finding
from jobs.products.queues.join import JoinResult
from jobs.store.queue_files import StoredQueue
from jobs.store.ranges import holes
from jobs.store.store import Store
from rmq_formats.consumequeue.unit import LMQ_PREFIX, QueueKind, QueueName

OUT_OF_SEQUENCE = "record_out_of_sequence"
_CAUSE = (
    "undecided: topic, queue id or queue offset of this record, or of one before it, changed, or the queue lost its "
    "end; it has no unit yet, and a broker that starts makes one with what the record says"
)


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
