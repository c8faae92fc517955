"""Which message of a queue a broker takes for a time, as printMsg asks it with -b and -e."""

from bisect import bisect_left

from jobs.query.mqadmin.text import OffsetRange
from jobs.query.source import Source


def offset_at(source: Source, topic: str, queue_id: int, offsets: OffsetRange, time: int) -> int:
    """Return the offset of a queue that brokers of the release give for a store time."""
    if source.release.time_search_takes_nearest:
        return _nearest(source, topic, queue_id, source.searched_by_time(topic, queue_id, offsets, time), time)
    return _first_at_or_after(source, topic, queue_id, offsets, time)


def _first_at_or_after(source: Source, topic: str, queue_id: int, offsets: OffsetRange, time: int) -> int:
    def stored(offset: int) -> int:
        found = _stored(source, topic, queue_id, offset)
        return time if found is None else found

    return bisect_left(range(offsets.maximum), time, offsets.minimum, key=stored)


def _nearest(source: Source, topic: str, queue_id: int, searched: OffsetRange, time: int) -> int:
    """Return the message stored nearest to a time, as ConsumeQueue#getOffsetInQueueByTime; of two as near the first."""
    low, high = searched.minimum, searched.maximum - 1
    before: tuple[int, int] | None = None  # store time, offset
    after: tuple[int, int] | None = None
    while low <= high:
        middle = (low + high) // 2
        stored = _stored(source, topic, queue_id, middle)
        if stored is None:
            return 0
        if stored == time:
            return middle
        if stored > time:
            after, high = (stored, middle), middle - 1
        else:
            before, low = (stored, middle), middle + 1
    if before is None or after is None:
        found = before or after
        return found[1] if found else searched.minimum
    return after[1] if time - before[0] > after[0] - time else before[1]


def _stored(source: Source, topic: str, queue_id: int, offset: int) -> int | None:
    message = source.in_queue(topic, queue_id, offset)
    return message.record.store_timestamp if message else None
