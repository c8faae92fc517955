"""A store, as queries ask it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from jobs.query.log_search import holding
from jobs.query.message import Message
from jobs.query.source import Coverage, Occurrence, Reason, ReasonKind
from jobs.query.static_topics import StaticQueue
from jobs.query.store_keys import StoreKeys
from jobs.query.store_queues import StoreQueues
from jobs.query.store_view import LOG_SEARCHED_UNASKED
from jobs.store.broker_config import BrokerConfig, broker_config
from jobs.store.log_ends import LostPart, lost_ends
from jobs.store.ranges import newest_written
from rmq_formats.commitlog.record import Host, MessageRecord
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.store import CHECKPOINT, FileKind, decode_checkpoint


@dataclass(eq=False)
class StoreSource(StoreKeys, StoreQueues):
    """A store: its keys, its queues, its topics and the part of the history that it has."""

    lacks = None  # damage in the log itself is seen where it is read
    name = "the store"

    @cached_property
    def lost_ends(self) -> list[LostPart]:
        """The parts that the log has lost before its first segment and after its last record."""
        return list(lost_ends(self.reader.store))

    def taken_back(self, text: str) -> Iterator[Message]:
        """Yield nothing: a log has other records in the place of those that were taken back."""
        del text
        return iter(())

    def occurrences(self, text: str, searched: int = LOG_SEARCHED_UNASKED) -> Iterator[Occurrence]:
        """
        Yield messages that have *text* as a key of any kind, under any topic; to explain an empty answer.

        A log of more than *searched* bytes is not searched for those that no index file leads to.
        """
        given: set[tuple[int, KeyKind, bool]] = set()
        is_searched = self.through_log or self.reader.log_size <= searched
        for one in chain(self._indexed(text, self.topics()), self._logged(text) if is_searched else ()):
            place = (one.message.record.physical_offset, one.kind, one.is_shadowed)
            if place not in given:  # the log has what the index has led to
                given.add(place)
                yield one
        if not is_searched:
            self.say("only index files were asked, not the log itself; --through-log searches it")

    def place(self, physical_offset: int) -> Reason:
        """Return the reason why no message begins at an offset."""
        store = self.reader.store
        if physical_offset < store.start_offset:
            text = f"offset {physical_offset} is deleted: the log begins at {store.start_offset}"
            return Reason(ReasonKind.SEGMENT_DELETED, text)
        segment = store.segment_at(physical_offset)
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
        is_complete = bool(known) and not self.through_log and self.reader.why_not_in_rocksdb is None
        if is_complete or not self.searches_all:
            return frozenset(known)
        return frozenset(known) | {message.topic for message in self.search(holding(""))}

    @property
    def knows_topics(self) -> bool:
        """Whether the broker's table of topics is there, or no queue is unknown."""
        return bool(self.reader.topic_config) or self.reader.why_not_in_rocksdb is None

    def stored_of(self, topic: str) -> tuple[Message, Message] | None:
        """Return the first and the last message of *topic* in the log; None without one, or in too long a log."""
        if not self.searches_all:
            return None
        first = last = None
        for message in self.search(holding(topic)):
            if message.topic == topic:
                first, last = first or message, message
        return (first, last) if first and last else None

    def static_queues(self, topic: str) -> list[StaticQueue]:
        """Return the queues of a static topic as the broker's own table has them; none of any other."""
        return self.reader.static_queues(topic)

    @cached_property
    def config(self) -> BrokerConfig:
        """The broker's settings of topics and groups, and how far consumers are."""
        return broker_config(self.reader.store)

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
