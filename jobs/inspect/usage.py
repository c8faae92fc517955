"""
The space that each topic takes in the log, and what retention deletes next.

Both come from queue units, which state the size of each record, so that the log is not read. All units of a queue are
read up to a limit; of a larger queue, evenly spaced blocks are read, and the size of the others is estimated.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from jobs.inspect.usage_report import (
    DEAD_LETTERS,
    LIGHT_QUEUE,
    MESSAGES,
    RETRIES,
    NextDeletion,
    TopicUsage,
    UnconsumedMessages,
    Usage,
)
from jobs.launch.arguments import file_system_options
from jobs.query.store_reader import StoreReader
from jobs.store.broker_config import ConsumerKind, read_broker_config
from jobs.store.queue_files import StoredQueue
from jobs.store.record_places import find_record
from jobs.store.store import Segment, Store, list_store
from jobs.store.units import is_written, read_stored_units
from rmq_formats.consumequeue.dispatch import LMQ_PREFIX, QueueKind, QueueName
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE

_BLOCK_UNITS = 1024
_SAMPLED_BLOCKS = 64
_FEW_UNITS = _BLOCK_UNITS * _SAMPLED_BLOCKS  # a queue with at most this many units is read as a whole
_LiveQueue = tuple[StoredQueue, int, int]
"""A queue, the number of its first unit that points into the log, and the position after its last unit."""

_GROUP_PREFIXES = (("%RETRY%", RETRIES), ("%DLQ%", DEAD_LETTERS))


def measure_usage(root: str, commitlog: Sequence[str], log_end: int | None) -> Usage:
    """Return the space that topics take in a log that ends at *log_end*."""
    with StoreReader(list_store(root, commitlog=commitlog, options=file_system_options())) as reader:
        return measure_usage_of_open_store(reader, log_end)


def measure_usage_of_open_store(reader: StoreReader, log_end: int | None) -> Usage:
    """Return the space that topics take in a log that ends at *log_end*."""
    queues = [(queue, *reader.find_live_units(queue)[:2]) for queue in reader.stored_queues[0]]
    return _measure(reader.store, [one for one in queues if one[1] < one[2]], log_end)


def _measure(store: Store, queues: Sequence[_LiveQueue], log_end: int | None) -> Usage:
    usage = Usage(sum(segment.size for segment in store.segments))
    if not store.segments:
        return usage
    end = store.segments[-1].limit_offset if log_end is None else log_end
    usage.unused_bytes = sum(max(one.base_offset + one.size - max(end, one.base_offset), 0) for one in store.segments)
    topics: dict[str, TopicUsage] = {}
    for live in queues:
        topic = live[0].name.topic
        found = topics.setdefault(topic, _create_topic(topic))
        usage.is_estimated |= _add_queue(found, live, range(store.start_offset, end))
    for found in topics.values():
        found.first_store_timestamp = _read_store_timestamp(store, found.first_offset)
        found.last_store_timestamp = _read_store_timestamp(store, found.last_offset)
    usage.topics = sorted(topics.values(), key=lambda one: (-one.record_bytes, one.topic))
    attributed = sum(topic.record_bytes for topic in usage.topics)
    usage.unattributed_bytes = usage.log_bytes - usage.unused_bytes - attributed
    if len(store.segments) > 1:
        usage.next_deletion = _find_next_deletion(store, queues)
    return usage


def _create_topic(name: str) -> TopicUsage:
    for prefix, content in _GROUP_PREFIXES:
        if name.startswith(prefix):
            return TopicUsage(name, name.removeprefix(prefix), content)
    return TopicUsage(name, None, LIGHT_QUEUE if name.startswith(LMQ_PREFIX) else MESSAGES)


def _add_queue(topic: TopicUsage, live: _LiveQueue, log: range) -> bool:
    """Add the records of a queue whose offsets are in *log*; return whether their number and sizes are an estimate."""
    queue, first, end = live
    read = written = size = 0
    for start, stop in _plan_blocks(first, end):
        units = read_stored_units(queue, start, stop)
        in_log = (units["physical_offset"] >= log.start) & (units["physical_offset"] < log.stop)
        units = units[is_written(units) & in_log & (units["size"] != PRE_BLANK_SIZE)]
        read += stop - start
        written += units.size
        size += int(units["size"].sum(dtype=np.int64))
        if units.size:
            offsets = units["physical_offset"]
            first_offset, last_offset = int(offsets.min()), int(offsets.max())
            topic.first_offset = min(first_offset, first_offset if topic.first_offset is None else topic.first_offset)
            topic.last_offset = max(last_offset, last_offset if topic.last_offset is None else topic.last_offset)
    share = (end - first) / read
    topic.records += round(written * share)
    if topic.has_own_records:
        topic.record_bytes += round(size * share)
    return read < end - first


def _plan_blocks(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a queue to read: all units, or evenly spaced blocks with the first and the last one."""
    count = end - first
    if count <= _FEW_UNITS:
        yield first, end
        return
    step = (count - _BLOCK_UNITS) / (_SAMPLED_BLOCKS - 1)
    for number in range(_SAMPLED_BLOCKS):
        start = first + round(number * step)
        yield start, start + _BLOCK_UNITS


def _read_store_timestamp(store: Store, physical_offset: int | None) -> int | None:
    record = None if physical_offset is None else find_record(store, physical_offset)
    return None if record is None else record.store_timestamp


def _find_next_deletion(store: Store, queues: Iterable[_LiveQueue]) -> NextDeletion:
    """Return the oldest segment, with the messages in it that groups have not consumed."""
    oldest: Segment = store.segments[0]
    found = NextDeletion(oldest.location, oldest.size)
    ends: dict[QueueName, tuple[int, int]] = {}
    newest = -1
    for queue, first, queue_end in queues:
        stop = queue.first_unit_pointing_from(oldest.limit_offset, queue_end)
        last = queue.read_unit(stop - 1) if stop > first else None
        if last is None:
            continue
        newest = max(newest, last.physical_offset)
        if not queue.name.topic.startswith(LMQ_PREFIX):
            found.records += stop - first
        if queue.name.kind is QueueKind.PLAIN:
            ends[queue.name] = first, stop
    found.last_store_timestamp = _read_store_timestamp(store, newest) if newest >= 0 else None
    waiting: dict[tuple[str, str], int] = {}
    for reader in read_broker_config(store).progress:
        if reader.kind is not ConsumerKind.CONSUMER or reader.consumer_group is None:
            continue
        first, stop = ends.get(QueueName(QueueKind.PLAIN, reader.topic, reader.queue_id), (0, 0))
        messages = stop - max(reader.next_offset, first)
        if messages > 0:
            name = reader.topic, reader.consumer_group
            waiting[name] = waiting.get(name, 0) + messages
    found.unconsumed = [UnconsumedMessages(*name, count) for name, count in sorted(waiting.items())]
    return found
