"""
The comparison of two index files: the first difference of each field, and its kind.

The expected file is not kept anywhere: its builder passes its blocks, and each is compared with the bytes at its place.
"""

from enum import StrEnum, unique
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_formats.indexfile.layout import ENTRY, HEADER, SLOT, Geometry
from rmq_formats.layout import Buffer, Read


@unique
class Part(StrEnum):
    """The parts of an index file."""

    HEADER = "header"
    SLOT = "slot"
    ENTRY = "entry"


class Difference(NamedTuple):
    """One field with another value than expected."""

    part: Part
    number: int  # of the slot or the entry
    field: str
    position: int
    found: int
    expected: int

    def __str__(self) -> str:
        place = self.part if self.part is Part.HEADER else f"{self.part} {self.number}"
        return f"{place} {self.field}: {self.found}, expected {self.expected}, at position {self.position}"


class Comparison:
    """Takes the blocks of the expected file and remembers how the real one differs."""

    def __init__(self, geometry: Geometry, read: Read) -> None:
        """Compare with the file that `read(position, length)` gives; bytes after its end are zeros, as when mapped."""
        self.first: dict[Part, Difference] = {}
        self.header: list[Difference] = []
        self.counts = dict.fromkeys(Part, 0)  # differing header fields, slots, entries
        self.bits = 0  # differing bits
        self.zeroed = 0  # of the differing slots and entries, those that are zero in the real file
        self._geometry = geometry
        self._read = read

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs so far."""
        return not any(self.counts.values())

    @property
    def differences(self) -> list[Difference]:
        """The first difference of each part, the header's all."""
        return [*self.header, *(self.first[part] for part in (Part.SLOT, Part.ENTRY) if part in self.first)]

    def write(self, position: int, block: Buffer) -> None:
        """Compare one block of the expected file."""
        actual = bytes(self._read(position, len(block)))
        actual += bytes(len(block) - len(actual))
        if actual == block:
            return
        expected = np.frombuffer(block, np.uint8)
        found = np.frombuffer(actual, np.uint8)
        self.bits += int(np.bitwise_count(expected ^ found).sum())
        if position == 0:
            self._compare_header(actual, bytes(block))
        elif position < self._geometry.entries_position:
            self._compare_rows(Part.SLOT, position, found, expected)
        else:
            self._compare_rows(Part.ENTRY, position, found, expected)

    def _compare_header(self, actual: bytes, expected: bytes) -> None:
        pairs = zip(HEADER.rows(), HEADER.unpack(actual), HEADER.unpack(expected), strict=True)
        self.header = [
            Difference(Part.HEADER, 0, row.name, row.offset, int(found), int(wanted))
            for row, found, wanted in pairs
            if found != wanted
        ]
        self.counts[Part.HEADER] = len(self.header)

    def _compare_rows(self, part: Part, position: int, found: NDArray[np.uint8], expected: NDArray[np.uint8]) -> None:
        layout = SLOT if part is Part.SLOT else ENTRY
        start = self._geometry.slot_position(0) if part is Part.SLOT else self._geometry.entries_position
        shape = (-1, layout.size)
        rows = np.flatnonzero((found.reshape(shape) != expected.reshape(shape)).any(axis=1))
        self.counts[part] += len(rows)
        self.zeroed += int((~found.reshape(shape)[rows].any(axis=1)).sum())
        if part in self.first:
            return
        at = int(rows[0]) * layout.size
        pairs = zip(layout.rows(), layout.unpack(found.data, at), layout.unpack(expected.data, at), strict=True)
        row, actual, wanted = next(pair for pair in pairs if pair[1] != pair[2])
        place = position + at
        number = (place - start) // layout.size
        self.first[part] = Difference(part, number, row.name, place + row.offset, int(actual), int(wanted))
