"""
Queues and index files, built entry by entry like a broker, as reference for the compiled builders.

A broker *appends* to a queue. It compares the position of a unit's queue offset with its write position, but only to
drop a unit whose offset is too low. A unit whose offset is too high is written at the write position, and a queue
offset of 0 is never compared. So in a healthy log, the n-th unit is at n * 20; otherwise, the order of the log decides.
"""

from collections.abc import Iterable, Iterator, Sequence
from threading import local
from typing import Self
from unittest.mock import patch

import numpy as np

from rmq_formats.commitlog.record import MessageRecord, encode_record
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.consumequeue import collect
from rmq_formats.consumequeue.collect import PackedUnits, UnitCollector
from rmq_formats.consumequeue.dispatch import PRE_BLANK, ExpectedUnit, QueueName, UnitRules, logical_offset
from rmq_formats.consumequeue.layout import (
    EXT_ADDRESS_BASE,
    EXT_END_MARK,
    EXT_END_RESERVE,
    EXT_UNIT,
    UNIT,
    ext_unit_offset,
)
from rmq_formats.indexfile.keys import index_keys
from rmq_formats.indexfile.layout import ENTRY, HEADER, SLOT, Geometry, IndexHeader
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.kernels.integers import as_bytes
from rmq_formats.properties import MAX_INT, index_key_hash, wrap_to_java_long
from rmq_formats.release import HashSlotCount, Release, Rules, UnitSkip, release_at
from rmq_formats.rocksdb.layout import QUEUE_OFFSET_SIZE, UNIT_VALUE, decode_prefix


class ConsumeQueue:
    """A plain queue that begins empty."""

    def __init__(self, file_size: int) -> None:
        self._file_size = file_size
        self._start: int | None = None  # of the first file
        self._data = bytearray()
        self._files = 0
        self._last_offset = -1
        self._last_end = -1

    def append(self, unit: ExpectedUnit, release: Release) -> None:
        # ConsumeQueue#putMessagePositionInfo
        end_offset = unit.physical_offset + unit.size
        by_offset = release.unit_skip is UnitSkip.OFFSET_NOT_BEYOND_LAST
        if unit.physical_offset <= self._last_offset if by_offset else end_offset <= self._last_end:
            return
        expected = logical_offset(unit.queue_offset)
        self._make_room(expected)
        end = (self._start or 0) + len(self._data)
        if unit.queue_offset and expected < end and release.drops_low_queue_offset:
            return
        self._last_offset = unit.physical_offset
        self._last_end = end_offset
        self._data += unit.encoded

    def _make_room(self, expected: int) -> None:
        if self._start is None:
            blanks = max(expected, 0) % self._file_size // UNIT.size
            self._start = max(expected, 0) // self._file_size * self._file_size
            self._data += UNIT.pack(*PRE_BLANK) * blanks
            self._files = 1
        elif len(self._data) == self._files * self._file_size:
            self._files += 1  # created before the unit is checked, so it stays empty if the unit is dropped

    def files(self) -> Iterator[tuple[int, bytes]]:
        for number in range(self._files):
            at = number * self._file_size
            yield (self._start or 0) + at, bytes(self._data[at : at + self._file_size]).ljust(self._file_size, b"\0")


class BatchConsumeQueue:
    """A queue of batch units that begins empty; units are appended in the order of the log."""

    def __init__(self, file_size: int) -> None:
        self._file_size = file_size
        self._data = bytearray()
        self._last_offset = -1

    def append(self, unit: ExpectedUnit, _release: Release) -> None:
        # BatchConsumeQueue#putBatchMessagePositionInfo
        if unit.physical_offset > self._last_offset:
            self._last_offset = unit.physical_offset
            self._data += unit.encoded

    def files(self) -> Iterator[tuple[int, bytes]]:
        for at in range(0, len(self._data), self._file_size):
            yield at, bytes(self._data[at : at + self._file_size]).ljust(self._file_size, b"\0")


class ConsumeQueueExt:
    """The extension of a queue, with units without bitmaps."""

    def __init__(self, file_size: int) -> None:
        self._file_size = file_size
        self._units: list[bytes] = []

    def append(self, tags_code: int, store_timestamp: int) -> int:
        self._units.append(EXT_UNIT.pack(EXT_UNIT.size, tags_code, store_timestamp, 0))
        return EXT_ADDRESS_BASE + ext_unit_offset(len(self._units) - 1, self._file_size)

    def files(self) -> Iterator[tuple[int, bytes]]:
        in_file = (self._file_size - EXT_END_RESERVE) // EXT_UNIT.size
        for first in range(0, len(self._units), in_file):
            data = b"".join(self._units[first : first + in_file])
            # The put that does not fit writes the end mark.
            if first + in_file < len(self._units):
                data += EXT_END_MARK
            yield first // in_file * self._file_size, data.ljust(self._file_size, b"\0")


