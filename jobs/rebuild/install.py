"""
Put rebuilt index files into a stopped broker's store.

The new set is made beside the old one and the two directories change places in one step, so whoever kills this process
leaves either set whole. The broker's own lock is held meanwhile: it cannot start. What was replaced stays beside the
store under a name of its own.
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
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from jobs.products.index.file_builder import hash_file
from jobs.rebuild.index import MANIFEST
from jobs.storage.local import flush_directory
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
REPLACED = ".replaced-"
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
_EXCHANGE = 2
_HERE = -100  # AT_FDCWD
SPARE = 64 << 20  # bytes that are left free


class RefusedError(Exception):
    """Why nothing was touched."""


class Owner(NamedTuple):
    """Who files in the index directory belong to, and who may use them."""

    user: int
    group: int
    directory_mode: int
    file_mode: int


@dataclass(frozen=True, slots=True)
class Installation:
    """What will be done, known in full before anything is."""

    store: Path
    source: Path
    index: Path  # the real directory, where `index` is a link
    new: dict[str, str]  # name → sha256
    kept: tuple[str, ...]
    set_aside: tuple[str, ...]
    owner: Owner
    aside: Path
    deleted_at_start: tuple[str, ...] = ()  # by a broker that finds `abort`
    checkpoint: Checkpoint | None = None  # the one to be written
    needed: int = field(default=0)

    def describe(self) -> Iterator[str]:
        """Say it, a line each."""
        yield f"index directory {self.index}, user {self.owner.user}, group {self.owner.group}"
        yield from (f"new: {name}" for name in sorted(self.new))
        yield from (f"kept: {name}" for name in self.kept)
        yield from (f"set aside in {self.aside.name}: {name}" for name in self.set_aside)
        if self.checkpoint is not None:
            yield f"checkpoint: index time {self.checkpoint.index_timestamp}, the old one in {_backup(self).name}"


def plan_installation(store: str, out: str, *, advance_checkpoint: bool = False) -> Installation:
    """Look at everything and return what would be done; `RefusedError` when it must not be."""
    if not is_local(out):
        raise RefusedError("files are installed from a directory on this machine")
    root, source = Path(local_path(store)), Path(local_path(out))
    manifest = _manifest(source)
    index = (root / INDEX_FOLDER).resolve()
    present = sorted(path.name for path in index.iterdir() if is_index_name(path.name)) if index.is_dir() else []
    new = {file["name"]: file["sha256"] for file in manifest["files"]}
    kept = _kept(manifest, present)
    stray = sorted(set(new) & set(kept))
    if stray:
        raise RefusedError(f"{', '.join(stray)}: to be kept and to be replaced")
    owner = owner_of(index if index.is_dir() else root, [index / name for name in present])
    if os.geteuid() not in {0, owner.user}:
        raise RefusedError(f"files must belong to user {owner.user}; run as that user, or as root")
    headers = {name: _header(source / name) for name in new} | {name: _header(index / name) for name in kept}
    deleted = _deleted_at_start(root, headers)
    checkpoint = None
    if deleted and advance_checkpoint:
        newest = max(header.end_timestamp for header in headers.values())
        checkpoint = _checkpoint(root)._replace(index_timestamp=newest)
    elif deleted:
        raise RefusedError(
            f"the broker did not stop cleanly: at its next start it would delete {', '.join(deleted)}. "
            "Give --advance-checkpoint, or start and stop the broker first"
        )
    needed = sum((source / name).stat().st_size for name in new)
    free = shutil.disk_usage(index.parent).free
    if needed + SPARE > free:
        raise RefusedError(f"{index.parent}: {needed} bytes needed, {free} free")
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return Installation(
        root, source, index, new, tuple(kept),
        tuple(name for name in present if name not in kept),
        owner,
        index.with_name(f"{index.name}{REPLACED}{stamp}-{uuid4().hex[:8]}"),
        deleted, checkpoint, needed,
    )  # fmt: skip


def _manifest(source: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((source / MANIFEST).read_bytes())
    except (OSError, ValueError) as error:
        raise RefusedError(f"{source}: no whole rebuild lies there: {MANIFEST}: {error}") from error
    return manifest


def _kept(manifest: dict[str, Any], present: Sequence[str]) -> list[str]:
    """Return the files of the store that stay; what is there must be what was looked at."""
    if not manifest["lost_only"]:
        return []
    replaced = set(manifest["replaced"])
    known = {entry["name"] for entry in manifest["survivors"]}
    if known != set(present):
        changed = sorted(known ^ set(present))
        raise RefusedError(f"the index directory has changed since the rebuild: {', '.join(changed)}")
    return [name for name in present if name not in replaced]


def owner_of(directory: Path, files: Sequence[Path]) -> Owner:
    """Return who new files shall belong to: whoever the others do."""
    status = directory.stat()
    mode = status.st_mode & 0o7777
    return Owner(status.st_uid, status.st_gid, mode, files[-1].stat().st_mode & 0o777 if files else mode & 0o666)


def _header(path: Path) -> IndexHeader:
    with path.open("rb") as file:
        return decode_header(file.read(HEADER.size))


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


def _backup(plan: Installation) -> Path:
    return plan.store / f"checkpoint{plan.aside.name.removeprefix(plan.index.name)}"


@contextmanager
def broker_kept_out(store: str) -> Iterator[None]:
    """Hold the broker's own lock; `RefusedError` when the broker holds it."""
    if not is_local(store):
        raise RefusedError("files are installed into a store on this machine")
    lock = Path(local_path(store)) / "lock"
    if not lock.exists():
        yield  # before 4.2.0, or a copy: there is nothing to hold
        return
    with lock.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            if error.errno not in {errno.EACCES, errno.EAGAIN}:
                raise
            raise RefusedError(f"{store}: the broker runs (it holds {lock.name}); stop it first") from error
        yield


