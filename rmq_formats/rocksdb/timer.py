"""
Timer messages in RocksDB: a row for each message that waits, by the time of its delivery.

Rows outlive the delivery: pending are those whose time is not before the row `timeline_checkpoint`.
"""

from typing import NamedTuple

from rmq_formats.errors import CorruptData
from rmq_formats.layout import Buffer
from rmq_formats.rocksdb.layout import PROGRESS_VALUE, TIMER_VALUE

FAMILY = "timer"
SCANNED_KEY = b"sys_topic_scan_offset_checkpoint"
"""The row that says which unit of `rmq_sys_wheel_timer` is read next."""
DELIVERED_KEY = b"timeline_checkpoint"
"""The row that says up to which time messages were delivered."""

_TIME_SIZE = 8


class TimerRow(NamedTuple):
    """A message that is, or was, to be delivered at a time."""

    delivery_ms: int  # floored to timerRocksDBPrecisionMs
    unique_key: str
    size: int
    physical_offset: int  # of the record in `rmq_sys_wheel_timer`


def decode_timer_row(key: bytes, value: Buffer) -> TimerRow:
    """Decode a row."""
    if len(key) <= _TIME_SIZE:
        raise CorruptData(f"{key.hex()} is no key of a timer message")
    size, physical_offset = map(int, TIMER_VALUE.unpack(value))
    time = int.from_bytes(key[:_TIME_SIZE], "big", signed=True)
    return TimerRow(time, key[_TIME_SIZE:].decode("utf-8", "replace"), size, physical_offset)


def decode_progress(value: Buffer) -> int:
    """Return the number that a row of progress holds."""
    (number,) = map(int, PROGRESS_VALUE.unpack(value))
    return number
