"""
ConsumeQueue layouts: the unit of a plain queue, of a BatchConsumeQueue, and of the extension file.

A queue's files are one sequence of bytes; each file is named after the logical offset of its first byte. The n-th unit
of a plain queue is at n * 20 only if the queue is healthy, because the broker appends units.

ConsumeQueueExt contains values that do not fit into a unit (4.1.0+, `enableConsumeQueueExt`): the queue's unit then has
the address of an extension unit in place of its tags code. Everything can be derived from the log, except filter
bitmaps (`enableCalcFilterBitMap`, off by default).
"""

from typing import NamedTuple

from rmq_formats.errors import CorruptData, NeedMoreData
from rmq_formats.layout import Buffer, Layout

UNIT = Layout(
    ("physical_offset", "q", "offset of the record in the log"),
    ("size", "i", "the record's total_size; 2147483647 in a blank unit"),
    ("tags_code", "q", "hash of the TAGS text; delivery time on the schedule topic; or address of an extension unit"),
)

# 5.0.0+, topics whose attribute queue.type is BatchCQ.
BATCH_UNIT = Layout(
    ("physical_offset", "q", "offset of the record in the log"),
    ("size", "i", "the record's total_size"),
    ("tags_code", "q", "hash of the TAGS text"),
    ("store_timestamp", "q", "store time of the record, in ms"),
    ("base_offset", "q", "number of the record's first message in its queue"),
    ("batch_count", "h", "number of messages in the record"),
    ("compacted_offset", "i", "always -1"),
    ("reserved", "i", "always 0"),
)

# 4.1.0+ with enableConsumeQueueExt; the bitmap follows.
EXT_UNIT = Layout(
    ("size", "h", "size of the unit, including these two bytes and the bitmap; -1 ends a file"),
    ("tags_code", "q", "tags_code that the queue's unit would have without the extension"),
    ("store_timestamp", "q", "store time of the record, in ms"),
    ("bitmap_size", "h", "bytes of the filter bitmap that follows"),
)

PRE_BLANK_SIZE = 0x7FFFFFFF  # the `size` of a unit that fills a new queue's first file up to its first message
MAX_QUEUE_OFFSET = (1 << 63) // 32  # the limit of a queue: larger logical offsets would overflow
BATCH_COMPACTED_OFFSET = -1
EXT_END_MARK = (-1).to_bytes(2, "big", signed=True)
EXT_END_RESERVE = 4  # bytes that a unit leaves free for the end mark
EXT_ADDRESS_BASE = -(1 << 63)  # an extension unit's address is its offset, counted from here
MAX_EXT_ADDRESS = -(1 << 31) - 1  # no hash is as low as this

DEFAULT_FILE_SIZE = 300_000 * UNIT.size
DEFAULT_BATCH_FILE_SIZE = 300_000 * BATCH_UNIT.size


def rounded_file_size(configured: int) -> int:
    """Return the size of a broker's files: rounded up to full units."""
    return -(-configured // UNIT.size) * UNIT.size


class ExtUnit(NamedTuple):
    """One extension unit."""

    size: int
    tags_code: int
    store_timestamp: int
    bitmap: bytes


def decode_ext_unit(buffer: Buffer, position: int = 0) -> ExtUnit:
    """Return the extension unit at *position*."""
    size, tags_code, store_timestamp, bitmap_size = map(int, EXT_UNIT.unpack(buffer, position))
    bitmap_at = position + EXT_UNIT.size
    if bitmap_size < 0 or size != EXT_UNIT.size + bitmap_size:
        raise CorruptData(f"invalid extension unit: {size} bytes, with a bitmap of {bitmap_size} bytes", position)
    if bitmap_at + bitmap_size > memoryview(buffer).nbytes:
        raise NeedMoreData(f"bitmap of {bitmap_size} bytes, {memoryview(buffer).nbytes - bitmap_at} left", position)
    return ExtUnit(size, tags_code, store_timestamp, bytes(buffer[bitmap_at : bitmap_at + bitmap_size]))


def ext_address_offset(address: int) -> int:
    """Return the offset of the extension unit of *address*."""
    return address - EXT_ADDRESS_BASE


def ext_unit_offset(number: int, file_size: int) -> int:
    """Return the offset of a queue's *number*-th extension unit without a bitmap."""
    in_file = (file_size - EXT_END_RESERVE) // EXT_UNIT.size
    return number // in_file * file_size + number % in_file * EXT_UNIT.size
