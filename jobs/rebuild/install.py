"""
Put files into a stopped broker's store: index files, queues, segments, a checkpoint.

A set of files is made beside the folder that it is for, files that stay are linked into it, and the two folders change
places in one step; a single file takes its name in one step. So whoever kills this process leaves what was there or
what is new, whole. The broker's own lock is held meanwhile: it cannot start. What was replaced stays beside the store
under a name of its own.

A store belongs to its broker's user, who may change anything in it at any moment: a link may be there by then that was
not there before. So root acts as that user wherever it touches the store, and can do no more in it than that user.
"""

import ctypes
import errno
import fcntl
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from jobs.console.amounts import counted
from jobs.products.index.file_builder import hash_file
from jobs.rebuild.index import MANIFEST
from jobs.storage.local import flush_directory
from jobs.storage.locations import is_local, local_path
from jobs.store.store import REPLACED
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.layout import HEADER, IndexHeader, decode_header
from rmq_formats.store import (
    CHECKPOINT_SIZE,
    INDEX_FOLDER,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    is_index_name,
)

_ATTEMPT = ".attempt-"
_CHECKPOINT = "checkpoint"
_PLAIN = "consumequeue"
_QUEUE_ROOTS = ("batchconsumequeue", "consumequeue_ext")  # in a rebuild's output; all else belongs below `consumequeue`
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
_EXCHANGE = 2
_SPARE = 64 << 20  # bytes that are left free
Step = Callable[[str], object]  # is told of each step before it


class RefusedError(Exception):
    """Why nothing was touched."""


class Owner(NamedTuple):
    """The owner and the mode of files in the index directory."""

    user: int
    group: int
    directory_mode: int
    file_mode: int


class NewFile(NamedTuple):
    """A file that goes into the store."""

    source: Path
    size: int
    written: int  # zeros follow
    sha256: str | None  # of what is written; None where the file is nobody else's


class NewCheckpoint(NamedTuple):
    """A checkpoint to be written, and where a copy of the old one is kept."""

    values: Checkpoint
    backup: Path


@dataclass(frozen=True, slots=True)
class Installation:
    """The files to be put into one folder, known in full before the first step."""

    folder: Path  # the real one, where the store's is a link
    new: Mapping[str, NewFile]  # by path below the folder
    set_aside: tuple[str, ...]
    owner: Owner
    aside: Path  # gets what is set aside
    is_exchange: bool = True  # of the folder; False: each file takes its name by itself
    kept: tuple[str, ...] = ()
    checkpoint: NewCheckpoint | None = None

    @property
    def beside(self) -> Path:
        """The path that names of attempts and of the folder aside begin with: the folder, or a file in it."""
        return self.aside.with_name(self.aside.name.partition(REPLACED)[0])

    def describe(self) -> Iterator[str]:
        """Say it, a line each."""
        if not self.is_exchange:
            yield from (
                f"{'replaced' if name in self.set_aside else 'new'}: {self.folder.name}/{name}" for name in self.new
            )
            return
        yield f"into {self.folder} (user {self.owner.user}, group {self.owner.group})"
        yield from (f"new: {self.folder.name}/{name}" for name in sorted(self.new))
        if self.kept:
            yield f"kept: {counted(len(self.kept), 'file')}"
        yield from (f"set aside in {self.aside.name}: {name}" for name in self.set_aside)
        if self.checkpoint is not None:
            new, backup = self.checkpoint
            yield f"checkpoint: index time {new.index_timestamp}, the old one in {backup.name}"


@contextmanager
def acting_as(user: int, group: int) -> Iterator[None]:
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
def acting_as_before() -> Iterator[None]:
    """Within `acting_as`, act as root once more: for our own files outside the store."""
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


