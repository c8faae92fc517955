"""
Index files of a tier: the keys of the messages that a broker has copied to the tier.

A file is written once, when it is full: header, slots, and the entries of each slot in sequence, the newest first.
Offsets are those of the queue's own log in the tier. Tags are not indexed.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_formats.arrays import dtype_of
from rmq_formats.errors import CorruptData, NeedMoreData
from rmq_formats.layout import Buffer, Layout

HEADER = Layout(
    ("magic_code", "i", "-1127939451 (BCC50285) in a full file, -1127939447 while the broker is filling the file"),
    ("begin_timestamp", "q", "ms, when the broker created the file; time_diff_s of the entries counts from here"),
    ("end_timestamp", "q", "ms, the latest store time; after a restart it may start again at begin_timestamp"),
    ("slots_used", "i", "number of slots with entries"),
    ("entry_count", "i", "number of entries"),
)
SLOT = Layout(
    ("position", "i", "position of the slot's entries in the file; for an empty slot, where they would begin"),
    ("size", "i", "size of the slot's entries in bytes"),
)
ENTRY = Layout(
    ("key_hash", "i", "absolute value of the hash of `topic#key`; the slot is this value modulo the number of slots"),
    ("topic_id", "i", "number of the topic, defined in the broker's tieredStoreMetadata.json"),
    ("queue_id", "i", "id of the queue in its topic"),
    ("physical_offset", "q", "offset of the record in the queue's own log"),
    ("size", "i", "the record's total_size"),
    ("time_diff_s", "i", "seconds from begin_timestamp to the store time, rounded towards 0; negative if earlier"),
)
FULL_MAGIC = -1127939451
_SLOT_TYPE, ENTRY_TYPE = dtype_of(SLOT), dtype_of(ENTRY)


class TierIndex(NamedTuple):
    """The content of an index file of a tier."""

    begin_timestamp: int
    end_timestamp: int
    slots_used: int
    entry_count: int
    slots: NDArray[np.void]
    entries: NDArray[np.void]
    size: int  # the size of the file

    @property
    def entries_position(self) -> int:
        """The offset of the first entry."""
        return HEADER.size + len(self.slots) * SLOT.size

    def entry_position(self, entry: int) -> int:
        """Return the offset of an entry."""
        return self.entries_position + entry * ENTRY.size

    def time_diffs_s(self, store_timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the `time_diff_s` of entries of messages of these times."""
        diff = store_timestamps - self.begin_timestamp
        seconds: NDArray[np.int64] = np.sign(diff) * (np.abs(diff) // 1000)
        return seconds

    def find_contradictions(self) -> Iterator["Contradiction"]:
        """Yield the first slot and the first entry that contradict the rest of the file."""
        # The entries of all slots are stored consecutively, in the order of the slots.
        # Entries are compared with their slots only when every size is sound: a wrong one moves all that follow.
        sizes = self.slots["size"].astype(np.int64)
        starts = self.entries_position + np.cumsum(sizes) - sizes
        odd = np.flatnonzero((self.slots["position"] != starts) | (sizes < 0) | (sizes % ENTRY.size != 0))
        if odd.size:
            number = int(odd[0])
            position, size = (int(self.slots[number][name]) for name in ("position", "size"))
            at = HEADER.size + number * SLOT.size
            yield Contradiction(
                at, f"slot {number}", f"position {position}, size {size}", f"position {int(starts[number])}"
            )
            return
        end = self.entries_position + int(sizes.sum())
        if end != self.size:
            yield Contradiction(self.size, "size", str(self.size), str(end))
            return
        used = int(np.count_nonzero(sizes))
        for name, found, expected in (
            ("slots_used", self.slots_used, used),
            ("entry_count", self.entry_count, len(self.entries)),
        ):
            if found != expected:
                yield Contradiction(HEADER.offset(name), name, str(found), str(expected))
        owners = np.repeat(np.arange(len(self.slots)), sizes // ENTRY.size)
        hashes = self.entries["key_hash"].astype(np.int64)
        wrong = np.flatnonzero((hashes < 0) | (hashes % len(self.slots) != owners))
        if wrong.size:
            number = int(wrong[0])
            where = f"a hash of slot {int(owners[number])} of {len(self.slots)}"
            yield Contradiction(
                self.entry_position(number), f"entry {number} key_hash", str(hashes[number]), where, len(wrong)
            )


class Contradiction(NamedTuple):
    """A place at which a file contradicts itself."""

    position: int
    field: str
    found: str
    expected: str
    times: int = 1


def decode_tier_index(data: Buffer) -> TierIndex:
    """Decode a full index file of a tier; `CorruptData` for other files, `NeedMoreData` if it ends before its slots."""
    magic, begin, end, used, entry_count = map(int, HEADER.unpack(data))
    if magic != FULL_MAGIC:
        expected = f"{FULL_MAGIC & 0xFFFFFFFF:08X} (a full index file of a tier)"
        reason = f"magic is {magic & 0xFFFFFFFF:08X}, expected {expected}"
        raise CorruptData(reason, 0)
    # The entries of the first slot follow the slots, or would.
    first, _ = map(int, SLOT.unpack(data, HEADER.size))
    count, rest = divmod(first - HEADER.size, SLOT.size)
    size = memoryview(data).nbytes
    if count <= 0 or rest:
        raise CorruptData(f"entries cannot begin at {first}", HEADER.size)
    if first > size:
        raise NeedMoreData(f"entries begin at {first}, past the end of the {size}-byte file", HEADER.size)
    slots = np.frombuffer(data, _SLOT_TYPE, count, HEADER.size)
    entries = np.frombuffer(data, ENTRY_TYPE, (size - first) // ENTRY.size, first)
    return TierIndex(begin, end, used, entry_count, slots, entries, size)
