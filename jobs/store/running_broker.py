"""
Protects a running broker from our load: priority, page cache, read rate, and free space on the disk.

A running broker holds a lock on the file `lock` in its store, and there is a file `abort`. The existence of either file
does not prove that a broker runs.
"""

import errno
import fcntl
import os
import shutil
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

from jobs.console.amounts import count_text, names_text
from jobs.console.result import RequestError
from jobs.storage.local import (
    LOST_FOUND,
    ReadLimits,
    close_unwritten,
    identify_enclosing_directories,
    lower_priority,
    real_path,
)
from jobs.storage.locations import is_local, local_path
from jobs.storage.paths import is_directory, is_regular_file, path_exists
from jobs.store.store import SET_ASIDE_MARK
from rmq_formats.store import INDEX_DIRECTORY

LOCK_FILE = "lock"
ABORT_FILE = "abort"
FLOCK_LAYOUT = struct.Struct("@hhqqi")  # struct flock of 64-bit Linux
_NO_PROCESS = -1  # the owner of a lock on an open file description, as `lock_store` takes it; brokers do not
FULL_DISK_SHARE = 0.75  # diskMaxUsedSpaceRatio: above it a broker deletes messages early


def find_broker_process(store: str) -> int | None:
    """Return the process that holds the store's lock; None if no broker is known to run on it."""
    path = Path(local_path(store)) / LOCK_FILE if is_local(store) else None
    if path is None or not is_regular_file(path) or not sys.platform.startswith("linux"):
        return None
    with path.open("rb") as file:
        asked = FLOCK_LAYOUT.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, process = FLOCK_LAYOUT.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK or process == _NO_PROCESS else process


def may_have_running_broker(store: str) -> bool:
    """
    Return whether a broker on this machine may have written to the store until now.

    A broker creates `abort` before it accepts messages and deletes it when it stops. A follower of DLedger accepts
    messages from its leader even earlier, but holds the lock by then. After a crash, `abort` is left over.
    """
    if not is_local(store):
        return False
    return path_exists(Path(local_path(store)) / ABORT_FILE) or find_broker_process(store) is not None


def limit_load_beside_broker(store: str, max_rate: int | None = None) -> ReadLimits | None:
    """
    Return how to read *store*; None if no broker runs on it.

    If a broker runs, this process lowers its priority before it starts a JVM or workers, which inherit it.
    """
    if find_broker_process(store) is None:
        return ReadLimits(max_rate) if max_rate else None
    lower_priority()
    return ReadLimits(max_rate)


def check_disk_space(store: str, target: str, expected_bytes: int) -> None:
    """Refuse to start when *expected_bytes* more in *target* would fill the file system of a running broker's store."""
    if not (is_local(store) and is_local(target)) or find_broker_process(store) is None:
        return
    root, path = Path(local_path(store)), Path(local_path(target))
    place = next(one for one in (path, *path.parents) if path_exists(one))
    if root.stat().st_dev != place.stat().st_dev:
        return
    usage = shutil.disk_usage(place)
    share = (usage.used + expected_bytes) / usage.total
    if share > FULL_DISK_SHARE:
        raise OSError(
            f"{target} is on the store's file system, which this run would fill to {share:.0%}; "
            f"beyond {FULL_DISK_SHARE:.0%} a broker deletes messages early. Choose a location on another file system"
        )


UNFINISHED_MARK = ".attempt-"  # part of the name of an unfinished directory or file of an installation


class NotInstalledError(RequestError):
    """An installation of files in a store was refused; the store was left unchanged."""


class FileState(NamedTuple):
    """The identity of a file, which differs from that of a later file of the same name."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def read(cls, path: Path) -> "FileState | None":
        """Return the state of the file at *path*, following links; None if it does not exist, or links to itself."""
        try:
            return cls.from_status(path.stat())
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ELOOP}:
                raise
            return None

    @classmethod
    def from_status(cls, status: os.stat_result) -> Self:
        """Take the fields from a status."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class LockedStore:
    """A store whose broker cannot start, and the state of each of its files when the lock was taken."""

    def __init__(self, directories: Sequence[Path]) -> None:
        """Note the state of every file below *directories*."""
        self._directories = directories
        self._states = self._list()
        self.installed: set[str] = set()  # paths of files that this command has added to the store, or removed

    @contextmanager
    def checking_changes_on_error(self) -> Iterator[Self]:
        """Raise `NotInstalledError` in place of any other error if a file has changed, which explains that error."""
        try:
            yield self
        except NotInstalledError:
            raise
        except Exception as error:
            self.refuse_changes(error)
            raise

    def refuse_changes(self, cause: Exception | None = None) -> None:
        """Raise `NotInstalledError` if any file, except installed ones, has changed since the lock was taken."""
        before, now = self._states, self._list()
        changed = [path for path in before.keys() | now.keys() if before.get(path) != now.get(path)]
        names = sorted({*changed} - self.installed)
        if names:
            raise NotInstalledError(
                f"{count_text(len(names), 'file')} of the store changed while this command ran: {names_text(names)}. "
                "Find out which process writes to the store, stop it, and run this command again"
            ) from cause

    def _list(self) -> Mapping[str, FileState]:
        """Return the state of each file, by the path that it has without links to directories."""
        resolve = cache(real_path)
        states = (state for directory in self._directories for state in list_file_states(directory))
        return {str(resolve(path.parent) / path.name): state for path, state in states}