def plan_index(
    store: str, out: str, *, advance_checkpoint: bool = False, refuses_deletion: bool = True
) -> Installation:
    """
    Check everything and return the installation of index files; `RefusedError` when it must not be done.

    Without *refuses_deletion* files may stay that a broker deletes when it starts after a crash, as it would have.
    """
    if not is_local(out):
        raise RefusedError("files are installed from a directory on this machine")
    root, source = Path(local_path(store)), Path(local_path(out))
    manifest = _read_manifest(source)
    new = {}
    for file in manifest["files"]:
        path = source / file["name"]
        new[path.name] = NewFile(path, path.stat().st_size, path.stat().st_size, file["sha256"])
    headers = {name: index_header(file.source) for name, file in new.items()}
    with acting_as(*writer_of(root)):
        index = (root / INDEX_FOLDER).resolve()
        there = sorted(path.name for path in index.iterdir() if path.is_file()) if index.is_dir() else []
        present = [name for name in there if is_index_name(name)]
        kept = _kept(manifest, present)
        stray = sorted(set(new) & set(kept))
        if stray:
            raise RefusedError(f"{', '.join(stray)}: to be kept and to be replaced")
        headers |= {name: index_header(index / name) for name in kept}
        deleted = _deleted_at_start(root, headers)
        checkpoint, aside = None, _aside_of(index)
        if deleted and advance_checkpoint:
            newest = max(header.end_timestamp for header in headers.values())
            backup = root / f"{_CHECKPOINT}{aside.name.removeprefix(index.name)}"
            checkpoint = NewCheckpoint(_checkpoint(root)._replace(index_timestamp=newest), backup)
        elif deleted and refuses_deletion:
            raise RefusedError(
                f"the broker did not stop cleanly: at its next start it would delete {', '.join(deleted)}. "
                "Give --advance-checkpoint, or start and stop the broker first"
            )
        kept += [name for name in there if name not in present]
        return replace(_planned(index, new, present, kept), aside=aside, checkpoint=checkpoint)


def plan_queues(store: str, out: Path) -> list[Installation]:
    """Check everything and return the installations, one for each folder; `RefusedError` when it must not be done."""
    root = Path(local_path(store))
    manifest = _read_manifest(out)
    new: dict[str, dict[str, NewFile]] = {}
    for file in (file for queue in manifest["queues"] for file in queue["files"]):
        folder, _, path = file["path"].partition("/")
        folder, path = (folder, path) if folder in _QUEUE_ROOTS else (_PLAIN, file["path"])
        new.setdefault(folder, {})[path] = NewFile(out / file["path"], file["size"], file["written"], file["sha256"])
    plans = []
    with acting_as(*writer_of(root, _PLAIN)):
        for name, files in sorted(new.items()):
            folder = (root / name).resolve()
            present = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
            kept = [path for path in present if path not in files] if manifest["lost_only"] else []
            plans.append(_planned(folder, files, present, kept))
    return plans


def _planned(folder: Path, new: Mapping[str, NewFile], present: Sequence[str], kept: Sequence[str]) -> Installation:
    owner = owner_of(folder if folder.is_dir() else folder.parent, [folder / name for name in present])
    if os.geteuid() not in {0, owner.user}:
        raise RefusedError(f"{folder}: belongs to user {owner.user}, and files of it are another user's")
    _refuse_full_disk(folder.parent, new)
    set_aside = tuple(sorted({*present} - {*kept}))
    return Installation(folder, new, set_aside, owner, _aside_of(folder), kept=tuple(kept))


def plan_files(folder: Path, files: Mapping[str, Path], beside: Path) -> Installation:
    """Return the installation of single files, whose attempts and replaced files are named after *beside*."""
    there = [folder / name for name in files if (folder / name).is_file()]
    others = there or sorted(path for path in folder.iterdir() if path.is_file())[-1:]
    new = {name: NewFile(path, path.stat().st_size, path.stat().st_size, None) for name, path in files.items()}
    _refuse_full_disk(folder, new)
    set_aside = tuple(path.name for path in there)
    return Installation(folder, new, set_aside, owner_of(folder, others), _aside_of(beside), is_exchange=False)


def _refuse_full_disk(directory: Path, new: Mapping[str, NewFile]) -> None:
    """Refuse what would leave less than a little of the disk."""
    needed, free = sum(file.size for file in new.values()), shutil.disk_usage(directory).free
    if needed + _SPARE > free:
        raise RefusedError(f"{directory}: {needed} bytes needed, {free} free")


