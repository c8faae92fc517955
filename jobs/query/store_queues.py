"""Messages of a store by their place in a queue: through ConsumeQueue files, through the log where these are lost."""

from jobs.query.log_search import holding, of_queue
from jobs.query.message import Message
from jobs.query.mqadmin.text import OffsetRange
from jobs.query.source import MAX_TIME
from jobs.query.store_view import StoreView
from jobs.store.queue_files import StoredQueue
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.consumequeue.unit import BatchUnit, Unit
from rmq_formats.flags import TransactionType, transaction_type

_MAX_QUEUES = 1 << 16  # more than any broker has of a topic


class StoreQueues:
    """The queues of a store."""

    def __init__(self, store: StoreView) -> None:
        """Look into a store's files."""
        self._store = store
        self._ranges: dict[tuple[str, int], OffsetRange | None] = {}

    def offsets(self, topic: str, queue_id: int) -> OffsetRange | None:
        """Return which offsets a queue holds; None when there is no such queue."""
        name = (topic, queue_id)
        if name not in self._ranges:
            queue = self._queue(topic, queue_id)
            self._ranges[name] = self._offsets(queue) if queue else self._offsets_in_log(topic, queue_id)
        return self._ranges[name]

    def _offsets(self, queue: StoredQueue) -> OffsetRange:
        first, end = self._store.reader.unit_range(queue)
        if not queue.is_batch:
            return OffsetRange(first, end)
        oldest, newest = queue.unit(first), queue.unit(end - 1)
        if isinstance(oldest, BatchUnit) and isinstance(newest, BatchUnit):
            return OffsetRange(oldest.base_offset, newest.base_offset + newest.batch_count)
        return OffsetRange(0, 0)

    def _offsets_in_log(self, topic: str, queue_id: int) -> OffsetRange | None:
        if not self._is_lost(topic):
            return None
        numbers = [
            message.record.queue_offset
            for message in self._store.search(holding(topic))
            if message.record.queue_id == queue_id and message.topic == topic and _has_unit(message.record)
        ]
        return OffsetRange(min(numbers), max(numbers) + 1) if numbers else None

    def message(self, topic: str, queue_id: int, queue_offset: int) -> Message | None:
        """Return a queue's message by its number."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return self._message_in_log(topic, queue_id, queue_offset)
        index = self._unit_holding(queue, queue_offset) if queue.is_batch else queue_offset
        unit = queue.unit(index) if index >= 0 else None
        return self._store.at(unit.physical_offset) if unit else None

    def _message_in_log(self, topic: str, queue_id: int, queue_offset: int) -> Message | None:
        if self._is_lost(topic):
            for message in self._store.search(of_queue(queue_id, queue_offset)):
                if message.topic == topic and _has_unit(message.record):
                    return message
        return None

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> Unit | None:
        """Return a queue's ConsumeQueue unit; None in a BatchConsumeQueue, and where the file is lost."""
        queue = self._queue(topic, queue_id)
        unit = queue.unit(queue_offset) if queue and queue_offset >= 0 else None
        return unit if isinstance(unit, Unit) else None

    def pull_end(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the queue offset that one pull from *queue_offset* does not go beyond: a pull reads one file."""
        queue = self._queue(topic, queue_id)
        if queue is None or queue.is_batch:
            return MAX_TIME
        ends = (file.end // queue.unit_size for file in queue.files)
        return next((end for end in ends if end > queue_offset), MAX_TIME)

    def ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues: those that the broker counts, and those that have files."""
        configured = self._store.reader.topic_config.get(topic, {}).get("writeQueueNums")
        counted = range(configured) if isinstance(configured, int) and 0 < configured <= _MAX_QUEUES else ()
        return sorted({*counted, *(queue_id for name, queue_id in self._store.reader.queues if name == topic)})

    def _unit_holding(self, queue: StoredQueue, queue_offset: int) -> int:
        low, high = self._store.reader.unit_range(queue)
        while low < high:
            middle = (low + high) // 2
            unit = queue.unit(middle)
            if isinstance(unit, BatchUnit) and unit.base_offset + unit.batch_count <= queue_offset:
                low = middle + 1
            else:
                high = middle
        unit = queue.unit(low)
        return low if isinstance(unit, BatchUnit) and unit.base_offset <= queue_offset else -1

    def _queue(self, topic: str, queue_id: int) -> StoredQueue | None:
        return None if self._store.through_log else self._store.reader.queues.get((topic, queue_id))

    def _is_lost(self, topic: str) -> bool:
        """Tell whether the log must be asked: no file of any of the topic's queues is there."""
        if self._store.through_log:
            return True
        if any(name == topic for name, _ in self._store.reader.queues):
            return False
        is_known = topic in self._store.reader.topic_config or not self._store.reader.queues
        if is_known:
            self._store.say(f"the store has no ConsumeQueue files of {topic}: the log itself is searched")
        return is_known


def _has_unit(record: MessageRecord) -> bool:
    return transaction_type(record.sys_flag) not in {TransactionType.PREPARED, TransactionType.ROLLBACK}
