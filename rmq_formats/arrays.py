"""
Layouts as numpy types, slices of arrays, and a check of the chains of an index file.

Every entry must point at the newest older entry of its slot, and every slot at its newest entry. The check takes one
pass over the entries, in blocks, and needs memory for one number per slot. It finds chains that never end, that skip
entries, or that leave the file: each of them has an entry that points elsewhere.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_formats.indexfile.layout import ENTRY, SLOT, Geometry
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.layout import Layout, Read


def dtype_of(layout: Layout) -> np.dtype[np.void]:
    """Return a layout of integers as an array's type."""
    return np.dtype([(row.name, f">i{row.size}") for row in layout.describe_fields()])


def slices_between_cuts(size: int, cuts: NDArray[np.bool_]) -> Iterator[slice]:
    """Yield the slices of *size* elements, cut after each element that *cuts* selects; none without elements."""
    bounds = [0, *(np.flatnonzero(cuts) + 1).tolist(), size]
    return (slice(start, stop) for start, stop in pairwise(bounds) if start < stop)


def are_inside(numbers: NDArray[np.int64], ranges: Iterable[tuple[int, int]]) -> NDArray[np.bool_]:
    """Return which numbers are in at least one of the ranges [start, end)."""
    # Starts and ends are sorted separately: a number is inside if more ranges have begun than ended.
    starts, ends = np.sort(np.array(list(ranges), np.int64).reshape(-1, 2), axis=0).T
    inside: NDArray[np.bool_] = np.searchsorted(starts, numbers, "right") > np.searchsorted(ends, numbers, "right")
    return inside


ITEMS_PER_BLOCK = 1 << 18
_ENTRY = dtype_of(ENTRY)


class BrokenLink(NamedTuple):
    """A slot or an entry that does not point where it should."""

    part: str  # slot, entry
    number: int
    position: int
    found_entry: int
    expected_entry: int

    def __str__(self) -> str:
        return f"{self.part} {self.number} points to entry {self.found_entry}, not to {self.expected_entry}"


def find_broken_links(read: Read, geometry: Geometry) -> Iterator[BrokenLink]:
    """Yield every entry, then every slot, that does not point where it should."""
    reader = IndexReader(read, geometry)
    count = min(reader.header.entry_count, geometry.capacity)
    newest = np.zeros(geometry.hash_slots, np.int32)
    for first in range(1, count + 1, ITEMS_PER_BLOCK):
        some = min(ITEMS_PER_BLOCK, count + 1 - first)
        entries = np.frombuffer(reader.bytes_at(geometry.entry_position(first), some * ENTRY.size), _ENTRY)
        expected = _previous(entries["key_hash"].astype(np.int64) % geometry.hash_slots, first, newest)
        for at in np.flatnonzero(entries["prev_entry"] != expected).tolist():
            position = geometry.entry_position(first + at) + ENTRY.offset("prev_entry")
            yield BrokenLink("entry", first + at, position, int(entries["prev_entry"][at]), int(expected[at]))
    for first in range(0, geometry.hash_slots, ITEMS_PER_BLOCK):
        some = min(ITEMS_PER_BLOCK, geometry.hash_slots - first)
        slots = np.frombuffer(reader.bytes_at(geometry.slot_position(first), some * SLOT.size), ">i4")
        wanted = newest[first : first + some]
        for at in np.flatnonzero(slots != wanted).tolist():
            yield BrokenLink("slot", first + at, geometry.slot_position(first + at), int(slots[at]), int(wanted[at]))


def _previous(slots: NDArray[np.int64], first: int, newest: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return, for each entry of a block, the previous one in its slot; *newest* is updated to the block's end."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    begins = np.ones(len(slots), np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    before = np.empty(len(slots), np.int64)
    before[begins] = newest[ordered[begins]]
    before[~begins] = (order + first)[np.flatnonzero(~begins) - 1]
    expected = np.empty(len(slots), np.int32)
    expected[order] = before
    # If a slot occurs several times, its last position is stored.
    newest[slots] = np.arange(first, first + len(slots), dtype=np.int32)
    return expected