def _aside_of(directory: Path) -> Path:
    """Return a new name beside a directory, for its replaced files."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return directory.with_name(f"{directory.name}{REPLACED}{stamp}-{uuid4().hex[:8]}")


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
            f"the store belongs to user {whole.st_uid}, its {name} directory to user {part.st_uid}: make them one "
            "user's"
        )
    return part.st_uid, part.st_gid


def _read_manifest(source: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((source / MANIFEST).read_bytes())
    except (OSError, ValueError) as error:
        raise RefusedError(f"{source}: no complete rebuild is there: {MANIFEST}: {error}") from error
    return manifest


def _kept(manifest: Mapping[str, Any], present: Sequence[str]) -> list[str]:
    """Return the index files of the store that stay; what is there must be what was looked at."""
    if not manifest["lost_only"]:
        return []
    changed = sorted({file["name"] for file in manifest["survivors"]} ^ {*present})
    if changed:
        raise RefusedError(f"the index directory has changed since the rebuild: {', '.join(changed)}")
    return [name for name in present if name not in manifest["replaced"]]


def owner_of(directory: Path, files: Sequence[Path]) -> Owner:
    """Return the owner and the mode of new files: those of the files that are there."""
    status = directory.stat()
    mode = status.st_mode & 0o7777
    return Owner(status.st_uid, status.st_gid, mode, files[-1].stat().st_mode & 0o777 if files else mode & 0o666)


def index_header(path: Path) -> IndexHeader:
    """Return the header of the index file at *path*, as a broker takes it."""
    with path.open("rb") as file:
        # A broker gives a short file its length, with zeros, and takes what it has for the header.
        return decode_header(file.read(HEADER.size).ljust(HEADER.size, b"\0"))


def _checkpoint(root: Path) -> Checkpoint:
    try:
        with (root / _CHECKPOINT).open("rb") as file:
            return decode_checkpoint(file.read(CHECKPOINT_SIZE))
    except (OSError, FormatError):
        return Checkpoint(0, 0, 0)


def _deleted_at_start(root: Path, headers: dict[str, IndexHeader]) -> tuple[str, ...]:
    """Return the files that a broker deletes which finds `abort`: they end after the checkpoint's index time."""
    if not (root / "abort").exists():
        return ()
    time = _checkpoint(root).index_timestamp
    return tuple(sorted(name for name, header in headers.items() if header.end_timestamp > time))


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


def install(plan: Installation, step: Step = lambda name: name) -> None:
    """Do what was planned; *step* is given before each step, none of which leaves less than a complete set."""
    owner, beside = plan.owner, plan.beside
    with acting_as(owner.user, owner.group), ExitStack() as stack:
        sweep(beside)
        staging = beside.with_name(f"{beside.name}{_ATTEMPT}{uuid4()}")
        step("make the directory")
        staging.mkdir(mode=0o700)
        made = _opened(stack, staging)
        for name, file in plan.new.items():
            step(f"copy {name}")
            _copy(file, _make_parents(staging, name, owner), owner)
        if plan.is_exchange:
            _exchange_for(plan, staging, made, step)
        else:
            _put_each(plan, staging, step)
        flush_directory(beside.parent)


def sweep(beside: Path) -> None:
    """Delete the attempts of installations that were killed."""
    for leftover in beside.parent.glob(f"{beside.name}{_ATTEMPT}*"):
        shutil.rmtree(leftover)


def _put_each(plan: Installation, staging: Path, step: Step) -> None:
    if plan.set_aside:
        plan.aside.mkdir(mode=0o700, exist_ok=True)
    for name in plan.new:
        step(f"put {name}")
        if name in plan.set_aside:
            os.link(plan.folder / name, plan.aside / name, follow_symlinks=False)
            flush_directory(plan.aside)
        (staging / name).replace(plan.folder / name)
        flush_directory(plan.folder)
    staging.rmdir()


def _exchange_for(plan: Installation, staging: Path, made: int, step: Step) -> None:
    """Complete the set that was made, an open directory, and let it and the folder change places."""
    for name in plan.kept:
        step(f"keep {name}")
        os.link(plan.folder / name, _make_parents(staging, name, plan.owner), follow_symlinks=False)
    for directory in [path for path in staging.rglob("*") if path.is_dir()]:
        flush_directory(directory)
    _give(made, plan.owner.group, plan.owner.directory_mode)
    os.fsync(made)
    if plan.checkpoint is not None:
        step("advance the checkpoint")
        _replace_checkpoint(plan.checkpoint)
    step("name the directory")
    staging.rename(plan.aside)  # from here on nobody sweeps it away: after the exchange it holds the old set
    step("exchange")
    _check_is(made, plan.aside)
    _exchange(plan.aside, plan.folder)
    _check_is(made, plan.folder)
    flush_directory(plan.folder.parent)
    step("tidy up")
    if plan.aside.exists():
        for name in plan.kept:  # they are linked into the new set
            (plan.aside / name).unlink()
        remove_empty(plan.aside)


