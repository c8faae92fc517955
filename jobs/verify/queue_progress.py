"""What the broker has noted down about its queues: how far consumers and delayed messages are."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from jobs.lake.findings import QUEUES, Finding
from jobs.products.queues.join import Joined
from jobs.store.queue_files import StoredQueue
from jobs.store.units import units_of
from rmq_formats.consumequeue.unit import SCHEDULE_TOPIC, QueueKind, QueueName

CONSUMER_BEYOND = "consumer_offset_behind_queue"
DELAY_BEYOND = "delay_offset_behind_queue"


def progress_findings(
    progress: Sequence[tuple[str, str, str, int, int]],
    delays: Sequence[tuple[int, int]],
    queues: Mapping[QueueName, StoredQueue],
    joined: Joined,
) -> Iterator[Finding]:
    """Yield what consumers and delay levels have passed that their queues do not have."""
    for file, group, topic, queue_id, offset in progress:
        end = _end(topic, queue_id, queues, joined)
        if end is not None and offset > end:
            cause = "the queue was cut or made again after the group had read it: the group skips what comes next"
            place = f"{topic}@{group} queue {queue_id}"
            yield Finding(QUEUES, CONSUMER_BEYOND, f"config/{file}", None, place, str(offset), f"at most {end}", cause)
    for queue_id, offset in delays:
        end = _end(SCHEDULE_TOPIC, queue_id, queues, joined)
        if end is not None and offset > end:
            cause = "the queue was cut or made again: delayed messages of this level are not delivered"
            place = f"level {queue_id + 1}"
            yield Finding(
                QUEUES, DELAY_BEYOND, "config/delayOffset.json", None, place, str(offset), f"at most {end}", cause
            )


def _end(topic: str, queue_id: int, queues: Mapping[QueueName, StoredQueue], joined: Joined) -> int | None:
    """Return the number that a queue's next message gets; None for a queue that has no files."""
    plain = QueueName(QueueKind.PLAIN, topic, queue_id)
    if plain in queues:
        return joined.ends[plain]
    batch = queues.get(QueueName(QueueKind.BATCH, topic, queue_id))
    end = joined.ends[batch.name] if batch else 0
    for unit in islice(units_of(batch, end - 1, end) if batch and end else (), 1):
        return int(unit["base_offset"]) + int(unit["batch_count"])
    return None
