"""
Put rebuilt index files into a stopped broker's store.

The new set is made beside the old one and the two directories change places in one step, so whoever kills this process
leaves either set whole. The broker's own lock is held meanwhile: it cannot start. What was replaced stays beside the
store under a name of its own.

A store belongs to its broker's user, who may change anything in it at any moment. So root acts as that user wherever it
touches the store, and the new set is made and exchanged through open directories: what is installed is what was made.
"""

import ctypes
import errno
import fcntl
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from jobs.console.amounts import counted
from jobs.products.index.file_builder import hash_file
from jobs.rebuild.index import MANIFEST
from jobs.rebuild.owner import Owner, acting_as, acting_as_before
from jobs.storage.locations import is_local, local_path
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.layout import HEADER, IndexHeader, decode_header
from rmq_formats.store import (
    INDEX_FOLDER,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    is_index_name,
)

ATTEMPT = ".attempt-"
_REPLACED = ".replaced-"
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
_EXCHANGE = 2
_SPARE = 64 << 20  # bytes that are left free


class RefusedError(Exception):
    """Why nothing was touched."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The steps of an installation, known in full before the first one."""

    store: Path
    source: Path
    index: Path  # the real directory, where `index` is a link
    new: dict[str, str]  # name → sha256
    kept: tuple[str, ...]
    set_aside: tuple[str, ...]
    owner: Owner
    aside: Path
    checkpoint: Checkpoint | None = None  # the one to be written

    def describe(self) -> Iterator[str]:
        """Say it, a line each."""
        yield f"into {self.index} (user {self.owner.user}, group {self.owner.group})"
        yield from (f"new: {name}" for name in sorted(self.new))
        kept = [name for name in self.kept if is_index_name(name)]
        if kept:
            yield f"kept: {counted(len(kept), 'file')}, {min(kept)} to {max(kept)}"
        yield from (f"set aside in {self.aside.name}: {name}" for name in self.set_aside)
        if self.checkpoint is not None:
            yield f"checkpoint: index time {self.checkpoint.index_timestamp}, the old one in {backup_of(self).name}"


class Rebuilt(NamedTuple):
    """The output directory of a rebuild."""

    source: Path
    files: dict[str, str]  # SHA-256 by name
    survivors: frozenset[str] | None  # files of the store that were compared; None: all are replaced
    replaced: frozenset[str]
    headers: dict[str, IndexHeader]
    size: int


def plan_installation(
    store: str, out: str, *, advance_checkpoint: bool = False, refuses_deletion: bool = True
) -> Installation:
    """
    Check everything and return the installation; `RefusedError` when it must not be done.

    Without *refuses_deletion* files may stay that a broker deletes when it starts after a crash, as it would have.
    """
    if not is_local(out):
        raise RefusedError("files are installed from a directory on this machine")
    root, source = Path(local_path(store)), Path(local_path(out))
    manifest = read_manifest(source)
    files = {file["name"]: file["sha256"] for file in manifest["files"]}
    survivors = frozenset(file["name"] for file in manifest["survivors"]) if manifest["lost_only"] else None
    paths = [source / name for name in files]
    size = sum(path.stat().st_size for path in paths)
    headers = {path.name: _header(path) for path in paths}
    rebuilt = Rebuilt(source, files, survivors, frozenset(manifest["replaced"]), headers, size)
    user, group = writer_of(root)
    with acting_as(user, group):
        return _planned(root, rebuilt, advance_checkpoint=advance_checkpoint, refuses_deletion=refuses_deletion)


def _planned(root: Path, rebuilt: Rebuilt, *, advance_checkpoint: bool, refuses_deletion: bool) -> Installation:
    """Return the installation, checked with the rights of the store's owner."""
    index = (root / INDEX_FOLDER).resolve()
    present = sorted(path.name for path in index.iterdir() if is_index_name(path.name)) if index.is_dir() else []
    new, kept = rebuilt.files, _kept(rebuilt, present)
    stray = sorted(set(new) & set(kept))
    if stray:
        raise RefusedError(f"{', '.join(stray)}: to be kept and to be replaced")
    owner = owner_of(index if index.is_dir() else root, [index / name for name in present])
    headers = rebuilt.headers | {name: _header(index / name) for name in kept}
    deleted = _deleted_at_start(root, headers)
    checkpoint = None
    if deleted and advance_checkpoint:
        newest = max(header.end_timestamp for header in headers.values())
        checkpoint = _checkpoint(root)._replace(index_timestamp=newest)
    elif deleted and refuses_deletion:
        raise RefusedError(
            f"the broker did not stop cleanly: at its next start it would delete {', '.join(deleted)}. "
            "Give --advance-checkpoint, or start and stop the broker first"
        )
    refuse_full_disk(index.parent, rebuilt.size)
    others = (
        [path.name for path in index.iterdir() if path.is_file() and path.name not in present] if index.is_dir() else []
    )
    return Installation(
        root, rebuilt.source, index, new, (*kept, *sorted(others)),
        tuple(name for name in present if name not in kept),
        owner,
        aside_of(index),
        checkpoint,
    )  # fmt: skip


