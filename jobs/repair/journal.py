"""
The journal of a repair: each step is recorded before it is carried out, so that a killed repair can be undone.

A step exchanges a directory of the store for a new one, or installs files of the log and the checkpoint. Replaced files
stay next to the directory; an undo restores them, the newest step first, and can be repeated.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import NoneType

from jobs.console.amounts import count_text
from jobs.console.result import RequestError
from jobs.rebuild.install import (
    Installation,
    delete_killed_attempts,
    remove_empty_directories,
    suppress_not_empty,
    swap_paths,
)
from jobs.storage.json_file import parse_json_file
from jobs.storage.local import LocalStorage, flush_directory, make_directory, read_file, real_path, sha256_of
from jobs.storage.paths import is_directory, is_link, is_regular_file, list_directory, path_exists, walk_tree
from jobs.store.broker_config import CONFIG_DIRECTORY
from jobs.store.running_broker import NotInstalledError, owner_of, run_as_user
from jobs.store.store import SET_ASIDE_MARK
from rmq_formats.errors import FormatError
from rmq_formats.store import parse_offset_name

JOURNAL_FILE = "REPAIR.json"
CHECKPOINT_PART = "checkpoint"
_STEP = {
    **dict.fromkeys(("part", "folder", "aside"), str),
    **{key: [str] for key in ("new", "set_aside", "made_folders?", "empty_folders?")},
    **dict.fromkeys(("is_exchange?", "done?", "is_undone?"), bool),
    "inode": (int, NoneType),
    "backup?": NoneType,
    "digests?": {str: str},
}
_JOURNAL = {"store": str, "entries": [_STEP]}


@dataclass(slots=True)
class JournalEntry:
    """One step: the new files of a directory, and where the replaced ones are."""

    part: str
    folder: str
    aside: str
    new: list[str]
    set_aside: list[str]
    inode: int | None  # the inode of the original directory; None if it did not exist, or is not exchanged
    is_exchange: bool = True
    backup: None = None  # only in journals of earlier versions
    done: bool = False
    # SHA-256 of each new file.
    digests: dict[str, str] = field(default_factory=dict)
    # Directories created below the directory; empty in journals of earlier versions.
    made_folders: list[str] = field(default_factory=list)
    is_undone: bool = False  # whether the step was undone, at least in part
    # Empty directories that were below the directory and are not in the new set.
    empty_folders: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Journal:
    """The steps of one repair of one store."""

    store: str
    folder: str
    entries: list[JournalEntry] = field(default_factory=list)

    @classmethod
    def read(cls, directory: Path) -> "Journal | None":
        """Return the journal of an earlier command, if there is one."""
        try:
            values = parse_json_file(read_file(directory / JOURNAL_FILE), _JOURNAL, str(directory / JOURNAL_FILE))
            return cls(values["store"], str(directory), [JournalEntry(**entry) for entry in values["entries"]])
        except FileNotFoundError:
            return None
        except FormatError as error:
            raise RequestError(f"{error.file}: not a complete journal of a repair: {error.reason}") from error
        except TypeError as error:  # a key that no version writes
            raise RequestError(f"{directory / JOURNAL_FILE}: not a complete journal of a repair: {error}") from error

    def refuse_other_places(self) -> None:
        """Raise `RequestError` if a step names a file that no repair of this store changes."""
        root = Path(self.store)
        try:
            places = {real_path(path) for path in root.iterdir()}  # also of linked directories
            wrong = [entry for entry in self.entries if not _is_of_store(entry, real_path(root), places)]
        except (ValueError, TypeError) as error:
            raise RequestError(f"{self.folder}: {JOURNAL_FILE} is not valid: {error}") from error
        if wrong:
            raise RequestError(
                f"{Path(self.folder, JOURNAL_FILE)}: names files that a repair of {self.store} does not change: "
                f"{wrong[0].folder}, {wrong[0].aside}. Nothing was changed"
            )

    def write(self) -> None:
        """Replace the journal durably."""
        target = Path(self.folder) / JOURNAL_FILE
        attempt = target.with_name(f".{JOURNAL_FILE}.new")
        for leftover in list_directory(target.parent, f".*{JOURNAL_FILE}.new*"):  # leftovers of a killed write
            leftover.unlink()
        LocalStorage().create(str(attempt), json.dumps(asdict(self), indent=1).encode())
        attempt.replace(target)
        flush_directory(target.parent)

    @contextmanager
    def record_step(self, plan: Installation) -> Iterator[None]:
        """Record a step before it is carried out, and again when it is done; forget a step that was refused."""
        directory = plan.target_directory
        is_named = plan.is_exchange or plan.staging_prefix.name in {CHECKPOINT_PART, CONFIG_DIRECTORY}
        exchanged = directory.stat().st_ino if plan.is_exchange and path_exists(directory) else None
        part = plan.staging_prefix.name if is_named else "log"
        made = {parent for name in plan.new for parent in Path(name).parents if not path_exists(directory / parent)}
        entry = JournalEntry(
            part, str(directory), str(plan.aside), [*plan.new], [*plan.set_aside], exchanged, plan.is_exchange,
            digests={name: sha256_of(Path(file.path)) for name, file in plan.new.items()},
            made_folders=sorted(map(str, made)),
            empty_folders=_list_empty_directories(directory) if plan.is_exchange else [],
        )  # fmt: skip
        self.entries.append(entry)
        self.write()
        try:
            yield
        except NotInstalledError:
            if not _has_installed_files(entry):
                remove_empty_directories(Path(entry.aside))
                self.entries.remove(entry)
                self.write()
            raise
        entry.done = True
        self.write()

    def resolve_killed_step(self) -> None:
        """Record whether a killed step had exchanged its directory, which only the directory shows now."""
        for entry in [one for one in self.entries if one.is_exchange and not one.done]:
            entry.done = _was_done(entry)
            if not entry.done:
                shutil.rmtree(entry.aside, ignore_errors=True)  # a new set that had got its name, and not its place
                self.entries.remove(entry)
        self.write()

    def undo(self) -> list[str]:
        """Restore the replaced files, the newest step first, as the store's owner; return a line for each step."""
        owner = owner_of(Path(self.store))
        with run_as_user(*owner):
            undone: dict[Path, Path] = {}
            for entry in reversed(self.entries):
                _refuse_lost_or_changed(entry, undone)
        said = []
        while self.entries:
            entry = self.entries[-1]
            if not entry.is_undone:
                entry.is_undone = True  # written first: after a kill, some of the replaced files are in place again
                self.write()
            with run_as_user(*owner):
                said += _undo_step(entry)
            self.entries.pop()
            self.write()
        return said


