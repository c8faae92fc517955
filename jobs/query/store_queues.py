"""Messages of a store by their place in a queue: through ConsumeQueue files, or the log where these are not there."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest

from jobs.query.message import MAX_TIME, Message
from jobs.query.mqadmin.text import OffsetRange
from jobs.query.store_log import StoreView, holding
from jobs.store.queue_files import QueueFile, StoredQueue
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.consumequeue.unit import LMQ_PREFIX, BatchUnit, ExpectedUnit, QueueName, Unit, expected_units

_DISPATCH_MS = 5000  # a queue file is written no later than so long after the record that follows it is stored
_MAX_QUEUES = 1 << 16  # more than any broker has of a topic


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
        return None if place is None else self._store.by_offset(place)

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> Unit | None:
        """Return the unit that a broker makes of a message; None of a batch, which has a unit of another kind."""
        message = self.message(topic, queue_id, queue_offset)
        units = self._units(message.record, topic) if message else ()
        made = next((unit.unit for unit in units if unit.queue.queue_id == queue_id), None)
        return made if isinstance(made, Unit) else None

    def _units(self, record: MessageRecord, topic: str) -> list[ExpectedUnit]:
        return [unit for unit in expected_units(record, self._store.rules) if unit.queue.topic == topic]


@dataclass(eq=False)
class StoreQueues(StoreView):
    """The queues of a store."""

    _ranges: dict[tuple[str, int], OffsetRange | None] = field(default_factory=dict, init=False)
    _completed: set[str] = field(default_factory=set, init=False)  # topics whose queues are compared with the log

    @cached_property
    def _log(self) -> LogQueues:
        return LogQueues(self)

    def complete_queues(self, topic: str) -> None:
        """Have the log complete the queues of a topic, whose files may be lost; note where the log is too long."""
        if topic in self._completed:
            return
        self._completed.add(topic)
        self._ranges = {name: known for name, known in self._ranges.items() if name[0] != topic}
        if not self.searches_all:
            lost = sorted(
                {*self.queue_ids(topic)} - {queue_id for name, queue_id in self.reader.queues if name == topic}
            )
            for queue_id in lost:
                self.say(f"{topic}/{queue_id} has no files; --through-log searches the log for its messages")
            for (name, _), queue in self.reader.queues.items():
                if name == topic and self._may_lack_files(queue, self._offsets_in_files(queue)):
                    self.lack(f"the queue files of {topic}/{queue.name.queue_id} may not be complete at an end")

    def queue_offsets(self, topic: str, queue_id: int) -> OffsetRange | None:
        """Return which offsets a queue holds; None when the queue does not exist."""
        name = (topic, queue_id)
        if name not in self._ranges:
            queue = self._queue(topic, queue_id)
            offsets = self._offsets_in_files(queue) if queue else self._offsets_in_log(topic, queue_id)
            if queue and offsets and (self._is_completed(topic) or self._may_lack_files(queue, offsets)):
                offsets = self._with_log(queue.name, offsets)
            self._ranges[name] = offsets
        return self._ranges[name]

    def _offsets_in_files(self, queue: StoredQueue) -> OffsetRange:
        reader = self.reader
        first, end = reader.unit_range(queue)
        left_over = queue.written_end() - end
        if left_over:
            self.say(
                f"{left_over} units at the end of {queue.name.topic}/{queue.name.queue_id} are not answered: another "
                f"replica became the master ({reader.takeover_text}), and their messages were taken back"
            )
        if not queue.is_batch:
            return OffsetRange(first, end)
        oldest, newest = queue.unit(first), queue.unit(end - 1)
        if isinstance(oldest, BatchUnit) and isinstance(newest, BatchUnit):
            return OffsetRange(oldest.base_offset, newest.base_offset + newest.batch_count)
        return OffsetRange(0, 0)

    def _may_lack_files(self, queue: StoredQueue, offsets: OffsetRange) -> bool:
        """
        Return whether the queue's first or last files may be lost, by signs that a queue without loss rarely shows.

        Retention deletes a file once its last unit points before the log; so the first file that stays begins there,
        about. And a queue whose last file is lost ends where a file ends.
        """
        if queue.is_batch or queue.in_rocksdb or not queue.files:
            return False
        first = queue.unit(offsets.minimum)
        start = self.reader.store.start_offset
        lacks_start = queue.start == offsets.minimum > 0 and first is not None and first.physical_offset > start
        return lacks_start or offsets.maximum == queue.capacity

    def _with_log(self, name: QueueName, offsets: OffsetRange) -> OffsetRange:
        """Return which offsets a queue holds by its files and by the log, which is searched unless it is too long."""
        queue = f"the queue files of {name.topic}/{name.queue_id}"
        if not self.searches_all:
            self.say(f"{queue} may not be complete at an end; --through-log answers from the log itself")
            return offsets
        logged = self._log.of(name.topic).get(name.queue_id)
        if logged is None:
            return offsets
        low, high = min(offsets.minimum, logged.offsets.minimum), max(offsets.maximum, logged.offsets.maximum)
        if (low, high) != offsets:
            self.say(
                f"{queue} hold offsets {offsets.minimum} to {offsets.maximum - 1}, the log {low} to {high - 1}: "
                "missing units are answered from the log itself"
            )
        return OffsetRange(low, high)

    def _offsets_in_log(self, topic: str, queue_id: int) -> OffsetRange | None:
        queue = self._log.of(topic).get(queue_id) if self._is_in_log(topic) else None
        return queue.offsets if queue else None

    def _is_completed(self, topic: str) -> bool:
        return topic in self._completed and self.searches_all

    def _is_in_log(self, topic: str) -> bool:
        return self._is_completed(topic) or self._is_lost(topic)

    def in_queue(self, topic: str, queue_id: int, queue_offset: int) -> Message | None:
        """Return a queue's message by its number."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return self._log.message(topic, queue_id, queue_offset) if self._is_in_log(topic) else None
        index = self._unit_holding(queue, queue_offset) if queue.is_batch else queue_offset
        unit = queue.unit(index) if index >= 0 else None
        pointed_at = None
        if unit is not None:
            pointed_at = self.pointed_at(unit.physical_offset, f"a unit of {topic}/{queue_id}")
            if pointed_at is None or self._is_in_queue(pointed_at, topic, queue_id, queue_offset):
                return pointed_at
            self.lack(f"unit {queue_offset} of {topic}/{queue_id} points at another message, at {unit.physical_offset}")
        if queue.is_batch or not self.searches_all:
            if pointed_at is None:
                self.lack(f"{topic}/{queue_id} has no unit {queue_offset}; --through-log searches the log itself")
            return pointed_at
        message = self._log.message(topic, queue_id, queue_offset)
        if message is not None:
            self.say(f"units of {topic}/{queue_id} are missing in its files: the log itself is searched")
        return message or pointed_at  # a broker answers with the message that the unit points at

    def _is_in_queue(self, message: Message, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Return whether a message belongs where a unit has it; batches have units of several numbers."""
        return any(
            (unit.queue.topic, unit.queue.queue_id) == (topic, queue_id)
            and unit.queue_offset <= queue_offset < unit.queue_offset + (unit.batch_count or 1)
            for unit in expected_units(message.record, self.rules)
        )

    def by_queue(self, topic: str, queue_id: int, begin: int, end: int) -> Iterator[Message | None]:
        """Yield the messages of a queue by their numbers from *begin* to before *end*, None for one that is lost."""
        return (self.in_queue(topic, queue_id, number) for number in range(begin, end))

    def next_number(self, topic: str, queue_id: int, number: int) -> int:
        """Return the next number of a queue that may have a message, this one or a later one; this one without any."""
        queue = self._queue(topic, queue_id)
        if queue is not None and queue.start <= number < queue.written_end():
            return number
        logged = self._log.of(topic).get(queue_id) if self._is_in_log(topic) else None
        at = bisect_left(logged.firsts, number) if logged is not None else 0
        return logged.firsts[at] if logged is not None and at < len(logged.firsts) else number

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> Unit | None:
        """Return a queue's ConsumeQueue unit; None in a BatchConsumeQueue, and where the file is lost."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return self._log.unit(topic, queue_id, queue_offset) if self._is_lost(topic) else None
        unit = queue.unit(queue_offset) if queue_offset >= 0 else None
        if unit is None and not queue.is_batch and self.searches_all:
            return self._log.unit(topic, queue_id, queue_offset)
        return unit if isinstance(unit, Unit) else None

    def pull_end(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the queue offset that one pull from *queue_offset* does not go beyond: a pull reads one file."""
        queue = self._queue(topic, queue_id)
        if queue is None or queue.is_batch:
            return MAX_TIME
        ends = (file.end // queue.unit_size for file in queue.files)
        return next((end for end in ends if end > queue_offset), MAX_TIME)

    def searched_by_time(self, topic: str, queue_id: int, offsets: OffsetRange, time: int) -> OffsetRange:
        """
        Return the part of a queue that brokers up to 5.1.0 search for a store time.

        MappedFileQueue#getMappedFileByTime takes the first file that was modified then or later, else the last one.
        """
        queue = self._queue(topic, queue_id)
        if queue is None or queue.is_batch:
            return offsets
        part = offsets
        for file, following in zip_longest(queue.files, queue.files[1:]):
            first = file.base_offset // queue.unit_size
            part = OffsetRange(
                max(first, offsets.minimum), max(min(first + file.size // queue.unit_size, offsets.maximum), first)
            )
            if following is None or self._modified(queue, file, following) >= time:
                break
        return part

    def _modified(self, queue: StoredQueue, file: QueueFile, following: QueueFile) -> int:
        """Return when the broker last wrote to a file; a copy's own time says nothing, its last unit's does."""
        boundary = following.base_offset // queue.unit_size
        newest, next_one = (self.stored_at(queue, number) for number in (boundary - 1, boundary))
        listed = self.reader.store.queue_files
        modified = next(other.modified_ms for other in listed if other.location == file.location)
        is_original = next_one is not None and modified <= next_one + _DISPATCH_MS
        return modified if newest is None or is_original else newest

    def stored_at(self, queue: StoredQueue, number: int) -> int | None:
        """Return when the message of a unit was stored (ms); None where unit or message are lost."""
        unit = queue.unit(number) if number >= 0 else None
        message = self.by_offset(unit.physical_offset) if unit else None
        return message.record.store_timestamp if message else None

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues: those that the broker counts, and those that have messages."""
        configured = self.reader.topic_config.get(topic, {}).get("writeQueueNums")
        counted = range(configured) if isinstance(configured, int) and 0 < configured <= _MAX_QUEUES else ()
        in_files = (queue_id for name, queue_id in self.reader.queues if name == topic)
        return sorted({*counted, *in_files, *(self._log.of(topic) if self._is_in_log(topic) else ())})

    def has_topic(self, topic: str) -> bool:
        """Return whether *topic* has queues, or is in the broker's own table."""
        is_known = topic in self.reader.topic_config or any(name == topic for name, _ in self.reader.queues)
        return is_known or (self._is_lost(topic) and len(self._log.of(topic)) > 0)

    def _unit_holding(self, queue: StoredQueue, queue_offset: int) -> int:
        first, end = self.reader.unit_range(queue)
        at = batch_position(queue, queue_offset, end)
        unit = queue.unit(at) if at >= first else None
        holds = isinstance(unit, BatchUnit) and queue_offset < unit.base_offset + unit.batch_count
        return at if holds else -1

    def _queue(self, topic: str, queue_id: int) -> StoredQueue | None:
        return None if self.through_log else self.reader.queues.get((topic, queue_id))

    def _is_lost(self, topic: str) -> bool:
        """Return whether the log must be asked: no file of any of the topic's queues is there."""
        reader = self.reader
        if self.through_log:
            return True
        if any(name == topic for name, _ in reader.queues):
            return False
        if reader.why_not_in_rocksdb is not None:
            self.say(
                f"{reader.why_not_in_rocksdb}: ids, limits and units are those of the log; "
                "a queue that has no message there is not known"
            )
            return True
        if topic.startswith(LMQ_PREFIX) and reader.lacks_light_queues:
            self.say("RocksDB holds no light queue, as after a kill: limits and units are those of the log")
            return True
        is_known = topic in reader.topic_config or not reader.queues or not reader.topic_config
        if is_known:
            self.say(f"the store has no ConsumeQueue files of {topic}: the log itself is searched")
        return is_known


def batch_position(queue: StoredQueue, queue_offset: int, end: int) -> int:
    """Return the position of a batch queue's last unit that begins no later than a number; without one, start - 1."""

    def base(position: int) -> int:
        unit = queue.unit(position)
        return unit.base_offset if isinstance(unit, BatchUnit) else MAX_TIME

    return bisect_right(range(end), queue_offset, queue.start, key=base) - 1
