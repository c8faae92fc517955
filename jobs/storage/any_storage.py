"""
Access to local files and object stores: list, read ranges, create, delete.

This is the only package that knows file systems and their credentials: local files through the operating system, object
stores through pyarrow.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.storage.local import LocalStorage, ReadLimits
from jobs.storage.locations import AZURE_SCHEMES, is_local, local_path, scheme_of, why_unsupported
from jobs.storage.model import FileInfo, Reader, Storage
from jobs.storage.paths import refuse_special_file

if TYPE_CHECKING:
    from pyarrow import NativeFile

    from jobs.storage.s3 import ObjectStorage


@dataclass(frozen=True, slots=True)
class AnyStorage(Storage):
    """All configured file systems, for reading: each call is passed to the one that has the location."""

    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # Hadoop's names: addresses and credentials
    read_limits: ReadLimits | None = None  # how local files are read where a broker may be running

    def list_files(self, location: str) -> list[FileInfo]:
        """Return every file below *location*, sorted by name; `FileNotFoundError` if the directory does not exist."""
        return storage_for(location, self.options, self.read_limits).list_files(location)

    def open(self, location: str) -> AbstractContextManager[Reader]:
        """Open *location* for reading."""
        return storage_for(location, self.options, self.read_limits).open(location)


def storage_for(
    location: str, options: Mapping[str, str] | None = None, read_limits: ReadLimits | None = None
) -> Storage:
    """Return the storage for *location*; *options* are the session's Hadoop settings (`fs.s3a.…`)."""
    reason = why_unsupported(location)
    if reason is not None:
        raise OSError(reason)
    if is_local(location):
        return LocalStorage(read_limits)
    from jobs.storage.s3 import azure_storage, s3_storage  # lazy import: compiles expressions
    from jobs.storage.settings import AzureSettings

    if scheme_of(location) in AZURE_SCHEMES:
        return azure_storage(AzureSettings.for_location(location, options or {}))
    return s3_storage(tuple(sorted((options or {}).items())))


def open_arrow_file(location: str, options: Mapping[str, str]) -> "NativeFile":
    """Open a file for pyarrow's own readers."""
    if is_local(location):
        from pyarrow import OSFile

        refuse_special_file(Path(local_path(location)))
        return OSFile(local_path(location))
    return object_store(location, options).open_arrow_file(location)


def object_store(location: str, options: Mapping[str, str]) -> "ObjectStorage":
    """Return the object store of a location that is not local; refuse a storage that cannot contain a lake."""
    storage = storage_for(location, options)
    from jobs.storage.s3 import ObjectStorage

    if not isinstance(storage, ObjectStorage):
        raise OSError(f"{location}: a lake cannot be on {scheme_of(location)}://. Use a local path, s3a:// or abfss://")
    return storage