def _list_empty_directories(directory: Path) -> list[str]:
    directories = (path for path in walk_tree(directory) if is_directory(path) and not is_link(path))
    return sorted(str(path.relative_to(directory)) for path in directories if not any(path.iterdir()))


def _is_of_store(entry: JournalEntry, root: Path, places: set[Path]) -> bool:
    """Return whether a step names only files in directories of a store, or segments of its log elsewhere."""
    files = [*entry.new, *entry.set_aside, *entry.digests, *entry.empty_folders]
    names = [*files, *entry.made_folders]
    base, aside = Path(entry.folder), Path(entry.aside)
    directory = real_path(base)
    has_only_segments = not entry.is_exchange and all(parse_offset_name(name) is not None for name in names)
    if entry.part == CHECKPOINT_PART:
        base /= CHECKPOINT_PART
    return (
        (directory.is_relative_to(root) or directory in places or has_only_segments)
        and aside.parent == base.parent
        and aside.name.startswith(f"{base.name}{SET_ASIDE_MARK}")
        and not any(Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name for name in names)
        and all(Path(name).parts for name in files)  # else a name is that of the directory itself
    )


def _refuse_lost_or_changed(entry: JournalEntry, undone: dict[Path, Path]) -> None:
    """
    Refuse to undo a step if a broker has written since, or if its replaced files are missing.

    *undone* maps each path to its file after later steps are undone; the files that this step restores are added.
    """
    directory, aside = Path(entry.folder), Path(entry.aside)
    if not _was_done(entry):
        return
    for name, digest in entry.digests.items():
        place, replaced = directory / name, aside / name
        now = undone.get(place, place)
        is_set_aside = name in entry.set_aside
        if path_exists(replaced) and sha256_of(replaced) == digest:  # killed before the two files changed places
            continue
        if path_exists(replaced) or not is_set_aside:
            undone[place] = replaced
        # Killed before it was put in place; an earlier version gave the old file a second name first.
        if not path_exists(now) or (path_exists(replaced) and replaced.samefile(now)):
            continue
        is_as_installed = sha256_of(now) == digest
        if is_as_installed and is_set_aside and not path_exists(replaced):
            raise RequestError(
                f"{replaced}: the replaced file is missing; nothing was undone. Restore it from a backup and "
                "repeat --undo"
            )
        # A file with other bytes may be the old one if the step puts single files and was killed before it set this one
        # aside, or if an undo was killed after it restored this one. Else a broker has written to it.
        may_be_old = is_set_aside and (entry.is_undone or not (entry.done or entry.is_exchange))
        if not is_as_installed and (path_exists(replaced) or not may_be_old):
            raise _changed_file_error(place, "nothing was undone")


