"""
IndexFile layouts: a header, a table of hash slots, then entries in the order of arrival.

A slot contains the number of its newest entry, and an entry the number of the previous entry in the same slot. Entry 0
is never used, so that 0 can mean "none": a file for `index_num` entries has space for one less, and the header's
`index_count` is not the number of entries but the number of the next free entry.
"""

from typing import NamedTuple

from rmq_formats.layout import Layout

HEADER = Layout(
    (
        "begin_timestamp",
        "q",
        "store time of the first entry's message; if none, end_timestamp of the previous file",
    ),
    ("end_timestamp", "q", "store time of the last entry's message, not the largest one"),
    (
        "begin_physical_offset",
        "q",
        "offset of the first entry's message; if none, the previous file's end_physical_offset",
    ),
    ("end_physical_offset", "q", "offset of the last entry's message"),
    ("hash_slot_count", "i", "slots in use; in releases up to 4.7.0, the number of entries"),
    ("index_count", "i", "number of the next free entry; 0 or 1 in a file without entries"),
)
SLOT = Layout(("newest_entry", "i", "number of the slot's newest entry; 0 for none"))
ENTRY = Layout(
    ("key_hash", "i", "hash of the text topic#key; never negative"),
    ("physical_offset", "q", "offset of the message"),
    ("time_diff_s", "i", "message's store time minus begin_timestamp as it was when the entry was written, in seconds"),
    ("prev_entry", "i", "number of the previous entry of the slot; 0 for none"),
)


class IndexHeader(NamedTuple):
    """A file's header, in file order."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_physical_offset: int = 0
    end_physical_offset: int = 0
    hash_slot_count: int = 0
    index_count: int = 0

    @property
    def entry_count(self) -> int:
        """The number of entries that the header states."""
        return max(self.index_count - 1, 0)

    def matches_time(self, begin: int, end: int) -> bool:
        """Return whether the broker looks into this file for messages stored between *begin* and *end*."""
        # IndexFile#isTimeMatched
        first, last = self.begin_timestamp, self.end_timestamp
        return (begin < first and end > last) or first <= begin <= last or first <= end <= last


class IndexEntry(NamedTuple):
    """One entry, in file order."""

    key_hash: int
    physical_offset: int
    time_diff_s: int
    prev_entry: int


class Geometry(NamedTuple):
    """The number of slots and entries of a broker's index files (`maxHashSlotNum`, `maxIndexNum`)."""

    hash_slots: int = 5_000_000
    index_num: int = 20_000_000

    def __str__(self) -> str:
        return f"{self.hash_slots:,} slots, {self.index_num:,} entries"

    @property
    def capacity(self) -> int:
        """The number of entries that fit into a file: number 0 is not used."""
        return self.index_num - 1

    @property
    def entries_position(self) -> int:
        """The offset of entry 0."""
        return HEADER.size + SLOT.size * self.hash_slots

    @property
    def file_size(self) -> int:
        """The size of every file."""
        return self.entries_position + ENTRY.size * self.index_num

    def slot_of(self, key_hash: int) -> int:
        """Return the slot of an entry with *key_hash*."""
        return key_hash % self.hash_slots

    def slot_position(self, slot: int) -> int:
        """Return the offset of slot number *slot*."""
        return HEADER.size + SLOT.size * slot

    def entry_position(self, number: int) -> int:
        """Return the offset of entry number *number*."""
        return self.entries_position + ENTRY.size * number


DEFAULT_GEOMETRY = Geometry()


def decode_header(data: bytes | bytearray | memoryview) -> IndexHeader:
    """Return the header that *data* begins with; `NeedMoreData` if it is shorter."""
    return IndexHeader(*map(int, HEADER.unpack(data)))


def decode_entry(data: bytes | bytearray | memoryview, position: int = 0) -> IndexEntry:
    """Return the entry at *position*; `NeedMoreData` if *data* ends before it."""
    return IndexEntry(*map(int, ENTRY.unpack(data, position)))
