"""The broker's notes on its queues: the progress of consumers and of delayed messages."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from jobs.lake.findings import QUEUES, Finding
from jobs.products.queues.join import JoinResult
from jobs.store.broker_config import Progress, ReaderKind
from jobs.store.queue_files import StoredQueue
from jobs.store.units import units_of
from rmq_formats.consumequeue.unit import QueueKind, QueueName

CONSUMER_BEYOND = "consumer_offset_behind_queue"
DELAY_BEYOND = "delay_offset_behind_queue"


def progress_findings(
    progress: Iterable[Progress], queues: Mapping[QueueName, StoredQueue], joined: JoinResult
) -> Iterator[Finding]:
    """Yield offsets of consumers and delay levels that are after the end of their queues."""
    for reader in progress:
        end = _end(reader.topic, reader.queue_id, queues, joined)
        if end is None or reader.next_offset <= end:
            continue
        if reader.kind is ReaderKind.DELAY:
            kind, field = DELAY_BEYOND, f"level {reader.queue_id + 1}"
            cause = "the queue was cut or made again: delayed messages of this level are not delivered"
        else:
            kind, field = CONSUMER_BEYOND, f"{reader.topic}@{reader.consumer_group} queue {reader.queue_id}"
            cause = "the queue was cut or made again after the group had read it: the group skips what comes next"
        yield Finding(QUEUES, kind, reader.place, None, field, str(reader.next_offset), f"at most {end}", cause)


def _end(topic: str, queue_id: int, queues: Mapping[QueueName, StoredQueue], joined: JoinResult) -> int | None:
    """Return the number that a queue's next message gets; None for a queue that has no files."""
    plain = QueueName(QueueKind.PLAIN, topic, queue_id)
    if plain in queues:
        return joined.ends[plain]
    batch = queues.get(QueueName(QueueKind.BATCH, topic, queue_id))
    end = joined.ends[batch.name] if batch else 0
    for unit in islice(units_of(batch, end - 1, end) if batch and end else (), 1):
        return int(unit["base_offset"]) + int(unit["batch_count"])
    return None
