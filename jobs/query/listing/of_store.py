"""
A store, listed: a topic through its queues, all topics through the log, the newest message first.

The log can only be walked forwards. So it is read in spans, the last one first; a span begins at a record that a queue
names, or where a segment begins. A time is searched by halves, as brokers do.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice, pairwise

from jobs.query.listing.model import (
    CHAIN_SHOWN,
    Chain,
    Deadline,
    Found,
    Histogram,
    Link,
    Page,
    Rows,
    Wanted,
    number_of,
    rate,
)
from jobs.query.log_search import COMPILED_FROM, Span, holding, search, silent
from jobs.query.message import Message
from jobs.query.source import MAX_TIME, MIN_TIME
from jobs.query.store_source import StoreSource
from jobs.query.story.store_evidence import StoreEvidence
from jobs.query.transactions import OpenHalves, open_halves
from jobs.store.broker_config import ReaderKind
from jobs.store.queue_files import StoredQueue
from rmq_formats.consumequeue.unit import DLQ_PREFIX
from rmq_formats.errors import CorruptData, UnsupportedFormat
from rmq_formats.flags import TransactionType
from rmq_formats.hashing import index_key_hash
from rmq_formats.indexfile.keys import KeyKind, typed_index_keys
from rmq_formats.indexfile.lookup import Hop
from rmq_formats.properties import REAL_TOPIC

_FIRST_SPAN, _LARGEST_SPAN = 1 << 18, 16 << 20  # below what the compiled scan is loaded for
_MOST_QUEUES = 64  # of which a histogram of all topics counts messages
_MOST_READ = 1000  # messages of a queue of dead letters, or of half messages
_MOST_SAMPLES, _FEWEST_SAMPLES = 2000, 16  # messages whose times are read for a histogram: of all queues, of one
_LONGEST_CHAIN = 4096  # entries that are followed
_SECONDS_OF_HALVES = 2  # that a log is searched for half messages


class StoreListing:
    """A store's files, listed."""

    def __init__(self, source: StoreSource) -> None:
        self.source = source
        self.evidence = StoreEvidence(source)
        self._reader = source.reader

    def at(self, position: str) -> Message | None:
        """Return the message at a physical offset."""
        return self.source.at(number_of(position))

    def position(self, message: Message) -> str:
        """Return the physical offset of a message."""
        return str(message.record.physical_offset)

    # pages

    def page(self, wanted: Wanted, before: str | None, limit: int, deadline: Deadline) -> Page:
        """Return at most *limit* messages that are stored before an offset, the newest first."""
        found: list[Found] = []
        last = self._reader.store.end_offset if before is None else number_of(before)
        for offset, message in self._candidates(wanted, last, limit):
            if message is not None and wanted.takes(message):
                found.append(Found(str(offset), message))
                if len(found) > limit:
                    return Page(found[:limit], found[limit - 1].position)
            last = offset
            if deadline.is_over:
                return Page(found, str(last), was_cut_short=True)
        return Page(found, None)

    def number_of_messages(self, wanted: Wanted) -> int | None:
        """
        Return the number of messages of a topic, or of all, that were stored in the times that are asked for.

        None where only a search of a large log would tell.
        """
        queues = [] if wanted.topic is None else self._queues(wanted.topic)
        if queues:
            return sum(len(self._numbers(queue, wanted, self._reader.store.end_offset)) for queue in queues)
        if self._reader.log_size > COMPILED_FROM:
            return None
        times = Wanted(wanted.topic, begin=wanted.begin, end=wanted.end)
        stored = search(self._reader, holding(wanted.topic or ""), silent)
        return sum(self._is_listed(Message(record, self.source.release), times) for record in stored)

    def _candidates(self, wanted: Wanted, before: int, limit: int) -> Iterator[tuple[int, Message | None]]:
        """Yield messages and their offsets, descending; an offset alone says how far it has looked."""
        queues = [] if wanted.topic is None else self._queues(wanted.topic)
        if wanted.key is not None:
            found = {one.record.physical_offset: one for one in self._under_key(wanted.key, wanted)}
            yield from ((offset, found[offset]) for offset in sorted(found, reverse=True) if offset < before)
        elif queues:
            units = (map(partial(self._named, one), reversed(self._numbers(one, wanted, before))) for one in queues)
            yield from ((offset, self.source.at(offset)) for offset in merge(*units, reverse=True))
        else:
            yield from self._logged(wanted, before, limit)

    def _under_key(self, key: str, wanted: Wanted) -> Iterator[Message]:
        if wanted.topic is not None:
            for kind in (KeyKind.KEY, KeyKind.UNIQUE):
                yield from self.source.find(kind, wanted.topic, key, wanted.begin, wanted.end)
        else:
            yield from (one.message for one in self.source.occurrences(key))

    def _queues(self, topic: str) -> list[StoredQueue]:
        return [queue for (name, _), queue in self._reader.queues.items() if name == topic]

    def _numbers(self, queue: StoredQueue, wanted: Wanted, before: int) -> range:
        """Return the numbers of the units whose messages lie before an offset, and in the times that are asked for."""
        first, end = self._reader.unit_range(queue)
        end = bisect_left(range(end), before, first, key=partial(self._named, queue))
        if wanted.end < MAX_TIME:
            end = self._number_at(queue, wanted.end + 1, first, end)
        start = self._number_at(queue, wanted.begin, first, end) if wanted.begin > MIN_TIME else first
        return range(start, end)

    @staticmethod
    def _named(queue: StoredQueue, number: int) -> int:
        unit = queue.unit(number)
        return -1 if unit is None else unit.physical_offset

    def _number_at(self, queue: StoredQueue, time: int, low: int, high: int) -> int:
        """Return the number of the first unit in [low, high) whose message was stored at *time* or later."""
        # Store times ascend in a queue but for steps of the broker's clock, as brokers search by them, too. A message
        # that is lost counts as the oldest: files are lost from the beginning of a log as a rule.
        return bisect_left(range(high), time, low, key=lambda at: self.source.stored_at(queue, at) or MIN_TIME)

    def _logged(self, wanted: Wanted, before: int, limit: int) -> Iterator[tuple[int, Message | None]]:
        # A span is read forwards and given backwards. It begins at a boundary, never inside a record: the chain of
        # records from there meets the beginning of the span before, so no record is in two spans or in none.
        sieve = holding(wanted.topic or wanted.tag or "")
        start, end, size = self._reader.store.start_offset, before, _FIRST_SPAN
        if wanted.end < MAX_TIME:
            end = min(end, self._offset_after(wanted.end))
        while end > start:
            low = self._boundary_before(max(end - size, start))
            kept: deque[Message] = deque(maxlen=limit + 1)  # a span without boundaries may be a whole segment
            oldest = None
            for record in search(self._reader, sieve, silent, Span(low, end)):
                message = Message(record, self.source.release)
                oldest = record.store_timestamp if oldest is None else oldest
                if record.physical_offset < end and self._is_listed(message, wanted):
                    kept.append(message)
            yield from ((one.record.physical_offset, one) for one in reversed(kept))
            yield low, None
            if oldest is not None and oldest < wanted.begin:
                return
            end, size = low, min(size * 2, _LARGEST_SPAN)

    def _is_listed(self, message: Message, wanted: Wanted) -> bool:
        """Return whether a message of the log is wanted, and not left over from a master that was replaced."""
        if wanted.topic not in {None, message.topic} or not wanted.takes(message):
            return False
        return not (self._reader.epochs and self._reader.is_left_over(message.record.physical_offset))

    def _boundary_before(self, offset: int) -> int:
        """Return the last record at *offset* or before it that a queue names, else where the segment begins."""
        segment = self._reader.store.segment_at(offset)
        if segment is None:
            ends = [one.base_offset for one in self._reader.store.segments if one.base_offset <= offset]
            return max(ends, default=self._reader.store.start_offset)
        header = self._reader.framing(segment).header_size
        named = segment.base_offset + header
        for queue in islice(self._reader.queues.values(), _MOST_QUEUES):
            first, end = self._reader.unit_range(queue)
            number = bisect_right(range(end), offset, first, key=partial(self._named, queue))
            if number > first:
                named = max(named, self._named(queue, number - 1))
        proven = self.source.at(named) is not None
        return named - header if proven else segment.base_offset

    def _offset_after(self, time: int) -> int:
        """Return the offset of the first message after *time* that a queue or a segment names, else the log's end."""
        later = [self._reader.store.end_offset]
        for queue in self._largest():
            first, end = self._reader.unit_range(queue)
            number = self._number_at(queue, time + 1, first, end)
            later += [self._named(queue, number)] if number < end else []
        for segment in self._reader.store.segments:
            record = self._reader.first_record(segment)
            if record is not None and record.store_timestamp > time:
                later.append(segment.base_offset)
        return min(later)

    def _largest(self) -> list[StoredQueue]:
        every = sorted(self._reader.queues.values(), key=lambda queue: queue.capacity - queue.start, reverse=True)
        return every[:_MOST_QUEUES]

    # numbers

    def histogram(self, wanted: Wanted, slots: int, deadline: Deadline) -> Histogram | None:
        """Return how many messages the queues of a topic, or of all, have in each slot of time."""
        queues = self._largest() if wanted.topic is None else self._queues(wanted.topic)
        ranges = [(queue, *self._reader.unit_range(queue)) for queue in queues]
        filled = [(queue, first, end) for queue, first, end in ranges if first < end]
        ends = self._times((queue, number) for queue, first, end in filled for number in (first, end - 1))
        if not ends:
            return None
        begin, end_time = max(min(ends), wanted.begin), min(max(ends), wanted.end)
        start, step, counts, _ = Histogram.empty(begin, max(begin, end_time), slots)
        is_part = wanted.topic is None and len(self._reader.queues) > _MOST_QUEUES
        note = f"of the {_MOST_QUEUES} largest queues" if is_part else ""
        samples = max(_MOST_SAMPLES // len(ranges), _FEWEST_SAMPLES)
        for done, (queue, first, end) in enumerate(ranges):
            if deadline.is_over:
                note = f"of {done} of {len(self._reader.queues)} queues: more would take too long"
                break
            low = self._number_at(queue, start, first, end)
            high = self._number_at(queue, start + len(counts) * step, low, end)
            step_of_samples = max((high - low) // samples, 1)
            if step_of_samples > 1:
                note = note or "times of messages between those that were looked at are estimated"
            numbers = [*range(low, high, step_of_samples), *([high] if low < high else [])]
            slots_of_numbers = [self._slot(queue, min(number, high - 1), start, step) for number in numbers]
            for (number, slot), (following, last) in pairwise(zip(numbers, slots_of_numbers, strict=True)):
                _spread(counts, following - number, slot, last if following - number > 1 else slot)
        return Histogram(start, step, counts, note)

    def _slot(self, queue: StoredQueue, number: int, start: int, step: int) -> int:
        time = self.source.stored_at(queue, number)
        return 0 if time is None else (time - start) // step

    def _times(self, units: Iterable[tuple[StoredQueue, int]]) -> list[int]:
        """Return the store times of the messages of units, without those that are lost."""
        times = (self.source.stored_at(queue, number) for queue, number in units)
        return [time for time in times if time is not None]

    def topics(self) -> Rows:
        """Return each topic that has queues, with what these hold."""
        ranges: dict[str, list[tuple[StoredQueue, int, int]]] = {}
        for (topic, _), queue in self._reader.queues.items():
            ranges.setdefault(topic, []).append((queue, *self._reader.unit_range(queue)))
        rows = []
        for topic in sorted({*ranges, *self._reader.topic_config}):
            own = [(queue, first, end) for queue, first, end in ranges.get(topic, ()) if first < end]
            oldest = min(self._times((queue, first) for queue, first, _ in own), default=None)
            newest = max(self._times((queue, end - 1) for queue, _, end in own), default=None)
            count = sum(end - first for _, first, end in own)
            rows.append((topic, len(ranges.get(topic, ())), count, rate(count, oldest, newest), oldest, newest))
        return Rows(("topic", "queues", "messages", "per second", "first stored", "last stored"), rows)

    def groups(self) -> Rows:
        """Return how far each group is by the broker's own table of offsets."""
        config = self.source.config
        behind: dict[tuple[str, str], list[int]] = {}
        for reader in config.progress:
            if reader.kind is ReaderKind.CONSUMER and reader.consumer_group is not None:
                offsets = self.source.queue_offsets(reader.topic, reader.queue_id)
                left = 0 if offsets is None else max(offsets.maximum - max(reader.next_offset, offsets.minimum), 0)
                behind.setdefault((reader.consumer_group, reader.topic), []).append(left)
        rows = [(group, topic, len(left), sum(left), max(left)) for (group, topic), left in sorted(behind.items())]
        note = f"not all of the broker's configuration can be read: {config.unread}" if config.unread else ""
        return Rows(("consumer group", "topic", "queues", "behind", "most in one queue"), rows, note=note)

    def unfinished(self) -> Sequence[tuple[str, Rows]]:
        """Return the dead letters and the half messages of the newest messages in their queues."""
        return (("dead letters", self._dead_letters()), ("transactions without an end", self._open_transactions()))

    def _dead_letters(self) -> Rows:
        counts: Counter[tuple[str, str, str]] = Counter()
        note = ""
        for topic in sorted({name for name, _ in self._reader.queues if name.startswith(DLQ_PREFIX)}):
            page = self.page(Wanted(topic), None, _MOST_READ, Deadline(1))
            note = note if page.next is None else f"of each group the newest {_MOST_READ:,} at most"
            for one in page.messages:
                about, tries = one.message.properties, one.message.record.reconsume_times
                reason = f"not consumed after {tries} tries" if tries > 1 else "given up without a retry"
                origin = about.get("DLQ_ORIGIN_TOPIC", about.get("RETRY_TOPIC", ""))
                counts[topic.removeprefix(DLQ_PREFIX), reason, origin] += 1
        rows = [(*named, count, f"{DLQ_PREFIX}{named[0]}") for named, count in sorted(counts.items())]
        return Rows(("consumer group", "reason", "origin topic", "messages", "topic"), rows, note=note)

    def _open_transactions(self) -> Rows:
        release = self.source.release
        halves = self._open_in_log() if release.half_message_in_real_topic else open_halves(self.source, _MOST_READ)
        rows = [
            (
                half.record.store_timestamp,
                half.properties.get(REAL_TOPIC, half.topic),
                half.properties.get("PGROUP"),
                half.message_id,
            )
            for half in halves.messages
        ]
        part = "as far as the log was searched" if release.half_message_in_real_topic else f"the newest {_MOST_READ:,}"
        note = f"of each queue {part}" if halves.was_cut_short else ""
        return Rows(("stored", "topic", "producer group", "id"), rows, note=note)

    def _open_in_log(self) -> OpenHalves:
        """Find the half messages of brokers up to 4.2.0, which no queue has: their ends come after them in the log."""
        found: list[Message] = []
        ended: set[int] = set()
        deadline = Deadline(_SECONDS_OF_HALVES)
        for offset, message in self._logged(Wanted(), self._reader.store.end_offset, _LARGEST_SPAN):
            if message is None:
                if deadline.is_over and offset > self._reader.store.start_offset:
                    return OpenHalves(found, was_cut_short=True)
            elif message.transaction in {TransactionType.COMMIT, TransactionType.ROLLBACK}:
                ended.add(message.record.prepared_transaction_offset)
            elif message.transaction is TransactionType.PREPARED and offset not in ended:
                found.append(message)
        return OpenHalves(found, was_cut_short=False)

    # the index

    def chains(self, message: Message) -> Iterator[Chain]:
        """Yield for each key of a message the chain of the file that leads to it."""
        offset = message.record.physical_offset
        for key in dict.fromkeys(typed_index_keys(message.record, self.source.release)):
            key_hash = index_key_hash(key.text)
            for file in self._reader.index_readers_around(offset):
                slot = file.geometry.slot_of(key_hash)
                links = [
                    Link(hop.number, at := hop.entry.physical_offset, at == offset, hop.entry.key_hash == key_hash)
                    for hop in islice(_unbroken(file.chain(slot)), _LONGEST_CHAIN)
                ]
                if any(link.leads_here and link.has_hash for link in links):  # its keys may be in two files
                    name = (file.file or "").rpartition("/")[2]
                    yield Chain(key.key, name, slot, links[:CHAIN_SHOWN], len(links) > CHAIN_SHOWN)

    def tables(self) -> Sequence[str]:
        """Name none: a store has no tables."""
        return ()

    def table(self, name: str, filters: Mapping[str, str], skip: int, limit: int) -> Rows:
        """Refuse: a store has no tables."""
        del filters, skip, limit
        raise UnsupportedFormat(f"a store has no table {name[:40]!r}; a lake has")


def _spread(counts: list[int], messages: int, first: int, last: int) -> None:
    """Add messages to the slots from *first* to *last*, as evenly as whole numbers allow."""
    first, last = (min(max(slot, 0), len(counts) - 1) for slot in (first, max(first, last)))
    width = last - first + 1
    # Differences of shares that are rounded down: they add up to the number of messages, whatever the width.
    for slot in range(width):
        counts[first + slot] += messages * (slot + 1) // width - messages * slot // width


def _unbroken(hops: Iterator[Hop]) -> Iterator[Hop]:
    """Yield the entries of a chain up to the place where it is broken."""
    try:
        yield from hops
    except CorruptData:
        return
