"""
The local file system, through system calls.

`pread` returns an error with an offset where a memory mapping would kill the process. If a broker is running, reads do
not change the page cache, and are limited to a rate. Since 6.14, Linux can read without caching; on older kernels,
pages that were not cached before are dropped.
"""

import errno
import fcntl
import os
import select
import shutil
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from glob import escape
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Self
from uuid import uuid4

from jobs.console.process import raise_if_stopped
from jobs.storage.locations import is_local, local_path
from jobs.storage.model import FetchingReader, FileInfo, Reader, Storage
from jobs.storage.paths import is_directory, is_link, list_directory, path_exists
from rmq_formats.errors import is_disk_error
from rmq_formats.layout import Buffer

_BURST_SECONDS = 0.5  # the most unused time that later reads may use
_PAGE = 4096
_CAREFUL_BLOCK = 1 << 18  # bytes of one careful read; the pages of a read that ends in cached pages are not dropped
_READ_ONLY = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # so that opening a pipe does not block
_DONTCACHE = 0x80  # RWF_DONTCACHE: the kernel drops the pages that a read brings, and no others
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS = 1
_IDLE_CLASS = 3 << 13
_PIPE_SECONDS = 10
_AT_FDCWD = -100  # paths are relative to the working directory
_STATX_BTIME = 0x800
_STATX = struct.Struct("=I76xqI164x")  # struct statx of Linux: the mask, and the seconds and nanoseconds of `stx_btime`
_NICENESS = 10
LOST_FOUND = "lost+found"  # a directory of a separate disk, which only root can read; brokers ignore it


class ReadLimits(NamedTuple):
    """How to read while a broker is running: do not fill the page cache, and limit the rate."""

    max_rate: int | None = None  # bytes a second

    def share_among(self, processes: int) -> Self:
        """Return the limits for each of this many concurrent processes."""
        return self._replace(max_rate=max(self.max_rate // processes, 1)) if self.max_rate else self


@lru_cache(maxsize=8)
def _limiter(rate: int) -> Callable[[int], None]:
    """Return a function that waits until more bytes are within this process's rate; computing time counts."""
    free_at, changing = 0.0, Lock()  # threads read in parallel

    def wait_for_bytes(size: int) -> None:
        """Wait until *size* more bytes are within the rate."""
        nonlocal free_at
        with changing:
            now = time.monotonic()
            free_at = until = max(free_at, now - _BURST_SECONDS) + size / rate
        time.sleep(max(until - now, 0))

    return wait_for_bytes


@cache
def lower_priority() -> None:
    """Lower the CPU and I/O priority of this process and its future children; may be called repeatedly."""
    import ctypes
    import platform

    with suppress(OSError):  # EPERM: a container without the right; reads then only have a higher priority
        os.nice(max(_NICENESS - os.nice(0), 0))
    number = _IOPRIO_SET.get(platform.machine()) if sys.platform.startswith("linux") else None
    if number is not None:
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IDLE_CLASS)


def read_creation_time(path: Path) -> int:
    """Return when a file or directory was created, in nanoseconds; 0 if it is not recorded."""
    import ctypes

    found = path.stat()
    if not sys.platform.startswith("linux"):
        return int(getattr(found, "st_birthtime", 0) * 1_000_000_000)
    result = ctypes.create_string_buffer(_STATX.size)
    statx = getattr(ctypes.CDLL(None), "statx", None)  # glibc 2.28, musl 1.2.5
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, result):
        return 0
    mask, seconds, nanoseconds = _STATX.unpack(result.raw)
    return seconds * 1_000_000_000 + nanoseconds if mask & _STATX_BTIME else 0