def _changed_file_error(path: Path, outcome: str) -> RequestError:
    return RequestError(
        f"{path}: the file changed after the repair, and an undo would lose these changes. {outcome.capitalize()}. "
        "To undo anyway, move this file to another directory and repeat --undo"
    )


def _undo_step(entry: JournalEntry) -> list[str]:
    directory, aside = Path(entry.folder), Path(entry.aside)
    delete_killed_attempts(directory if entry.part != CHECKPOINT_PART else directory / CHECKPOINT_PART)
    if not _was_done(entry):
        shutil.rmtree(aside, ignore_errors=True)  # a new set that had got its name, and not its place
        return [f"{entry.part}: not changed by the repair"]
    for name in entry.set_aside:
        _restore(entry, name)
    for name in sorted(set(entry.new) - set(entry.set_aside)):
        _remove(entry, name)
    # Files of a repair that was not tidied up; the new set has them as well.
    for path in [path for path in walk_tree(aside) if is_regular_file(path)]:
        if path_exists(directory / path.relative_to(aside)) and path.samefile(directory / path.relative_to(aside)):
            path.unlink()
    remove_empty_directories(aside)
    for name in sorted(entry.made_folders, reverse=True):
        with suppress_not_empty():
            (directory / name).rmdir() if is_directory(directory / name) else None
    if entry.inode is None and entry.is_exchange:
        remove_empty_directories(directory)
    for name in entry.empty_folders:
        make_directory(directory / name)
    if path_exists(directory):
        flush_directory(directory)
    return [f"{entry.part}: {count_text(len(entry.set_aside), 'file')} restored, {len(entry.new)} removed"]


def _restore(entry: JournalEntry, name: str) -> None:
    """Exchange a replaced file with the installed one, and delete the installed one."""
    place, aside = Path(entry.folder) / name, Path(entry.aside) / name
    if not path_exists(aside):
        return
    is_second_name = path_exists(place) and aside.samefile(place)  # installed by an earlier version
    if is_second_name or entry.digests.get(name) == sha256_of(aside):  # the step, or an earlier undo, was killed
        aside.unlink()
        return
    if name not in entry.new and path_exists(place):
        raise _changed_file_error(place, "the file was left unchanged")
    make_directory(place.parent)
    if not path_exists(place):
        os.link(aside, place, follow_symlinks=False)  # fails where a file has come meanwhile
        aside.unlink()
        return
    swap_paths(aside, place)
    if not _is_installed(entry, name, aside):
        swap_paths(aside, place)
        raise _changed_file_error(place, "the file was left unchanged")
    aside.unlink()


def _remove(entry: JournalEntry, name: str) -> None:
    """Remove an installed file that did not replace another one."""
    place, removed = Path(entry.folder) / name, Path(entry.aside) / name
    make_directory(removed.parent)
    if path_exists(place):
        place.rename(removed)
    if path_exists(removed) and not _is_installed(entry, name, removed):
        os.link(removed, place, follow_symlinks=False)
        removed.unlink()
        raise _changed_file_error(place, "the file was left unchanged")
    removed.unlink(missing_ok=True)


def _is_installed(entry: JournalEntry, name: str, path: Path) -> bool:
    """Return whether a file is the one that the step installed."""
    return sha256_of(path) == entry.digests.get(name)


def _has_installed_files(entry: JournalEntry) -> bool:
    """Return whether a step that was refused had changed the store before."""
    if entry.is_exchange:
        return _was_done(entry)
    directory = Path(entry.folder)
    places = {name: directory / name for name in entry.new}
    return any(path_exists(place) and _is_installed(entry, name, place) for name, place in places.items())


def _was_done(entry: JournalEntry) -> bool:
    """Return whether a step has changed the store; for a killed step, the directory shows it."""
    if entry.done or not entry.is_exchange:
        return True
    directory = Path(entry.folder)
    return (directory.stat().st_ino if path_exists(directory) else None) != entry.inode
