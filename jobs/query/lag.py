"""The lag of consumer groups: one calculation for mqadmin's commands, and for the pages of stores and lakes."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from jobs.query.source import MAX_QUEUES, Source
from jobs.store.broker_config import ConsumerKind


class QueueLag(NamedTuple):
    """The position of a consumer group in a queue, and the end of the queue; None: the lake does not have it."""

    consumer_group: str
    topic: str
    queue_id: int
    end_offset: int | None
    consumer_offset: int | None  # None: the group has no position in this queue
    pull_offset: int | None

    @property
    def consumed(self) -> int:
        """The queue offset that the group reads next; a group without a position begins with the first message."""
        return 0 if self.consumer_offset is None or self.consumer_offset < 0 else self.consumer_offset

    @property
    def lag(self) -> int | None:
        """
        The number of messages up to the end of the queue, as mqadmin counts them.

        Messages that retention has deleted are included. The lag is negative if the position is after the end.
        """
        if self.end_offset is None:
            return None if self.consumed else 0
        return self.end_offset - self.consumed


def count_read_queues(topics: Mapping[str, Mapping[str, object]]) -> dict[str, int]:
    """Return the number of queues from which consumers read, from the settings of topics."""
    counts = ((topic, settings.get("readQueueNums")) for topic, settings in topics.items())
    return {topic: count for topic, count in counts if isinstance(count, int)}


def list_queue_lags(source: Source, group: str | None = None, topic: str | None = None) -> Iterator[QueueLag]:
    """
    Yield the lag of each group, or of *group*, in the queues of each topic that it consumes, or of *topic*.

    These are all queues that the topic has according to its settings; without settings, those with a position.
    """
    positions: dict[tuple[str, str], dict[int, int]] = {}
    pulled: dict[tuple[str, str, int], int] = {}
    for consumer, _ in source.consumer_progress():
        if consumer.consumer_group is None or group not in {None, consumer.consumer_group}:
            continue
        if consumer.kind is ConsumerKind.CONSUMER:
            of_topic = positions.setdefault((consumer.consumer_group, consumer.topic), {})
            of_topic[consumer.queue_id] = consumer.next_offset
        elif consumer.kind is ConsumerKind.PULL:
            pulled[consumer.consumer_group, consumer.topic, consumer.queue_id] = consumer.next_offset
    if group is not None and topic is not None:
        positions.setdefault((group, topic), {})
    wanted = {key: offsets for key, offsets in positions.items() if topic in {None, key[1]}}
    counts = source.count_read_queues()
    queues = {
        key: range(min(counts[key[1]], MAX_QUEUES)) if key[1] in counts else sorted(offsets)
        for key, offsets in wanted.items()
    }
    ends = source.find_queue_ends({(name, number) for (_, name), ids in queues.items() for number in ids})
    for key, ids in sorted(queues.items()):
        for number in ids:
            end = ends.get((key[1], number))
            yield QueueLag(*key, number, end, wanted[key].get(number), pulled.get((*key, number)))
