"""Errors of the operating system that name their file; of a full disk also how much was needed and how much is free."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.storage.locations import is_local, local_path

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


@contextmanager
def named(location: str) -> Iterator[None]:
    """Name *location* in an error of the operating system that names no file, as those of reads and writes do."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None or isinstance(error, ConnectionError):
            raise  # of a server: no file of this machine
        raise OSError(error.errno, os.strerror(error.errno), location) from error


@contextmanager
def room_for(location: str, size: int | None = None) -> Iterator[None]:
    """Name *location* in an error of the operating system, and in that of a full disk the *size* needed."""
    try:
        with named(location):
            yield
    except Exception as error:  # libraries have errors of their own for it
        if _is_of_rust(error) and location not in str(error) and not _is_full(error):
            raise type(error)(f"{location}: {error}") from error
        if not _is_full(error) or _is_named(error):
            raise
        raise _named(error, location, size) from error


def _is_of_rust(error: Exception) -> bool:
    """Return whether `deltalake` raises an error of the file system, which names no file."""
    return "LocalFileSystem error" in str(error)


def _is_full(error: Exception) -> bool:
    number = getattr(error, "errno", None)
    return number in _FULL if number is not None else any(f"(os error {full})" in str(error) for full in _FULL)


def _named(error: Exception, location: str, size: int | None) -> OSError:
    number = getattr(error, "errno", None) or errno.ENOSPC
    needed = f"{size} bytes are to be written, " if size is not None else ""
    return OSError(number, f"{os.strerror(number)}: {needed}{_free(location)}", location)


def _is_named(error: Exception) -> bool:
    return isinstance(error, OSError) and error.filename is not None and "bytes are free" in str(error.strerror)


def _free(location: str) -> str:
    path = Path(local_path(location)) if is_local(location) else Path("/")
    there = next(folder for folder in (path, *path.parents) if folder.is_dir())
    status = os.statvfs(there)
    files = "" if status.f_favail or not status.f_files else "; no more files can be made there (inodes)"
    return f"{status.f_bavail * status.f_frsize} bytes are free on the file system of {there}{files}"
