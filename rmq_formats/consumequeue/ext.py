"""
ConsumeQueueExt: values that do not fit into a unit, in files of their own (4.1.0+, `enableConsumeQueueExt`).

The queue's unit then holds the address of an extension unit in place of its tags code. Without filter bitmaps
(`enableCalcFilterBitMap`, off by default) all of it follows from the log, and so do the files. A bitmap does not.
"""

from typing import NamedTuple

from rmq_formats.consumequeue.layout import EXT_ADDRESS_BASE, EXT_END_SIZE, EXT_UNIT
from rmq_formats.errors import CorruptData, NeedMoreData
from rmq_formats.layout import Buffer


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
        raise CorruptData(f"extension unit of {size} bytes with a bitmap of {bitmap_size}", position)
    if bitmap_at + bitmap_size > memoryview(buffer).nbytes:
        raise NeedMoreData(f"bitmap of {bitmap_size} bytes, {memoryview(buffer).nbytes - bitmap_at} there", position)
    return ExtUnit(size, tags_code, store_timestamp, bytes(buffer[bitmap_at : bitmap_at + bitmap_size]))


def offset_of_address(address: int) -> int:
    """Return the offset of the extension unit of *address*."""
    return address - EXT_ADDRESS_BASE


def offset_of_number(number: int, file_size: int) -> int:
    """Return the offset of a queue's *number*-th extension unit without a bitmap."""
    in_file = (file_size - EXT_END_SIZE) // EXT_UNIT.size
    return number // in_file * file_size + number % in_file * EXT_UNIT.size