class LocalReader(Reader):
    """Reads a descriptor by position; with care, pages that were not cached before are dropped."""

    def __init__(self, descriptor: int, path: str, read_limits: ReadLimits | None = None) -> None:
        self._descriptor = descriptor
        self._path = path
        self._read_limits = read_limits
        self._kernel_drops = True  # whether the kernel drops pages; False once a read with the flag fails
        self.size = os.fstat(descriptor).st_size

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes at *position*; fewer only at the end of the file."""
        stream = BytesIO(bytes(max(min(length, self.size - position), 0)))
        with stream.getbuffer() as buffer:
            filled = self.read_into(position, buffer)
        stream.truncate(filled)
        return stream.getvalue()  # not a copy

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill *buffer* from *position* and return the number of bytes."""
        if self._read_limits is None:
            return self._fill(position, buffer)
        filled = 0
        while filled < buffer.nbytes:
            count = self._fill_carefully(position + filled, buffer[filled : filled + _CAREFUL_BLOCK])
            if not count:
                break
            filled += count
        return filled

    def _fill_carefully(self, position: int, buffer: memoryview) -> int:
        """Fill *buffer*; drop pages that were read from disk, and respect the rate."""
        if self._read_limits is not None and self._read_limits.max_rate:
            _limiter(self._read_limits.max_rate)(buffer.nbytes)
            raise_if_stopped()
        if self._kernel_drops:
            try:
                return self._fill(position, buffer, _DONTCACHE)
            except (OSError, NotImplementedError):  # other failures recur below
                self._kernel_drops = False
        # The kernel drops pages in groups of up to megabytes, so only reads without cached pages are dropped.
        # The last page is probed first: a probe starts to read missing pages, which would soon count as cached.
        ends_cached = self._read_cached_pages(position + buffer.nbytes - 1, buffer[-1:]) > 0
        cached = self._read_cached_pages(position, buffer)
        filled = cached + self._fill(position + cached, buffer[cached:])
        if filled > cached and not ends_cached:
            # Also drops the pages that are shared with neighboring bytes.
            first, last = (position + cached) // _PAGE * _PAGE, -(-(position + filled) // _PAGE) * _PAGE
            os.posix_fadvise(self._descriptor, first, last - first, os.POSIX_FADV_DONTNEED)
        return filled

    def next_written(self, position: int) -> int:
        """Return the next position that is not in a hole of the file."""
        try:
            return os.lseek(self._descriptor, position, os.SEEK_DATA)
        except OSError as error:  # ENXIO: only a hole follows; EINVAL and others: this file system reports no holes
            return self.size if error.errno == errno.ENXIO else position

    def _read_cached_pages(self, position: int, buffer: memoryview) -> int:
        try:
            return os.preadv(self._descriptor, [buffer], position, os.RWF_NOWAIT)
        except (OSError, AttributeError):  # nothing is cached, or this system does not report it
            return 0

    def _fill(self, position: int, buffer: memoryview, flags: int = 0) -> int:
        filled = 0
        while filled < buffer.nbytes:  # the kernel may cut a large read
            try:
                count = os.preadv(self._descriptor, [buffer[filled:]], position + filled, flags)
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._path) from error
            if count == 0:
                break
            filled += count
        return filled


def identify_enclosing_directories(path: str) -> set[tuple[int, int]]:
    """
    Return device and inode of a directory and of every directory that contains it.

    A walk must not follow a link to one of them: it would leave the directory, and read a whole disk.
    """
    directory = Path(path).absolute()
    real = real_path(directory)
    found = set()
    for place in {directory, *directory.parents, real, *real.parents}:
        with suppress(OSError):  # no access, or deleted: the walk itself reports that
            status = place.stat()
            found.add((status.st_dev, status.st_ino))
    return found


