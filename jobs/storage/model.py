"""What the jobs need of a file system, whichever it is."""

from typing import Any, NamedTuple, Protocol


class FileInfo(NamedTuple):
    """One file below a listed directory: `name` is its path relative to that directory, with slashes."""

    name: str
    size: int
    modified_ms: int


class Reader(Protocol):
    """An open file; `read` is short only at the file's end."""

    size: int

    def read(self, position: int, length: int) -> bytes | memoryview:
        """Return the bytes at *position*."""
        ...


class Storage(Protocol):
    """What the jobs need of a file system. Every error is an `OSError`."""

    def list_files(self, location: str) -> list[FileInfo]:
        """Return every file below *location*, sorted by name; `FileNotFoundError` when there is no such directory."""
        ...

    def open(self, location: str) -> Any:  # noqa: ANN401 - a context manager of a Reader
        """Open *location* for reading."""
        ...

    def create(self, location: str, data: bytes) -> None:
        """Write a new file durably, whole or not at all; `FileExistsError` when it exists."""
        ...

    def delete(self, location: str) -> None:
        """Remove a file; nothing happens when it is gone already."""
        ...
