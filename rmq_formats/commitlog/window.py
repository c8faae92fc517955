"""
A bounded view into a file that is read by position; blocks that cannot be read are skipped.

The buffer is reused. Bytes that are still wanted move to its front before more are read after them. It grows for one
piece that is larger, and shrinks again.
"""

from collections.abc import Callable

import numpy as np

from rmq_formats.commitlog.framing import BLOCK
from rmq_formats.errors import is_unreadable
from rmq_formats.kernels.integers import Bytes
from rmq_formats.layout import Read

ReadInto = Callable[[int, memoryview], int]  # fills a buffer from a position; fewer bytes only at the end


class Window:
    """The bytes from `position` on, as many as the buffer holds: fewer before the end or before unreadable blocks."""

    def __init__(self, read: Read, size: int, capacity: int, read_into: ReadInto | None = None) -> None:
        """Read nothing yet; *size* is that of the file, *capacity* that of the buffer."""
        self._read = read
        self._read_into = read_into or self._copy_into
        self._capacity = max(min(capacity, size), 1)
        self.size = size  # less when the file turns out to be shorter
        self.buffer: Bytes = np.empty(self._capacity, np.uint8)
        self.position = 0
        self.filled = 0
        self.unreadable: tuple[int, int] | None = None  # blocks after the bytes that are there

    def seek(self, position: int, wanted: int) -> int:
        """
        Return the place in the buffer of the byte at *position*, with *wanted* more after it where the file has them.

        They end early at the end of the file, and at blocks that cannot be read.
        """
        at = position - self.position
        if not 0 <= at <= self.filled or (at + wanted > self.filled and not self._is_exhausted):
            self._load(position, wanted)
            return 0
        return at

    def forget(self) -> None:
        """Read the file again from now on."""
        self.filled, self.unreadable = 0, None

    @property
    def is_last(self) -> bool:
        """Return whether the bytes reach the end of the file."""
        return self.position + self.filled >= self.size

    @property
    def _is_exhausted(self) -> bool:
        """Return whether nothing can be read after the bytes that are there."""
        return self.unreadable is not None or self.is_last

    def _load(self, position: int, wanted: int) -> None:
        capacity = max(self._capacity, wanted)
        start = position - self.position
        is_known = 0 <= start < self.filled
        kept = self.buffer[start : min(self.filled, start + capacity)] if is_known else self.buffer[:0]
        if self.buffer.size != capacity:
            self.buffer = np.empty(capacity, np.uint8)
        self.buffer[: kept.size] = kept
        self.position, self.filled, self.unreadable = position, kept.size, None
        stop = min(capacity, self.size - position)
        try:
            self._append(stop)
        except OSError as error:
            if not is_unreadable(error):
                raise
            self._append_blocks(stop)

    def _append_blocks(self, stop: int) -> None:
        while self.filled < min(stop, self.size - self.position):
            position = self.position + self.filled
            try:
                self._append(min(stop, self.filled + BLOCK - position % BLOCK))
            except OSError as error:
                if not is_unreadable(error):
                    raise
                self.unreadable = position, self._readable_from(position)
                return

    def _append(self, stop: int) -> None:
        wanted = stop - self.filled
        count = self._read_into(self.position + self.filled, self.buffer.data[self.filled : stop])
        self.filled += count
        if count < wanted:  # the file was cut while it is read: no more bytes come
            self.size = self.position + self.filled

    def _readable_from(self, position: int) -> int:
        """Return the end of the blocks that cannot be read; the one at *position* is the first."""
        probe = memoryview(bytearray(BLOCK))
        while True:
            position = min(position + BLOCK - position % BLOCK, self.size)
            if position >= self.size:
                return position
            try:
                self._read_into(position, probe[: min(BLOCK, self.size - position)])
            except OSError as error:
                if not is_unreadable(error):
                    raise
                continue
            return position

    def _copy_into(self, position: int, target: memoryview) -> int:
        data = memoryview(self._read(position, target.nbytes)).cast("B")[: target.nbytes]
        target[: data.nbytes] = data
        return data.nbytes
