"""A store's own files as evidence: the log, queue files, index files, configuration."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import cached_property

from jobs.query.evidence import Check, KeyFact, Origin, QueueFact, Sentence, missing_key
from jobs.query.message import MAX_TIME, MIN_TIME, Message
from jobs.query.mqadmin.text import second_text
from jobs.query.store_keys import StoreKeys
from jobs.query.store_queues import StoreQueues, batch_position
from jobs.store.broker_config import BrokerConfig, Progress, broker_config
from jobs.store.queue_files import QueueStorage, StoredQueue, features_of
from rmq_formats.consumequeue.unit import LMQ_PREFIX, ExpectedUnit, QueueKind, Unit, expected_units
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.keys import KeyKind, typed_index_keys
from rmq_formats.indexfile.lookup import IndexReader

RESERVED_HOURS = 72  # fileReservedTime, unless a broker's configuration says otherwise
_HOUR_MS = 3_600_000


@dataclass(eq=False)
class StoreFacts(StoreKeys, StoreQueues):
    """The facts in a store about its messages."""

    @cached_property
    def config(self) -> BrokerConfig:  # type: ignore[override]
        """The broker's settings of topics and groups, and how far consumers are."""
        return broker_config(self.reader.store)

    def origin_of(self, message: Message) -> Origin:
        """Return the segment that holds a copy, and the position in it."""
        offset = message.record.physical_offset
        segment = self.reader.store.segment_at(offset)
        if segment is None:
            return Origin("commitlog", offset)
        return Origin(self.reader.store.below(segment.location), offset - segment.base_offset)

    def queue_facts(self, message: Message) -> list[QueueFact]:
        """Return the unit that each queue has for a copy."""
        return [self._queue_fact(expected) for expected in expected_units(message.record, self.rules)]

    def _queue_fact(self, expected: ExpectedUnit) -> QueueFact:
        name = expected.queue
        at = (name.topic, name.queue_id, expected.queue_offset)
        queue = self.reader.queues.get((name.topic, name.queue_id))
        if queue is None:
            # Selective double write leaves light queues out: the broker itself says that they are empty.
            is_left_out = name.topic.startswith(LMQ_PREFIX) and self._writes_twice
            is_unknown = is_left_out or self.reader.why_not_in_rocksdb is not None
            place = Origin(f"consumequeue/{name.topic}/{name.queue_id}")
            return QueueFact(*at, Check.NOT_KNOWN if is_unknown else Check.MISSING, place)
        if queue.is_batch != (name.kind is QueueKind.BATCH):
            return QueueFact(*at, Check.NOT_KNOWN, self._unit_origin(queue, expected.queue_offset))
        position = expected.queue_offset
        if queue.is_batch:
            position = batch_position(queue, position, queue.written_end())
        unit = queue.unit(position) if 0 <= position < queue.capacity else None
        place = self._unit_origin(queue, position)
        if unit is None:
            return QueueFact(*at, Check.MISSING, place)
        leads = unit.physical_offset == expected.physical_offset
        code = unit.tags_code if isinstance(unit, Unit) else None
        return QueueFact(*at, Check.LEADS_THERE if leads else Check.ELSEWHERE, place, code)

    @cached_property
    def _writes_twice(self) -> bool:
        return features_of(self.reader.store).queues is QueueStorage.BOTH

    def _unit_origin(self, queue: StoredQueue, position: int) -> Origin:
        if queue.in_rocksdb:
            return Origin(f"RocksDB, queue {queue.name.topic}/{queue.name.queue_id}")
        file = queue.file_at(position)
        if file is not None:
            return Origin(self.reader.store.below(file.location), position * queue.unit_size - file.base_offset)
        return Origin(f"{queue.name.kind.value}/{queue.name.topic}/{queue.name.queue_id}")

    def key_facts(self, message: Message) -> list[KeyFact]:
        """Return for each key the index file that leads to a copy, or the one that should."""
        keys = dict.fromkeys(typed_index_keys(message.record, self.release))
        if not self.reader.store.index_files or self.reader.index_geometry is None:
            return [self._key_in_database(message, key.kind, key.key) for key in keys]
        offset = message.record.physical_offset
        facts = []
        for key in keys:
            files = self.reader.index_readers_around(offset)
            found = next((file for file in files if self._leads(file, key.text, offset)), None)
            nearest = found or next(self.reader.index_readers_around(offset), None)
            place = Origin(self.reader.store.below(nearest.file if nearest else None) or "index")
            facts.append(KeyFact(key.kind.value, key.key, self._check(key.kind, is_found=found is not None), place))
        return facts

    def _check(self, kind: KeyKind, *, is_found: bool) -> Check:
        return Check.LEADS_THERE if is_found else missing_key(kind, self.possible_releases)

    @staticmethod
    def _leads(file: IndexReader, text: str, offset: int) -> bool:
        try:
            return any(hop.entry.physical_offset == offset for hop in file.hits(text, MIN_TIME, MAX_TIME))
        except FormatError:
            return False

    def _key_in_database(self, message: Message, kind: KeyKind, key: str) -> KeyFact:
        """Ask the index in RocksDB; the log, which is searched where there is none, proves nothing about an index."""
        try:
            database = self.reader.index_database
        except FormatError:
            database = None
        if database is None:
            has_files = bool(self.reader.store.index_files)
            return KeyFact(kind.value, key, Check.NOT_KNOWN if has_files else Check.MISSING, None)
        time, offset = message.record.store_timestamp, message.record.physical_offset
        found = self.by_key(kind, message.topic, key, time, time)
        leads = any(one.record.physical_offset == offset for one in found)
        return KeyFact(kind.value, key, self._check(kind, is_found=leads), Origin("RocksDB, index"))

    def consumer_progress(self, topics: Sequence[str]) -> Iterator[tuple[Progress, Origin]]:
        """Yield how far each reader of *topics* is, as the broker's configuration has it."""
        for reader in self.config.progress:
            if reader.topic in topics:
                yield reader, Origin(reader.place)

    def removal_of(self, message: Message) -> Sentence | None:
        """Say when retention may delete the segment of a copy: its last change and the hours that files are kept."""
        offset = message.record.physical_offset
        following = next((one for one in self.reader.store.segments if one.base_offset > offset), None)
        first = self.reader.first_record(following) if following is not None else None
        if first is None:
            return None
        # A broker goes by the time of the file's last change, which is about when the next segment began.
        due = first.store_timestamp + RESERVED_HOURS * _HOUR_MS
        template = "retention deletes its segment after {time} UTC ({hours} hours are assumed)"
        return Sentence(template, time=second_text(due, UTC), hours=RESERVED_HOURS)

    def unknown_facts(self) -> list[Sentence]:
        """Return the questions that a store's files cannot answer."""
        config = self.config
        template = "not all of the broker's configuration can be read: {reason}"
        return [Sentence(template, reason=config.unread)] if config.unread else []
