"""
A store, listed: the newest message first.

The log can only be walked forwards. So it is read in spans, the last one first; a span begins at a record that a queue
names, or where a segment begins. A topic of a log that is too long for that is listed through its queues.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from heapq import merge, nlargest
from itertools import islice, pairwise, product

from jobs.query.listing.model import (
    CHAIN_SHOWN,
    Cell,
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
from jobs.query.source import MIN_TIME
from jobs.query.store_reader import CLOCK_SLACK_MS
from jobs.query.store_source import StoreSource
from jobs.query.story.store_evidence import StoreEvidence
from jobs.query.transactions import OpenHalves, open_halves
from jobs.store.broker_config import ReaderKind
from jobs.store.queue_files import StoredQueue
from jobs.store.timers import timer_state
from rmq_formats.consumequeue.unit import DLQ_PREFIX, LMQ_PREFIX, SCHEDULE_TOPIC, QueueRules, expected_units
from rmq_formats.errors import CorruptData, UnsupportedFormat
from rmq_formats.flags import TransactionType
from rmq_formats.hashing import index_key_hash
from rmq_formats.indexfile.keys import KeyKind, typed_index_keys
from rmq_formats.indexfile.lookup import Hop
from rmq_formats.properties import REAL_TOPIC

_FIRST_SPAN, _LARGEST_SPAN = 1 << 18, 16 << 20  # below what the compiled scan is loaded for
_MOST_QUEUES = 64  # of which a histogram of all topics counts messages
_MOST_LISTED = 200  # delayed messages that are shown one by one
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
        if self._reader.log_size > COMPILED_FROM:
            return None
        times = Wanted(wanted.topic, begin=wanted.begin, end=wanted.end, queue_id=wanted.queue_id)
        return sum(self._is_listed(message, times) for message in self.source.search(holding(wanted.topic or "")))

    def _candidates(self, wanted: Wanted, before: int, limit: int) -> Iterator[tuple[int, Message | None]]:
        """
        Yield messages and their offsets, descending; an offset alone says how far it has looked.

        The log itself is read where it is short enough: it has what lost queue files and index files lead to.
        """
        source = self.source
        if wanted.key is not None and (wanted.topic is not None or not source.searches_all):
            yield from ((offset, source.at(offset)) for offset in self._under_key(wanted, before, limit))
        elif not source.searches_all and wanted.topic is not None and self._queues(wanted.topic, wanted.queue_id):
            yield from self._queued(wanted.topic, wanted, before)
        else:
            yield from self._logged(wanted, before, limit)

    def _under_key(self, wanted: Wanted, before: int, limit: int) -> Iterator[int]:
        """Yield the offsets of the newest messages under a key, one more than a page has."""
        topics = [wanted.topic] if wanted.topic is not None else sorted(self.source.topics())
        kept: set[int] = set()
        for topic, kind in product(topics, (KeyKind.KEY, KeyKind.UNIQUE)):
            for message in self.source.find(kind, topic, wanted.key or ""):
                if message.record.physical_offset < before and wanted.takes(message):
                    kept.add(message.record.physical_offset)
                if len(kept) > 2 * (limit + 1):
                    kept = set(nlargest(limit + 1, kept))
        yield from sorted(kept, reverse=True)

    def _queues(self, topic: str, queue_id: int | None = None) -> list[StoredQueue]:
        queues = self._reader.queues.items()
        return [queue for (name, number), queue in queues if name == topic and queue_id in {None, number}]

    def _queued(self, topic: str, wanted: Wanted, before: int) -> Iterator[tuple[int, Message | None]]:
        """Yield the messages that the queues of a topic lead to, the newest first."""
        self.source.complete_queues(topic)
        for part in self._parts(wanted, before):
            units = (reversed(list(self._units_within(queue, part))) for queue in self._queues(topic, wanted.queue_id))
            for offset in merge(*units, reverse=True):
                yield offset, self.source.pointed_at(offset, f"a unit of {topic}")

    def _units_within(self, queue: StoredQueue, part: Span) -> Iterator[int]:
        """Yield the offsets that a queue's units name within a part of the log; note units that are lost."""
        first, end = self._reader.unit_range(queue)
        place = partial(self._named, queue)
        for number in range(bisect_left(range(end), part.start, first, key=place), end):
            unit = queue.unit(number)
            if unit is None:
                self.source.lack(f"{queue.name.topic}/{queue.name.queue_id} has no unit {number}")
            elif unit.physical_offset >= part.end:
                return
            else:
                yield unit.physical_offset

    def _parts(self, wanted: Wanted, before: int) -> list[Span]:
        """Return the parts of the log before an offset that may have messages of the times, the newest first."""
        times = self._reader.segment_times
        parts: list[Span] = []
        is_adjacent = False
        for segment in self._reader.store.segments:
            low, high = times[segment.base_offset]
            is_wanted = (low is None or low <= wanted.end) and (high is None or high >= wanted.begin)
            if is_wanted and segment.base_offset < before:
                end = min(segment.base_offset + segment.size, before)
                parts[-1:] = (
                    [Span(parts[-1].start, end)] if is_adjacent else [*parts[-1:], Span(segment.base_offset, end)]
                )
            elif not is_wanted:
                hours = CLOCK_SLACK_MS // 3_600_000
                self.source.say(
                    f"segments whose first messages were stored more than {hours} h outside of these times are not read"
                )
            is_adjacent = is_wanted
        return parts[::-1]

    @staticmethod
    def _named(queue: StoredQueue, number: int) -> int:
        """Return the offset that a unit names; of one that is lost, that of the unit before it."""
        unit = queue.unit(number)
        while unit is None and number > queue.start:
            number -= 1
            unit = queue.unit(number)
        return -1 if unit is None else unit.physical_offset

    def _number_at(self, queue: StoredQueue, time: int, low: int, high: int) -> int:
        """Return the number of the first unit in [low, high) whose message was stored at *time* or later."""
        # For a chart only: store times ascend in a queue but for steps of the broker's clock.
        return bisect_left(range(high), time, low, key=lambda at: self.source.stored_at(queue, at) or MIN_TIME)

    def _logged(self, wanted: Wanted, before: int, limit: int) -> Iterator[tuple[int, Message | None]]:
        # A span is read forwards and given backwards. It begins at a boundary, never inside a record: the chain of
        # records from there meets the beginning of the span before, so no record is in two spans or in none.
        sieve = holding(wanted.topic or wanted.key or wanted.tag or "")
        start = self._reader.store.start_offset
        if before >= self._reader.store.end_offset:
            self._lack_lost(before=before)
        for part in self._parts(wanted, before):
            end, size = part.end, _FIRST_SPAN
            while end > part.start:
                low = self._boundary_before(max(end - size, part.start))
                kept: deque[int] = deque(maxlen=limit + 1)  # a span without boundaries may be a whole segment
                for record in search(self._reader, sieve, silent, Span(low, end), self.source.lose):
                    if record.physical_offset < end and self._is_listed(Message(record, self.source.release), wanted):
                        kept.append(record.physical_offset)
                yield from ((offset, self.source.at(offset)) for offset in reversed(kept))
                yield low, None
                end, size = low, min(size * 2, _LARGEST_SPAN)
        self._lack_lost(before=start)

    def _lack_lost(self, *, before: int) -> None:
        """Note what the log has lost before its first segment, or after its last record."""
        start = self._reader.store.start_offset
        for lost in self.source.lost_ends:
            if (lost.end <= start) is (before == start):
                self.source.lack(lost.text)

    def _is_listed(self, message: Message, wanted: Wanted) -> bool:
        """Return whether a message of the log is wanted, and not left over from a master that was replaced."""
        topic = wanted.topic
        if topic is not None and topic != message.topic:
            # A light queue has no messages of its own.
            is_light = topic.startswith(LMQ_PREFIX)
            units = expected_units(message.record, self._rules) if is_light else ()
            if all(unit.queue.topic != topic for unit in units):
                return False
        is_left_over = self._reader.epochs and self._reader.is_left_over(message.record.physical_offset)
        return wanted.takes(message) and not is_left_over

    @cached_property
    def _rules(self) -> QueueRules:
        return self.source.rules

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

    def _largest(self) -> list[StoredQueue]:
        every = sorted(self._reader.queues.values(), key=lambda queue: queue.capacity - queue.start, reverse=True)
        return every[:_MOST_QUEUES]

    # numbers

    def histogram(self, wanted: Wanted, slots: int, deadline: Deadline) -> Histogram | None:
        """Return how many messages the queues of a topic, or of all, have in each slot of time."""
        queues = self._largest() if wanted.topic is None else self._queues(wanted.topic, wanted.queue_id)
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
        """Return the dead letters and the half messages of the newest messages in their queues, and what waits."""
        return (
            ("dead letters", self._dead_letters()),
            ("transactions without an end", self._open_transactions()),
            ("delayed messages that wait", self._delayed()),
            ("timers pending", self._timers()),
        )

    def _delayed(self) -> Rows:
        """Return the messages of delay levels that the broker has not delivered yet, by its own table of offsets."""
        progress = {
            one.queue_id: one.next_offset for one in self.source.config.progress if one.kind is ReaderKind.DELAY
        }
        rows: list[tuple[Cell, ...]] = []
        left_out = 0
        for queue in self._queues(SCHEDULE_TOPIC):
            first, end = self._reader.unit_range(queue)
            waiting = range(max(progress.get(queue.name.queue_id, first), first), end)
            shown = waiting[: _MOST_LISTED - len(rows)]
            left_out += len(waiting) - len(shown)
            for number in shown:
                unit = queue.unit(number)
                message = None if unit is None else self.source.at(unit.physical_offset)
                if unit is not None and message is not None:
                    topic = message.properties.get(REAL_TOPIC, message.topic)
                    rows.append((unit.tags_code, topic, queue.name.queue_id + 1, message.message_id))
        note = f"and {left_out:,} more" if left_out else ""
        return Rows(("due", "topic", "level", "id"), sorted(rows, key=lambda row: str(row[0])), note=note)

    def _timers(self) -> Rows:
        """Return how many timers of the timer's files wait, and when the first and the last of them are due."""
        state = timer_state(self._reader.store)
        if state is None or not state.waiting:
            return Rows((), ())
        return Rows(("messages", "first_due", "last_due"), [(state.waiting, *state.due)])

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
