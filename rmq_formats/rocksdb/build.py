"""
Builds the rows of a queue in RocksDB from the units of its log: many rows in one call, as arrays.

A broker stores each unit under the queue offset that its record states, so nothing is appended or skipped: of two
records with the same offset the later one counts, and a queue ends with its last record. `layout` encodes single rows;
property tests compare these with it.

`hash_index_rows` returns the offsets and key hashes of index rows, by compiled code, for databases of millions of rows.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rmq_formats.arrays import dtype_of
from rmq_formats.compiled import compiled
from rmq_formats.consumequeue.build import count_lost_records, cut_at_losses
from rmq_formats.consumequeue.collect import PACKED_UNIT
from rmq_formats.consumequeue.dispatch import QueueName
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE
from rmq_formats.indexfile.keys import TAG_MARK, TOPIC_SEPARATOR
from rmq_formats.kernels.integers import Bytes, Integers, Sizes, as_bytes, byte_at, read_i64
from rmq_formats.kernels.text import hash_character, hash_text
from rmq_formats.properties import MAX_LONG, MIN_INT
from rmq_formats.rocksdb.layout import INDEX_VALUE, QUEUE_OFFSET_SIZE, UNIT_VALUE, UnitOffsets, encode_prefix

Units = NDArray[np.void]  # an array of PACKED_UNIT

_VALUES = dtype_of(UNIT_VALUE)
_AT_ONCE = 1 << 16  # blank units in one array


class QueueRowBuilder:
    """One queue: takes its units in the order of the log, and returns the units that become rows."""

    def __init__(self, name: QueueName, lost: Sequence[tuple[int, int]] = (), segments: Sequence[int] = ()) -> None:
        """
        Start without a unit.

        *lost* are the ranges of the log, ascending, whose records are lost; *segments* are the offsets of its files.

        A consumer of a queue in RocksDB never gets past a number without a row. So the numbers of lost records also get
        rows, which point to no message, just as `QueueBuilder` writes blanks into files.
        """
        self.name = name
        self.first = UnitOffsets(MAX_LONG, -1)  # lowest number
        self.last = UnitOffsets(-1, -1)  # newest record
        self.highest = -1  # the highest number; above that of the newest record if the queue was deleted and recreated
        self.overwritten = 0  # units whose number is not above the numbers of all earlier records
        self.blanks = 0
        self.units = 0  # without blanks
        self.newest_ms = 0  # store time of the queue's newest record
        self._lost = np.array(lost, np.int64).reshape(-1, 2)
        self._segments = np.array(segments, np.int64)

    def append(self, units: Units) -> Iterator[Units]:
        """Yield the rows that *units* add."""
        if not units.size:
            return
        for some in cut_at_losses(units, self._lost):
            yield from self._blanks_before(some[0])
            self._update_bounds(some)
            yield some

    def _update_bounds(self, units: Units) -> None:
        """Update the number of units, the bounds and the newest store time of the queue."""
        self.units += units.size
        self.newest_ms = max(self.newest_ms, int(units["store_timestamp"].max()))
        numbers = units["queue_offset"]
        before = np.maximum.accumulate(np.concatenate([[self.highest], numbers[:-1]]))
        self.overwritten += int(np.count_nonzero(numbers <= before))
        self.highest = max(self.highest, int(numbers.max()))
        lowest = numbers.size - 1 - int(np.argmin(numbers[::-1]))
        if numbers[lowest] <= self.first.queue_offset:
            self.first = _offsets_of(units[lowest])
        self.last = _offsets_of(units[-1])

    def _blanks_before(self, unit: np.void) -> Iterator[Units]:
        """Yield blanks from the last number to that of *unit*, at most as many as the log can have lost records."""
        if not self.units:
            return
        start, place = self.last.queue_offset + 1, _offsets_of(unit)
        most = count_lost_records(self._lost, self.last.physical_offset, place.physical_offset)
        if not 0 < place.queue_offset - start <= most:
            return
        self.blanks += place.queue_offset - start
        for at in range(start, place.queue_offset, _AT_ONCE):
            numbers = np.arange(at, min(at + _AT_ONCE, place.queue_offset))
            blanks = np.zeros(numbers.size, PACKED_UNIT)
            blanks["queue_offset"] = numbers
            blanks["size"] = PRE_BLANK_SIZE
            blanks["physical_offset"] = self._segment_before(place.physical_offset)
            blanks["store_timestamp"] = unit["store_timestamp"]
            yield blanks

    @property
    def last_physical_offset(self) -> int:
        """The physical offset of the newest record."""
        return self.last.physical_offset

    def _segment_before(self, physical_offset: int) -> int:
        """
        Return the offset of the segment before a record's own; 0 in the first one.

        A broker that finds no message at a blank's offset skips the rest of the segment with this offset. Once the log
        begins after that offset, a broker deletes the row.
        """
        number = int(np.searchsorted(self._segments, physical_offset, "right")) - 2
        return int(self._segments[number]) if number >= 0 else 0


def newest_by_queue_offset(units: Units) -> Units:
    """Return units in key order; of several units with the same number, only the last one."""
    numbers = units["queue_offset"].astype(np.uint64)  # bytes are compared: negative numbers come last
    if (numbers[1:] > numbers[:-1]).all():
        return units
    order = np.argsort(numbers, kind="stable")
    is_newest = np.append(numbers[order][1:] != numbers[order][:-1], np.ones(min(units.size, 1), np.bool_))
    kept: Units = units[order[is_newest]]
    return kept


def unit_keys(queue: QueueName, units: Units) -> list[bytes]:
    """Return the keys of a queue's units."""
    prefix = np.frombuffer(encode_prefix(queue), np.uint8)
    keys = np.empty((units.size, prefix.size + QUEUE_OFFSET_SIZE), np.uint8)
    keys[:, : prefix.size] = prefix
    keys[:, prefix.size :] = units["queue_offset"].astype(">i8").view(np.uint8).reshape(-1, QUEUE_OFFSET_SIZE)
    return _as_bytes(keys.view(f"V{keys.shape[1]}").ravel())


