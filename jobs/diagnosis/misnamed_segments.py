"""Segments of the log under a name that is not theirs: their records belong where the log has no file."""

from jobs.store.queue_files import queues_of_files
from jobs.store.ranges import holes, usual_size
from jobs.store.store import Segment, Store
from rmq_formats.commitlog.layout import RECORD
from rmq_formats.commitlog.record import MessageRecord, decode_record, has_right_body_crc
from rmq_formats.consumequeue.unit import QueueKind, QueueName
from rmq_formats.errors import FormatError
from rmq_formats.layout import Read
from rmq_formats.store import name_of_offset

_PLACE = RECORD[0].offset("physical_offset")
_LONGEST_RECORD = 8 << 20


def right_name(store: Store, segment: Segment, read: Read) -> int | None:
    """
    Return the right name of a segment that does not begin with a record of its place; None if nothing proves it.

    It begins with the record of an offset at which a segment is missing, or of one before the log. Two witnesses
    say the same: the record, with its CRC, and the gap or its unit. One changed bit would contradict one of them,
    and the unit contradicts a segment of another log.
    """
    right, size = int.from_bytes(read(_PLACE, 8)), usual_size(store.segments).size
    is_missing = any(hole.start == right for hole in holes(store.segments))
    if not is_missing and not (right < store.start_offset and size and right % size == 0):
        return None
    try:
        first = decode_record(bytes(read(0, min(segment.size, _LONGEST_RECORD))))
    except FormatError:
        return None
    is_named = _is_named(first, store)
    is_proven = is_missing if is_named is None else is_named
    return right if is_proven and has_right_body_crc(first) else None


def wrong_name_text(right: int) -> str:
    """Return the finding of a segment whose name should be *right*, in words."""
    return f"its records are those of {name_of_offset(right)}, which is missing: the file has a wrong name"


def _is_named(record: MessageRecord, store: Store) -> bool | None:
    """Ask the record's unit whether it leads to it; None where its queue has no such unit."""
    for queue in queues_of_files(store.queue_files, store.storage):
        if queue.name == QueueName(QueueKind.PLAIN, record.topic, record.queue_id):
            unit = queue.unit(record.queue_offset)
            return unit and (unit.physical_offset, unit.size) == (record.physical_offset, record.total_size)
    return None