def _opened(stack: ExitStack, directory: Path) -> int:
    """Open a directory, which is no link."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    stack.callback(os.close, descriptor)
    return descriptor


def _check_is(made: int, place: Path) -> None:
    """Raise where another directory is at *place* than the one that was made."""
    found, expected = place.lstat(), os.fstat(made)
    if (found.st_dev, found.st_ino) != (expected.st_dev, expected.st_ino):
        raise OSError(f"{place}: not the directory that was made: somebody else changes the store meanwhile")


def remove_empty(folder: Path) -> None:
    """Delete folders that have nothing in them any more."""
    if not folder.is_dir():
        return
    for inner in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        if not any(inner.iterdir()):
            inner.rmdir()
    if not any(folder.iterdir()):
        folder.rmdir()


def _make_parents(staging: Path, path: str, owner: Owner) -> Path:
    target = staging / path
    for folder in reversed([parent for parent in target.parents if parent.is_relative_to(staging)][:-1]):
        if not folder.exists():
            folder.mkdir()
            os.chown(folder, -1, owner.group)
            folder.chmod(owner.directory_mode)
    return target


def _copy(file: NewFile, target: Path, owner: Owner) -> None:
    with acting_as_before():
        stored = file.source.open("rb")
    with stored, target.open("x+b") as copy:
        descriptor = copy.fileno()
        shutil.copyfileobj(stored, copy, 1 << 20)
        copy.flush()
        if file.sha256 is not None:
            found = hash_file(lambda at, length: os.pread(descriptor, min(length, file.written - at), at))
            rest = os.pread(descriptor, file.size - file.written + 1, file.written)
            if found != file.sha256 or any(rest) or len(rest) != file.size - file.written:
                raise OSError(f"{file.source}: not the file that the manifest names")
        _give(descriptor, owner.group, owner.file_mode)
        os.fsync(descriptor)


def _give(descriptor: int, group: int, mode: int) -> None:
    """Give an open file its group and mode; its user is whom this process acts as."""
    if os.fstat(descriptor).st_gid != group:
        os.fchown(descriptor, -1, group)
    os.fchmod(descriptor, mode)


def _replace_checkpoint(checkpoint: NewCheckpoint) -> None:
    place = checkpoint.backup.with_name(_CHECKPOINT)
    attempt = place.with_name(f"{_CHECKPOINT}{_ATTEMPT}{uuid4()}")
    with attempt.open("xb") as file:
        file.write(encode_checkpoint(checkpoint.values))
        file.flush()
        if place.exists():
            status = place.lstat()
            _give(file.fileno(), status.st_gid, status.st_mode & 0o7777)
            os.link(place, checkpoint.backup, follow_symlinks=False)
        os.fsync(file.fileno())
    attempt.replace(place)
    flush_directory(place.parent)


def _exchange(new: Path, old: Path) -> None:
    """Let two directories beside each other change places: at once where the system can, else one after the other."""
    # Without the system call a kill between two renames leaves no directory *old*: the broker then makes a new one.
    # Nothing is lost: both sets lie beside it, the new one under the name that ends in `-new`.
    if not os.path.lexists(old):
        new.rename(old)
        return
    number = _RENAMEAT2.get(platform.machine()) if sys.platform.startswith("linux") else None
    if number is not None:
        renameat2 = ctypes.CDLL(None, use_errno=True).syscall
        here = -100  # paths are whole
        if renameat2(number, here, os.fsencode(new), here, os.fsencode(old), _EXCHANGE) == 0:
            return
        if ctypes.get_errno() not in {errno.EINVAL, errno.ENOSYS}:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(old))
    between = new.with_name(f"{new.name}-new")
    for source, target in ((new, between), (old, new), (between, old)):
        source.rename(target)
