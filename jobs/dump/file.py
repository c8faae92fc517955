"""
One file that is dumped: read by position, a window at a time, past unreadable sectors.

What cannot be read is taken for zeros, and noted: zeros are no record, so a walk finds the damage and what follows it.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from jobs.launch.arguments import file_system_options
from jobs.storage import storage_of
from jobs.storage.locations import is_local, normalise
from jobs.storage.model import Reader

_WINDOW = 1 << 20
_SECTOR = 4096


class Unreadable(NamedTuple):
    """Bytes that the storage refuses to give."""

    position: int
    size: int
    reason: str


class DumpFile:
    """A file's bytes and its name."""

    def __init__(self, location: str, reader: Reader) -> None:
        self.location = location
        self.name = location.rstrip("/").rpartition("/")[2]
        self.size = reader.size
        self.unreadable: list[Unreadable] = []
        self.next_written = reader.next_written
        self._reader = reader
        self._window = b""
        self._window_at = 0

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes at *position*; short only at the file's end."""
        at = position - self._window_at
        if at < 0 or at + length > len(self._window):
            self._window, self._window_at, at = self._load(position, max(length, _WINDOW)), position, 0
        return self._window[at : at + length]

    def _load(self, position: int, length: int) -> bytes:
        try:
            return bytes(self._reader.read(position, length))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b"".join(self._sectors(position, min(length, self.size - position)))

    def _sectors(self, position: int, length: int) -> Iterator[bytes]:
        end = position + length
        while position < end:
            size = min(_SECTOR - position % _SECTOR, end - position)
            try:
                yield bytes(self._reader.read(position, size))
            except OSError as error:
                self._note(Unreadable(position, size, str(error.strerror)))
                yield bytes(size)
            position += size

    def _note(self, found: Unreadable) -> None:
        last = self.unreadable[-1] if self.unreadable else None
        if last and (last.position + last.size, last.reason) == (found.position, found.reason):
            self.unreadable[-1] = last._replace(size=last.size + found.size)
        elif found not in self.unreadable:
            self.unreadable.append(found)


@contextmanager
def open_file(location: str) -> Iterator[DumpFile]:
    """Open a file, local or not."""
    place = normalise(location)
    if is_local(place) and not stat.S_ISREG(os.stat(place).st_mode):  # noqa: PTH116 - opening a pipe would wait
        raise OSError(errno.EINVAL, "is no regular file: dump prints single files, inspect shows a store", place)
    with storage_of(place, file_system_options()).open(place) as reader:
        yield DumpFile(place, reader)
