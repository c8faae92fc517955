"""Segments of the log under a name that is not theirs: their records belong where the log has no file."""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from jobs.store.queue_files import queues_of_files
from jobs.store.ranges import holes, usual_size
from jobs.store.store import Segment, Store
from rmq_formats.commitlog.layout import RECORD
from rmq_formats.commitlog.record import MessageRecord, decode_record, has_right_body_crc
from rmq_formats.consumequeue.unit import QueueKind, QueueName
from rmq_formats.errors import FormatError
from rmq_formats.store import name_of_offset

_PLACE = RECORD[0].offset("physical_offset")
_LONGEST_RECORD = 8 << 20


class Misnamed(NamedTuple):
    """A segment, and the offset that its name should be."""

    segment: Segment
    right: int

    @property
    def text(self) -> str:
        """The finding in words."""
        return f"its records are those of {name_of_offset(self.right)}, which is missing: the file has a wrong name"


def misnamed_segments(store: Store) -> Iterator[Misnamed]:
    """
    Yield segments that begin with the record of an offset at which a segment is missing, or of one before the log.

    Two witnesses say the same: the record, with its CRC, and the gap or its unit. One changed bit would contradict one
    of them, and the unit contradicts a segment of another log.
    """
    size, start = usual_size(store.segments), store.start_offset
    missing = {hole.start for hole in holes(store.segments)}
    for segment in store.segments if missing or start else ():
        with suppress(FormatError, OSError), store.open(segment) as file:
            right = int.from_bytes(file.read(_PLACE, 8))
            if right in missing or (right < start and right % size == 0):
                first = decode_record(bytes(file.read(0, min(segment.size, _LONGEST_RECORD))))
                is_named = _is_named(first, store)
                if has_right_body_crc(first) and (is_named or (is_named is None and right in missing)):
                    yield Misnamed(segment, right)


def _is_named(record: MessageRecord, store: Store) -> bool | None:
    """Ask the record's unit whether it leads to it; None where its queue has no such unit."""
    for queue in queues_of_files(store.queue_files, store):
        if queue.name == QueueName(QueueKind.PLAIN, record.topic, record.queue_id):
            unit = queue.unit(record.queue_offset)
            return unit and (unit.physical_offset, unit.size) == (record.physical_offset, record.total_size)
    return None
