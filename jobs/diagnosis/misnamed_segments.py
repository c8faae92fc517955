"""Segments of the log under a name that is not theirs: their records belong where the log has no file."""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from jobs.store.ranges import holes
from jobs.store.store import Segment, Store
from rmq_formats.commitlog.layout import RECORD
from rmq_formats.commitlog.record import decode_record, has_right_body_crc
from rmq_formats.errors import FormatError
from rmq_formats.store import name_of_offset

_PLACE = RECORD[0].offset("physical_offset")
_LONGEST_RECORD = 8 << 20


class Misnamed(NamedTuple):
    """A segment, and the offset that its name should be."""

    segment: Segment
    right: int

    @property
    def text(self) -> str:
        """What is wrong, in words."""
        return f"its records are those of {name_of_offset(self.right)}, which is missing: the file has a wrong name"


def misnamed_segments(store: Store) -> Iterator[Misnamed]:
    """
    Yield segments that begin with the record of an offset at which a segment is missing.

    Two witnesses, the record with its CRC and the gap, say the same; after one changed bit they would not.
    """
    missing = {hole.start for hole in holes(store.segments)}
    for segment in store.segments if missing else ():
        with suppress(FormatError, OSError), store.open(segment) as file:
            if int.from_bytes(file.read(_PLACE, 8)) in missing:
                first = decode_record(bytes(file.read(0, min(segment.size, _LONGEST_RECORD))))
                if has_right_body_crc(first):
                    yield Misnamed(segment, first.physical_offset)