def refuse_full_disk(directory: Path, needed: int) -> None:
    """Refuse what would leave less than a little of the disk."""
    free = shutil.disk_usage(directory).free
    if needed + _SPARE > free:
        raise RefusedError(f"{directory}: {needed} bytes needed, {free} free")


def aside_of(directory: Path) -> Path:
    """Return a new name beside a directory, for its replaced files."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return directory.with_name(f"{directory.name}{_REPLACED}{stamp}-{uuid4().hex[:8]}")


def writer_of(root: Path, name: str = INDEX_FOLDER) -> tuple[int, int]:
    """Return the user and the group that files of a directory must belong to; this process must be able to be them."""
    user, group = user_of(root, name)
    if os.geteuid() not in {0, user}:
        raise RefusedError(f"files must belong to user {user}; run as that user, or as root")
    return user, group


def user_of(root: Path, name: str = INDEX_FOLDER) -> tuple[int, int]:
    """Return the user and the group of a directory of the store, or of the store where there is none."""
    whole = root.stat()
    directory = root / name
    part = directory.stat() if directory.is_dir() else whole
    if whole.st_uid not in {0, part.st_uid}:
        raise RefusedError(
            f"the store belongs to user {whole.st_uid}, its index directory to user {part.st_uid}: make them one user's"
        )
    return part.st_uid, part.st_gid


def read_manifest(source: Path) -> dict[str, Any]:
    """Read the manifest that a rebuild has written."""
    try:
        manifest: dict[str, Any] = json.loads((source / MANIFEST).read_bytes())
    except (OSError, ValueError) as error:
        raise RefusedError(f"{source}: no complete rebuild is there: {MANIFEST}: {error}") from error
    return manifest


def _kept(rebuilt: Rebuilt, present: Sequence[str]) -> list[str]:
    """Return the files of the store that stay; what is there must be what was looked at."""
    if rebuilt.survivors is None:
        return []
    if rebuilt.survivors != set(present):
        changed = sorted(rebuilt.survivors ^ set(present))
        raise RefusedError(f"the index directory has changed since the rebuild: {', '.join(changed)}")
    return [name for name in present if name not in rebuilt.replaced]


def owner_of(directory: Path, files: Sequence[Path]) -> Owner:
    """Return the owner and the mode of new files: those of the files that are there."""
    status = directory.stat()
    mode = status.st_mode & 0o7777
    return Owner(status.st_uid, status.st_gid, mode, files[-1].stat().st_mode & 0o777 if files else mode & 0o666)


def _header(path: Path) -> IndexHeader:
    with path.open("rb") as file:
        # A broker gives a short file its length, with zeros, and takes what it has for the header.
        return decode_header(file.read(HEADER.size).ljust(HEADER.size, b"\0"))


def _checkpoint(root: Path) -> Checkpoint:
    try:
        return decode_checkpoint((root / "checkpoint").read_bytes())
    except (OSError, FormatError):
        return Checkpoint(0, 0, 0)


def _deleted_at_start(root: Path, headers: dict[str, IndexHeader]) -> tuple[str, ...]:
    """Return the files that a broker deletes which finds `abort`: they end after the checkpoint's index time."""
    if not (root / "abort").exists():
        return ()
    time = _checkpoint(root).index_timestamp
    return tuple(sorted(name for name, header in headers.items() if header.end_timestamp > time))


def backup_of(plan: Installation) -> Path:
    """Return the path of the kept copy of the checkpoint."""
    return plan.store / f"checkpoint{plan.aside.name.removeprefix(plan.index.name)}"


@contextmanager
def broker_kept_out(store: str) -> Iterator[None]:
    """Hold the broker's own lock; `RefusedError` when the broker holds it."""
    if not is_local(store):
        raise RefusedError("files are installed into a store on this machine")
    root = Path(local_path(store))
    lock = root / "lock"
    if not lock.exists():
        yield  # before 4.2.0, or a copy: there is nothing to hold
        return
    with acting_as(*user_of(root)):
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            if error.errno not in {errno.EACCES, errno.EAGAIN}:
                raise
            raise RefusedError(f"{store}: the broker runs (it holds {lock.name}); stop it first") from error
        yield


