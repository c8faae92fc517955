"""A full disk, said so that one can act: which file could not be written, how much was to come, how much is free."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.storage.locations import is_local, local_path

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


@contextmanager
def room_for(location: str, size: int | None = None) -> Iterator[None]:
    """Name *location*, and the *size* that it needs, where the block finds the disk full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL or _is_named(error):
            raise
        raise _named(error, location, size) from error


def _named(error: OSError, location: str, size: int | None) -> OSError:
    reason = os.strerror(error.errno or errno.ENOSPC)
    needed = f"{size} bytes are to be written, " if size is not None else ""
    return OSError(error.errno, f"{reason}: {needed}{_free(location)}", location)


def _is_named(error: OSError) -> bool:
    return error.filename is not None and "bytes are free" in str(error.strerror)


def _free(location: str) -> str:
    """Say how much is free where a file was to be written, and what to look at where that is no lack of bytes."""
    path = Path(local_path(location)) if is_local(location) else Path("/")
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    status = os.statvfs(there)
    files = "" if status.f_favail or not status.f_files else "; no more files can be made there (inodes)"
    return f"{status.f_bavail * status.f_frsize} bytes are free on the file system of {there}{files}"
