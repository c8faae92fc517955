"""Lists for a store's pages: messages over time, topics, groups, unfinished messages, and the index."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from time import monotonic

from jobs.browse.groups import LAG_COLUMNS, list_group_rows
from jobs.browse.matches import SECONDS_OF_HISTOGRAM, count_matches
from jobs.browse.rendering import (
    USAGE_COLUMNS,
    Cell,
    Histogram,
    IndexChain,
    PageTable,
    message_rate,
    spread_evenly,
)
from jobs.diagnosis.broker_state import BrokerState, check_broker_state, span_reader
from jobs.query import MIN_TIME, ListConditions, Message
from jobs.query.lookups import read_page
from jobs.query.reasons import find_open_half_messages
from jobs.query.store_source import StoreSource
from jobs.store.broker_config import BrokerConfig, ConsumerKind
from jobs.store.pending_messages import read_timer_state
from jobs.store.queue_files import StoredQueue
from jobs.store.store import Store
from rmq_formats.commitlog.layout import TransactionType
from rmq_formats.consumequeue.dispatch import DLQ_PREFIX, SCHEDULE_TOPIC, is_system_topic
from rmq_formats.errors import CorruptData, is_disk_error
from rmq_formats.indexfile.keys import typed_index_keys
from rmq_formats.properties import REAL_TOPIC, index_key_hash

_SPAN_OF_HALVES = 16 << 20  # half messages of a span of the log
_MOST_QUEUES = 64  # a histogram of all topics counts the messages of at most this many queues
_MOST_LISTED = 200  # delayed messages that are shown one by one
_MOST_READ = 1000  # messages of a queue of dead letters, or of half messages
_MOST_SAMPLES, _FEWEST_SAMPLES = 2000, 16  # messages whose times are read for a histogram: of all queues, of one
_INHERIT, _REPLY_SUFFIX = 1, "_REPLY_TOPIC"  # a permission that topics of users never have; a cluster's second topic
_LONGEST_CHAIN = 4096  # entries that are followed
_SECONDS_OF_HALVES = 2  # time limit of the search of a log for half messages
_MOST_COUNTED = 1 << 20  # messages in a span of the log that are counted for a histogram


class StoreLists:
    """The lists of a store."""

    def __init__(self, source: StoreSource) -> None:
        self.source = source
        self.sources = (source,)
        self._reader = source.reader
        self._queues = source.queues

    def histogram(self, wanted: ListConditions) -> Histogram | None:
        """
        Return the number of messages per slot of time; None if there are none.

        Those of a topic, or of all topics, are counted by its queues; those that a search finds, by reading them.
        """
        if wanted.is_search:
            return count_matches(self.sources, wanted, _MOST_COUNTED)
        last_moment = monotonic() + SECONDS_OF_HISTOGRAM
        every = sorted(
            self._queues.list_all(), key=lambda queue: queue.capacity_end - queue.first_unit_number, reverse=True
        )
        of_topic = None if wanted.topic is None else self._queues.list_of_topic(wanted.topic, wanted.queue_id)
        queues = every[:_MOST_QUEUES] if of_topic is None else of_topic
        ranges = [(queue, *self._queues.find_live_units(queue)[:2]) for queue in queues]
        filled = [(queue, first, end) for queue, first, end in ranges if first < end]
        ends = self._read_store_times((queue, number) for queue, first, end in filled for number in (first, end - 1))
        if not ends:
            return None
        begin, end_time = max(min(ends), wanted.begin), min(max(ends), wanted.end)
        start, step, counts, _ = Histogram.empty(begin, max(begin, end_time))
        is_part = wanted.topic is None and len(every) > _MOST_QUEUES
        note = f"only the {_MOST_QUEUES} largest queues are counted" if is_part else ""
        samples = max(_MOST_SAMPLES // len(ranges), _FEWEST_SAMPLES)
        for done, (queue, first, end) in enumerate(ranges):
            if monotonic() > last_moment:
                every_queue = every if of_topic is None else of_topic
                note = f"only {done} of {len(every_queue)} queues are counted; reading more would take too long"
                break

            # For a chart only: store times ascend in a queue, unless the broker's clock was set back.
            def read_time(number: int, queue: StoredQueue = queue) -> int:
                return self._queues.read_store_time(queue, number) or MIN_TIME

            low = bisect_left(range(end), start, first, key=read_time)
            high = bisect_left(range(end), start + len(counts) * step, low, key=read_time)
            step_of_samples = max((high - low) // samples, 1)
            if step_of_samples > 1:
                note = note or "only some messages were read; the times of the others are estimated"
            numbers = [*range(low, high, step_of_samples), *([high] if low < high else [])]
            times = (self._queues.read_store_time(queue, min(number, high - 1)) for number in numbers)
            slots_of_numbers = [0 if time is None else (time - start) // step for time in times]
            for (number, slot), (following, last) in pairwise(zip(numbers, slots_of_numbers, strict=True)):
                spread_evenly(counts, following - number, slot, last if following - number > 1 else slot)
        return Histogram(start, step, counts, note)

    def _read_store_times(self, units: Iterable[tuple[StoredQueue, int]]) -> list[int]:
        times = (self._queues.read_store_time(queue, number) for queue, number in units)
        return [time for time in times if time is not None]

    def is_system_topic(self, topic: str) -> bool:
        """Return whether a topic is the broker's own; those named after it and its cluster can be inherited."""
        permission = self._reader.topic_config.get(topic.removesuffix(_REPLY_SUFFIX), {}).get("perm")
        return is_system_topic(topic) or (isinstance(permission, int) and bool(permission & _INHERIT))

    def topics(self) -> PageTable:
        """Return each topic that has queues, with their sizes."""
        ranges: dict[str, list[tuple[StoredQueue, int, int]]] = {}
        for queue in self._queues.list_all():
            ranges.setdefault(queue.name.topic, []).append((queue, *self._queues.find_live_units(queue)[:2]))
        rows = []
        for topic in sorted({*ranges, *self._reader.topic_config}):
            own = [(queue, first, end) for queue, first, end in ranges.get(topic, ()) if first < end]
            oldest = min(self._read_store_times((queue, first) for queue, first, _ in own), default=None)
            newest = max(self._read_store_times((queue, end - 1) for queue, _, end in own), default=None)
            count = sum(end - first for _, first, end in own)
            rows.append((topic, len(ranges.get(topic, ())), count, message_rate(count, oldest, newest), oldest, newest))
        why = self._queues.why_unknown
        notes = [*([f"queues in RocksDB are not counted: {why}"] if why else []), *self.list_topic_doubts()]
        columns = ("topic", "queues", "messages", "per second", "first stored", "last stored")
        return PageTable(columns, rows, note=". ".join(notes))

    def list_topic_doubts(self) -> list[str]:
        """Return why the broker's table of topics cannot be read, so that topics may be missing."""
        return [] if self._reader.topic_config else self._list_unread_config()

    def _list_unread_config(self) -> list[str]:
        """Return which part of the broker's configuration cannot be read, so that rows may be missing."""
        try:
            reasons = [*map(str, self.source.config.errors)]
        except OSError as error:
            if not is_disk_error(error):
                raise
            reasons = [str(error)]
        return [f"not all of the broker's configuration can be read: {reason}" for reason in reasons]

    def groups(self) -> PageTable:
        """Return the lag of each group in each topic, and the faults of positions and configuration."""
        config, store = self.source.config, self._reader.store
        notes = [finding.text for finding in self._check_positions(config, store).findings]
        notes += self._list_unread_config()
        return PageTable(LAG_COLUMNS, list_group_rows(self.source), note=". ".join(notes))

    def _check_positions(self, config: BrokerConfig, store: Store) -> BrokerState:
        queues, are_ends_known = self._reader.stored_queues[0], store.has_clean_shutdown
        return check_broker_state(store, config, span_reader(queues, store.start_offset), are_ends_known=are_ends_known)

    def usage(self) -> PageTable:
        """Return the space that each topic takes in the log, with the rest; the lines add up to the log's size."""
        from jobs.inspect.usage import measure_usage_of_open_store  # lazy import: numpy is slow to load

        usage = measure_usage_of_open_store(self._reader, self._reader.log_end)
        rows: list[tuple[Cell, ...]] = []
        for one in usage.topics:
            own = one.record_bytes if one.has_own_records else None
            times = one.first_store_timestamp, one.last_store_timestamp
            average = own // one.records if own is not None and one.records else None
            share = None if own is None else usage.percent(own)
            rows.append((one.topic, one.content, one.group, own, share, one.records, average, *times))
        totals = (
            ("not attributed to a topic", usage.unattributed_bytes),
            ("not used yet", usage.unused_bytes),
            ("log", usage.log_bytes),
        )
        rows += [(None, name, None, size, usage.percent(size), None, None, None, None) for name, size in totals]
        estimated = (
            "Sizes are estimated from a sample of the queues' units, to about 1 %." if usage.is_estimated else ""
        )
        note = " ".join(filter(None, (estimated, usage.describe_next_deletion(self._reader.store.root))))
        return PageTable(USAGE_COLUMNS, rows, note=note)

    def unfinished_messages(self) -> Sequence[tuple[str, PageTable]]:
        """Return pending timers, and the dead letters and half messages among the newest messages of their queues."""
        state, timers = read_timer_state(self._reader.store), PageTable((), ())
        if state is not None and state.waiting_count:
            timers = PageTable(("messages", "first_due", "last_due"), [(state.waiting_count, *state.due_range_ms)])
        return (
            ("dead letters", self._dead_letters()),
            ("pending transactions", self._open_transactions()),
            ("pending delayed messages", self._list_delayed_messages()),
            ("pending timer messages", timers),
        )

    def _list_delayed_messages(self) -> PageTable:
        """Return the delayed messages that the broker has not delivered yet, according to its table of offsets."""
        progress = {
            one.queue_id: one.next_offset for one in self.source.config.progress if one.kind is ConsumerKind.DELAY
        }
        rows: list[tuple[Cell, ...]] = []
        left_out = 0
        for queue in self._queues.list_of_topic(SCHEDULE_TOPIC):
            live = self._queues.find_live_units(queue)
            waiting = range(max(progress.get(queue.name.queue_id, live.first), live.first), live.end)
            shown = waiting[: _MOST_LISTED - len(rows)]
            left_out += len(waiting) - len(shown)
            for number in shown:
                unit = queue.read_unit(number)
                message = None if unit is None else self.source.by_offset(unit.physical_offset)
                if unit is not None and message is not None:
                    topic = message.properties.get(REAL_TOPIC, message.topic)
                    rows.append((unit.tags_code, topic, queue.name.queue_id + 1, message.message_id))
        note = f"and {left_out:,} more" if left_out else ""
        return PageTable(("due", "topic", "level", "id"), sorted(rows, key=lambda row: str(row[0])), note=note)

    def _dead_letters(self) -> PageTable:
        counts: Counter[tuple[str, str, str]] = Counter()
        note = ""
        topics = {queue.name.topic for queue in self._queues.list_all()}
        for topic in sorted(topic for topic in topics if topic.startswith(DLQ_PREFIX)):
            page = read_page(self.source, ListConditions(topic), None, _MOST_READ, 1)
            note = (
                note
                if page.next_before_offset is None
                else f"at most the newest {_MOST_READ:,} of each group are shown"
            )
            for one in page.messages:
                about, tries = one.properties, one.record.reconsume_times
                reason = "moved to the dead-letter queue without a retry"
                reason = f"not consumed after {tries} attempts" if tries > 1 else reason
                origin = about.get("DLQ_ORIGIN_TOPIC", about.get("RETRY_TOPIC", ""))
                counts[topic.removeprefix(DLQ_PREFIX), reason, origin] += 1
        rows = [(*named, count, f"{DLQ_PREFIX}{named[0]}") for named, count in sorted(counts.items())]
        return PageTable(("consumer group", "reason", "origin topic", "messages", "topic"), rows, note=note)

    def _open_transactions(self) -> PageTable:
        release = self.source.release
        if release.half_message_in_real_topic:
            (halves, was_cut_short), part = self._open_in_log(), "only part of the log was searched"
        else:
            (halves, was_cut_short), part = (
                find_open_half_messages(self.source, _MOST_READ),
                f"at most the newest {_MOST_READ:,} of each queue were searched",
            )
        rows = [
            (half.record.store_timestamp, about.get(REAL_TOPIC, half.topic), about.get("PGROUP"), half.message_id)
            for half, about in ((half, half.properties) for half in halves)
        ]
        note = part if was_cut_short else ""
        return PageTable(("stored", "topic", "producer group", "id"), rows, note=note)

    def _open_in_log(self) -> tuple[list[Message], bool]:
        """Find the open half messages of brokers up to 4.2.0, which are in no queue, by reading the log."""
        found: list[Message] = []
        ended: set[int] = set()
        last_moment = monotonic() + _SECONDS_OF_HALVES
        for offset, message in self.source.read_log_before(
            ListConditions(), self._reader.store.end_offset, _SPAN_OF_HALVES
        ):
            if message is None:
                if monotonic() > last_moment and offset > self._reader.store.start_offset:
                    return found, True
            elif message.transaction in {TransactionType.COMMIT, TransactionType.ROLLBACK}:
                ended.add(message.record.prepared_transaction_offset)
            elif message.transaction is TransactionType.PREPARED and offset not in ended:
                found.append(message)
        return found, False

    # the index

    def index_chains(self, message: Message) -> Iterator[IndexChain]:
        """Yield, for each key of a message, the chain in the index file that has it."""
        offset = message.record.physical_offset
        for key in dict.fromkeys(typed_index_keys(message.record, self.source.release)):
            key_hash = index_key_hash(key.text)
            for file in self._reader.index_readers_around(offset):
                slot = file.geometry.slot_of(key_hash)
                entries: list[tuple[int, int, int]] = []
                with suppress(CorruptData):  # entries are shown up to the place where the chain is broken
                    hops = islice(file.chain(slot), _LONGEST_CHAIN)
                    entries.extend((hop.number, hop.entry.physical_offset, hop.entry.key_hash) for hop in hops)
                if any(entry[1:] == (offset, key_hash) for entry in entries):  # its keys may be in two files
                    name = (file.file or "").rpartition("/")[2]
                    yield IndexChain(key.key, key_hash, name, slot, entries)
