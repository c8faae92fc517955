"""
A lock that allows one run of a store at a time; correctness depends on the transaction in `runs`, not on this lock.

On a local lake it is an operating system lock on a file: it ends with the process. An object store has no such lock;
there, a run only writes a note with its process and host.

The note is for users, and for the next run: if it was not removed, the last run was killed and may have left files.
"""

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from jobs.console.result import OtherRunActiveError
from jobs.lake.lake import Lake
from jobs.storage.local import close_file, flush_directory, make_directory, naming_file_in_errors
from jobs.storage.locations import is_local, local_path
from jobs.storage.paths import path_exists, refuse_special_file

_LOCKS = "_locks"
_LONGEST_NOTE = 1024
_kept: set[str] = set()  # locks that this process keeps from run to run
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # some network file systems


@contextmanager
def hold_lock(lake: Lake, store_id: str) -> Iterator[bool]:
    """Hold the store's lock, or raise `OtherRunActiveError`; yield whether the previous run was killed."""
    location = lake.locate(_LOCKS, store_id)
    if location in _kept:
        yield False
        return
    with _hold_file_lock(location) if is_local(location) else _hold_note(lake, store_id) as was_cut_off:
        yield was_cut_off


@contextmanager
def hold_lock_for_process(lake: Lake, store_id: str) -> Iterator[None]:
    """Keep the store's lock for all runs of this process in the block."""
    location = lake.locate(_LOCKS, store_id)
    with hold_lock(lake, store_id):
        _kept.add(location)
        try:
            yield
        finally:
            _kept.discard(location)


def check_lock_is_shared(lake: Lake, store_id: str) -> None:
    """Raise `OSError` if this machine does not see the lock of the run: files that it writes would be lost."""
    location = lake.locate(_LOCKS, store_id)
    if is_local(location) and not path_exists(Path(local_path(location))):
        raise OSError(
            f"{lake.location}: not accessible on {socket.gethostname()}: use a directory that all workers share"
        )


@contextmanager
def _hold_file_lock(location: str) -> Iterator[bool]:
    path = Path(local_path(location))
    make_directory(path.parent)
    is_new = not path_exists(path)
    descriptor = _open_lock_file(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OtherRunActiveError(_describe_holder(os.pread(descriptor, _LONGEST_NOTE, 0))) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise OSError(error.errno, error.strerror, str(path)) from error
        note = _encode_note()
        with naming_file_in_errors(str(path)):
            was_cut_off = os.fstat(descriptor).st_size > 0
            os.pwrite(descriptor, note, 0)  # before truncating: after a kill, the file must not be empty
            os.ftruncate(descriptor, len(note))
            os.fsync(descriptor)  # the next run must also look for leftovers after a power failure
        if is_new:
            flush_directory(path.parent)
        yield was_cut_off
        with naming_file_in_errors(str(path)):
            os.ftruncate(descriptor, 0)  # an error or a kill leaves the note: the next run then looks for leftovers
    finally:
        close_file(descriptor, str(path))


def _open_lock_file(path: Path) -> int:
    """Open a lock file; refuse a pipe or a device, and a link, because its target would be overwritten."""
    refuse_special_file(path)
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(
            errno.ELOOP, "this lock file is a symbolic link, which is not followed; delete it", str(path)
        ) from error


@contextmanager
def _hold_note(lake: Lake, store_id: str) -> Iterator[bool]:
    path = f"{_LOCKS}/{store_id}"
    was_cut_off = any(info.name == store_id for info in lake.list_files(_LOCKS))
    if was_cut_off:
        lake.delete(path)  # storages do not overwrite files
    with suppress(FileExistsError):  # another run began at the same moment: the commit decides between the two
        lake.create(path, _encode_note())
    yield was_cut_off
    lake.delete(path)


def _encode_note() -> bytes:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": since}).encode() + b"\n"


def _describe_holder(text: bytes) -> str:
    try:
        holder = json.loads(text.partition(b"\n")[0])
        run = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (ValueError, KeyError, TypeError):
        run = "a process that has just started"
    return f"another run is active: {run}. Run this command again when it has ended"