@dataclass(frozen=True, slots=True)
class LocalStorage(Storage):
    """The local file system."""

    read_limits: ReadLimits | None = None

    def list_files(self, location: str, skips: Callable[[str], bool] = lambda _: False) -> list[FileInfo]:
        """
        Return every regular file below *location*, sorted by name; each directory is listed once.

        Directories that *skips* selects by their path below *location* are left out.

        A store's CommitLog may be linked to another disk; `may_follow_link` decides which links are followed. A link to
        a directory that contains *location* is omitted. A link to itself is treated as an empty file.
        """
        root = local_path(location)
        status = os.stat(root)  # noqa: PTH116 - one call on a hot path
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), root)
        found: list[FileInfo] = []
        seen = identify_enclosing_directories(root)
        pending = [""]
        while pending:
            prefix = pending.pop()
            try:
                entries = os.scandir(f"{root}/{prefix}")
            except FileNotFoundError:
                if not prefix:
                    raise
                continue  # the broker deletes the directories of a deleted topic
            with entries:
                for entry in (one for one in entries if one.name != LOST_FOUND):
                    with suppress(FileNotFoundError):  # retention may delete files meanwhile
                        status = _status(entry)
                        if entry.is_symlink() and not stat.S_ISLNK(status.st_mode):
                            _check_link(entry.stat(follow_symlinks=False).st_uid, status.st_uid, entry.path)
                        name = f"{prefix}{entry.name}"
                        if stat.S_ISREG(status.st_mode):
                            found.append(FileInfo(name, status.st_size, status.st_mtime_ns // 1_000_000))
                        elif stat.S_ISLNK(status.st_mode):
                            found.append(FileInfo(name, 0, status.st_mtime_ns // 1_000_000))
                        elif stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
                            seen.add((status.st_dev, status.st_ino))
                            pending += [] if skips(name) else [f"{name}/"]
        return sorted(found)

    @contextmanager
    def open(self, location: str) -> Iterator[Reader]:
        """
        Open a file read-only; the descriptor is closed with the block.

        If the disk cannot open the file, each read fails, as if the disk could not read its bytes.
        """
        path = local_path(location)
        try:
            descriptor = _open_descriptor(path)
        except OSError as error:  # of the disk: each read raises it
            size = Path(path).stat().st_size if is_disk_error(error) else 0
            if not size:
                raise
            yield FetchingReader(size, partial(_raise_error, error.errno, error.strerror, path))
            return
        try:
            with naming_file_in_errors(path):
                if self.read_limits is not None:
                    lower_priority()
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # pages that are read ahead would stay
                reader = LocalReader(descriptor, path, self.read_limits)
            yield reader
        finally:
            close_unwritten(descriptor)

    def create(self, location: str, data: Buffer) -> None:
        """Write a new file through a temporary name; flush it and its directory."""
        path = Path(local_path(location))
        with explaining_full_disk(location, len(data)):
            make_directory(path.parent)
            attempt = path.with_name(f".{path.name}.attempt-{uuid4()}")
            try:
                with attempt.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(attempt, path)  # unlike rename, fails if the name exists
            finally:
                attempt.unlink(missing_ok=True)
            flush_directory(path.parent)

    def delete(self, location: str) -> None:
        """Delete a file, if it exists."""
        Path(local_path(location)).unlink(missing_ok=True)


def real_path(path: Path) -> Path:
    """Return *path* without symbolic links; unlike `Path.resolve`, this accepts a link to itself, and keeps it."""
    return Path(os.path.realpath(path))


def is_link_without_target(path: Path) -> bool:
    """Return whether *path* is a symbolic link to itself, or to a path that does not exist."""
    return is_link(path) and not path_exists(path)


def _status(entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return entry.stat(follow_symlinks=False)


def may_follow_link(link_owner: int, target_owner: int) -> bool:
    """
    Return whether to follow a link: one of root, of this process's user, or of its target's owner.

    Otherwise the owner of a store could let a reader with more privileges read files of other users.
    """
    return link_owner in {0, os.geteuid(), target_owner}


def _check_link(link_owner: int, target_owner: int, path: str) -> None:
    if not may_follow_link(link_owner, target_owner):
        reason = f"a symbolic link of user {link_owner} to a file or directory of user {target_owner} is not followed"
        raise PermissionError(errno.EACCES, reason, path)


def _open_descriptor(path: str) -> int:
    """
    Open a file; the target of a link is checked after opening, so that it cannot be exchanged in between.

    A link to itself is opened as an empty file, as it is listed.
    """
    link_owner = None
    try:
        descriptor = os.open(path, _READ_ONLY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        link_owner = os.lstat(path).st_uid
        try:
            descriptor = os.open(path, _READ_ONLY)
        except OSError as followed:
            if followed.errno != errno.ELOOP:
                raise
            return os.open(os.devnull, _READ_ONLY)
    try:
        _check_opened(descriptor, link_owner, path)
    except OSError:
        close_unwritten(descriptor)
        raise
    return descriptor


def _raise_error(number: int | None, reason: str | None, path: str, _position: int, _length: int) -> bytes:
    raise OSError(number, reason, path)


def _check_opened(descriptor: int, link_owner: int | None, path: str) -> None:
    with naming_file_in_errors(path):
        status = os.fstat(descriptor)
    if link_owner is not None:
        _check_link(link_owner, status.st_uid, path)
    if not stat.S_ISREG(status.st_mode):  # since it was listed
        raise OSError(errno.EINVAL, "not a regular file", path)


def close_unwritten(descriptor: int) -> None:
    """Close a descriptor through which nothing was written: it is closed even if this reports an error."""
    with suppress(OSError):  # any: nothing can be lost, and the bytes that were read are right
        os.close(descriptor)


def close_file(descriptor: int, path: str) -> None:
    """Close a descriptor; an error, which may mean that bytes were not written, names the file."""
    with naming_file_in_errors(path):
        os.close(descriptor)


def write_all(descriptor: int, position: int, block: Buffer) -> None:
    """Write a block in full."""
    view = memoryview(block).cast("B")
    while view.nbytes:
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    from hashlib import file_digest  # lazy import: it loads OpenSSL

    with naming_file_in_errors(str(path)), path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def read_small_file(path: Path, limit: int) -> bytes:
    """
    Return the content of a file that the user names, which may be a pipe; `OSError` if it is larger than *limit* bytes.

    A pipe into which no process writes is an error as well: reading it would wait forever.
    """
    data = bytearray()
    with naming_file_in_errors(str(path)):
        descriptor = os.open(path, _READ_ONLY)
        try:
            while len(data) <= limit:
                try:
                    block = os.read(descriptor, limit + 1 - len(data))
                except BlockingIOError:
                    if not select.select([descriptor], [], [], _PIPE_SECONDS)[0]:
                        raise OSError(
                            errno.ETIMEDOUT, f"a pipe into which nothing was written for {_PIPE_SECONDS} s", str(path)
                        ) from None
                    continue
                if not block:
                    break
                data += block
            if not data and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                raise OSError(errno.ENODATA, "a pipe into which no process writes", str(path))
        finally:
            close_unwritten(descriptor)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"too large (limit: {limit:,} bytes)", str(path))
    return bytes(data)


def read_file(path: Path) -> bytes:
    """Return the content of a file; errors name the file."""
    with naming_file_in_errors(str(path)):
        return path.read_bytes()


def start_flush(descriptor: int, position: int, size: int) -> None:
    """Let the kernel start writing these bytes to disk, so that a later flush is short."""
    if hasattr(os, "posix_fadvise"):
        # Dirty pages are not dropped: the kernel starts to write them.
        os.posix_fadvise(descriptor, position, size, os.POSIX_FADV_DONTNEED)


def flush_directory(path: Path) -> None:
    """Make a directory's entries durable; anything else is refused, because opening a pipe would block forever."""
    _flush(path, os.O_DIRECTORY)


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, if necessary; after a power failure, they still exist."""
    if is_directory(path):
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    flush_directory(path.parent)


def flush_file(path: Path) -> None:
    """Make a file durable that another process has written."""
    _flush(path, os.O_CLOEXEC)


def publish_file(made: Path, target: Path) -> None:
    """Give a complete file its name, in place of another one, so that a power failure leaves one of them complete."""
    flush_file(made)
    made.replace(target)
    flush_directory(target.parent)


def delete_tree(path: Path) -> None:
    """
    Delete a directory and its content, if it exists, as far as possible.

    It is tried twice: a single call may fail, and with some versions of Python an error ends the deletion.
    """
    for _ in range(2):
        with suppress(OSError):  # on NFS, a file that is still open cannot be deleted; others are tried again
            shutil.rmtree(path, ignore_errors=True)


def delete_whole_tree(path: Path) -> None:
    """Delete a directory and its content; an error names the whole path (that of `rmtree` names its last part)."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        if error.errno is None or Path(error.filename or "").is_absolute():
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        with naming_file_in_errors(str(path)):
            os.fsync(descriptor)
    finally:
        close_unwritten(descriptor)


_SUFFIX_LENGTH = 8  # length of the random suffix of a temporary directory's name
_BYTES_ARE_FREE = "bytes are free"
_ARROW_CLOSE_ERROR = "error closing file"
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


@contextmanager
def temporary_directory_in(parent: Path, prefix: str, mode: int = 0o777) -> Iterator[Path]:
    """
    Create a directory in *parent* for the duration of the block; delete those with this prefix of killed processes.

    A process locks its directory, so another one deletes it only after the process has ended. Where directories cannot
    be locked, as on NFS, they are not deleted.
    """
    for leftover in list_directory(parent, escape(prefix) + "[a-z0-9_]" * _SUFFIX_LENGTH):
        if (lock := _lock_directory(leftover, fcntl.LOCK_EX | fcntl.LOCK_NB)) is not None:
            delete_tree(leftover)  # it may belong to another user
            close_unwritten(lock)
    make_directory(parent)
    while True:
        made = parent / f"{prefix}{uuid4().hex[:_SUFFIX_LENGTH]}"
        made.mkdir(mode)
        lock = _lock_directory(made, fcntl.LOCK_EX)
        if path_exists(made):
            break
        if lock is not None:  # another process has deleted it before it was locked
            close_unwritten(lock)
    try:
        yield made
    finally:
        delete_tree(made)
        if lock is not None:
            close_unwritten(lock)


def temporary_directory_for(out: Path) -> AbstractContextManager[Path]:
    """Create a hidden directory next to a file, for the parts from which the file is built."""
    return temporary_directory_in(out.parent.absolute(), f".{out.name}.parts-", 0o700)


def _lock_directory(path: Path, operation: int) -> int | None:
    """Lock a directory until the returned descriptor is closed; return None if that is not possible."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # another process has deleted it, or it belongs to another user
        return None
    try:
        fcntl.flock(descriptor, operation)
    except OSError:  # another process has the lock, or the file system has no locks
        close_unwritten(descriptor)
        return None
    return descriptor


@contextmanager
def naming_file_in_errors(location: str) -> Iterator[None]:
    """Add *location* to operating system errors without a file name, such as those of reads and writes."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None or isinstance(error, ConnectionError):
            raise  # a server's error is not about a local file
        raise OSError(error.errno, os.strerror(error.errno), location) from error


@contextmanager
def explaining_full_disk(location: str, size: int | None = None) -> Iterator[None]:
    """Add *location* to operating system errors, and the *size* needed to that of a full disk."""
    try:
        with naming_file_in_errors(location):
            yield
    except Exception as error:  # libraries raise errors of their own
        # `deltalake` raises an error of the file system that names no file.
        if "LocalFileSystem error" in str(error) and location not in str(error) and not _is_full(error):
            raise type(error)(f"{location}: {error}") from error
        # So does Arrow, without a number. The same error of a server is not about a local file.
        if isinstance(error, OSError) and str(error) == _ARROW_CLOSE_ERROR:
            raise OSError(f"{location}: {error}") from error
        is_named = isinstance(error, OSError) and error.filename is not None and _BYTES_ARE_FREE in str(error.strerror)
        if is_named or not _is_full(error):
            raise
        number = getattr(error, "errno", None) or errno.ENOSPC
        path = Path(local_path(location)) if is_local(location) else Path("/")
        failed = getattr(error, "filename", None)
        if isinstance(failed, str) and not Path(failed).absolute().is_relative_to(path.parent):  # of another directory
            path, location = Path(failed), failed
        there = next(directory for directory in (path, *path.parents) if is_directory(directory))
        status = os.statvfs(there)
        needed = f"{size:,} bytes would be written, but only " if size is not None else ""
        free = f"{status.f_bavail * status.f_frsize:,} {_BYTES_ARE_FREE} on the file system of {there}"
        files = "" if status.f_favail or not status.f_files else "; no more files can be created there (no free inodes)"
        raise OSError(number, f"{os.strerror(number)}: {needed}{free}{files}", location) from error


def _is_full(error: Exception) -> bool:
    number = getattr(error, "errno", None)
    return number in _FULL if number is not None else any(f"(os error {full})" in str(error) for full in _FULL)