def install(plan: Installation, step: Callable[[str], object] = lambda name: name) -> None:
    """Do what was planned; *step* is told before each step, none of which leaves less than a whole set."""
    for leftover in plan.index.parent.glob(f"{plan.index.name}{ATTEMPT}*"):
        shutil.rmtree(leftover)
    staging = plan.index.with_name(f"{plan.index.name}{ATTEMPT}{uuid4()}")
    step("make the directory")
    staging.mkdir(mode=0o700)
    for name, digest in plan.new.items():
        step(f"copy {name}")
        _copy(plan.source / name, staging / name, digest, plan.owner)
    for name in plan.kept:
        step(f"keep {name}")
        os.link(plan.index / name, staging / name)
    os.chown(staging, plan.owner.user, plan.owner.group)
    staging.chmod(plan.owner.directory_mode)
    flush_directory(staging)
    if plan.checkpoint is not None:
        step("advance the checkpoint")
        _replace_checkpoint(plan, plan.checkpoint)
    step("name the directory")
    staging.rename(plan.aside)  # from here on nobody sweeps it away: after the exchange it holds the old set
    step("exchange")
    exchange(plan.aside, plan.index)
    flush_directory(plan.index.parent)
    step("tidy up")
    for name in plan.kept:
        (plan.aside / name).unlink()
    if plan.aside.exists() and not any(plan.aside.iterdir()):
        plan.aside.rmdir()
    flush_directory(plan.index.parent)


def _copy(source: Path, target: Path, digest: str, owner: Owner) -> None:
    shutil.copyfile(source, target)
    with target.open("r+b") as file:
        found = hash_file(lambda position, length: os.pread(file.fileno(), length, position))
        os.fsync(file.fileno())
    if found != digest:
        raise OSError(f"{source}: sha256 {found}, the manifest says {digest}")
    os.chown(target, owner.user, owner.group)
    target.chmod(owner.file_mode)


def _replace_checkpoint(plan: Installation, checkpoint: Checkpoint) -> None:
    path = plan.store / "checkpoint"
    attempt = plan.store / f"checkpoint{ATTEMPT}{uuid4()}"
    attempt.write_bytes(encode_checkpoint(checkpoint))
    if path.exists():
        status = path.stat()
        os.chown(attempt, status.st_uid, status.st_gid)
        attempt.chmod(status.st_mode & 0o7777)
        os.link(path, _backup(plan))
    with attempt.open("rb") as file:
        os.fsync(file.fileno())
    attempt.replace(path)
    flush_directory(plan.store)


def exchange(new: Path, old: Path) -> None:
    """Let two directories change places: at once where the system can, else one after the other."""
    if not old.exists():
        new.rename(old)
        return
    number = _RENAMEAT2.get(platform.machine()) if sys.platform.startswith("linux") else None
    if number is not None:
        renameat2 = ctypes.CDLL(None, use_errno=True).syscall
        paths = (os.fsencode(new), os.fsencode(old))
        if renameat2(number, _HERE, paths[0], _HERE, paths[1], _EXCHANGE) == 0:
            return
        if ctypes.get_errno() not in {errno.EINVAL, errno.ENOSYS}:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(old))
    between = new.with_name(f"{new.name}-new")
    new.rename(between)
    old.rename(new)
    between.rename(old)
