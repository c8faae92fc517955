"""
A store as a source of queries: through its queue and index files, or through the log if they are missing.

The log can only be walked forwards. A list of the newest messages reads it in spans, the last one first; a span begins
at a record to which a queue points, or at the start of a segment. If the log is too long, a topic is listed through its
queues.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from functools import cached_property, wraps
from heapq import merge, nlargest
from itertools import chain, islice, product, zip_longest
from typing import Concatenate, ParamSpec, TypeVar

from jobs.console.amounts import count_text
from jobs.query import MAX_TIME, KeyQuery, ListConditions, Message, has_key
from jobs.query.mqadmin import OffsetRange, time_text_without_ms
from jobs.query.source import (
    MAX_OCCURRENCES,
    MAX_QUEUES,
    Coverage,
    FactOrigin,
    KeyFact,
    Occurrence,
    OnProgress,
    PointerCheck,
    QueueFact,
    Reason,
    ReasonKind,
    Sentence,
    Source,
    do_nothing,
)
from jobs.query.store_index import (
    COMPILED_SCAN_MIN_BYTES,
    MAX_LOG_SEARCHED_BY_DEFAULT,
    WHOLE_LOG,
    LogQueue,
    StoreIndex,
    search_records,
)
from jobs.query.store_reader import SKIPPED_SEGMENTS, StoreReader
from jobs.store.broker_config import BrokerConfig, ReaderProgress, read_broker_config, read_config
from jobs.store.log_ends import find_lost_ends
from jobs.store.queue_files import QueueStorage, StoredQueue, detect_queue_storage
from jobs.store.ranges import find_newest_segment_offset
from jobs.store.store import Store, StoredFile, read_checkpoint, relist_store
from rmq_formats.commitlog.record import Host, MessageRecord
from rmq_formats.consumequeue.dispatch import (
    DEFAULT_DELAY_LEVELS,
    LMQ_PREFIX,
    BatchUnit,
    ExpectedUnit,
    QueueKind,
    QueueName,
    Unit,
    UnitRules,
    expected_units,
)
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.keys import KeyKind, typed_index_keys
from rmq_formats.properties import UNIQ_KEY, decode_java_text, property_items
from rmq_formats.release import Release

_RESERVED_HOURS = 72  # fileReservedTime, unless a broker's configuration says otherwise
_HOUR_MS = 3_600_000
_FIRST_SPAN, _LARGEST_SPAN = 1 << 18, 16 << 20  # below the size from which the compiled scan is faster, with its import
_MOST_QUEUES_ASKED = 64  # queues whose units are searched for a record boundary
_DISPATCH_MS = 5000  # a broker last writes to a queue file within this time after storing the next file's first record


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _without_damaged_database(
    read: Callable[Concatenate["StoreSource", _P], _R],
) -> Callable[Concatenate["StoreSource", _P], _R]:
    """Repeat a lookup without the queues in RocksDB if one of their rows cannot be read."""

    @wraps(read)
    def read_or_repeat(source: "StoreSource", /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return read(source, *args, **kwargs)
        except FormatError as error:
            source.drop_queue_database(error)
            return read(source, *args, **kwargs)

    return read_or_repeat


class StoreSource(Source):
    """A store: its log, its keys, its queues and its topics."""

    name = "the store"

    def __init__(
        self,
        reader: StoreReader,
        *releases: Release,
        through_log: bool = False,
        search_progress: OnProgress = do_nothing,
        broker: str | None = None,
    ) -> None:
        """Answer as the newest of *releases* would; with *through_log*, as if index and queue files were lost."""
        super().__init__()
        self.reader = reader
        self.possible_releases = releases
        self.through_log = through_log
        self.broker = broker
        self.delay_levels = DEFAULT_DELAY_LEVELS
        self._search_progress = search_progress
        self._lost: dict[str, list[int]] = {}  # pointer → places without a message
        self._log_queues: dict[str, Mapping[int, LogQueue]] = {}
        self._ranges: dict[tuple[str, int], OffsetRange | None] = {}
        self._searched_key: str | None = None
        self._places: dict[range, Sequence[int]] = {}  # offsets of messages with the searched key, by part of the log
        self._completed: set[str] = set()  # topics whose queues are compared with the log
        self._every_topic: frozenset[str] | None = None

    @cached_property
    def _index(self) -> StoreIndex:
        return StoreIndex(self)

    @cached_property
    def unit_rules(self) -> UnitRules:
        """The rules by which units are derived from records."""
        attributes = ((name, about.get("attributes")) for name, about in self.reader.topic_config.items())
        batch_topics = frozenset(
            name for name, about in attributes if isinstance(about, dict) and about.get("queue.type") == "BatchCQ"
        )
        return UnitRules(((0, self.release),), self.delay_levels, batch_topics)

    @property
    def searches_all(self) -> bool:  # type: ignore[override]
        return self.through_log or self.reader.store.log_size <= MAX_LOG_SEARCHED_BY_DEFAULT

    @property
    def place_of_unique_keys(self) -> str:
        return "the log" if self.through_log else "the index of any topic"

    # messages of the log

    def by_offset(self, physical_offset: int) -> Message | None:
        record = self.reader.read_record(physical_offset)
        return Message(record, self.release) if record else None

    def read_pointed_message(self, physical_offset: int, pointer: str) -> Message | None:
        """Return the message to which *pointer* of an index or queue points; note if it is lost."""
        message = self.by_offset(physical_offset)
        if message is not None:
            return message
        reader, store = self.reader, self.reader.store
        if reader.is_left_over(physical_offset):
            self.note_once(
                f"{pointer} points to offset {physical_offset:,}, whose message was truncated when another replica "
                f"became the master ({reader.newest_epoch_text})"
            )
            return None
        place = "at which there is no complete record"
        if physical_offset < store.start_offset:
            place = f"that was deleted from the log (it begins at {store.start_offset:,})"
        elif store.segment_at(physical_offset) is None:
            if self._store_now.segment_at(physical_offset) is not None:
                return None  # newer than the list of files
            place = "that no file of the log contains"
        self._lost.setdefault(f"{pointer} points to an offset {place}", []).append(physical_offset)
        return None

    @cached_property
    def _store_now(self) -> Store:
        return relist_store(self.reader.store)

    @property
    def lacking(self) -> list[str]:
        """Why messages may be missing from answers; similar reasons are counted, and the first is given."""
        pointed_at = [(why, sorted(set(offsets))) for why, offsets in self._lost.items()]
        return [
            *self._reasons,
            *(f"{why} ({count_text(len(found), 'offset')}, the first {found[0]})" for why, found in pointed_at),
        ]

    def search(self, text: str, span: range = WHOLE_LOG) -> Iterator[Message]:
        """Yield the messages of the log that contain *text*, in log order; note lost parts."""
        for record in search_records(self.reader, text, self._search_progress, span, self._lose):
            yield Message(record, self.release)

    def _lose(self, start: int, end: int, reason: str) -> None:
        self.note_incomplete(f"the log from offset {start:,} to {end:,} cannot be read as messages: {reason}")

    # messages by key

    def by_key(self, wanted: KeyQuery) -> Iterator[Message]:
        why_not = self._index.why_not_searchable(wanted.kind)
        if why_not is None:
            yield from self._index.find_messages(wanted)
            return
        if why_not:
            self.note_once(f"{why_not}, so the log is searched")
        for message in filter(None, map(self.by_offset, reversed(self.find_offsets_of_key(wanted.key)))):
            if wanted.matches(message):
                yield from [message] * wanted.count_index_entries(message)

    def find_offsets_of_key(self, key: str, span: range = WHOLE_LOG) -> Sequence[int]:
        """Search a part of the log for the messages of all topics that have a key; return their offsets, ascending."""
        # The log is walked forwards, and answers begin with the newest: places are kept, not messages of any size.
        # They are kept for the next query, which may ask for the same key of another topic or kind.
        if key != self._searched_key:
            self._searched_key, self._places = key, {}
        if span not in self._places:
            found = (one for one in self.search(key, span) if any(has_key(one, kind, key) for kind in KeyKind))
            self._places[span] = array("q", (message.record.physical_offset for message in found))
        return self._places[span]

    def by_key_hash(self, wanted: KeyQuery) -> Iterator[Message]:
        is_indexed = self._index.why_not_searchable(KeyKind.KEY) is None
        return self._index.find_by_hash(wanted) if is_indexed else self.by_key(wanted)

    def occurrences(self, text: str, max_searched_bytes: int = MAX_LOG_SEARCHED_BY_DEFAULT) -> Iterator[Occurrence]:
        """Search the log for messages that are in no index file only if it has at most *max_searched_bytes*."""
        given: set[tuple[int, KeyKind, bool]] = set()
        wanted = (KeyQuery(kind, topic, text) for topic, kind in product(sorted(self.topics()), KeyKind))
        indexed = (
            Occurrence(message, one.kind, is_indexed=True)
            for one in wanted
            for message in islice(self._index.find_without_log(one), 1)
        )
        is_searched = self.through_log or self.reader.store.log_size <= max_searched_bytes
        for one in chain(indexed, islice(self._logged(text), MAX_OCCURRENCES if is_searched else 0)):
            place = (one.message.record.physical_offset, one.kind, one.is_hidden_by_batch_id)
            if place not in given:  # the log also has the messages that the index found
                given.add(place)
                yield one
        if not is_searched:
            self.note_once("only index files were searched; --through-log also searches the log")

    def _logged(self, text: str) -> Iterator[Occurrence]:
        for message in self.search(text):
            for kind in (one for one in KeyKind if has_key(message, one, text)):
                indexed = self._index.find_without_log(KeyQuery(kind, message.topic, text))
                offsets = (other.record.physical_offset for other in indexed)
                yield Occurrence(message, kind, message.record.physical_offset in offsets)
            items = property_items(decode_java_text(message.record.properties_raw), message.release.property_parser)
            # The message's own id, which that of its batch follows and hides (5.0.0 to 5.3.3).
            if (UNIQ_KEY, text) in items and message.unique_key != text:
                yield Occurrence(message, KeyKind.UNIQUE, is_indexed=False, is_hidden_by_batch_id=True)

    def copies(self, unique_key: str, topics: Iterable[str]) -> Iterator[Message]:
        """Yield the messages with a unique key, topic by topic; for a small log, also those in no index."""
        for topic in topics:
            yield from self.by_key(KeyQuery(KeyKind.UNIQUE, topic, unique_key))
        # The index has every copy but a rollback of these releases: a search would only find copies that it lost.
        is_whole = not self.release.half_message_in_real_topic
        for seen in self.occurrences(unique_key, COMPILED_SCAN_MIN_BYTES if is_whole else MAX_LOG_SEARCHED_BY_DEFAULT):
            if seen.kind is KeyKind.UNIQUE:
                yield seen.message

    # queues

    def _queue(self, topic: str, queue_id: int) -> StoredQueue | None:
        return None if self.through_log else self.reader.queues.get((topic, queue_id))

    def list_queues(self, topic: str, queue_id: int | None = None) -> list[StoredQueue]:
        """Return the queues of a topic that have files, or one of them."""
        queues = self.reader.queues.items()
        return [queue for (name, number), queue in queues if name == topic and queue_id in {None, number}]

    def _queues_in_log(self, topic: str) -> Mapping[int, LogQueue]:
        if topic not in self._log_queues:
            queues: dict[int, LogQueue] = {}
            for message in self.search(topic):
                for unit in self._units(message.record, topic):
                    queues.setdefault(unit.queue.queue_id, LogQueue()).add(unit)
            self._log_queues[topic] = dict(sorted(queues.items()))
        return self._log_queues[topic]

    def _units(self, record: MessageRecord, topic: str) -> list[ExpectedUnit]:
        return [unit for unit in expected_units(record, self.unit_rules) if unit.queue.topic == topic]

    def _message_in_log(self, topic: str, queue_id: int, queue_offset: int) -> Message | None:
        queue = self._queues_in_log(topic).get(queue_id)
        place = queue.physical_offset_of(queue_offset) if queue else None
        return None if place is None else self.by_offset(place)

    @_without_damaged_database
    def complete_queues(self, topic: str) -> None:
        """Complete a topic's queues, whose files may be lost, from the log; note it if the log is too long."""
        if topic in self._completed:
            return
        self._completed.add(topic)
        self._ranges = {name: known for name, known in self._ranges.items() if name[0] != topic}
        if not self.searches_all:
            queues = self.list_queues(topic)
            for queue_id in sorted({*self.queue_ids(topic)} - {queue.name.queue_id for queue in queues}):
                self.note_once(f"{topic}/{queue_id} has no files; --through-log searches the log for its messages")
            for queue in queues:
                if self._may_lack_files(queue, self._offsets_in_files(queue)):
                    self.note_incomplete(
                        f"the first or last queue files of {topic}/{queue.name.queue_id} may be missing"
                    )

    @_without_damaged_database
    def queue_offsets(self, topic: str, queue_id: int) -> OffsetRange | None:
        name = (topic, queue_id)
        if name not in self._ranges:
            queue = self._queue(topic, queue_id)
            if queue is None:
                logged = self._queues_in_log(topic).get(queue_id) if self._is_in_log(topic) else None
                end = None if self.through_log else self.reader.ends_without_units.get(name)
                self._ranges[name] = logged.offsets if logged else None if end is None else OffsetRange(end, end)
            else:
                offsets = self._offsets_in_files(queue)
                if (topic in self._completed and self.searches_all) or self._may_lack_files(queue, offsets):
                    offsets = self._with_log(queue.name, offsets)
                self._ranges[name] = offsets
        return self._ranges[name]

    def _offsets_in_files(self, queue: StoredQueue) -> OffsetRange:
        reader = self.reader
        offsets = reader.offsets_in_files(queue)
        left_over = reader.left_over_units[queue.name]
        if left_over:
            self.note_once(
                f"{count_text(left_over, 'unit')} at the end of {queue.name.topic}/{queue.name.queue_id} are not used: "
                f"their messages were truncated when another replica became the master ({reader.newest_epoch_text})"
            )
        return offsets

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
        start = self.reader.store.start_offset
        lacks_start = (
            queue.first_unit_number == offsets.minimum > 0 and first is not None and first.physical_offset > start
        )
        is_unwritten = queue.find_written_end() == queue.first_unit_number
        return lacks_start or is_unwritten or offsets.maximum == queue.capacity_end

    def _with_log(self, name: QueueName, offsets: OffsetRange) -> OffsetRange:
        """Return a queue's offsets from its files and from the log, which is searched unless it is too long."""
        queue = f"the queue files of {name.topic}/{name.queue_id}"
        if not self.searches_all:
            self.note_once(f"the first or last of {queue} may be missing; --through-log also searches the log")
            return offsets
        logged = self._queues_in_log(name.topic).get(name.queue_id)
        if logged is None:
            return offsets
        low, high = min(offsets.minimum, logged.offsets.minimum), max(offsets.maximum, logged.offsets.maximum)
        if (low, high) != offsets:
            self.note_once(
                f"{queue} have {offsets}, but the log has {low:,} to {high - 1:,}: missing units are taken from the log"
            )
        return OffsetRange(low, high)

    def _is_in_log(self, topic: str) -> bool:
        return (topic in self._completed and self.searches_all) or self._is_lost(topic)

    def _is_lost(self, topic: str) -> bool:
        """Return whether the log must be searched, because no file of the topic's queues exists."""
        reader = self.reader
        if self.through_log:
            return True
        if self.list_queues(topic):
            return False
        if reader.why_rocksdb_queues_unknown is not None:
            self._note_unknown_queues()
            return True
        if topic.startswith(LMQ_PREFIX) and reader.lacks_light_queues:
            self.note_once(
                "RocksDB has no light queues (the broker was probably killed), so their offsets were taken from the log"
            )
            return True
        is_known = topic in reader.topic_config or not reader.queues or not reader.topic_config
        if is_known:
            self.note_once(f"the store has no ConsumeQueue files of {topic}, so the log is searched")
        return is_known

    def _note_unknown_queues(self) -> None:
        self.note_once(
            f"{self.reader.why_rocksdb_queues_unknown}. Queue ids and offsets were taken from the log instead, and "
            "queues without messages in the log are not listed"
        )

    def drop_queue_database(self, error: FormatError) -> None:
        """Answer from the log from now on, and note it, if *error* is about the queues in RocksDB; or raise it."""
        self.reader.drop_queue_database(error)
        self._note_unknown_queues()

    @_without_damaged_database
    def by_queue_offset(self, topic: str, queue_id: int, queue_offset: int) -> Message | None:
        queue = self._queue(topic, queue_id)
        if queue is None:
            return self._message_in_log(topic, queue_id, queue_offset) if self._is_in_log(topic) else None
        unit = self._unit_holding(queue, queue_offset)
        pointed_at = None
        if unit is not None:
            pointed_at = self.read_pointed_message(unit.physical_offset, f"a unit of {topic}/{queue_id}")
            if pointed_at is None or any(
                one.queue.queue_id == queue_id
                and one.queue_offset <= queue_offset < one.queue_offset + (one.batch_count or 1)
                for one in self._units(pointed_at.record, topic)
            ):
                return pointed_at
            self.note_incomplete(
                f"unit {queue_offset:,} of {topic}/{queue_id} points to another message (offset "
                f"{unit.physical_offset:,})"
            )
        if queue.is_batch or not self.searches_all:
            if pointed_at is None:
                self.note_incomplete(f"{topic}/{queue_id} has no unit {queue_offset:,}; --through-log searches the log")
            return pointed_at
        message = self._message_in_log(topic, queue_id, queue_offset)
        if message is not None:
            self.note_once(f"units of {topic}/{queue_id} are missing in its files, so the log is searched")
        return message or pointed_at  # a broker answers with the message that the unit points at

    def _unit_holding(self, queue: StoredQueue, queue_offset: int) -> Unit | BatchUnit | None:
        if not queue.is_batch:
            return queue.read_unit(queue_offset) if queue_offset >= 0 else None
        first, end = self.reader.live_unit_range(queue)
        at = _batch_position(queue, queue_offset, end)
        unit = queue.read_unit(at) if at >= first else None
        holds = isinstance(unit, BatchUnit) and queue_offset < unit.base_offset + unit.batch_count
        return unit if holds else None

    @_without_damaged_database
    def next_queue_offset(self, topic: str, queue_id: int, queue_offset: int) -> int:
        queue = self._queue(topic, queue_id)
        if queue is not None and queue.first_unit_number <= queue_offset < queue.find_written_end():
            return queue_offset
        logged = self._queues_in_log(topic).get(queue_id) if self._is_in_log(topic) else None
        at = bisect_left(logged.firsts, queue_offset) if logged is not None else 0
        return logged.firsts[at] if logged is not None and at < len(logged.firsts) else queue_offset

    @_without_damaged_database
    def read_unit(self, topic: str, queue_id: int, queue_offset: int) -> Unit | None:
        queue = self._queue(topic, queue_id)
        unit = queue.read_unit(queue_offset) if queue is not None and queue_offset >= 0 else None
        is_in_log = self._is_lost(topic) if queue is None else not queue.is_batch and self.searches_all
        if unit is None and is_in_log:
            message = self._message_in_log(topic, queue_id, queue_offset)
            units = self._units(message.record, topic) if message else ()
            unit = next((one.unit for one in units if one.queue.queue_id == queue_id), None)
        return unit if isinstance(unit, Unit) else None

    def pull_end(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the queue offset at which a pull from *queue_offset* ends: a pull reads one file."""
        queue = self._queue(topic, queue_id)
        ends = () if queue is None or queue.is_batch else (file.end // queue.unit_size for file in queue.files)
        return next((end for end in ends if end > queue_offset), MAX_TIME)

    @_without_damaged_database
    def part_searched_by_time(self, topic: str, queue_id: int, offsets: OffsetRange, time: int) -> OffsetRange:
        """Return the part in the first file that was modified at or after the time, or else in the last one."""
        # MappedFileQueue#getMappedFileByTime of brokers up to 5.1.0
        queue = self._queue(topic, queue_id)
        if queue is None or queue.is_batch:
            return offsets
        part = offsets
        for file, following in zip_longest(queue.files, queue.files[1:]):
            first = file.base_offset // queue.unit_size
            end = min(first + file.size // queue.unit_size, offsets.maximum)
            part = OffsetRange(max(first, offsets.minimum), max(end, first))
            if following is None or self._modified(queue, file, following) >= time:
                break
        return part

    def _modified(self, queue: StoredQueue, file: StoredFile, following: StoredFile) -> int:
        """Return when the broker last wrote to a file, by its last unit: a copy has another modification time."""
        boundary = following.base_offset // queue.unit_size
        newest, next_one = (self.read_store_time(queue, number) for number in (boundary - 1, boundary))
        is_original = next_one is not None and file.modified_ms <= next_one + _DISPATCH_MS
        return file.modified_ms if newest is None or is_original else newest

    def read_store_time(self, queue: StoredQueue, number: int) -> int | None:
        """Return the store time (ms) of a unit's message; None if unit or message are lost."""
        unit = queue.read_unit(number) if number >= 0 else None
        message = self.by_offset(unit.physical_offset) if unit else None
        return message.record.store_timestamp if message else None

    # topics

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues: those that the broker counts, and those that have messages."""
        configured = self.reader.topic_config.get(topic, {}).get("writeQueueNums")
        counted = range(configured) if isinstance(configured, int) and 0 < configured <= MAX_QUEUES else ()
        in_files = (queue.name.queue_id for queue in self.list_queues(topic))
        ended = (queue_id for name, queue_id in self.reader.ends_without_units if name == topic)
        return sorted({*counted, *in_files, *ended, *(self._queues_in_log(topic) if self._is_in_log(topic) else ())})

    def has_topic(self, topic: str) -> bool:
        if topic in self.reader.topic_config or self.list_queues(topic):
            return True
        if any(topic == name for name, _ in self.reader.ends_without_units):
            return True
        return self._is_lost(topic) and len(self._queues_in_log(topic)) > 0

    def topics(self) -> frozenset[str]:
        if self._every_topic is None:
            known = frozenset({topic for topic, _ in self.reader.queues} | set(self.reader.topic_config))
            is_complete = bool(known) and not self.through_log and self.reader.why_rocksdb_queues_unknown is None
            if not is_complete and self.searches_all:
                known |= {message.topic for message in self.search("")}
            self._every_topic = known
        return self._every_topic

    @property
    def knows_topics(self) -> bool:  # type: ignore[override]
        return bool(self.reader.topic_config) or self.reader.why_rocksdb_queues_unknown is None

    def find_first_and_last(self, topic: str) -> tuple[Message, Message] | None:
        if not self.searches_all:
            return None
        first = last = None
        for message in self.search(topic):
            if message.topic == topic:
                first, last = first or message, message
        return (first, last) if first and last else None

    @cached_property
    def config(self) -> BrokerConfig:  # type: ignore[override]
        return read_broker_config(self.reader.store)

    def config_file(self, name: str) -> Mapping[str, object]:
        return read_config(self.reader.store, name) or {}

    # the part of the history that is there

    def why_no_message_at(self, physical_offset: int) -> Reason:
        store = self.reader.store
        if physical_offset < store.start_offset:
            text = f"offset {physical_offset:,} was deleted: the log begins at {store.start_offset:,}"
            return Reason(ReasonKind.SEGMENT_DELETED, text)
        segment = store.segment_at(physical_offset)
        if segment is None:
            kind = ReasonKind.PAST_LOG_END if physical_offset >= store.end_offset else ReasonKind.SEGMENT_DELETED
            text = f"no file of the log contains offset {physical_offset:,}; the last one ends at {store.end_offset:,}"
            return Reason(kind, text)
        begin, end = self.reader.record_bounds_around(segment, physical_offset)
        if begin < physical_offset < end:
            record = self.by_offset(begin)
            named = f" (offset id {record.offset_id})" if record else ""
            text = f"offset {physical_offset:,} points inside the record at offset {begin:,}{named}"
            return Reason(ReasonKind.INSIDE_RECORD, text)
        if physical_offset < begin:  # in the header of a DLedger entry
            return Reason(ReasonKind.NO_RECORD, f"no record begins at offset {physical_offset:,}")
        if segment.base_offset == find_newest_segment_offset(store):
            text = f"offset {physical_offset:,} is after the last record, which ends at {end:,}"
            return Reason(ReasonKind.PAST_LOG_END, text)
        text = f"no record begins at offset {physical_offset:,}: the records of {segment.location} end at {end:,}"
        return Reason(ReasonKind.NO_RECORD, text)

    def count(self, wanted: ListConditions) -> int | None:
        if self.reader.store.log_size > COMPILED_SCAN_MIN_BYTES:
            return None
        counted = wanted._replace(key=None, tag=None, body_text=None)
        return sum(self._is_listed(message, counted) for message in self.search(wanted.topic or ""))

    def hosts(self) -> list[Host]:
        return sorted({record.store_host for record in self._samples()})

    def _samples(self) -> Iterator[MessageRecord]:
        store = self.reader.store
        ends = {store.start_offset, find_newest_segment_offset(store)}
        return filter(None, (self.reader.first_record(one) for one in store.segments if one.base_offset in ends))

    def coverage(self) -> Coverage:
        """Return the available part of the history; the newest time is from the checkpoint or index files."""
        store = self.reader.store
        times = [record.store_timestamp for record in self._samples()]
        newest = [*times, *(file.header.end_timestamp for file in self.reader.index_readers()[:1])]
        checkpoint = read_checkpoint(store)
        if checkpoint is not None:
            newest.append(checkpoint.physical_timestamp)
        first_time, last_time = (times[0], max(newest)) if times else (None, None)
        return Coverage(store.start_offset, self.reader.log_end, first_time, last_time)

    # messages by time

    def read_before(self, wanted: ListConditions, end_offset: int, limit: int) -> Iterator[tuple[int, Message | None]]:
        """Read the log itself if it is short enough: it includes messages of lost queue and index files."""
        end_offset = self.reader.round_up_to_record(min(end_offset, self.reader.store.end_offset))
        if wanted.key is not None and (wanted.topic is not None or not self.searches_all):
            yield from ((offset, self.by_offset(offset)) for offset in self._under_key(wanted, end_offset, limit))
        elif not self.searches_all and wanted.topic is not None and self.list_queues(wanted.topic, wanted.queue_id):
            self.complete_queues(wanted.topic)
            try:
                for offset in self._offsets_in_queues(wanted, end_offset):
                    yield offset, self.read_pointed_message(offset, f"a unit of {wanted.topic}")
                    end_offset = offset
            except FormatError as error:
                self.drop_queue_database(error)
                yield from self.read_log_before(wanted, end_offset, limit)
        else:
            yield from self.read_log_before(wanted, end_offset, limit)

    def _under_key(self, wanted: ListConditions, before: int, limit: int) -> Iterator[int]:
        topics = [wanted.topic] if wanted.topic is not None else sorted(self.topics())
        kept: set[int] = set()
        for topic, kind in product(topics, (KeyKind.KEY, KeyKind.UNIQUE)):
            for message in self.by_key(KeyQuery(kind, topic, wanted.key or "")):
                if message.record.physical_offset < before and wanted.matches_except_topic(message):
                    kept.add(message.record.physical_offset)
                if len(kept) > 2 * (limit + 1):
                    kept = set(nlargest(limit + 1, kept))
        yield from sorted(kept, reverse=True)

    def _offsets_in_queues(self, wanted: ListConditions, end_offset: int) -> Iterator[int]:
        """Yield the offsets to which units of a topic's queues point, newest first."""
        queues = self.list_queues(wanted.topic or "", wanted.queue_id)
        for part in self._parts(wanted, end_offset):
            yield from merge(*(self._offsets_within(queue, part) for queue in queues), reverse=True)

    def _offsets_within(self, queue: StoredQueue, part: range) -> Iterator[int]:
        """Yield the offsets to which units of a queue point, newest first."""
        _, end = self.reader.live_unit_range(queue)
        low, high = (queue.first_unit_pointing_from(offset, end) for offset in (part.start, part.stop))
        for number in reversed(range(low, high)):
            unit = queue.read_unit(number)
            if unit is not None and unit.physical_offset < part.stop:
                yield unit.physical_offset
            else:
                name = f"{queue.name.topic}/{queue.name.queue_id}"
                self.note_incomplete(f"unit {number} of {name} is missing or points to a later message")

    def _parts(self, wanted: ListConditions, before: int) -> list[range]:
        """Return the parts of the log before an offset that may have messages in a time window, newest first."""
        times = self.reader.probable_time_bounds
        parts: list[range] = []
        is_adjacent = False
        for segment in self.reader.store.segments:
            low, high = times[segment.base_offset]
            is_wanted = (low is None or low <= wanted.end) and (high is None or high >= wanted.begin)
            if is_wanted and segment.base_offset < before:
                start = parts.pop().start if is_adjacent else segment.base_offset
                parts.append(range(start, min(segment.base_offset + segment.size, before)))
            elif not is_wanted:
                self.note_once(SKIPPED_SEGMENTS)
            is_adjacent = is_wanted
        return parts[::-1]

    def read_log_before(self, wanted: ListConditions, before: int, limit: int) -> Iterator[tuple[int, Message | None]]:
        """Yield messages of the log itself, as `read_before` does."""
        # A span is read forwards and given backwards. It begins at a boundary, never inside a record: the chain of
        # records from there meets the beginning of the span before, so no record is in two spans or in none.
        text = wanted.topic or wanted.key or wanted.tag or ""
        if before >= self.reader.store.end_offset:
            self._lack_lost(is_before=False)
        for part in self._parts(wanted, before):
            end, size = part.stop, _FIRST_SPAN
            while end > part.start:
                low = self._boundary_before(max(end - size, part.start))
                kept: deque[int] = deque(maxlen=limit + 1)  # a span without boundaries may be a whole segment
                for record in search_records(self.reader, text, do_nothing, range(low, end), self._lose):
                    if record.physical_offset < end and self._is_listed(Message(record, self.release), wanted):
                        kept.append(record.physical_offset)
                yield from ((offset, self.by_offset(offset)) for offset in reversed(kept))
                yield low, None
                end, size = low, min(size * 2, _LARGEST_SPAN)
        self._lack_lost(is_before=True)

    def _lack_lost(self, *, is_before: bool) -> None:
        for lost in find_lost_ends(self.reader.store):
            if (lost.end <= self.reader.store.start_offset) is is_before:
                self.note_incomplete(lost.text)

    def _is_listed(self, message: Message, wanted: ListConditions) -> bool:
        topic = message.topic if wanted.topic is None else wanted.topic
        # A light queue has no messages of its own.
        is_light = topic.startswith(LMQ_PREFIX)
        if topic != message.topic and not (is_light and self._units(message.record, topic)):
            return False
        is_left_over = self.reader.epochs and self.reader.is_left_over(message.record.physical_offset)
        return wanted.matches_except_topic(message) and not is_left_over

    @_without_damaged_database
    def _boundary_before(self, offset: int) -> int:
        """Return the last record at or before *offset* to which a queue points, else the segment's start."""
        segment = self.reader.store.segment_at(offset)
        if segment is None:
            ends = [one.base_offset for one in self.reader.store.segments if one.base_offset <= offset]
            return max(ends, default=self.reader.store.start_offset)
        header = self.reader.segment_bytes(segment).framing.header_size
        named = segment.base_offset + header
        for queue in islice(self.reader.queues.values(), _MOST_QUEUES_ASKED):
            first, end = self.reader.live_unit_range(queue)
            number = queue.first_unit_pointing_from(offset + 1, end) - 1
            unit = queue.read_unit(number) if number >= first else None
            if unit is not None:
                named = max(named, unit.physical_offset)
        return named - header if self.by_offset(named) is not None else segment.base_offset

    # evidence

    def origin_of(self, message: Message) -> FactOrigin:
        offset = message.record.physical_offset
        segment = self.reader.store.segment_at(offset)
        if segment is None:
            return FactOrigin("commitlog", offset)
        return FactOrigin(self.reader.store.path_below_root(segment.location), offset - segment.base_offset)

    def queue_facts(self, message: Message) -> list[QueueFact]:
        return [self._queue_fact(expected) for expected in expected_units(message.record, self.unit_rules)]

    @_without_damaged_database
    def _queue_fact(self, expected: ExpectedUnit) -> QueueFact:
        name = expected.queue
        at = (name.topic, name.queue_id, expected.queue_offset)
        queue = self.reader.queues.get((name.topic, name.queue_id))
        if queue is None:
            # Selective double write leaves light queues out: the broker itself says that they are empty.
            writes_twice = detect_queue_storage(self.reader.store) is QueueStorage.BOTH
            is_left_out = name.topic.startswith(LMQ_PREFIX) and writes_twice
            is_unknown = is_left_out or self.reader.why_rocksdb_queues_unknown is not None
            place = FactOrigin(f"consumequeue/{name.topic}/{name.queue_id}")
            return QueueFact(*at, PointerCheck.NOT_KNOWN if is_unknown else PointerCheck.MISSING, place)
        if queue.is_batch != (name.kind is QueueKind.BATCH):
            return QueueFact(*at, PointerCheck.NOT_KNOWN, self._unit_origin(queue, expected.queue_offset))
        position = expected.queue_offset
        if queue.is_batch:
            position = _batch_position(queue, position, queue.find_written_end())
        unit = queue.read_unit(position) if 0 <= position < queue.capacity_end else None
        place = self._unit_origin(queue, position)
        if unit is None:
            return QueueFact(*at, PointerCheck.MISSING, place)
        leads = unit.physical_offset == expected.physical_offset
        code = unit.tags_code if isinstance(unit, Unit) else None
        return QueueFact(*at, PointerCheck.LEADS_THERE if leads else PointerCheck.ELSEWHERE, place, code)

    def _unit_origin(self, queue: StoredQueue, position: int) -> FactOrigin:
        if queue.in_rocksdb:
            name = Sentence("RocksDB, queue {topic}/{queue}", topic=queue.name.topic, queue=queue.name.queue_id)
            return FactOrigin(name)
        file = queue.file_at(position)
        if file is not None:
            return FactOrigin(
                self.reader.store.path_below_root(file.location), position * queue.unit_size - file.base_offset
            )
        return FactOrigin(f"{queue.name.kind.value}/{queue.name.topic}/{queue.name.queue_id}")

    def key_facts(self, message: Message) -> list[KeyFact]:
        return [
            self._index.key_fact(message, key) for key in dict.fromkeys(typed_index_keys(message.record, self.release))
        ]

    def consumer_progress(self, topics: Sequence[str]) -> Iterator[tuple[ReaderProgress, FactOrigin]]:
        for reader in self.config.progress:
            if reader.topic in topics:
                yield reader, FactOrigin(reader.recorded_in)

    def removal_sentence(self, message: Message) -> Sentence | None:
        """Say when retention may delete the segment of a copy: its last change plus the retention time."""
        offset = message.record.physical_offset
        following = next((one for one in self.reader.store.segments if one.base_offset > offset), None)
        first = self.reader.first_record(following) if following is not None else None
        if first is None:
            return None
        # The broker uses the modification time of the file, which is about when the next segment began.
        due = first.store_timestamp + _RESERVED_HOURS * _HOUR_MS
        template = "retention will delete its segment after {time} UTC, assuming a retention of {hours} hours"
        return Sentence(template, time=time_text_without_ms(due, UTC), hours=_RESERVED_HOURS)

    def list_unknown_facts(self) -> list[Sentence]:
        template, unread = "not all of the broker's configuration can be read: {reason}", self.config.unread_reason
        return [Sentence(template, reason=unread)] if unread else []


def _batch_position(queue: StoredQueue, queue_offset: int, end: int) -> int:
    """Return the position of a batch queue's last unit that begins at or before a queue offset; else start - 1."""

    def base(position: int) -> int:
        unit = queue.read_unit(position)
        return unit.base_offset if isinstance(unit, BatchUnit) else MAX_TIME

    return bisect_right(range(end), queue_offset, queue.first_unit_number, key=base) - 1
