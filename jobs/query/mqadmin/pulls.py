"""
What one pull of a client brings, as mqadmin sees it: it prints pull by pull.

A broker answers with what one ConsumeQueue file has, so many messages and bytes at most, and looks at so many units;
the client then drops messages whose tag only has the hash of a wanted one. How much a broker gives depends on whether
it takes the messages to be in memory, which those of a small log are. printMsg asks for the first one by time (-b, -e).
"""

from bisect import bisect_left
from enum import StrEnum, unique
from typing import NamedTuple

from jobs.query.message import Message
from jobs.query.mqadmin.java import hash_order
from jobs.query.mqadmin.text import OffsetRange
from jobs.query.source import Source
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.hashing import java_hash

PULL_COUNT = 32  # asked for by printMsg, and maxTransferCountOnMessageInMemory
_PULL_BYTES = 256 * 1024  # maxTransferBytesOnMessageInMemory
_UNITS_FILTERED = 16_000 // UNIT.size  # maxFilterMessageCount, in bytes of units
_ALL_TAGS = "*"


@unique
class PullStatus(StrEnum):
    """The messages and the next offset that a client takes from a broker's answer."""

    FOUND = "FOUND"
    NO_MATCHED = "NO_MATCHED_MSG"
    NO_NEW = "NO_NEW_MSG"
    ILLEGAL = "OFFSET_ILLEGAL"


class Pull(NamedTuple):
    """One pull: its messages, perhaps none although the broker found some, and where the next one begins."""

    status: PullStatus
    messages: list[Message]
    next_offset: int


class PulledQueue(NamedTuple):
    """A queue, as a client pulls it."""

    source: Source
    topic: str
    broker: str
    queue_id: int
    offsets: OffsetRange

    @property
    def name(self) -> str:
        """Return `MessageQueue.toString()`."""
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker}, queueId={self.queue_id}]"

    def offset_at(self, time: int) -> int:
        """Return the offset that brokers of the release give for a store time."""
        if self.source.release.time_search_takes_nearest:
            return self._nearest(self.source.searched_by_time(self.topic, self.queue_id, self.offsets, time), time)

        def stored(offset: int) -> int:
            found = self._stored(offset)
            return time if found is None else found

        return bisect_left(range(self.offsets.maximum), time, self.offsets.minimum, key=stored)

    def _nearest(self, searched: OffsetRange, time: int) -> int:
        """Return the message stored nearest to a time, as ConsumeQueue#getOffsetInQueueByTime; of two the first."""
        low, high = searched.minimum, searched.maximum - 1
        before: tuple[int, int] | None = None  # store time, offset
        after: tuple[int, int] | None = None
        while low <= high:
            middle = (low + high) // 2
            stored = self._stored(middle)
            if stored is None:
                return 0
            if stored == time:
                return middle
            if stored > time:
                after, high = (stored, middle), middle - 1
            else:
                before, low = (stored, middle), middle + 1
        if before is None or after is None:
            found = before or after
            return found[1] if found else searched.minimum
        return after[1] if time - before[0] > after[0] - time else before[1]

    def _stored(self, offset: int) -> int | None:
        message = self.source.in_queue(self.topic, self.queue_id, offset)
        return message.record.store_timestamp if message else None

    def pull(self, offset: int, tags: frozenset[str] | None = None, count: int = PULL_COUNT) -> Pull:
        """Pull from *offset*."""
        first, next_one = self.offsets
        if offset == next_one:
            return Pull(PullStatus.NO_NEW, [], offset)
        if not first <= offset < next_one:
            return Pull(PullStatus.ILLEGAL, [], first if offset < first or first == 0 else next_one)
        return self._pull(offset, tags, min(count, PULL_COUNT))

    def _pull(self, offset: int, tags: frozenset[str] | None, count: int) -> Pull:
        pull_end = self.source.pull_end(self.topic, self.queue_id, offset)
        end = min(self.offsets.maximum, offset + _UNITS_FILTERED, pull_end)
        hashes = None if tags is None else {java_hash(tag) for tag in tags}
        found: list[Message] = []
        size = 0
        is_hole = True
        for message in self.source.by_queue(self.topic, self.queue_id, offset, end):
            if found and (len(found) == count or (message and size + message.record.total_size > _PULL_BYTES)):
                break
            offset += 1
            is_hole &= message is None
            if message and (hashes is None or (message.tags and java_hash(message.tags) in hashes)):
                found.append(message)
                size += message.record.total_size
        if is_hole:  # the numbers of lost messages may be many, and a damaged number may be any
            offset = max(offset, self.source.next_number(self.topic, self.queue_id, offset))
        status = PullStatus.FOUND if found else PullStatus.NO_MATCHED
        return Pull(status, [one for one in found if tags is None or one.tags in tags], offset)


def wanted_tags(expression: str) -> frozenset[str] | None:
    """Return the tags that `TagA || TagB` names; None for all."""
    if expression.strip() in ("", _ALL_TAGS):
        return None
    return frozenset(part.strip() for part in expression.split("||") if part.strip())


def queue_order(topic: str, broker: str, queue_ids: list[int]) -> list[int]:
    """Return queue ids in the order in which a client walks its set of message queues."""
    return hash_order({queue_id: _queue_hash(topic, broker, queue_id) for queue_id in queue_ids})


def _queue_hash(topic: str, broker: str, queue_id: int) -> int:
    # MessageQueue#hashCode
    value = 31 + java_hash(broker)
    return 31 * (31 * value + queue_id) + java_hash(topic)
