"""The evidence in a store about a message: its files, its units in queues, its entries in the index, its consumers."""

from collections.abc import Collection, Iterator
from datetime import UTC

from jobs.query import Message
from jobs.query.mqadmin import time_text_without_ms
from jobs.query.source import FactOrigin, KeyFact, QueueFact, Sentence
from jobs.query.store_index import StoreIndex
from jobs.query.store_log import StoreLog
from jobs.query.store_queues import StoreQueues
from jobs.query.store_reader import StoreReader
from jobs.store.broker_config import BrokerConfig, ConsumerProgress
from rmq_formats.consumequeue.dispatch import expected_units
from rmq_formats.indexfile.keys import typed_index_keys

_RESERVED_HOURS = 72  # fileReservedTime, unless a broker's configuration says otherwise
_HOUR_MS = 3_600_000


class StoreEvidence:
    """The evidence about messages of a store."""

    def __init__(self, reader: StoreReader, log: StoreLog, queues: StoreQueues, index: StoreIndex) -> None:
        self._reader = reader
        self._log = log
        self._queues = queues
        self._index = index

    def find_origin(self, message: Message) -> FactOrigin:
        """Return the file that contains a message."""
        store, offset = self._reader.store, message.record.physical_offset
        segment = store.segment_at(offset)
        if segment is None:
            return FactOrigin("commitlog", offset)
        return FactOrigin(store.path_below_root(segment.location), offset - segment.base_offset)

    def list_queue_facts(self, message: Message) -> list[QueueFact]:
        """Return the units of queues for a message."""
        return [self._queues.find_fact(expected) for expected in expected_units(message.record, self._log.unit_rules)]

    def list_key_facts(self, message: Message) -> list[KeyFact]:
        """Return, for each key, whether the index points to a message."""
        keys = dict.fromkeys(typed_index_keys(message.record, message.release))
        return [self._index.find_fact(message, key) for key in keys]

    def find_removal(self, message: Message) -> Sentence | None:
        """Say when retention may delete the segment of a copy: its last change plus the retention time."""
        offset = message.record.physical_offset
        following = next((one for one in self._reader.store.segments if one.base_offset > offset), None)
        first = self._reader.first_record(following) if following is not None else None
        if first is None:
            return None
        # The broker uses the modification time of the file, which is about when the next segment began.
        due = first.store_timestamp + _RESERVED_HOURS * _HOUR_MS
        template = "retention will delete its segment after {time} UTC, assuming a retention of {hours} hours"
        return Sentence(template, time=time_text_without_ms(due, UTC), hours=_RESERVED_HOURS)


def list_progress(
    config: BrokerConfig, topics: Collection[str] | None
) -> Iterator[tuple[ConsumerProgress, FactOrigin]]:
    """Yield the positions of each consumer of *topics*; None: of all topics."""
    for consumer in config.progress:
        if topics is None or consumer.topic in topics:
            yield consumer, FactOrigin(consumer.recorded_in)


def list_unknown_facts(config: BrokerConfig) -> list[Sentence]:
    """Return the facts that cannot be read."""
    template, unread = "not all of the broker's configuration can be read: {reason}", config.unread_reason
    return [Sentence(template, reason=unread)] if unread else []
