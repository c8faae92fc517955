"""A storage in memory: the smallest implementation of `Storage`, as an example for a new backend."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from jobs.storage.model import FileInfo, Reader, Storage
from rmq_formats.layout import Buffer


class _MemoryReader(Reader):
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, position: int, length: int) -> bytes:
        return self._data[position : position + length]


@dataclass(frozen=True, slots=True)
class MemoryStorage(Storage):
    """The content of each file by its location; a directory exists if it contains a file, as in an object store."""

    files: dict[str, bytes] = field(default_factory=dict)

    def list_files(self, location: str) -> list[FileInfo]:
        names = [name.removeprefix(f"{location}/") for name in self.files if name.startswith(f"{location}/")]
        if not names:
            raise FileNotFoundError(location)
        return [FileInfo(name, len(self.files[f"{location}/{name}"]), 0) for name in sorted(names)]

    @contextmanager
    def open(self, location: str) -> Iterator[_MemoryReader]:
        if location not in self.files:
            raise FileNotFoundError(location)
        yield _MemoryReader(self.files[location])

    def create(self, location: str, data: Buffer) -> None:
        if location in self.files:
            raise FileExistsError(location)
        self.files[location] = bytes(data)

    def delete(self, location: str) -> None:
        self.files.pop(location, None)
