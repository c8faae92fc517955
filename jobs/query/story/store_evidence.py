"""A store's own files as evidence: the log, queue files, index files, configuration."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC
from functools import cached_property

from jobs.query.log_search import COMPILED_FROM
from jobs.query.message import Message
from jobs.query.mqadmin.text import second_text
from jobs.query.source import MAX_TIME, MIN_TIME
from jobs.query.store_queues import batch_position
from jobs.query.store_source import StoreSource
from jobs.query.store_view import LOG_SEARCHED_UNASKED
from jobs.query.story.evidence import Check, KeyFact, Place, QueueFact, Sentence, missing_key
from jobs.store.broker_config import Progress
from jobs.store.features import QueueStorage, features_of
from jobs.store.queue_files import StoredQueue
from rmq_formats.consumequeue.unit import LMQ_PREFIX, ExpectedUnit, QueueKind, Unit, expected_units
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.keys import KeyKind, typed_index_keys
from rmq_formats.indexfile.lookup import IndexReader

RESERVED_HOURS = 72  # fileReservedTime, unless a broker's configuration says otherwise
_HOUR_MS = 3_600_000


class StoreEvidence:
    """The facts in a store."""

    def __init__(self, source: StoreSource) -> None:
        self.source = source
        self._reader = source.reader

    def copies(self, unique_key: str, topics: Iterable[str]) -> Iterator[Message]:
        """Yield the messages under a unique key, topic by topic; of a small log those that no index has, too."""
        for topic in topics:
            yield from self.source.find(KeyKind.UNIQUE, topic, unique_key)
        # The index has every copy but a rollback of these releases: a search of the log would only find what it lost.
        is_whole = not self.source.release.half_message_in_real_topic
        for seen in self.source.occurrences(unique_key, COMPILED_FROM if is_whole else LOG_SEARCHED_UNASKED):
            if seen.kind is KeyKind.UNIQUE:
                yield seen.message

    def place(self, message: Message) -> Place:
        """Return the segment that holds a copy, and the position in it."""
        offset = message.record.physical_offset
        segment = self._reader.store.segment_at(offset)
        if segment is None:
            return Place("commitlog", offset)
        return Place(self._reader.store.below(segment.location), offset - segment.base_offset)

    def queues(self, message: Message) -> list[QueueFact]:
        """Return the unit that each queue has for a copy."""
        return [self._queue_fact(expected) for expected in expected_units(message.record, self.source.rules)]

    def _queue_fact(self, expected: ExpectedUnit) -> QueueFact:
        name = expected.queue
        at = (name.topic, name.queue_id, expected.queue_offset)
        queue = self._reader.queues.get((name.topic, name.queue_id))
        if queue is None:
            # Selective double write leaves light queues out: the broker itself says that they are empty.
            is_left_out = name.topic.startswith(LMQ_PREFIX) and self._writes_twice
            is_unknown = is_left_out or self._reader.why_not_in_rocksdb is not None
            place = Place(f"consumequeue/{name.topic}/{name.queue_id}")
            return QueueFact(*at, Check.NOT_KNOWN if is_unknown else Check.MISSING, place)
        if queue.is_batch != (name.kind is QueueKind.BATCH):
            return QueueFact(*at, Check.NOT_KNOWN, self._unit_place(queue, expected.queue_offset))
        position = expected.queue_offset
        if queue.is_batch:
            position = batch_position(queue, position, queue.written_end())
        unit = queue.unit(position) if 0 <= position < queue.capacity else None
        place = self._unit_place(queue, position)
        if unit is None:
            return QueueFact(*at, Check.MISSING, place)
        leads = unit.physical_offset == expected.physical_offset
        code = unit.tags_code if isinstance(unit, Unit) else None
        return QueueFact(*at, Check.LEADS_THERE if leads else Check.ELSEWHERE, place, code)

    @cached_property
    def _writes_twice(self) -> bool:
        return features_of(self._reader.store).queues is QueueStorage.BOTH

    def _unit_place(self, queue: StoredQueue, position: int) -> Place:
        if queue.in_rocksdb:
            return Place(f"RocksDB, queue {queue.name.topic}/{queue.name.queue_id}")
        file = queue.file_at(position)
        if file is not None:
            return Place(self._reader.store.below(file.location), position * queue.unit_size - file.base_offset)
        return Place(f"{queue.name.kind.value}/{queue.name.topic}/{queue.name.queue_id}")

    def keys(self, message: Message) -> list[KeyFact]:
        """Return for each key the index file that leads to a copy, or the one that should."""
        keys = dict.fromkeys(typed_index_keys(message.record, self.source.release))
        if not self._reader.store.index_files or self._reader.index_geometry is None:
            return [self._key_in_database(message, key.kind, key.key) for key in keys]
        offset = message.record.physical_offset
        facts = []
        for key in keys:
            files = self._reader.index_readers_around(offset)
            found = next((file for file in files if self._leads(file, key.text, offset)), None)
            beside = found or next(self._reader.index_readers_around(offset), None)
            place = Place(self._reader.store.below(beside.file if beside else None) or "index")
            facts.append(KeyFact(key.kind.value, key.key, self._check(key.kind, is_found=found is not None), place))
        return facts

    def _check(self, kind: KeyKind, *, is_found: bool) -> Check:
        return Check.LEADS_THERE if is_found else missing_key(kind, self.source.possible_releases)

    @staticmethod
    def _leads(file: IndexReader, text: str, offset: int) -> bool:
        try:
            return any(hop.entry.physical_offset == offset for hop in file.hits(text, MIN_TIME, MAX_TIME))
        except FormatError:
            return False

    def _key_in_database(self, message: Message, kind: KeyKind, key: str) -> KeyFact:
        """Ask the index in RocksDB; the log, which is searched where there is none, proves nothing about an index."""
        try:
            database = self._reader.index_database
        except FormatError:
            database = None
        if database is None:
            has_files = bool(self._reader.store.index_files)
            return KeyFact(kind.value, key, Check.NOT_KNOWN if has_files else Check.MISSING, None)
        time, offset = message.record.store_timestamp, message.record.physical_offset
        found = self.source.find(kind, message.topic, key, time, time)
        leads = any(one.record.physical_offset == offset for one in found)
        return KeyFact(kind.value, key, self._check(kind, is_found=leads), Place("RocksDB, index"))

    def progress(self, topics: Sequence[str]) -> Iterator[tuple[Progress, Place]]:
        """Yield how far each reader of *topics* is, as the broker's configuration has it."""
        for reader in self.source.config.progress:
            if reader.topic in topics:
                yield reader, Place(reader.place)

    def leaves(self, message: Message) -> Sentence | None:
        """Say when retention may delete the segment of a copy: its last change and the hours that files are kept."""
        offset = message.record.physical_offset
        following = next((one for one in self._reader.store.segments if one.base_offset > offset), None)
        first = self._reader.first_record(following) if following is not None else None
        if first is None:
            return None
        # A broker goes by the time of the file's last change, which is about when the next segment began.
        due = first.store_timestamp + RESERVED_HOURS * _HOUR_MS
        template = "retention deletes its segment after {time} UTC ({hours} hours are assumed)"
        return Sentence(template, time=second_text(due, UTC), hours=RESERVED_HOURS)

    def is_taken_back(self, message: Message) -> bool:
        """Return False: what a store has is in its log."""
        del message
        return False

    def unknown(self) -> list[Sentence]:
        """Return the questions that a store's files cannot answer."""
        config = self.source.config
        template = "not all of the broker's configuration can be read: {reason}"
        return [Sentence(template, reason=config.unread)] if config.unread else []
