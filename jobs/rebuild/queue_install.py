"""
Put rebuilt queues into a stopped broker's store.

As for index files: the new set is made beside the old one, files that stay are linked into it, and the two folders
change places in one step. What was replaced stays beside the store under a name of its own.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from jobs.console.amounts import counted
from jobs.rebuild.install import (
    ATTEMPT,
    RefusedError,
    aside_of,
    check_is,
    exchange,
    give,
    opened,
    owner_of,
    read_manifest,
    refuse_full_disk,
    writer_of,
)
from jobs.rebuild.owner import Owner, acting_as, acting_as_before
from jobs.storage.local import flush_directory
from jobs.storage.locations import is_local, local_path

_ROOTS = ("batchconsumequeue", "consumequeue_ext")  # in the output; all else belongs below `consumequeue`
_PLAIN = "consumequeue"


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file of the output that goes into the store."""

    source: Path
    size: int
    written: int
    sha256: str  # of what is written; zeros follow


@dataclass(frozen=True, slots=True)
class RootPlan:
    """One folder of queues, and its new files."""

    folder: Path  # the real one, where the store's is a link
    new: dict[str, NewFile]  # by path below the folder
    kept: tuple[str, ...]
    set_aside: tuple[str, ...]
    owner: Owner
    aside: Path


@dataclass(frozen=True, slots=True)
class QueueInstallation:
    """The steps of an installation, known in full before the first one."""

    roots: tuple[RootPlan, ...]

    def describe(self) -> Iterator[str]:
        """Say it, a line each."""
        for root in self.roots:
            yield f"into {root.folder} (user {root.owner.user}, group {root.owner.group})"
            yield from (f"new: {root.folder.name}/{path}" for path in sorted(root.new))
            if root.kept:
                yield f"kept: {counted(len(root.kept), 'file')}"
            yield from (f"set aside in {root.aside.name}: {path}" for path in root.set_aside)


def plan_queue_installation(store: str, out: Path) -> QueueInstallation:
    """Check everything and return the installation; `RefusedError` when it must not be done."""
    if not is_local(store):
        raise RefusedError("files are installed into a store on this machine")
    root = Path(local_path(store))
    manifest = read_manifest(out)
    user, group = writer_of(root, _PLAIN)
    new: dict[str, dict[str, NewFile]] = {}
    for queue in manifest["queues"]:
        for file in queue["files"]:
            folder, _, path = file["path"].partition("/")
            place = (folder, path) if folder in _ROOTS else (_PLAIN, file["path"])
            new.setdefault(place[0], {})[place[1]] = NewFile(
                out / file["path"], file["size"], file["written"], file["sha256"]
            )
    with acting_as(user, group):
        plans = tuple(
            _plan_root(root, name, files, lost_only=manifest["lost_only"]) for name, files in sorted(new.items())
        )
    refuse_full_disk(root, sum(file.size for plan in plans for file in plan.new.values()))
    return QueueInstallation(plans)


def _plan_root(root: Path, name: str, new: dict[str, NewFile], *, lost_only: bool) -> RootPlan:
    folder = (root / name).resolve()
    present = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    kept = tuple(path for path in present if path not in new) if lost_only else ()
    owner = owner_of(folder if folder.is_dir() else root, [folder / path for path in present])
    if os.geteuid() not in {0, owner.user}:
        raise RefusedError(f"{folder}: belongs to user {owner.user}, and {root / _PLAIN} does not")
    return RootPlan(
        folder, new, kept, tuple(path for path in present if path not in set(kept)), owner, aside_of(folder)
    )


def install_queues(plan: QueueInstallation, step: Callable[[str], object] = lambda name: name) -> None:
    """Do what was planned; *step* is given before each step, none of which leaves less than a complete set."""
    for root in plan.roots:
        # The owner may change anything in the store meanwhile: whoever acts as the owner can do no more than that.
        with acting_as(root.owner.user, root.owner.group), ExitStack() as stack:
            _install_root(root, step, stack)


def _install_root(plan: RootPlan, step: Callable[[str], object], stack: ExitStack) -> None:
    parent = opened(stack, plan.folder.parent)
    for leftover in plan.folder.parent.glob(f"{plan.folder.name}{ATTEMPT}*"):
        shutil.rmtree(leftover)
    staging = plan.folder.with_name(f"{plan.folder.name}{ATTEMPT}{uuid4()}")
    step("make the folder")
    staging.mkdir(mode=0o700)
    made = opened(stack, staging.name, parent)
    for path, file in plan.new.items():
        step(f"copy {path}")
        _copy(file, _make_parents(staging, path, plan.owner), plan.owner)
    for path in plan.kept:
        step(f"keep {path}")
        os.link(plan.folder / path, _make_parents(staging, path, plan.owner))
    for directory in [path for path in staging.rglob("*") if path.is_dir()]:
        flush_directory(directory)
    give(made, plan.owner.group, plan.owner.directory_mode)
    os.fsync(made)
    step("name the folder")
    staging.rename(plan.aside)  # from here on nobody sweeps it away: after the exchange it holds the old set
    step("exchange")
    check_is(made, plan.aside, parent)
    exchange(plan.aside, plan.folder)
    check_is(made, plan.folder, parent)
    flush_directory(plan.folder.parent)
    step("tidy up")
    _tidy(plan)
    flush_directory(plan.folder.parent)


def _make_parents(staging: Path, path: str, owner: Owner) -> Path:
    target = staging / path
    for folder in reversed([parent for parent in target.parents if parent.is_relative_to(staging)][:-1]):
        if not folder.exists():
            folder.mkdir()
            os.chown(folder, owner.user, owner.group)
            folder.chmod(owner.directory_mode)
    return target


def _copy(file: NewFile, target: Path, owner: Owner) -> None:
    with acting_as_before():
        stored = file.source.open("rb")
    with stored, target.open("x+b") as copy:
        shutil.copyfileobj(stored, copy)
        copy.seek(0)
        found = sha256(copy.read(file.written)).hexdigest()
        rest = copy.read()
        os.fsync(copy.fileno())
    if found != file.sha256 or any(rest) or len(rest) != file.size - file.written:
        raise OSError(f"{file.source}: not the file that the manifest names")
    os.chown(target, owner.user, owner.group)
    target.chmod(owner.file_mode)


def _tidy(plan: RootPlan) -> None:
    """Delete from the old set what is linked into the new one too, and folders that are empty then."""
    for path in plan.kept:
        (plan.aside / path).unlink()
    if not plan.aside.exists():
        return
    for folder in sorted((path for path in plan.aside.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    if not any(plan.aside.iterdir()):
        plan.aside.rmdir()
