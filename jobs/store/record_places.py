"""Records by their places: those of a segment by their sizes, without decoding one; one by its offset."""

from collections.abc import Iterator

from jobs.store.store import Store
from rmq_formats.commitlog.layout import HEAD, MIN_RECORD_SIZE, TOPIC_LENGTH
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.commitlog.segment import SegmentBytes
from rmq_formats.errors import FormatError

_WINDOW = 1 << 20
_TOTAL_SIZE, _MAGIC_CODE, _PHYSICAL_OFFSET = (
    HEAD.index(name) for name in ("total_size", "magic_code", "physical_offset")
)


def record_places(log: SegmentBytes, start: int = 0) -> Iterator[tuple[int, int]]:
    """
    Yield the physical offsets at which each record of a segment begins and ends, up to the first that is no record.

    Found by following the sizes from the segment's first byte, or from a known boundary at position *start*: whatever
    else looks like a record is none.
    """
    header = log.framing.header_size
    window, window_start = b"", 0
    position = start + header
    while True:
        at = position - window_start
        if not 0 <= at <= len(window) - HEAD.size:
            window_start, at = position, 0
            window = bytes(log.read(window_start, min(_WINDOW, log.size - window_start)))
        try:
            head = HEAD.unpack(window, at)
        except FormatError:
            return
        size, offset = int(head[_TOTAL_SIZE]), int(head[_PHYSICAL_OFFSET])
        is_record = offset == log.base_offset + position and int(head[_MAGIC_CODE]) in TOPIC_LENGTH
        if not is_record or not MIN_RECORD_SIZE <= size <= log.size - position:
            return
        yield offset, offset + size
        position += size + header


def find_record(store: Store, physical_offset: int) -> MessageRecord | None:
    """Return the record at *physical_offset*, if one is there."""
    for segment in store.segments:
        position = physical_offset - segment.base_offset
        if 0 <= position < segment.readable:
            try:
                with store.open(segment) as reader:
                    return SegmentBytes(reader.read, segment.readable, segment.base_offset).record_at(position)
            except (FormatError, OSError):
                return None
    return None
