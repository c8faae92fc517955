"""The interface of all file systems."""

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rmq_formats.layout import Buffer


class FileInfo(NamedTuple):
    """A listed file: `name` is its path relative to the listed directory, with slashes."""

    name: str
    size: int
    modified_ms: int


class Reader(Protocol):
    """An open file. Every error is an `OSError`."""

    size: int

    def read(self, position: int, length: int) -> bytes | memoryview:
        """Return the bytes at *position*; fewer only at the end of the file."""

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill *buffer* from *position* and return the number of bytes: fewer only at the end of the file."""
        data = self.read(position, buffer.nbytes)
        buffer[: len(data)] = data
        return len(data)

    def next_written(self, position: int) -> int:
        """Return the next position whose byte may not be zero; *position* itself if the storage does not know holes."""
        return position


@dataclass
class FetchingReader(Reader):
    """A file whose bytes a function returns, given a position and a number of bytes that the file has there."""

    size: int
    fetch: Callable[[int, int], bytes | memoryview]

    def read(self, position: int, length: int) -> bytes | memoryview:
        """Return the bytes at *position*; fewer only at the end of the file."""
        wanted = min(length, self.size - position)
        return self.fetch(position, wanted) if wanted > 0 else b""


def file_exists(open_file: Callable[[str], AbstractContextManager[Reader]], name: str) -> bool:
    """Return whether *open_file* finds a file."""
    try:
        with open_file(name):
            return True
    except FileNotFoundError:
        return False


class Storage(Protocol):
    """The file system interface for jobs. Every error is an `OSError`."""

    def list_files(self, location: str) -> list[FileInfo]:
        """Return every file below *location*, sorted by name; `FileNotFoundError` if the directory does not exist."""

    def open(self, location: str) -> AbstractContextManager[Reader]:
        """Open *location* for reading."""

    def read(self, location: str, position: int, length: int) -> bytes:
        """Return the bytes at *position* of a file; fewer only at its end."""
        with self.open(location) as reader:
            return bytes(reader.read(position, length))

    def create(self, location: str, data: Buffer) -> None:
        """
        Write a new file durably and atomically.

        Raises `FileExistsError` if it exists, on every storage; if two processes write the same name at the same
        moment, only a local file system stops the second. A read-only storage does not replace this method.
        """
        del data
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), location)

    def delete(self, location: str) -> None:
        """Delete a file, if it exists; a read-only storage does not replace this method."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), location)