def time_diff_s(begin_timestamp: int, store_timestamp: int) -> int:
    """Return the seconds that an entry stores, in Java's integers: wrapped, truncated toward zero, then clamped."""
    if begin_timestamp <= 0:
        return 0
    return min(max(wrap_to_java_long(store_timestamp - begin_timestamp), 0) // 1000, MAX_INT)


def decode_unit_row(key: bytes, value: bytes) -> tuple[QueueName, int, int, int, int, int]:
    """Return queue, queue offset, physical offset, size, tags code and store time from the row of a unit in RocksDB."""
    number = int.from_bytes(key[-QUEUE_OFFSET_SIZE:], "big", signed=True)
    offset, size, tags_code, store_timestamp = map(int, UNIT_VALUE.unpack(value))
    return decode_prefix(key[:-QUEUE_OFFSET_SIZE]), number, offset, size, tags_code, store_timestamp


class IndexFile:
    """
    An index file in memory, written like that of a broker, one put after the other.

    Two details affect bytes unexpectedly: the begin of a new file is the end of the previous one, from which the
    seconds of its first entry are counted; and the next file is created before the keys of a message are checked, so
    that a message without keys may create a file.
    """

    def __init__(self, geometry: Geometry, data: bytearray, header: IndexHeader) -> None:
        """Use *data* as the mapped file, and *header* as the broker's state; see `created`."""
        self.geometry = geometry
        self.header = header
        self._data = data

    @classmethod
    def created(cls, geometry: Geometry, previous: IndexHeader | None = None) -> Self:
        """Return a new file after one with the header *previous*."""
        file = cls(geometry, bytearray(geometry.file_size), IndexHeader(index_count=1))
        # IndexFile's constructor ignores values that are not positive.
        offset = max(previous.end_physical_offset, 0) if previous else 0
        timestamp = max(previous.end_timestamp, 0) if previous else 0
        file.header = IndexHeader(timestamp, timestamp, offset, offset, 0, 1)
        HEADER.struct.pack_into(file._data, 0, *file.header._replace(index_count=0))
        return file

    @property
    def is_full(self) -> bool:
        return self.header.index_count >= self.geometry.index_num

    def put(self, key_hash: int, physical_offset: int, store_timestamp: int, counting: HashSlotCount) -> bool:
        """Put a key like `IndexFile#putKey`; return False if the file is full."""
        if self.is_full:
            return False
        header = self.header
        number = header.index_count
        slot_at = self.geometry.slot_position(self.geometry.slot_of(key_hash))
        (previous,) = map(int, SLOT.unpack(self._data, slot_at))
        # The broker accepts the number of the next entry; only a damaged file contains it.
        if previous <= 0 or previous > number:
            previous = 0
        diff = time_diff_s(header.begin_timestamp, store_timestamp)
        ENTRY.struct.pack_into(
            self._data, self.geometry.entry_position(number), key_hash, physical_offset, diff, previous
        )
        SLOT.struct.pack_into(self._data, slot_at, number)
        is_first = number <= 1
        counts = counting is HashSlotCount.EVERY_PUT or previous == 0
        self.header = IndexHeader(
            begin_timestamp=store_timestamp if is_first else header.begin_timestamp,
            end_timestamp=store_timestamp,
            begin_physical_offset=physical_offset if is_first else header.begin_physical_offset,
            end_physical_offset=physical_offset,
            hash_slot_count=header.hash_slot_count + counts,
            index_count=number + 1,
        )
        HEADER.struct.pack_into(self._data, 0, *self.header)
        return True

    def encode(self, empty_index_count: int | None = None) -> bytes:
        """Return the file's bytes; after a clean stop, a file without entries contains *empty_index_count*."""
        data = bytes(self._data)
        if self.header.index_count > 1 or empty_index_count is None:
            return data
        return HEADER.pack(*self.header._replace(index_count=empty_index_count)) + data[HEADER.size :]


class IndexWriter:
    """Writes index files like `IndexService#buildIndex`, in the order of the log."""

    def __init__(self, geometry: Geometry, rules: Rules, previous: IndexHeader | None = None) -> None:
        """Begin without files; *previous* is the header of the file before the first one."""
        self.files: list[IndexFile] = []
        self._geometry = geometry
        self._rules = rules
        self._previous = previous

    def dispatch(self, record: MessageRecord) -> None:
        file = self._file_with_room()
        if record.physical_offset < file.header.end_physical_offset:
            return
        release = release_at(self._rules, record.physical_offset)
        for key in index_keys(record, release):
            self._file_with_room().put(
                index_key_hash(key), record.physical_offset, record.store_timestamp, release.hash_slot_count
            )

    def dispatch_all(self, records: Iterable[MessageRecord]) -> None:
        for record in records:
            self.dispatch(record)

    def _file_with_room(self) -> IndexFile:
        if not self.files or self.files[-1].is_full:
            previous = self.files[-1].header if self.files else self._previous
            self.files.append(IndexFile.created(self._geometry, previous))
        return self.files[-1]


def select(files: Iterable[IndexReader], text: str, begin: int, end: int, limit: int | None = None) -> list[int]:
    """Return the offsets that `IndexService#queryOffset` collects from files, the newest first."""
    found: list[int] = []
    for file in files:
        if file.header.matches_time(begin, end):
            found += [hop.entry.physical_offset for hop in file.find_entries(text, begin, end)]
        if file.header.begin_timestamp < begin:
            break
    return found[:limit]


def group_of(records: Sequence[MessageRecord], before: bytes = b"", after: bytes = b"") -> RawRecords:
    """Return records in a group like those of a scan, between other bytes."""
    raw = [encode_record(record) for record in records]
    ends = np.cumsum([len(before), *map(len, raw)])
    base_offset = records[0].physical_offset - len(before) if records else 0
    buffer = as_bytes(before + b"".join(raw) + after or b"\0")
    return RawRecords(buffer, base_offset, ends[:-1].astype(np.int64), np.diff(ends).astype(np.int32))


def index_file_of(puts: Iterable[tuple[int, int, int]], geometry: Geometry) -> bytearray:
    """Return a file with entries of these hashes, offsets and times."""
    file = IndexFile.created(geometry)
    for key_hash, offset, time in puts:
        file.put(key_hash, offset, time, HashSlotCount.EMPTY_SLOT)
    return bytearray(file.encode())


def pack_units(records: RawRecords, rules: UnitRules, *, with_tags: bool = False) -> PackedUnits:
    """Return the units of a group of records, without known queues."""
    with patch.object(collect, "_THREAD", local()):
        collector = UnitCollector(rules, with_tags=with_tags)
    collector.add(records)
    return collector.finish()
