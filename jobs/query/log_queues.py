"""The queues of a store by its log: the numbers of messages where no queue file has them."""

from array import array
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.query.log_search import holding
from jobs.query.message import Message
from jobs.query.mqadmin.text import OffsetRange
from jobs.query.store_view import StoreView
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.consumequeue.unit import ExpectedUnit, Unit, expected_units


def _numbers() -> "array[int]":
    return array("q")


@dataclass(slots=True)
class LogQueue:
    """One queue: the numbers that its messages have, ascending, and where their records are."""

    firsts: "array[int]" = field(default_factory=_numbers)
    counts: "array[int]" = field(default_factory=_numbers)  # 1, or the messages of a batch
    places: "array[int]" = field(default_factory=_numbers)

    @property
    def offsets(self) -> OffsetRange:
        """Which offsets the queue holds."""
        return OffsetRange(self.firsts[0], self.firsts[-1] + self.counts[-1])

    def add(self, unit: ExpectedUnit) -> None:
        """Take a unit of a record; of several with one number, the first one stays."""
        at = bisect_right(self.firsts, unit.queue_offset)
        if at == 0 or self.firsts[at - 1] != unit.queue_offset:
            self.firsts.insert(at, unit.queue_offset)
            self.counts.insert(at, unit.batch_count or 1)
            self.places.insert(at, unit.physical_offset)

    def place(self, queue_offset: int) -> int | None:
        """Return the physical offset of the record with a number; None where the log has none."""
        at = bisect_right(self.firsts, queue_offset) - 1
        return self.places[at] if at >= 0 and queue_offset < self.firsts[at] + self.counts[at] else None


class LogQueues:
    """The queues of topics, each topic searched for once."""

    def __init__(self, store: StoreView) -> None:
        self._store = store
        self._queues: dict[str, Mapping[int, LogQueue]] = {}

    def of(self, topic: str) -> Mapping[int, LogQueue]:
        """Return the queues of *topic* by their ids, as far as they have messages in the log."""
        if topic not in self._queues:
            queues: dict[int, LogQueue] = {}
            for message in self._store.search(holding(topic)):
                for unit in self._units(message.record, topic):
                    queues.setdefault(unit.queue.queue_id, LogQueue()).add(unit)
            self._queues[topic] = dict(sorted(queues.items()))
        return self._queues[topic]

    def message(self, topic: str, queue_id: int, queue_offset: int) -> Message | None:
        """Return a queue's message by its number."""
        queue = self.of(topic).get(queue_id)
        place = queue.place(queue_offset) if queue else None
        return None if place is None else self._store.at(place)

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> Unit | None:
        """Return the unit that a broker makes of a message; None of a batch, which has a unit of another kind."""
        message = self.message(topic, queue_id, queue_offset)
        units = self._units(message.record, topic) if message else ()
        made = next((unit.unit for unit in units if unit.queue.queue_id == queue_id), None)
        return made if isinstance(made, Unit) else None

    def _units(self, record: MessageRecord, topic: str) -> list[ExpectedUnit]:
        return [unit for unit in expected_units(record, self._store.rules) if unit.queue.topic == topic]
