"""
A store, as queries ask it.

The log can only be walked forwards. A list of the newest messages reads it in spans, the last one first; a span begins
at a record that a queue names, or where a segment begins. A topic of a log that is too long for that is listed through
its queues.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from heapq import merge, nlargest
from itertools import chain, islice, product

from jobs.query.message import Message, Wanted
from jobs.query.source import Coverage, Occurrence, Reason, ReasonKind, silent
from jobs.query.static_topics import StaticQueue
from jobs.query.store_facts import StoreFacts
from jobs.query.store_log import COMPILED_FROM, LOG_SEARCHED_UNASKED, Span, holding, search
from jobs.query.store_reader import CLOCK_SLACK_MS
from jobs.store.log_ends import LostPart, lost_ends
from jobs.store.queue_files import StoredQueue
from jobs.store.ranges import newest_written
from rmq_formats.commitlog.record import Host, MessageRecord
from rmq_formats.consumequeue.unit import LMQ_PREFIX, expected_units
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.store import CHECKPOINT, FileKind, decode_checkpoint

_FIRST_SPAN, _LARGEST_SPAN = 1 << 18, 16 << 20  # below the size that the compiled scan is loaded for
_MOST_QUEUES = 64  # whose units are asked for a boundary


@dataclass(eq=False)
class StoreSource(StoreFacts):
    """A store: its keys, its queues, its topics and the part of the history that it has."""

    lacks = None  # damage in the log itself is seen where it is read
    name = "the store"

    @cached_property
    def lost_ends(self) -> list[LostPart]:
        """The parts that the log has lost before its first segment and after its last record."""
        return list(lost_ends(self.reader.store))

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

    def copies(self, unique_key: str, topics: Iterable[str]) -> Iterator[Message]:
        """Yield the messages under a unique key, topic by topic; of a small log also those that no index has."""
        for topic in topics:
            yield from self.by_key(KeyKind.UNIQUE, topic, unique_key)
        # The index has every copy but a rollback of these releases: a search would only find copies that it lost.
        is_whole = not self.release.half_message_in_real_topic
        for seen in self.occurrences(unique_key, COMPILED_FROM if is_whole else LOG_SEARCHED_UNASKED):
            if seen.kind is KeyKind.UNIQUE:
                yield seen.message

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
            record = self.by_offset(begin)
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
    def knows_topics(self) -> bool:  # type: ignore[override]
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

    def count(self, wanted: Wanted) -> int | None:
        """Return the number of messages of a topic, or of all, in the wanted times; None in a large log."""
        if self.reader.log_size > COMPILED_FROM:
            return None
        counted = wanted._replace(key=None, tag=None, words=None)
        return sum(self._is_listed(message, counted) for message in self.search(holding(wanted.topic or "")))

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

    # messages by time

    def by_time(self, wanted: Wanted, before: int, limit: int) -> Iterator[tuple[int, Message | None]]:
        """
        Yield messages that are stored before an offset of the log, the newest first.

        The log itself is read where it is short enough: it has what lost queue files and index files lead to.
        """
        before = min(before, self.reader.store.end_offset)
        if wanted.key is not None and (wanted.topic is not None or not self.searches_all):
            yield from ((offset, self.by_offset(offset)) for offset in self._under_key(wanted, before, limit))
        elif not self.searches_all and wanted.topic is not None and self.queues_of(wanted.topic, wanted.queue_id):
            yield from self._queued(wanted.topic, wanted, before)
        else:
            yield from self.logged(wanted, before, limit)

    def _under_key(self, wanted: Wanted, before: int, limit: int) -> Iterator[int]:
        """Yield the offsets of the newest messages under a key, one more than a page has."""
        topics = [wanted.topic] if wanted.topic is not None else sorted(self.topics())
        kept: set[int] = set()
        for topic, kind in product(topics, (KeyKind.KEY, KeyKind.UNIQUE)):
            for message in self.by_key(kind, topic, wanted.key or ""):
                if message.record.physical_offset < before and wanted.takes(message):
                    kept.add(message.record.physical_offset)
                if len(kept) > 2 * (limit + 1):
                    kept = set(nlargest(limit + 1, kept))
        yield from sorted(kept, reverse=True)

    def queues_of(self, topic: str, queue_id: int | None = None) -> list[StoredQueue]:
        """Return the queues of a topic that have files, or one of them."""
        queues = self.reader.queues.items()
        return [queue for (name, number), queue in queues if name == topic and queue_id in {None, number}]

    def _queued(self, topic: str, wanted: Wanted, before: int) -> Iterator[tuple[int, Message | None]]:
        """Yield the messages that the queues of a topic lead to, the newest first."""
        self.complete_queues(topic)
        for part in self._parts(wanted, before):
            units = (
                reversed(list(self._units_within(queue, part))) for queue in self.queues_of(topic, wanted.queue_id)
            )
            for offset in merge(*units, reverse=True):
                yield offset, self.pointed_at(offset, f"a unit of {topic}")

    def _units_within(self, queue: StoredQueue, part: Span) -> Iterator[int]:
        """Yield the offsets that a queue's units name within a part of the log; note units that are lost."""
        first, end = self.reader.unit_range(queue)
        place = partial(named_offset, queue)
        for number in range(bisect_left(range(end), part.start, first, key=place), end):
            unit = queue.unit(number)
            if unit is None:
                self.lack(f"{queue.name.topic}/{queue.name.queue_id} has no unit {number}")
            elif unit.physical_offset >= part.end:
                return
            else:
                yield unit.physical_offset

    def _parts(self, wanted: Wanted, before: int) -> list[Span]:
        """Return the parts of the log before an offset that may have messages of the times, the newest first."""
        times = self.reader.segment_times
        parts: list[Span] = []
        is_adjacent = False
        for segment in self.reader.store.segments:
            low, high = times[segment.base_offset]
            is_wanted = (low is None or low <= wanted.end) and (high is None or high >= wanted.begin)
            if is_wanted and segment.base_offset < before:
                end = min(segment.base_offset + segment.size, before)
                parts[-1:] = (
                    [Span(parts[-1].start, end)] if is_adjacent else [*parts[-1:], Span(segment.base_offset, end)]
                )
            elif not is_wanted:
                hours = CLOCK_SLACK_MS // 3_600_000
                self.say(
                    f"segments whose first messages were stored more than {hours} h outside of these times are not read"
                )
            is_adjacent = is_wanted
        return parts[::-1]

    def logged(self, wanted: Wanted, before: int, limit: int) -> Iterator[tuple[int, Message | None]]:
        """Yield messages of the log itself, as `by_time` does."""
        # A span is read forwards and given backwards. It begins at a boundary, never inside a record: the chain of
        # records from there meets the beginning of the span before, so no record is in two spans or in none.
        sieve = holding(wanted.topic or wanted.key or wanted.tag or "")
        start = self.reader.store.start_offset
        if before >= self.reader.store.end_offset:
            self._lack_lost(before=before)
        for part in self._parts(wanted, before):
            end, size = part.end, _FIRST_SPAN
            while end > part.start:
                low = self._boundary_before(max(end - size, part.start))
                kept: deque[int] = deque(maxlen=limit + 1)  # a span without boundaries may be a whole segment
                for record in search(self.reader, sieve, silent, Span(low, end), self.lose):
                    if record.physical_offset < end and self._is_listed(Message(record, self.release), wanted):
                        kept.append(record.physical_offset)
                yield from ((offset, self.by_offset(offset)) for offset in reversed(kept))
                yield low, None
                end, size = low, min(size * 2, _LARGEST_SPAN)
        self._lack_lost(before=start)

    def _lack_lost(self, *, before: int) -> None:
        """Note what the log has lost before its first segment, or after its last record."""
        start = self.reader.store.start_offset
        for lost in self.lost_ends:
            if (lost.end <= start) is (before == start):
                self.lack(lost.text)

    def _is_listed(self, message: Message, wanted: Wanted) -> bool:
        """Return whether a message of the log is wanted, and not left over from a master that was replaced."""
        topic = wanted.topic
        if topic is not None and topic != message.topic:
            # A light queue has no messages of its own.
            is_light = topic.startswith(LMQ_PREFIX)
            units = expected_units(message.record, self.rules) if is_light else ()
            if all(unit.queue.topic != topic for unit in units):
                return False
        is_left_over = self.reader.epochs and self.reader.is_left_over(message.record.physical_offset)
        return wanted.takes(message) and not is_left_over

    def _boundary_before(self, offset: int) -> int:
        """Return the last record at *offset* or before it that a queue names, else where the segment begins."""
        segment = self.reader.store.segment_at(offset)
        if segment is None:
            ends = [one.base_offset for one in self.reader.store.segments if one.base_offset <= offset]
            return max(ends, default=self.reader.store.start_offset)
        header = self.reader.framing(segment).header_size
        named = segment.base_offset + header
        for queue in islice(self.reader.queues.values(), _MOST_QUEUES):
            first, end = self.reader.unit_range(queue)
            number = bisect_right(range(end), offset, first, key=partial(named_offset, queue))
            if number > first:
                named = max(named, named_offset(queue, number - 1))
        proven = self.by_offset(named) is not None
        return named - header if proven else segment.base_offset


def named_offset(queue: StoredQueue, number: int) -> int:
    """Return the offset that a unit names; of one that is lost, that of the unit before it."""
    unit = queue.unit(number)
    while unit is None and number > queue.start:
        number -= 1
        unit = queue.unit(number)
    return -1 if unit is None else unit.physical_offset
