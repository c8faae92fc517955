"""
The queues of a store, as one question reads them.

They are read from queue files or RocksDB, and completed from the log where those may be lost.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property, wraps
from heapq import merge
from itertools import islice, zip_longest
from typing import Concatenate, ParamSpec, TypeVar

from jobs.console.amounts import count_text
from jobs.query import MAX_TIME, ListConditions, Message
from jobs.query.log_search import LogQueue
from jobs.query.mqadmin import OffsetRange
from jobs.query.source import MAX_QUEUES, FactOrigin, PointerCheck, QueueFact, Remarks, Sentence
from jobs.query.store_log import StoreLog
from jobs.query.store_reader import LiveUnits, StoreReader
from jobs.store.queue_files import StoredQueue
from jobs.store.queue_storage import QueueStorage, detect_queue_storage
from jobs.store.store import StoredFile
from rmq_formats.consumequeue.dispatch import LMQ_PREFIX, BatchUnit, ExpectedUnit, QueueKind, QueueName, Unit
from rmq_formats.errors import FormatError

_MOST_QUEUES_ASKED = 64  # queues whose units are searched for a record boundary
_DISPATCH_MS = 5000  # a broker last writes to a queue file within this time after storing the next file's first record

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _retry_without_damaged_database(
    read: Callable[Concatenate["StoreQueues", _P], _R],
) -> Callable[Concatenate["StoreQueues", _P], _R]:
    """Repeat a lookup without the queues in RocksDB if one of their rows cannot be read."""

    @wraps(read)
    def read_or_repeat(queues: "StoreQueues", /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return read(queues, *args, **kwargs)
        except FormatError as error:
            queues.drop_database(error)
            return read(queues, *args, **kwargs)

    return read_or_repeat


class StoreQueues:
    """The queues and topics of a store; with *scan_log*, as if the queue files were lost."""

    def __init__(self, reader: StoreReader, log: StoreLog, remarks: Remarks, *, scan_log: bool) -> None:
        self._reader = reader
        self._log = log
        self._remarks = remarks
        self._scan_log = scan_log
        self._ranges: dict[tuple[str, int], OffsetRange | None] = {}
        self._completed: set[str] = set()  # topics whose queues are compared with the log

    @property
    def searches_log(self) -> bool:
        """Whether the log is searched where queue files leave a doubt."""
        return self._scan_log or self._log.is_short

    def drop_database(self, error: FormatError) -> None:
        """Answer this question from the log, and note it, if *error* is about the queues in RocksDB; or raise it."""
        self._reader = self._reader.without_queue_database(error)
        self._note_unknown_queues()

    def _note_unknown_queues(self) -> None:
        self._remarks.note(
            f"{self._reader.why_rocksdb_queues_unknown}. Queue ids and offsets were taken from the log instead, and "
            "queues without messages in the log are not listed"
        )

    @property
    def why_unknown(self) -> str | None:
        """Why queues in RocksDB are unknown; None if they are known, or if there are none."""
        return self._reader.why_rocksdb_queues_unknown

    # stored queues

    def list_all(self) -> list[StoredQueue]:
        """Return every queue that has files or rows."""
        return list(self._reader.queues.values())

    def list_of_topic(self, topic: str, queue_id: int | None = None) -> list[StoredQueue]:
        """Return the queues of a topic that have files or rows, or one of them."""
        queues = self._reader.queues.items()
        return [queue for (name, number), queue in queues if name == topic and queue_id in {None, number}]

    def find_live_units(self, queue: StoredQueue) -> LiveUnits:
        """Return the numbers of the units of a queue that point into the log."""
        return self._reader.find_live_units(queue)

    def read_store_time(self, queue: StoredQueue, number: int) -> int | None:
        """Return the store time (ms) of a unit's message; None if unit or message are lost."""
        unit = queue.read_unit(number) if number >= 0 else None
        message = self._log.read_message(unit.physical_offset) if unit else None
        return message.record.store_timestamp if message else None

    def _find(self, topic: str, queue_id: int) -> StoredQueue | None:
        return None if self._scan_log else self._reader.queues.get((topic, queue_id))

    def _find_in_log(self, topic: str, queue_id: int) -> LogQueue | None:
        return self._log.find_queues(topic).get(queue_id) if self._is_in_log(topic) else None

    def _read_from_log(self, topic: str, queue_id: int, queue_offset: int) -> Message | None:
        queue = self._log.find_queues(topic).get(queue_id)
        place = queue.physical_offset_of(queue_offset) if queue else None
        return None if place is None else self._log.read_message(place)

    # offsets

    @_retry_without_damaged_database
    def complete(self, topic: str) -> None:
        """Complete a topic's queues, whose files may be lost, from the log; note it if the log is too long."""
        if topic in self._completed:
            return
        self._completed.add(topic)
        self._ranges = {name: known for name, known in self._ranges.items() if name[0] != topic}
        if not self.searches_log:
            queues = self.list_of_topic(topic)
            for queue_id in sorted({*self.list_ids(topic)} - {queue.name.queue_id for queue in queues}):
                self._remarks.note(f"{topic}/{queue_id} has no files; --scan-log searches the log for its messages")
            for queue in queues:
                if self._may_lack_files(queue, self._find_offsets_in_files(queue)):
                    self._remarks.warn(f"the first or last queue files of {topic}/{queue.name.queue_id} may be missing")

    @_retry_without_damaged_database
    def find_offsets(self, topic: str, queue_id: int) -> OffsetRange | None:
        """Return the offsets of a queue; None if it does not exist."""
        name = (topic, queue_id)
        if name not in self._ranges:
            queue = self._find(topic, queue_id)
            if queue is None:
                logged = self._find_in_log(topic, queue_id)
                end = None if self._scan_log else self._reader.ends_without_units.get(name)
                self._ranges[name] = logged.offsets if logged else None if end is None else OffsetRange(end, end)
            else:
                offsets = self._find_offsets_in_files(queue)
                if (topic in self._completed and self.searches_log) or self._may_lack_files(queue, offsets):
                    offsets = self._add_log(queue.name, offsets)
                self._ranges[name] = offsets
        return self._ranges[name]

    def _find_offsets_in_files(self, queue: StoredQueue) -> OffsetRange:
        left_over = self._reader.find_live_units(queue).left_over
        if left_over:
            self._remarks.note(
                f"{count_text(left_over, 'unit')} at the end of {queue.name.topic}/{queue.name.queue_id} are not used: "
                "their messages were truncated when another replica became the master "
                f"({self._reader.newest_epoch_text})"
            )
        return self._reader.offsets_in_files(queue)

    def _may_lack_files(self, queue: StoredQueue, offsets: OffsetRange) -> bool:
        """
        Return whether a queue's first or last files may be lost, by signs that are rare in complete queues.

        Retention deletes a file once its last unit points before the log, so the first remaining file begins about
        there. If a queue's last file is lost, the queue ends at a file boundary. And a broker creates a queue's first
        file for its first unit.
        """
        if queue.is_batch or queue.in_rocksdb or not queue.files:
            return False
        first = queue.read_unit(offsets.minimum)
        start = self._reader.store.start_offset
        lacks_start = (
            queue.first_unit_number == offsets.minimum > 0 and first is not None and first.physical_offset > start
        )
        is_unwritten = queue.find_written_end() == queue.first_unit_number
        return lacks_start or is_unwritten or offsets.maximum == queue.capacity_end

    def _add_log(self, name: QueueName, offsets: OffsetRange) -> OffsetRange:
        """Return a queue's offsets from its files and from the log, which is searched unless it is too long."""
        queue = f"the queue files of {name.topic}/{name.queue_id}"
        if not self.searches_log:
            self._remarks.note(f"the first or last of {queue} may be missing; --scan-log also searches the log")
            return offsets
        logged = self._log.find_queues(name.topic).get(name.queue_id)
        if logged is None:
            return offsets
        low, high = min(offsets.minimum, logged.offsets.minimum), max(offsets.maximum, logged.offsets.maximum)
        if (low, high) != offsets:
            self._remarks.note(
                f"{queue} have {offsets}, but the log has {low:,} to {high - 1:,}: missing units are taken from the log"
            )
        return OffsetRange(low, high)

    def _is_in_log(self, topic: str) -> bool:
        return (topic in self._completed and self.searches_log) or self._is_lost(topic)

    def _is_lost(self, topic: str) -> bool:
        """Return whether the log must be searched, because no file of the topic's queues exists."""
        reader = self._reader
        if self._scan_log:
            return True
        if self.list_of_topic(topic):
            return False
        if reader.why_rocksdb_queues_unknown is not None:
            self._note_unknown_queues()
            return True
        if topic.startswith(LMQ_PREFIX) and reader.lacks_light_queues:
            self._remarks.note(
                "RocksDB has no light queues (the broker was probably killed), so their offsets were taken from the log"
            )
            return True
        is_known = topic in reader.topic_config or not reader.queues or not reader.topic_config
        if is_known:
            self._remarks.note(f"the store has no ConsumeQueue files of {topic}, so the log is searched")
        return is_known

    # messages and units

    @_retry_without_damaged_database
    def read_message(self, topic: str, queue_id: int, queue_offset: int) -> Message | None:
        """Return a queue's message by queue offset."""
        queue = self._find(topic, queue_id)
        if queue is None:
            return self._read_from_log(topic, queue_id, queue_offset) if self._is_in_log(topic) else None
        unit = self._read_unit_with(queue, queue_offset)
        pointed_at = None
        if unit is not None:
            pointed_at = self._log.read_pointed_message(unit.physical_offset, f"a unit of {topic}/{queue_id}")
            if pointed_at is None or any(
                one.queue.queue_id == queue_id
                and one.queue_offset <= queue_offset < one.queue_offset + (one.batch_count or 1)
                for one in self._log.list_units(pointed_at.record, topic)
            ):
                return pointed_at
            self._remarks.warn(
                f"unit {queue_offset:,} of {topic}/{queue_id} points to another message (offset "
                f"{unit.physical_offset:,})"
            )
        if queue.is_batch or not self.searches_log:
            if pointed_at is None:
                self._remarks.warn(f"{topic}/{queue_id} has no unit {queue_offset:,}; --scan-log searches the log")
            return pointed_at
        message = self._read_from_log(topic, queue_id, queue_offset)
        if message is not None:
            self._remarks.note(f"units of {topic}/{queue_id} are missing in its files, so the log is searched")
        return message or pointed_at  # a broker answers with the message that the unit points at

    def _read_unit_with(self, queue: StoredQueue, queue_offset: int) -> Unit | BatchUnit | None:
        if not queue.is_batch:
            return queue.read_unit(queue_offset) if queue_offset >= 0 else None
        live = self._reader.find_live_units(queue)
        at = _find_batch_position(queue, queue_offset, live.end)
        unit = queue.read_unit(at) if at >= live.first else None
        has_offset = isinstance(unit, BatchUnit) and queue_offset < unit.base_offset + unit.batch_count
        return unit if has_offset else None

    @_retry_without_damaged_database
    def find_next_offset(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the next queue offset that may have a message; *queue_offset* itself if there is none."""
        queue = self._find(topic, queue_id)
        if queue is not None and queue.first_unit_number <= queue_offset < queue.find_written_end():
            return queue_offset
        logged = self._find_in_log(topic, queue_id)
        at = bisect_left(logged.firsts, queue_offset) if logged is not None else 0
        return logged.firsts[at] if logged is not None and at < len(logged.firsts) else queue_offset

    @_retry_without_damaged_database
    def read_unit(self, topic: str, queue_id: int, queue_offset: int) -> Unit | None:
        """Return the unit that a queue has for a message, or should have according to the log."""
        queue = self._find(topic, queue_id)
        unit = queue.read_unit(queue_offset) if queue is not None and queue_offset >= 0 else None
        is_in_log = self._is_lost(topic) if queue is None else not queue.is_batch and self.searches_log
        if unit is None and is_in_log:
            message = self._read_from_log(topic, queue_id, queue_offset)
            units = self._log.list_units(message.record, topic) if message else ()
            unit = next((one.unit for one in units if one.queue.queue_id == queue_id), None)
        return unit if isinstance(unit, Unit) else None

    def find_pull_end(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the queue offset at which a pull from *queue_offset* ends: a pull reads one file."""
        queue = self._find(topic, queue_id)
        ends = () if queue is None or queue.is_batch else (file.end // queue.unit_size for file in queue.files)
        return next((end for end in ends if end > queue_offset), MAX_TIME)

    @_retry_without_damaged_database
    def find_part_searched_by_time(self, topic: str, queue_id: int, offsets: OffsetRange, time: int) -> OffsetRange:
        """Return the part in the first file that was modified at or after the time, or else in the last one."""
        # MappedFileQueue#getMappedFileByTime of brokers up to 5.1.0
        queue = self._find(topic, queue_id)
        if queue is None or queue.is_batch:
            return offsets
        part = offsets
        for file, following in zip_longest(queue.files, queue.files[1:]):
            first = file.base_offset // queue.unit_size
            end = min(first + file.size // queue.unit_size, offsets.maximum)
            part = OffsetRange(max(first, offsets.minimum), max(end, first))
            if following is None or self._find_modification_time(queue, file, following) >= time:
                break
        return part

    def _find_modification_time(self, queue: StoredQueue, file: StoredFile, following: StoredFile) -> int:
        """Return when the broker last wrote to a file, by its last unit: a copy has another modification time."""
        boundary = following.base_offset // queue.unit_size
        newest, next_one = (self.read_store_time(queue, number) for number in (boundary - 1, boundary))
        is_original = next_one is not None and file.modified_ms <= next_one + _DISPATCH_MS
        return file.modified_ms if newest is None or is_original else newest

    # places in the log

    @_retry_without_damaged_database
    def find_record_before(self, offset: int) -> int:
        """Return the last record at or before *offset* to which a queue points, else the segment's start."""
        reader = self._reader
        segment = reader.store.segment_at(offset)
        if segment is None:
            ends = [one.base_offset for one in reader.store.segments if one.base_offset <= offset]
            return max(ends, default=reader.store.start_offset)
        header = reader.segment_bytes(segment).framing.header_size
        named = segment.base_offset + header
        for queue in islice(reader.queues.values(), _MOST_QUEUES_ASKED):
            live = reader.find_live_units(queue)
            number = queue.first_unit_pointing_from(offset + 1, live.end) - 1
            unit = queue.read_unit(number) if number >= live.first else None
            if unit is not None:
                named = max(named, unit.physical_offset)
        return named - header if self._log.read_message(named) is not None else segment.base_offset

    def list_offsets_before(self, wanted: ListConditions, end_offset: int) -> Iterator[int]:
        """Yield the offsets before *end_offset* to which units of a topic's queues point, newest first."""
        queues = self.list_of_topic(wanted.topic or "", wanted.queue_id)
        for part in self._log.list_parts(wanted, end_offset):
            yield from merge(*(self._list_offsets_within(queue, part) for queue in queues), reverse=True)

    def _list_offsets_within(self, queue: StoredQueue, part: range) -> Iterator[int]:
        """Yield the offsets to which units of a queue point, newest first."""
        live = self._reader.find_live_units(queue)
        low, high = (queue.first_unit_pointing_from(offset, live.end) for offset in (part.start, part.stop))
        for number in reversed(range(max(low, live.first), high)):
            unit = queue.read_unit(number)
            if unit is not None and unit.physical_offset < part.stop:
                yield unit.physical_offset
            else:
                name = f"{queue.name.topic}/{queue.name.queue_id}"
                self._remarks.warn(f"unit {number} of {name} is missing or points to a later message")

    # topics

    def list_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues: those that the broker counts, and those that have messages."""
        configured = self._reader.topic_config.get(topic, {}).get("writeQueueNums")
        counted = range(configured) if isinstance(configured, int) and 0 < configured <= MAX_QUEUES else ()
        in_files = (queue.name.queue_id for queue in self.list_of_topic(topic))
        ended = (queue_id for name, queue_id in self._reader.ends_without_units if name == topic)
        return sorted({*counted, *in_files, *ended, *(self._log.find_queues(topic) if self._is_in_log(topic) else ())})

    def has_topic(self, topic: str) -> bool:
        """Return whether a topic exists."""
        if topic in self._reader.topic_config or self.list_of_topic(topic):
            return True
        if any(topic == name for name, _ in self._reader.ends_without_units):
            return True
        return self._is_lost(topic) and len(self._log.find_queues(topic)) > 0

    @cached_property
    def topics(self) -> frozenset[str]:
        """Every topic; those of the log only if queues or settings may be missing."""
        known = frozenset({topic for topic, _ in self._reader.queues} | set(self._reader.topic_config))
        is_complete = bool(known) and not self._scan_log and self._reader.why_rocksdb_queues_unknown is None
        return known if is_complete or not self.searches_log else known | self._log.find_topics()

    # evidence

    @_retry_without_damaged_database
    def find_fact(self, expected: ExpectedUnit) -> QueueFact:
        """Return the unit that a queue has where a unit is expected."""
        name = expected.queue
        at = (name.topic, name.queue_id, expected.queue_offset)
        queue = self._reader.queues.get((name.topic, name.queue_id))
        if queue is None:
            # Selective double write leaves light queues out: the broker itself says that they are empty.
            writes_twice = detect_queue_storage(self._reader.store) is QueueStorage.BOTH
            is_left_out = name.topic.startswith(LMQ_PREFIX) and writes_twice
            is_unknown = is_left_out or self._reader.why_rocksdb_queues_unknown is not None
            place = FactOrigin(f"consumequeue/{name.topic}/{name.queue_id}")
            return QueueFact(*at, PointerCheck.NOT_KNOWN if is_unknown else PointerCheck.MISSING, place)
        if queue.is_batch != (name.kind is QueueKind.BATCH):
            return QueueFact(*at, PointerCheck.NOT_KNOWN, self._find_unit_origin(queue, expected.queue_offset))
        position = expected.queue_offset
        if queue.is_batch:
            position = _find_batch_position(queue, position, queue.find_written_end())
        unit = queue.read_unit(position) if 0 <= position < queue.capacity_end else None
        place = self._find_unit_origin(queue, position)
        if unit is None:
            return QueueFact(*at, PointerCheck.MISSING, place)
        leads = unit.physical_offset == expected.physical_offset
        code = unit.tags_code if isinstance(unit, Unit) else None
        return QueueFact(*at, PointerCheck.LEADS_THERE if leads else PointerCheck.ELSEWHERE, place, code)

    def _find_unit_origin(self, queue: StoredQueue, position: int) -> FactOrigin:
        if queue.in_rocksdb:
            name = Sentence("RocksDB, queue {topic}/{queue}", topic=queue.name.topic, queue=queue.name.queue_id)
            return FactOrigin(name)
        file = queue.file_at(position)
        if file is not None:
            path = self._reader.store.path_below_root(file.location)
            return FactOrigin(path, position * queue.unit_size - file.base_offset)
        return FactOrigin(f"{queue.name.kind.value}/{queue.name.topic}/{queue.name.queue_id}")


def _find_batch_position(queue: StoredQueue, queue_offset: int, end: int) -> int:
    """Return the position of a batch queue's last unit that begins at or before a queue offset; else start - 1."""

    def base(position: int) -> int:
        unit = queue.read_unit(position)
        return unit.base_offset if isinstance(unit, BatchUnit) else MAX_TIME

    return bisect_right(range(end), queue_offset, queue.first_unit_number, key=base) - 1