def install(plan: Installation, step: Callable[[str], object] = lambda name: name) -> None:
    """Do what was planned; *step* is given before each step, none of which leaves less than a whole set."""
    with acting_as(plan.owner.user, plan.owner.group), ExitStack() as stack:
        parent = opened(stack, plan.index.parent)
        for leftover in _names_in(parent):
            if leftover.startswith(f"{plan.index.name}{ATTEMPT}"):
                shutil.rmtree(leftover, dir_fd=parent)
        staging = f"{plan.index.name}{ATTEMPT}{uuid4()}"
        step("make the directory")
        os.mkdir(staging, 0o700, dir_fd=parent)
        made = opened(stack, staging, parent)
        for name, digest in plan.new.items():
            step(f"copy {name}")
            _copy(plan.source / name, name, made, digest, plan.owner)
        old = opened(stack, plan.index.name, parent) if plan.kept else -1
        for name in plan.kept:
            step(f"keep {name}")
            os.link(name, name, src_dir_fd=old, dst_dir_fd=made, follow_symlinks=False)
        give(made, plan.owner.group, plan.owner.directory_mode)
        os.fsync(made)
        if plan.checkpoint is not None:
            step("advance the checkpoint")
            _replace_checkpoint(plan, plan.checkpoint, opened(stack, plan.store))
        step("name the directory")
        # From here on nobody sweeps it away: after the exchange it holds the old set.
        os.rename(staging, plan.aside.name, src_dir_fd=parent, dst_dir_fd=parent)
        step("exchange")
        check_is(made, plan.aside, parent)
        _exchange(plan.aside.name, plan.index.name, parent)
        check_is(made, plan.index, parent)
        os.fsync(parent)
        step("tidy up")
        _tidy_up(plan, parent)
        os.fsync(parent)


def opened(stack: ExitStack, directory: str | Path, parent: int | None = None) -> int:
    """Open a directory, which is no link."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    stack.callback(os.close, descriptor)
    return descriptor


def _names_in(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def check_is(made: int, place: Path, parent: int) -> None:
    """Raise where another directory is at *place* than the one that was made."""
    found, expected = os.stat(place.name, dir_fd=parent, follow_symlinks=False), os.fstat(made)
    if (found.st_dev, found.st_ino) != (expected.st_dev, expected.st_ino):
        raise OSError(f"{place}: not the directory that was made: somebody else changes the store meanwhile")


def _tidy_up(plan: Installation, parent: int) -> None:
    """Delete what stays in the store under its old name, too, and the directory if nothing else is in it."""
    try:
        with ExitStack() as stack:
            aside = opened(stack, plan.aside.name, parent)
            for name in plan.kept:
                os.unlink(name, dir_fd=aside)
            is_empty = not _names_in(aside)
    except FileNotFoundError:  # there was no index directory
        return
    if is_empty:
        os.rmdir(plan.aside.name, dir_fd=parent)


def _copy(source: Path, name: str, folder: int, digest: str, owner: Owner) -> None:
    with acting_as_before():
        stored = source.open("rb")
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    with stored, os.fdopen(descriptor, "r+b") as file:
        shutil.copyfileobj(stored, file)
        file.flush()
        found = hash_file(lambda position, length: os.pread(descriptor, length, position))
        if found != digest:
            raise OSError(f"{source}: sha256 {found}, the manifest says {digest}")
        give(descriptor, owner.group, owner.file_mode)
        os.fsync(descriptor)


def give(descriptor: int, group: int, mode: int) -> None:
    """Give an open file its group and mode; its user is whom this process acts as."""
    if os.fstat(descriptor).st_gid != group:
        os.fchown(descriptor, -1, group)
    os.fchmod(descriptor, mode)


def _replace_checkpoint(plan: Installation, checkpoint: Checkpoint, root: int) -> None:
    attempt = f"checkpoint{ATTEMPT}{uuid4()}"
    descriptor = os.open(attempt, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=root)
    with os.fdopen(descriptor, "wb") as file:
        file.write(encode_checkpoint(checkpoint))
        file.flush()
        try:
            status = os.stat("checkpoint", dir_fd=root, follow_symlinks=False)
        except FileNotFoundError:
            pass
        else:
            give(descriptor, status.st_gid, status.st_mode & 0o7777)
            os.link("checkpoint", backup_of(plan).name, src_dir_fd=root, dst_dir_fd=root, follow_symlinks=False)
        os.fsync(descriptor)
    os.replace(attempt, "checkpoint", src_dir_fd=root, dst_dir_fd=root)
    os.fsync(root)


def exchange(new: Path, old: Path) -> None:
    """Let two directories change places, beside each other."""
    with ExitStack() as stack:
        _exchange(new.name, old.name, opened(stack, old.parent))


def _exchange(new: str, old: str, parent: int) -> None:
    """Let two directories change places: at once where the system can, else one after the other."""
    # Without the system call a kill between two renames leaves no directory *old*: the broker then makes a new one.
    # Nothing is lost: both sets lie beside it, the new one under the name that ends in `-new`.
    try:
        os.stat(old, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(new, old, src_dir_fd=parent, dst_dir_fd=parent)
        return
    number = _RENAMEAT2.get(platform.machine()) if sys.platform.startswith("linux") else None
    if number is not None:
        renameat2 = ctypes.CDLL(None, use_errno=True).syscall
        if renameat2(number, parent, os.fsencode(new), parent, os.fsencode(old), _EXCHANGE) == 0:
            return
        if ctypes.get_errno() not in {errno.EINVAL, errno.ENOSYS}:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), old)
    between = f"{new}-new"
    for source, target in ((new, between), (old, new), (between, old)):
        os.rename(source, target, src_dir_fd=parent, dst_dir_fd=parent)
