"""
Scratch files of a run: written by one task, read by others, and deleted when the run ends.

They are next to the output, where every worker can access them. Spark's shuffle would cost as much as the whole build.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from socket import gethostname
from tempfile import gettempdir
from typing import BinaryIO
from uuid import uuid4

from jobs.storage import storage_for
from jobs.storage.local import explaining_full_disk, temporary_directory_in
from jobs.storage.locations import is_local, join_location, local_path
from jobs.storage.model import Reader
from jobs.storage.paths import is_directory

SCRATCH_PREFIX = ".scratch-"
_NOT_SHARED = "use a directory that all workers share"
_NOT_GIVEN = "pass --scratch with a directory or URI that all workers can reach"


@dataclass(frozen=True, slots=True)
class Scratch:
    """A directory for a run's scratch files."""

    location: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    advice: str = _NOT_SHARED  # advice in the error of a worker that does not see the directory

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Open a new file for writing; it is not flushed to disk, because it is not read after a crash."""
        location = join_location(self.location, name)
        if is_local(location):
            with explaining_full_disk(location), self._require_local_path(location).open("wb") as file:
                yield file
            return
        buffer = BytesIO()
        yield buffer
        storage_for(location, self.options).create(location, buffer.getvalue())

    def _require_local_path(self, location: str) -> Path:
        """Return the path of a local file; refuse it if this machine does not see the run's directory."""
        if not is_directory(Path(local_path(self.location))):
            raise OSError(f"{self.location}: not accessible on {gethostname()}: {self.advice}")
        return Path(local_path(location))

    def open(self, name: str) -> AbstractContextManager[Reader]:
        """Open a file for reading."""
        location = join_location(self.location, name)
        if is_local(location):
            self._require_local_path(location)
        return storage_for(location, self.options).open(location)

    def read_into(self, reader: Reader, name: str, position: int, buffer: memoryview) -> None:
        """Fill *buffer* from an open file; `OSError` if the file is shorter than what a task has written."""
        if reader.read_into(position, buffer) < buffer.nbytes:
            raise self.truncated_error(name)

    def truncated_error(self, name: str) -> OSError:
        """Return the error about a file that is shorter than what a task has written."""
        location = join_location(self.location, name)
        return OSError(f"{location}: this scratch file was truncated by another process; run the command again")

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        storage_for(self.location, self.options).delete(join_location(self.location, name))


@contextmanager
def open_scratch_below_output(output: str, options: Mapping[str, str]) -> Iterator[Scratch]:
    """Create a directory below *output* for the duration of a run; delete the local ones of killed runs."""
    with explaining_full_disk(output):
        if is_local(output):
            with temporary_directory_in(Path(local_path(output)), SCRATCH_PREFIX) as directory:
                yield Scratch(str(directory), dict(options))
            return
        scratch = Scratch(join_location(output, f"{SCRATCH_PREFIX}{uuid4()}"), dict(options))
        try:
            yield scratch
        finally:
            storage = storage_for(scratch.location, scratch.options)
            with suppress(FileNotFoundError):  # nothing was written there
                for info in storage.list_files(scratch.location):
                    storage.delete(join_location(scratch.location, info.name))


@contextmanager
def open_scratch(location: str | Scratch | None, options: Mapping[str, str]) -> Iterator[Scratch]:
    """Create a directory for a run, below *location* or in the temporary directory; the caller's `Scratch` is kept."""
    if isinstance(location, Scratch):
        yield location
        return
    if location is not None:
        with open_scratch_below_output(location, options) as scratch:
            yield scratch
        return
    with temporary_directory_in(Path(gettempdir()), "rmq-lake-scratch-", 0o700) as directory:
        yield Scratch(str(directory), advice=_NOT_GIVEN)
