"""A store, as queries ask it."""

from collections.abc import Iterator
from functools import cached_property

from jobs.query.log_search import Progress, holding, silent
from jobs.query.message import Message
from jobs.query.mqadmin.text import OffsetRange
from jobs.query.source import Coverage, Occurrence, Reason, ReasonKind
from jobs.query.static_topics import StaticQueue
from jobs.query.store_keys import StoreKeys
from jobs.query.store_queues import StoreQueues
from jobs.query.store_reader import StoreReader
from jobs.query.store_view import LOG_SEARCHED_UNASKED, StoreView
from jobs.store.broker_config import BrokerConfig, broker_config
from jobs.store.ranges import newest_written
from rmq_formats.commitlog.record import Host, MessageRecord
from rmq_formats.consumequeue.unit import DEFAULT_DELAY_LEVELS, QueueRules, Unit
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.release import Release
from rmq_formats.store import CHECKPOINT, FileKind, decode_checkpoint


class StoreSource:
    """A store."""

    def __init__(
        self,
        reader: StoreReader,
        release: Release,
        *,
        through_log: bool = False,
        progress: Progress = silent,
        delay_levels: str | None = None,
    ) -> None:
        """Answer from *reader*'s files; *through_log*: as if index and queue files were lost."""
        self.reader = reader
        self.release = release
        self._view = StoreView(
            reader, release, through_log, progress, delay_levels=delay_levels or DEFAULT_DELAY_LEVELS
        )
        self.notes = self._view.notes
        self._keys = StoreKeys(self._view)
        self._queues = StoreQueues(self._view)

    @property
    def lacking(self) -> list[str]:
        """For what reasons messages may be missing in the answers."""
        return self._view.lacking

    def find(self, kind: KeyKind, topic: str, key: str, begin: int, end: int) -> Iterator[Message]:
        """Yield the messages under a key, newest first, once for every time the broker indexed them under it."""
        return self._keys.find(kind, topic, key, begin, end)

    def key_hits(self, topic: str, key: str, begin: int, end: int) -> Iterator[Message]:
        """Yield the message of every index entry that a broker finds for a key, in its order; others' keys, too."""
        return self._keys.key_hits(topic, key, begin, end)

    def taken_back(self, text: str) -> Iterator[Message]:
        """Yield nothing: a log has other records in the place of those that were taken back."""
        del text
        return iter(())

    def occurrences(self, text: str, searched: int = LOG_SEARCHED_UNASKED) -> Iterator[Occurrence]:
        """
        Yield messages that have *text* as a key of any kind, under any topic; to explain an empty answer.

        A log of more than *searched* bytes is not searched for those that no index file leads to.
        """
        yield from self._keys.indexed(text, self.topics())
        if self._view.through_log or self.reader.log_size <= searched:
            yield from self._keys.logged(text)
        else:
            self._view.say("only index files were asked, not the log itself; --through-log searches it")

    @property
    def _log_is_searched(self) -> bool:
        return self._view.through_log or self.reader.log_size <= LOG_SEARCHED_UNASKED

    def at(self, physical_offset: int, host: Host | None = None) -> Message | None:
        """Return the message that begins at an offset, whatever *host* it names."""
        del host
        return self._view.at(physical_offset)

    def place(self, physical_offset: int) -> Reason:
        """Return the reason why no message begins at an offset."""
        store = self.reader.store
        if physical_offset < store.start_offset:
            text = f"offset {physical_offset} is deleted: the log begins at {store.start_offset}"
            return Reason(ReasonKind.SEGMENT_DELETED, text)
        segment = self.reader.segment_for(physical_offset)
        if segment is None:
            kind = ReasonKind.BEHIND_LOG if physical_offset >= store.end_offset else ReasonKind.SEGMENT_DELETED
            text = f"offset {physical_offset} is in no file of the log; the last one ends at {store.end_offset}"
            return Reason(kind, text)
        begin, end = self.reader.record_around(segment, physical_offset)
        if begin < physical_offset < end:
            record = self.at(begin)
            named = f", {record.offset_id}" if record else ""
            text = f"offset {physical_offset} points inside the record at {begin}{named}"
            return Reason(ReasonKind.INSIDE_RECORD, text)
        if segment.base_offset == newest_written(store):
            text = f"offset {physical_offset} is after the last record, which ends at {end}"
            return Reason(ReasonKind.BEHIND_LOG, text)
        text = f"no record begins at offset {physical_offset}: the records of {segment.location} end at {end}"
        return Reason(ReasonKind.NO_RECORD, text)

    def queue_offsets(self, topic: str, queue_id: int) -> OffsetRange | None:
        """Return which offsets a queue holds; None when there is no such queue."""
        return self._queues.offsets(topic, queue_id)

    def in_queue(self, topic: str, queue_id: int, queue_offset: int) -> Message | None:
        """Return a queue's message by its number."""
        return self._queues.message(topic, queue_id, queue_offset)

    def run_of_queue(self, topic: str, queue_id: int, begin: int, end: int) -> Iterator[Message | None]:
        """Yield the messages of a queue by their numbers from *begin* to before *end*, None for one that is lost."""
        return (self._queues.message(topic, queue_id, number) for number in range(begin, end))

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> Unit | None:
        """Return a queue's ConsumeQueue unit; None in a BatchConsumeQueue, and where the file is lost."""
        return self._queues.unit(topic, queue_id, queue_offset)

    def pull_end(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the queue offset that one pull from *queue_offset* does not go beyond."""
        return self._queues.pull_end(topic, queue_id, queue_offset)

    def searched_by_time(self, topic: str, queue_id: int, offsets: OffsetRange, time: int) -> OffsetRange:
        """Return the part of a queue that brokers up to 5.1.0 search for a store time: one file."""
        return self._queues.searched_by_time(topic, queue_id, offsets, time)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues."""
        return self._queues.ids(topic)

    def topics(self) -> frozenset[str]:
        """Name every topic that has queue files, or that the broker's own table has; else those of the log."""
        return self._topics

    def topics_of(self, unique_key: str) -> frozenset[str]:
        """Name every topic: the index has a key under its topic."""
        del unique_key
        return self._topics

    @cached_property
    def _topics(self) -> frozenset[str]:
        known = {topic for topic, _ in self.reader.queues} | set(self.reader.topic_config)
        is_complete = bool(known) and not self._view.through_log and self.reader.why_not_in_rocksdb is None
        if is_complete or not self._log_is_searched:
            return frozenset(known)
        return frozenset(known) | {message.topic for message in self._view.search(holding(""))}

    @property
    def knows_topics(self) -> bool:
        """Whether the broker's table of topics is there, or no queue is unknown."""
        return self.reader.has_topic_config or self.reader.why_not_in_rocksdb is None

    @property
    def lacks(self) -> str | None:
        """Return None: damage in the log itself is seen where it is read."""
        return None

    def has_topic(self, topic: str) -> bool:
        """Return whether *topic* has queues, or is in the broker's own table."""
        is_known = topic in self.reader.topic_config or any(name == topic for name, _ in self.reader.queues)
        return is_known or self._queues.has_messages(topic)

    def stored_of(self, topic: str) -> tuple[Message, Message] | None:
        """Return the first and the last message of *topic* in the log; None without one, or in too long a log."""
        if not self._log_is_searched:
            return None
        stored = [message for message in self._view.search(holding(topic)) if message.topic == topic]
        return (stored[0], stored[-1]) if stored else None

    def static_queues(self, topic: str) -> list[StaticQueue]:
        """Return the queues of a static topic as the broker's own table has them; none of any other."""
        return self.reader.static_queues(topic)

    @cached_property
    def config(self) -> BrokerConfig:
        """The broker's settings of topics and groups, and how far consumers are."""
        return broker_config(self.reader.store)

    @property
    def queue_rules(self) -> QueueRules:
        """The rules that decide about units, as far as release and configuration tell."""
        return self._view.rules

    def hosts(self) -> list[Host]:
        """Return the store hosts of the first record of the first and the last segment."""
        return sorted({record.store_host for record in self._samples()})

    def _samples(self) -> Iterator[MessageRecord]:
        store = self.reader.store
        newest = newest_written(store)
        for segment in store.segments:
            if segment.base_offset in {store.start_offset, newest}:
                record = self.reader.first_record(segment)
                if record:
                    yield record

    def coverage(self) -> Coverage:
        """Return the part of the history that is there; the newest time is that of checkpoint or index files."""
        store = self.reader.store
        times = [record.store_timestamp for record in self._samples()]
        newest = [*times, *(file.header.end_timestamp for file in self.reader.index_readers()[:1]), *self._flushed()]
        return Coverage(
            store.start_offset, self.reader.log_end, times[0] if times else None, max(newest) if times else None
        )

    def _flushed(self) -> Iterator[int]:
        for file in self.reader.store.of_kind(FileKind.CHECKPOINT):
            if file.size >= CHECKPOINT.size:
                data = bytes(self.reader.file(file.location).read(0, CHECKPOINT.size))
                yield decode_checkpoint(data).physical_timestamp
