"""A storage in memory: the smallest implementation of `Storage`, as an example for a new backend."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from jobs.storage.model import FetchingReader, FileInfo, Storage
from rmq_formats.layout import Buffer


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
    def open(self, location: str) -> Iterator[FetchingReader]:
        if location not in self.files:
            raise FileNotFoundError(location)
        data = self.files[location]
        yield FetchingReader(len(data), lambda position, length: data[position : position + length])

    def create(self, location: str, data: Buffer) -> None:
        if location in self.files:
            raise FileExistsError(location)
        self.files[location] = bytes(data)

    def delete(self, location: str) -> None:
        self.files.pop(location, None)
