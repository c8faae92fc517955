"""
Messages that consumers receive twice because one segment of a log is a copy of another one.

A broker does not compare the offset that a record states with its place. So for each unit that points into the copy, it
delivers the bytes at that position: if a record of the same size begins there, a message of the original segment.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from jobs.store.queue_files import StoredQueue, queues_in_files, split_into_chunks
from jobs.store.record_places import segment_bytes
from jobs.store.store import Segment, Store
from rmq_formats.commitlog.layout import HEAD
from rmq_formats.consumequeue.dispatch import QueueKind, Unit, walk_units
from rmq_formats.errors import skip_lost_file

_CHUNK = 1 << 20  # bytes of a queue
_PLACE = HEAD.offset("physical_offset")


def find_messages_delivered_twice(store: Store, segment: Segment) -> list[int]:
    """Return the offsets of the messages of another segment that units deliver again from *segment*."""
    starts, sizes = array("q"), array("q")
    with skip_lost_file(), store.open(segment) as reader:
        log = segment_bytes(segment, reader)
        header_size = log.framing.header_size
        stated = int.from_bytes(log.read(header_size + _PLACE, 8), "big", signed=True)
        original = stated - header_size
        if any(one.base_offset == original for one in store.segments if one is not segment):
            for start, end in replace(log, base_offset=original).walk_record_bounds():
                starts.append(start - original)
                sizes.append(end - start)
    delivered = bytearray(len(starts))
    for queue in queues_in_files(store) if starts else ():
        for unit in _read_units_into(queue, segment):
            number = bisect_left(starts, unit.physical_offset - segment.base_offset)
            if number < len(starts) and (starts[number], sizes[number]) == (
                unit.physical_offset - segment.base_offset,
                unit.size,
            ):
                delivered[number] = 1
    return [original + starts[number] for number, is_delivered in enumerate(delivered) if is_delivered]


def _read_units_into(queue: StoredQueue, segment: Segment) -> Iterator[Unit]:
    """Yield the units of a queue that point into a segment."""
    if queue.name.kind is not QueueKind.PLAIN:
        return
    end = queue.find_written_end()
    start = queue.first_unit_pointing_from(segment.base_offset, end)
    stop = queue.first_unit_pointing_from(segment.limit_offset, end)
    for first, last in split_into_chunks(start, stop, _CHUNK // queue.unit_size):
        with skip_lost_file():
            yield from walk_units(queue.read(first, last))
