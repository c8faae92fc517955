"""
A store as a source of queries: through its queue and index files, or through the log if they are missing.

The log, the queues, the index and the evidence about messages each have their own module. They are opened for each
question, and add remarks to its answer; open files and the results of searches of the log are shared by all questions.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from heapq import nlargest
from itertools import chain, islice, product
from typing import Self

from jobs.query import KeyQuery, ListConditions, Message, has_key
from jobs.query.lag import count_read_queues
from jobs.query.log_search import COMPILED_SCAN_MIN_BYTES
from jobs.query.mqadmin import OffsetRange
from jobs.query.source import (
    MAX_OCCURRENCES,
    Coverage,
    FactOrigin,
    KeyFact,
    Occurrence,
    QueueFact,
    Reason,
    Remarks,
    Sentence,
    Source,
)
from jobs.query.store_evidence import StoreEvidence, list_progress, list_unknown_facts
from jobs.query.store_index import StoreIndex
from jobs.query.store_log import MAX_LOG_SEARCHED_BY_DEFAULT, KeptSearches, StoreLog
from jobs.query.store_queues import StoreQueues
from jobs.query.store_reader import StoreReader
from jobs.store.broker_config import BrokerConfig, ConsumerProgress, read_broker_config, read_config
from jobs.store.release import Determined, Writers
from rmq_formats.commitlog.record import Host
from rmq_formats.consumequeue.dispatch import DEFAULT_DELAY_LEVELS, Unit
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.properties import UNIQ_KEY, decode_java_text, property_items
from rmq_formats.release import Release


class StoreSource(Source):
    """A store: its log, its keys, its queues and its topics."""

    name = "the store"

    def __init__(  # noqa: PLR0913 - facts about the store that its files do not show
        self,
        reader: StoreReader,
        *releases: Release,
        scan_log: bool = False,
        broker: str | None = None,
        delay_levels: str = DEFAULT_DELAY_LEVELS,
        writers: Determined[Writers] | None = None,
        searches: KeptSearches | None = None,
    ) -> None:
        """
        Answer as the newest of *releases* would; with *scan_log*, as if index and queue files were lost.

        *writers* are the releases as they were detected; None if the user has given the release. *searches* are those
        of earlier questions.
        """
        self.possible_releases = releases
        self.broker = broker
        self.reader = reader
        self._scan_log = scan_log
        self._delay_levels = delay_levels
        self._writers = writers
        self._searches = searches or KeptSearches()
        # The parts of the store, for one question: each adds to the remarks on its answer.
        self.remarks = remarks = Remarks()
        if writers is not None:
            remarks.note_assumed_release(writers)
        self._log = StoreLog(reader, self.release, self._delay_levels, self._searches, remarks)
        self.queues = StoreQueues(reader, self._log, remarks, scan_log=self._scan_log)
        self._index = StoreIndex(reader, self._log, self.possible_releases, remarks)
        self._evidence = StoreEvidence(reader, self._log, self.queues, self._index)

    def begin_question(self) -> Self:
        return type(self)(
            self.reader,
            *self.possible_releases,
            scan_log=self._scan_log,
            broker=self.broker,
            delay_levels=self._delay_levels,
            writers=self._writers,
            searches=self._searches,
        )

    @property
    def searches_all(self) -> bool:  # type: ignore[override]
        return self.queues.searches_log

    @property
    def place_of_unique_keys(self) -> str:
        return "the log" if self._scan_log else "the index of any topic"

    # messages of the log

    def by_offset(self, physical_offset: int) -> Message | None:
        return self._log.read_message(physical_offset)

    def search(self, text: str) -> Iterator[Message]:
        """Yield the messages of the log that contain *text*, in log order; warn of lost parts."""
        return self._log.search(text)

    def why_no_message_at(self, physical_offset: int) -> Reason:
        return self._log.why_no_message_at(physical_offset)

    def find_first_and_last(self, topic: str) -> tuple[Message, Message] | None:
        return self._log.find_first_and_last(topic) if self.searches_all else None

    def count(self, wanted: ListConditions) -> int | None:
        return self._log.count(wanted)

    def hosts(self) -> list[Host]:
        return self._log.list_hosts()

    def coverage(self) -> Coverage:
        return self._log.find_coverage()

    # messages by key

    def _why_no_index(self, kind: KeyKind) -> str | None:
        """Return why the index is not used; None if it is, empty if the user does not want it."""
        return "" if self._scan_log else self._index.why_not_searchable(kind)

    def by_key(self, wanted: KeyQuery) -> Iterator[Message]:
        why_not = self._why_no_index(wanted.kind)
        if why_not is None:
            yield from self._index.find_messages(wanted)
            return
        if why_not:
            self.remarks.note(f"{why_not}, so the log is searched")
        offsets = reversed(self._log.find_offsets_of_key(wanted.key))
        yield from filter(wanted.matches, filter(None, map(self.by_offset, offsets)))

    def by_key_hash(self, wanted: KeyQuery) -> Iterator[Message]:
        if self._why_no_index(KeyKind.KEY) is None:
            yield from self._index.find_by_hash(wanted)
            return
        for message in self.by_key(wanted):
            yield from [message] * wanted.count_index_entries(message)

    def occurrences(self, text: str, max_searched_bytes: int = MAX_LOG_SEARCHED_BY_DEFAULT) -> Iterator[Occurrence]:
        """Search the log for messages that are in no index file only if it has at most *max_searched_bytes*."""
        given: set[tuple[int, KeyKind, bool]] = set()
        wanted = (KeyQuery(kind, topic, text) for topic, kind in product(sorted(self.topics()), KeyKind))
        indexed = (
            Occurrence(message, one.kind, is_indexed=True)
            for one in wanted
            for message in islice(self._find_without_log(one), 1)
        )
        is_searched = self._scan_log or self.reader.store.log_size <= max_searched_bytes
        for one in chain(indexed, islice(self._find_in_log(text), MAX_OCCURRENCES if is_searched else 0)):
            place = (one.message.record.physical_offset, one.kind, one.is_hidden_by_batch_id)
            if place not in given:  # the log also has the messages that the index found
                given.add(place)
                yield one
        if not is_searched:
            self.remarks.note("only index files were searched; --scan-log also searches the log")

    def _find_without_log(self, wanted: KeyQuery) -> Iterator[Message]:
        return self._index.find_without_log(wanted)

    def _find_in_log(self, text: str) -> Iterator[Occurrence]:
        for message in self._log.search(text):
            for kind in (one for one in KeyKind if has_key(message, one, text)):
                indexed = self._find_without_log(KeyQuery(kind, message.topic, text))
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
        # The index has every copy except a rollback of these releases: a search would only find copies that it lost.
        is_whole = not self.release.half_message_in_real_topic
        for seen in self.occurrences(unique_key, COMPILED_SCAN_MIN_BYTES if is_whole else MAX_LOG_SEARCHED_BY_DEFAULT):
            if seen.kind is KeyKind.UNIQUE:
                yield seen.message

    # queues and topics

    def note_incomplete_queues(self, topic: str) -> None:
        self.queues.complete(topic)

    def queue_offsets(self, topic: str, queue_id: int) -> OffsetRange | None:
        return self.queues.find_offsets(topic, queue_id)

    def by_queue_offset(self, topic: str, queue_id: int, queue_offset: int) -> Message | None:
        return self.queues.read_message(topic, queue_id, queue_offset)

    def next_queue_offset(self, topic: str, queue_id: int, queue_offset: int) -> int:
        return self.queues.find_next_offset(topic, queue_id, queue_offset)

    def read_unit(self, topic: str, queue_id: int, queue_offset: int) -> Unit | None:
        return self.queues.read_unit(topic, queue_id, queue_offset)

    def pull_end(self, topic: str, queue_id: int, queue_offset: int) -> int:
        return self.queues.find_pull_end(topic, queue_id, queue_offset)

    def part_searched_by_time(self, topic: str, queue_id: int, offsets: OffsetRange, time: int) -> OffsetRange:
        return self.queues.find_part_searched_by_time(topic, queue_id, offsets, time)

    def queue_ids(self, topic: str) -> list[int]:
        return self.queues.list_ids(topic)

    def has_topic(self, topic: str) -> bool:
        return self.queues.has_topic(topic)

    def topics(self) -> frozenset[str]:
        return self.queues.topics

    @property
    def knows_topics(self) -> bool:  # type: ignore[override]
        return bool(self.reader.topic_config) or self.queues.why_unknown is None

    @cached_property
    def config(self) -> BrokerConfig:  # type: ignore[override]
        return read_broker_config(self.reader.store)

    def config_file(self, name: str) -> Mapping[str, object]:
        return read_config(self.reader.store, name) or {}

    # messages by time

    def read_before(self, wanted: ListConditions, end_offset: int, limit: int) -> Iterator[tuple[int, Message | None]]:
        """Read the log itself if it is short enough: it includes messages of lost queue and index files."""
        end_offset = self.reader.round_up_to_record(min(end_offset, self.reader.store.end_offset))
        if wanted.key is not None and (wanted.topic is not None or not self.searches_all):
            yield from ((offset, self.by_offset(offset)) for offset in self._list_under_key(wanted, end_offset, limit))
        elif not self.searches_all and wanted.topic is not None and self._has_queues(wanted.topic, wanted.queue_id):
            self.note_incomplete_queues(wanted.topic)
            try:
                for offset in self.queues.list_offsets_before(wanted, end_offset):
                    yield offset, self._log.read_pointed_message(offset, f"a unit of {wanted.topic}")
                    end_offset = offset
            except FormatError as error:
                self.queues.drop_database(error)
                yield from self.read_log_before(wanted, end_offset, limit)
        else:
            yield from self.read_log_before(wanted, end_offset, limit)

    def read_log_before(
        self, wanted: ListConditions, end_offset: int, limit: int
    ) -> Iterator[tuple[int, Message | None]]:
        """Yield messages of the log itself, like `read_before`."""
        return self._log.read_before(wanted, end_offset, limit, self.queues.find_record_before)

    def _has_queues(self, topic: str, queue_id: int | None) -> bool:
        return bool(self.queues.list_of_topic(topic, queue_id))

    def _list_under_key(self, wanted: ListConditions, before: int, limit: int) -> Iterator[int]:
        topics = [wanted.topic] if wanted.topic is not None else sorted(self.topics())
        kept: set[int] = set()
        for topic, kind in product(topics, (KeyKind.KEY, KeyKind.UNIQUE)):
            for message in self.by_key(KeyQuery(kind, topic, wanted.key or "")):
                if message.record.physical_offset < before and wanted.matches_except_topic(message):
                    kept.add(message.record.physical_offset)
                if len(kept) > 2 * (limit + 1):
                    kept = set(nlargest(limit + 1, kept))
        yield from sorted(kept, reverse=True)

    # evidence

    def origin_of(self, message: Message) -> FactOrigin:
        return self._evidence.find_origin(message)

    def queue_facts(self, message: Message) -> list[QueueFact]:
        return self._evidence.list_queue_facts(message)

    def key_facts(self, message: Message) -> list[KeyFact]:
        return self._evidence.list_key_facts(message)

    def removal_sentence(self, message: Message) -> Sentence | None:
        return self._evidence.find_removal(message)

    def consumer_progress(self, topics: Collection[str] | None = None) -> Iterator[tuple[ConsumerProgress, FactOrigin]]:
        return list_progress(self.config, topics)

    def count_read_queues(self) -> Mapping[str, int]:
        return count_read_queues(self.config.topics)

    def find_queue_ends(self, queues: Collection[tuple[str, int]]) -> Mapping[tuple[str, int], int]:
        return {queue: (self.queue_offsets(*queue) or OffsetRange(0, 0)).maximum for queue in sorted(queues)}

    def list_unknown_facts(self) -> list[Sentence]:
        return list_unknown_facts(self.config)
