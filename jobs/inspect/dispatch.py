"""
Whether records that were looked at have their units and index entries, as far as names, heads and ends tell.

Some records of each segment are enough to miss a queue's folder, or the first and last files of a queue. Index files
form a chain: where one ends and the next begins tells which messages no file has. What lies inside a file only `verify`
compares.
"""

from collections.abc import Iterator
from itertools import islice, pairwise
from operator import attrgetter
from typing import NamedTuple

from jobs.inspect.index import IndexReport
from jobs.inspect.problems import Problems
from jobs.inspect.queues import QueueReport, QueuesReport
from jobs.store.record_places import records_from, segment_bytes
from jobs.store.store import Store
from jobs.store.topics import Fate, TopicTable, newest_times
from rmq_formats.commitlog.layout import TransactionType, transaction_type
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.consumequeue.unit import QueueKind
from rmq_formats.errors import ignore_lost
from rmq_formats.indexfile.file import index_keys
from rmq_formats.release import OLDEST

_LOOKED_AT = 500  # records after an index file's end, until one has a key
_WITHOUT_UNIT = frozenset({TransactionType.PREPARED, TransactionType.ROLLBACK})


class RecordPlace(NamedTuple):
    """A record's place in its queue, and in the log."""

    physical_offset: int
    queue_offset: int
    store_timestamp: int


class SampledQueues:
    """The places of records that were looked at, the first and the last of each queue."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int], tuple[RecordPlace, RecordPlace]] = {}

    def see(self, record: MessageRecord) -> None:
        """Take note of a record."""
        if transaction_type(record.sys_flag) in _WITHOUT_UNIT:
            return
        place = RecordPlace(record.physical_offset, record.queue_offset, record.store_timestamp)
        first, last = self._ends.get((record.topic, record.queue_id), (place, place))
        self._ends[record.topic, record.queue_id] = (min(first, place), max(last, place))

    def compare(self, queues: QueuesReport, topics: TopicTable) -> Problems:
        """Return which queues lack a folder or their first or last units; *topics* says which were deleted."""
        found = Problems()
        if queues.in_rocksdb and not queues.queues:
            return found  # after a kill: units were in memory
        known = {(queue.topic, queue.queue_id): queue for queue in queues.queues}
        # Newer records may wait for their units; where no queue is left, none of them does.
        newest = max((queue.last_physical_offset or 0 for queue in queues.queues), default=None)
        sampled_ms = newest_times((topic, last.store_timestamp) for (topic, _), (_, last) in self._ends.items())
        for (topic, queue_id), ends in sorted(self._ends.items()):
            fate = Fate.ALIVE if topic in queues.topics else topics.fate(topic, sampled_ms[topic])
            if fate is Fate.DELETED:
                queues.deleted_topics.add(topic)
                continue
            name = f"consumequeue/{topic}/{queue_id}"
            places = [place for place in ends if newest is None or place.physical_offset <= newest]
            if places and fate is Fate.UNDECIDED and queues.queues:
                text = "undecided: the topic was deleted, or the queue is lost, and the log has messages of it: "
                add = found.note if topics.unsupported else found.gap
                add(name, text + topics.explain(topic), places[0].physical_offset)
            elif places:
                _compare_queue(name, known.get((topic, queue_id)), places, found)
        return found


def _compare_queue(name: str, queue: QueueReport | None, places: list[RecordPlace], found: Problems) -> None:
    if queue is None:
        text = "the queue has no folder, and the log has messages of it"
        found.gap(name, text, places[0].physical_offset)
        return
    if queue.kind is not QueueKind.PLAIN:
        return
    for place in places:
        if not queue.first_unit <= place.queue_offset < queue.next_unit:
            text = (
                f"unit {place.queue_offset} is missing: the files have {queue.first_unit} to {queue.next_unit - 1}, "
                "and the log has its message"
            )
            found.gap(name, text, place.physical_offset)
            return


def compare_index(store: Store, index: IndexReport, problems: Problems, end: int | None) -> None:
    """Note the messages between and before the index files, and after them up to *end* where it is given."""
    files = sorted((file for file in index.files if file.entries), key=attrgetter("begin_physical_offset"))
    for before, after in pairwise([None, *files, None] if files else []):
        start = store.start_offset if before is None else before.end_physical_offset
        limit = end if after is None else after.begin_physical_offset
        found = None if limit is None else first_keyed(store, start, limit, is_indexed=before is not None)
        if found is None:
            continue
        which = "the first" if before is None else "this"
        until = "to the end of the log" if after is None else f"up to offset {limit}, where {which} one begins"
        text = (
            f"no index file has the keys of messages from offset {found} {until}: a file is missing, or index was off"
        )
        nearest = after or before
        assert nearest is not None  # there is a file
        problems.gap(nearest.file, text, found)


def first_keyed(store: Store, start: int, limit: int, *, is_indexed: bool = False) -> int | None:
    """Return the first message with a key between two offsets; that at *start* is none where it *is_indexed*."""
    if limit <= start:
        return None
    records = _records(store, start)
    if is_indexed and next(records, None) is None:  # the last message of an index file is not in the log any more
        return None
    for record in islice(records, _LOOKED_AT):
        if record.physical_offset >= limit:
            return None
        if index_keys(record, OLDEST):
            return record.physical_offset
    return None


def _records(store: Store, start: int) -> Iterator[MessageRecord]:
    """Yield the records from the one at the physical offset *start* on, segment after segment."""
    for segment in store.segments:
        position = start - segment.base_offset
        if position >= segment.readable:
            continue
        with ignore_lost(), store.open(segment) as reader:
            log = segment_bytes(segment, reader)
            # An offset is that of the record itself, a position that of what frames it.
            yield from records_from(log, position - log.framing.header_size if position > 0 else 0)
