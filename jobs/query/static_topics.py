"""
Static topics (5.0.0+): queues whose numbers stay when they move between brokers.

`config/topicQueueMapping.json` says for each such queue which queues of which brokers it is made of, one after another,
and at which of its own offsets each begins.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jobs.query.mqadmin.text import OffsetRange

MAPPING_FILE = "topicQueueMapping.json"
LOGICAL_BROKER = "__syslo__global__"  # what clients call the broker of such queues


class QueuePart(NamedTuple):
    """A queue of a broker that is part of a static topic's queue."""

    broker: str
    queue_id: int
    logic_offset: int  # of its first message; negative while it is not decided
    start_offset: int  # in the broker's queue
    end_offset: int  # before the start: the queue still grows

    def logical(self, offset: int) -> int:
        """Return the number that a message of the broker's queue has in the static topic's."""
        return self.logic_offset + max(offset - self.start_offset, 0)


class StaticQueue(NamedTuple):
    """One queue of a static topic."""

    queue_id: int
    parts: Sequence[QueuePart]

    @property
    def first(self) -> QueuePart:
        """The part that holds the first message."""
        return next((part for part in reversed(self.parts) if part.logic_offset == 0), self.parts[0])

    @property
    def last(self) -> QueuePart:
        """The part that new messages go to."""
        return next((part for part in reversed(self.parts) if part.logic_offset >= 0), self.parts[-1])

    def offsets(self, first: OffsetRange, last: OffsetRange) -> OffsetRange:
        """Return the queue's offsets, of those of its first and last part."""
        minimum = self.first.logical(first.minimum)
        if self.first.end_offset >= self.first.start_offset:
            minimum = min(minimum, self.first.logical(self.first.end_offset))
        return OffsetRange(max(minimum, 0), max(self.last.logical(last.maximum), 0))


def static_queues(mapping: Mapping[str, object], topic: str) -> list[StaticQueue]:
    """Return the queues of a static topic as a broker's table has them; none of any other topic."""
    table = mapping.get("topicQueueMappingInfoMap")
    about = table.get(topic) if isinstance(table, dict) else None
    hosted = about.get("hostedQueues") if isinstance(about, dict) else None
    if not isinstance(hosted, dict):
        return []
    queues = (
        StaticQueue(int(number), [_part_of(item) for item in items if isinstance(item, dict)])
        for number, items in hosted.items()
        if isinstance(items, list) and number.isdecimal()
    )
    return sorted((queue for queue in queues if queue.parts), key=lambda queue: queue.queue_id)


def _part_of(item: Mapping[str, Any]) -> QueuePart:
    numbers = (int(item.get(name, 0)) for name in ("queueId", "logicOffset", "startOffset", "endOffset"))
    return QueuePart(str(item.get("bname")), *numbers)
