"""
How a broker writes an index file: one put after the other. The readable truth that the compiled build is held to.

Two details decide bytes unexpectedly: a new file begins with the end of the previous one as its begin, so
that its first entry counts seconds from there; and the roll comes before any look at the message, so that a message
without keys may create a file.
"""

from typing import Self

from rmq_formats.hashing import java_long
from rmq_formats.indexfile.layout import ENTRY, HEADER, SLOT, Geometry, IndexHeader, decode_header
from rmq_formats.layout import Buffer
from rmq_formats.release import HashSlotCount

MAX_INT = (1 << 31) - 1


def time_diff_s(begin_timestamp: int, store_timestamp: int) -> int:
    """Return the seconds that an entry stores, in Java's integers: wrapped, truncated toward zero, then clamped."""
    if begin_timestamp <= 0:
        return 0
    return min(max(java_long(store_timestamp - begin_timestamp), 0) // 1000, MAX_INT)


class IndexFile:
    """One file, in memory."""

    def __init__(self, geometry: Geometry, data: bytearray, header: IndexHeader) -> None:
        """Take *data* as the mapping and *header* as what the broker knows; see `created` and `loaded`."""
        self.geometry = geometry
        self.header = header
        self._data = data

    @classmethod
    def created(cls, geometry: Geometry, previous: IndexHeader | None = None, over: bytearray | None = None) -> Self:
        """Return a new file after one whose header is *previous*; *over* is what already has its name."""
        file = cls(geometry, bytearray(geometry.file_size) if over is None else over, IndexHeader(index_count=1))
        # IndexFile's constructor: values that are not positive are not handed on.
        offset = max(previous.end_physical_offset, 0) if previous else 0
        timestamp = max(previous.end_timestamp, 0) if previous else 0
        file.header = IndexHeader(timestamp, timestamp, offset, offset, 0, 1)
        count = 0 if over is None else decode_header(over).index_count
        HEADER.struct.pack_into(file._data, 0, *file.header._replace(index_count=count))
        return file

    @classmethod
    def loaded(cls, geometry: Geometry, data: Buffer) -> Self:
        """Return a file as a starting broker maps it: shorter ones are filled with zeros, longer ones cut."""
        content = bytearray(memoryview(data)[: geometry.file_size])
        content.extend(bytes(geometry.file_size - len(content)))
        header = decode_header(content)
        return cls(geometry, content, header._replace(index_count=max(header.index_count, 1)))

    @property
    def is_full(self) -> bool:
        """Whether a put would be refused."""
        return self.header.index_count >= self.geometry.index_num

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever put."""
        return self.header.index_count <= 1

    def put(self, key_hash: int, physical_offset: int, store_timestamp: int, counting: HashSlotCount) -> bool:
        """Put one key as `IndexFile#putKey` does; False when the file is full."""
        if self.is_full:
            return False
        header = self.header
        number = header.index_count
        slot_at = self.geometry.slot_position(self.geometry.slot_of(key_hash))
        (previous,) = map(int, SLOT.unpack(self._data, slot_at))
        # The broker accepts the number of the entry that it is about to write; it takes a damaged file for that.
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
        """Return the file's bytes; a clean stop leaves *empty_index_count* in a file without entries."""
        data = bytes(self._data)
        if not self.is_empty or empty_index_count is None:
            return data
        return HEADER.pack(*self.header._replace(index_count=empty_index_count)) + data[HEADER.size :]
