"""
Put single files into a stopped broker's store: segments of the log, the checkpoint.

Each is made beside its folder and takes its name in one step; what had the name before stays in a folder aside. The
store belongs to its broker's user, and so does what is put into it.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from jobs.rebuild.install import ATTEMPT, aside_of, owner_of, refuse_full_disk
from jobs.rebuild.owner import Owner, acting_as, acting_as_before
from jobs.storage.local import flush_directory


@dataclass(frozen=True, slots=True)
class FilesInstallation:
    """The complete plan of an installation, made before its first step."""

    part: str
    folder: Path
    files: Mapping[str, Path]  # name → what is put there
    set_aside: tuple[str, ...]  # names that are taken now
    owner: Owner
    beside: Path  # what attempts and what is set aside are named after

    def describe(self) -> Iterator[str]:
        """Say it, a line each."""
        for name in self.files:
            yield f"{'replaced' if name in self.set_aside else 'new'}: {self.folder.name}/{name}"


def plan_files(part: str, folder: Path, files: Mapping[str, Path], beside: Path) -> FilesInstallation:
    """Look at everything and return what would be done; `RefusedError` when there is no room for it."""
    there = [folder / name for name in files if (folder / name).is_file()]
    others = there or sorted(path for path in folder.iterdir() if path.is_file())[-1:]
    refuse_full_disk(folder, sum(path.stat().st_size for path in files.values()))
    return FilesInstallation(
        part, folder, files, tuple(path.name for path in there), owner_of(folder, others), beside
    )  # fmt: skip


def install_files(plan: FilesInstallation, aside: Path, step: Callable[[str], object] = lambda name: name) -> None:
    """Do what was planned; *step* is given before each step, none of which leaves less than a complete file."""
    owner = plan.owner
    with acting_as(owner.user, owner.group):
        for leftover in plan.beside.parent.glob(f"{plan.beside.name}{ATTEMPT}*"):
            shutil.rmtree(leftover)
        staging = plan.beside.with_name(f"{plan.beside.name}{ATTEMPT}{uuid4()}")
        step("make the folder")
        staging.mkdir(mode=0o700)
        for name, source in plan.files.items():
            step(f"copy {name}")
            _copy(source, staging / name, owner)
        if plan.set_aside:
            aside.mkdir(mode=0o700, exist_ok=True)
        for name in plan.files:
            step(f"put {name}")
            if name in plan.set_aside:
                os.link(plan.folder / name, aside / name, follow_symlinks=False)
                flush_directory(aside)
            (staging / name).replace(plan.folder / name)
            flush_directory(plan.folder)
        staging.rmdir()
        flush_directory(plan.beside.parent)


def aside_for(plan: FilesInstallation) -> Path:
    """Return the folder in which this installation sets files aside."""
    return aside_of(plan.beside)


def _copy(source: Path, target: Path, owner: Owner) -> None:
    with ExitStack() as stack:
        with acting_as_before():
            stored = stack.enter_context(source.open("rb"))
        made = stack.enter_context(target.open("xb"))
        shutil.copyfileobj(stored, made, 1 << 20)
        made.flush()
        os.fchmod(made.fileno(), owner.file_mode)
        if os.fstat(made.fileno()).st_gid != owner.group:
            os.fchown(made.fileno(), -1, owner.group)
        os.fsync(made.fileno())
