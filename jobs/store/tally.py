"""
How far tasks are while they are at work: Spark itself tells of ended ones only.

The counters are a file of the driver's. Tasks on the same machine write into it; to others it is not there, and then
their work counts when it has ended.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self

from jobs.store.ranges import Range
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece

_COUNTERS = struct.Struct("=qq")  # bytes and records of a range


class Tally(NamedTuple):
    """Counters of ranges."""

    path: str

    @classmethod
    @contextmanager
    def of(cls, ranges: int) -> Iterator[Self]:
        """Give counters for so many ranges."""
        with TemporaryDirectory(prefix="rocketmq-lake-") as folder:
            path = Path(folder) / "tally"
            path.write_bytes(bytes(_COUNTERS.size * ranges))
            yield cls(str(path))

    def sums(self) -> tuple[int, int]:
        """Return the bytes and the records of all ranges so far."""
        try:
            counters = list(_COUNTERS.iter_unpack(Path(self.path).read_bytes()))
        except OSError:  # progress only: the run goes on without it
            return 0, 0
        return sum(size for size, _ in counters), sum(records for _, records in counters)

    def noted(self, number: int, range_: Range, pieces: Iterator[Records | Piece]) -> Iterator[Records | Piece]:
        """Yield the pieces of range *number*, and note how far they reach."""
        descriptor = -1
        with suppress(OSError):  # progress only: a worker elsewhere has no such file
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        records = 0
        try:
            for item in pieces:
                if descriptor >= 0:
                    end, count = _reach(item)
                    records += count
                    size = min(end, range_.end_offset) - range_.start_offset
                    with suppress(OSError):  # progress only: the disk of temporary files may be full
                        os.pwrite(descriptor, _COUNTERS.pack(size, records), number * _COUNTERS.size)
                yield item
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _reach(item: Records | Piece) -> tuple[int, int]:
    """Return the end of an item, and the number of its records."""
    if isinstance(item, Piece):
        return item.end, 0
    count = len(item.positions)
    return (item.base_offset + int(item.positions[-1]) + int(item.sizes[-1]), count) if count else (0, 0)