def unit_values(units: Units) -> list[bytes]:
    """Return the values of units."""
    values = np.empty(units.size, _VALUES)
    for name in _VALUES.names or ():
        values[name] = units[name]
    return _as_bytes(values.view(f"V{_VALUES.itemsize}"))


def _as_bytes(rows: NDArray[np.void]) -> list[bytes]:
    found: list[bytes] = rows.tolist()
    return found


def _offsets_of(unit: np.void) -> UnitOffsets:
    """Return the queue offset and the physical offset of a unit."""
    return UnitOffsets(int(unit["queue_offset"]), int(unit["physical_offset"]))


HASHED_KEY = np.dtype([("physical_offset", "<i8"), ("key_hash", "<i4")])
"""The offset of a message and the hash of one of its keys: both kinds of index store these for a key."""

_AT = ord("@")
_HASH, _TAG = ord(TOPIC_SEPARATOR), ord(TAG_MARK)
_KEY_LETTER, _TAG_LETTER, _UNIQUE_LETTER = map(ord, "KTU")
_HOURS = _OFFSET_SIZE = 8
_SMALLEST = _HOURS + _OFFSET_SIZE + 2
_NO_KEY = -1  # no index stores a negative hash


def hash_index_rows(keys: Sequence[bytes], values: Sequence[bytes]) -> NDArray[np.void]:
    """Return offset and key hash of each index row; other rows are left out."""
    ends = np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)))
    offsets, hashes = np.empty(len(keys), np.int64), np.empty(len(keys), np.int32)
    _read_keys(as_bytes(b"".join(keys)), ends, offsets, hashes)
    whole = np.fromiter(map(len, values), np.int64, len(values)) >= INDEX_VALUE.size
    found = whole & (hashes != _NO_KEY)
    places = np.empty(int(np.count_nonzero(found)), HASHED_KEY)
    places["physical_offset"], places["key_hash"] = offsets[found], hashes[found]
    return places


@compiled
def _read_keys(buffer: Bytes, ends: Integers, offsets: Integers, hashes: Sizes) -> None:
    start = 0
    for number in range(ends.size):
        end = ends[number]
        hashes[number] = _NO_KEY
        first, last = start + _HOURS, end - _OFFSET_SIZE - 1  # the separators on either side
        start = end
        if last <= first or byte_at(buffer, first) != _AT or byte_at(buffer, last) != _AT:
            continue
        topic_end = first + 1
        while topic_end < last and byte_at(buffer, topic_end) != _AT:
            topic_end += 1
        if topic_end + 2 >= last or byte_at(buffer, topic_end + 2) != _AT:
            continue
        letter, key, key_end = byte_at(buffer, topic_end + 1), topic_end + 3, last
        if letter in (_KEY_LETTER, _TAG_LETTER):
            key_end -= 1  # the unique key follows the key
            while key_end >= key and byte_at(buffer, key_end) != _AT:
                key_end -= 1
        if key_end < key or (letter == _UNIQUE_LETTER and key_end == key):
            continue
        if letter not in (_KEY_LETTER, _TAG_LETTER, _UNIQUE_LETTER):
            continue
        seed = hash_character(_HASH, hash_text(buffer, first + 1, topic_end, 0))
        if letter == _TAG_LETTER:
            seed = hash_character(_HASH, hash_character(_TAG, seed))
        key_hash = hash_text(buffer, key, key_end, seed)
        hashes[number] = 0 if key_hash == MIN_INT else abs(key_hash)
        offsets[number] = read_i64(buffer, end - _OFFSET_SIZE)