def list_file_states(directory: Path) -> Iterator[tuple[Path, FileState]]:
    """
    Yield every regular file below *directory* with its state, except those that installations have set aside or begun.

    Links to directories are followed, each directory once.
    """
    seen = identify_enclosing_directories(str(directory))
    pending = [directory]
    while pending:
        place = pending.pop()
        try:
            status = place.stat()
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except FileNotFoundError:  # deleted since it was listed
            continue
        if place != directory and (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in entries:
            if SET_ASIDE_MARK in entry.name or UNFINISHED_MARK in entry.name or entry.name == LOST_FOUND:
                continue
            path = place / entry.name
            if entry.is_symlink() and not path_exists(path):  # the target is missing, or the link leads to itself
                continue
            if entry.is_dir():
                pending.append(path)
            elif entry.is_file() and (state := FileState.read(path)) is not None:
                yield path, state


@contextmanager
def lock_store(store: str, out: Path, commitlog: Sequence[str] = ()) -> Iterator[LockedStore]:
    """
    Hold the broker's own lock; `NotInstalledError` where another process holds it.

    *out* is where the command writes meanwhile, *commitlog* the directories of a log that is not below the store's
    root. A store without a lock file (a copy, or of a broker before 4.2.0) is only checked for changes: a broker that
    starts on it creates the file, which is a change.
    """
    if not is_local(store):
        raise NotInstalledError(f"{store}: files can be installed only in stores on this machine")
    root = Path(local_path(store))
    directories = [root, *(Path(local_path(directory)) for directory in commitlog)]
    if any(real_path(out).is_relative_to(real_path(directory)) for directory in directories):
        raise NotInstalledError(f"{out}: this directory is inside the store; choose one outside it")
    owner = owner_of(root)
    descriptor = None
    try:
        with run_as_user(*owner):
            if path_exists(root / LOCK_FILE):
                descriptor = _open_lock_file(root / LOCK_FILE)
                try:
                    _change_lock(descriptor, fcntl.F_WRLCK)
                except OSError as error:
                    if error.errno not in {errno.EACCES, errno.EAGAIN}:
                        raise
                    reason = (
                        f"a broker is running on this store (it holds {LOCK_FILE}), or another command is writing to it"
                    )
                    raise NotInstalledError(f"{store}: {reason}; stop it first") from error
            held = LockedStore(directories)
        yield held
    finally:
        if descriptor is not None:
            _change_lock(descriptor, fcntl.F_UNLCK)  # forked workers may still have the descriptor
            close_unwritten(descriptor)


def _open_lock_file(path: Path) -> int:
    """Open the broker's lock file for writing; `NotInstalledError` if it is a link or a directory."""
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.EISDIR}:
            raise
        what = "a symbolic link, which is not followed" if error.errno == errno.ELOOP else "a directory"
        raise NotInstalledError(f"{path}: this lock file is {what}. Move it out of the store") from error


def _change_lock(descriptor: int, kind: int) -> None:
    """
    Set a lock that belongs to the open file, not to this process.

    A lock of the process (`lockf`) would be released as soon as any code closes any other descriptor of the file, and a
    check for a running broker opens and closes it. Brokers respect either kind. Systems without it have no such check.
    """
    if hasattr(fcntl, "F_OFD_SETLK"):
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, FLOCK_LAYOUT.pack(kind, os.SEEK_SET, 0, 1, 0))
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB, 1)


@contextmanager
def run_as_user(user: int, group: int) -> Iterator[None]:
    """Temporarily switch effective user and group (root only; otherwise do nothing)."""
    if os.geteuid() != 0 or user == 0:
        yield
        return
    groups, before = os.getgroups(), os.getegid()
    os.setgroups([group])
    os.setegid(group)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(before)
        os.setgroups(groups)


@contextmanager
def acting_as_root() -> Iterator[None]:
    """Within `run_as_user`, act as root once more: for our own files outside the store."""
    user, group = os.geteuid(), os.getegid()
    if user == os.getuid():
        yield
        return
    os.seteuid(os.getuid())
    os.setegid(os.getgid())
    try:
        yield
    finally:
        os.setegid(group)
        os.seteuid(user)


def owner_of(root: Path, name: str = INDEX_DIRECTORY) -> tuple[int, int]:
    """Return the user and the group of a directory of the store, or of the store if the directory does not exist."""
    whole = root.stat()
    directory = root / name
    part = directory.stat() if is_directory(directory) else whole
    if whole.st_uid not in {0, part.st_uid}:
        raise NotInstalledError(
            f"the store belongs to user {whole.st_uid}, but its {name} directory belongs to user "
            f"{part.st_uid}: change the owner of one of them"
        )
    return part.st_uid, part.st_gid
