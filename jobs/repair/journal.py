"""
What a repair does to a store, written down before it is done: whoever is killed, and whoever undoes it, reads it.

A step exchanges a folder of the store for a new one, or puts files of the log and the checkpoint in place. What was
replaced stays beside the store; undoing puts it back, in the opposite order, as often as it is asked for.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import file_digest
from pathlib import Path

from jobs.rebuild.install import ATTEMPT
from jobs.storage.local import LocalStorage, flush_directory

JOURNAL = "REPAIR.json"
CHECKPOINT_PART = "checkpoint"


@dataclass(slots=True)
class Entry:
    """One step: which files of a folder are new, and which were set aside where."""

    part: str
    folder: str
    aside: str
    new: list[str]
    set_aside: list[str]
    inode: int | None  # of the folder as it was; None where there was none, or where it is not exchanged
    is_exchange: bool = True
    backup: str | None = None  # of the checkpoint, where the step advances it
    done: bool = False
    digests: dict[str, str] = field(default_factory=dict)  # SHA-256 of each new file; of an earlier version none


class BrokenJournalError(ValueError):
    """Why a repair cannot be taken back."""


@dataclass(slots=True)
class Journal:
    """The steps of one repair of one store."""

    store: str
    folder: str
    entries: list[Entry] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> "Journal | None":
        """Return the journal of an earlier command; None if there is none."""
        try:
            values = json.loads((folder / JOURNAL).read_bytes())
            return cls(values["store"], values["folder"], [Entry(**entry) for entry in values["entries"]])
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise BrokenJournalError(
                f"{folder / JOURNAL}: no journal of a repair, or a part of one: {error}"
            ) from error

    def write(self) -> None:
        """Write it durably, in place of what was written before."""
        target = Path(self.folder) / JOURNAL
        attempt = target.with_name(f".{JOURNAL}.new")
        attempt.unlink(missing_ok=True)
        LocalStorage().create(str(attempt), json.dumps(asdict(self), indent=1).encode())
        attempt.replace(target)
        flush_directory(target.parent)

    @contextmanager
    def step(self, entry: Entry) -> Iterator[None]:
        """Note a step before it is done, and that it is done, where nothing came between."""
        self.entries.append(entry)
        self.write()
        yield
        entry.done = True
        self.write()

    def undo(self, acting: Callable[[], AbstractContextManager[None]]) -> list[str]:
        """Put back what was replaced, the newest step first, *acting* as the store's owner; return what was done."""
        with acting():
            for entry in reversed(self.entries):
                _refuse_lost_or_changed(entry)
        said = []
        while self.entries:
            with acting():
                said += _undo(self.entries[-1])
            self.entries.pop()
            self.write()
        return said


def inode_of(folder: Path) -> int | None:
    """Return the number that distinguishes a folder from another one of the same name."""
    return folder.stat().st_ino if folder.exists() else None


def digests_of(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the SHA-256 of files, by the names that they get."""
    return {name: _digest(path) for name, path in files.items()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _refuse_lost_or_changed(entry: Entry) -> None:
    """Refuse to take back a step after which a broker wrote on, or whose replaced files are no longer there."""
    folder, aside = Path(entry.folder), Path(entry.aside)
    if not _was_done(entry, folder):
        return
    for name, digest in entry.digests.items():
        is_aside = (aside / name).exists()
        if not is_aside and name in entry.set_aside and (folder / name).exists() and _digest(folder / name) == digest:
            raise BrokenJournalError(f"{aside / name}: the replaced file is no longer there; nothing was taken back")
        is_installed = entry.done and (is_aside or name not in entry.set_aside)
        if is_installed and (folder / name).exists() and _digest(folder / name) != digest:
            raise BrokenJournalError(
                f"{folder / name}: written to after the repair: the broker has gone on, and what came since would be "
                "lost; nothing was taken back"
            )


def _undo(entry: Entry) -> list[str]:
    folder, aside = Path(entry.folder), Path(entry.aside)
    beside = folder if entry.part != CHECKPOINT_PART else folder / CHECKPOINT_PART
    for attempt in beside.parent.glob(f"{beside.name}{ATTEMPT}*"):  # of a step that was killed
        shutil.rmtree(attempt)
    if not _was_done(entry, folder):
        shutil.rmtree(aside, ignore_errors=True)  # a new set that had got its name, and not its place
        return [f"{entry.part}: had not been changed"]
    _put_back(folder, aside, entry.set_aside)
    for name in sorted(set(entry.new) - set(entry.set_aside)):
        (folder / name).unlink(missing_ok=True)
    _remove_empty(aside)
    if entry.inode is None and entry.is_exchange:
        _remove_empty(folder)
    if entry.backup is not None and Path(entry.backup).exists():
        Path(entry.backup).replace(Path(entry.backup).with_name("checkpoint"))
    return [f"{entry.part}: {len(entry.set_aside)} files put back, {len(entry.new)} taken out"]


def _was_done(entry: Entry, folder: Path) -> bool:
    """Return whether a step has changed the store; of one that was killed, the folder itself tells."""
    if entry.done or not entry.is_exchange:
        return True
    return inode_of(folder) != entry.inode


def _put_back(folder: Path, aside: Path, names: Sequence[str]) -> None:
    for name in names:
        if (aside / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (aside / name).replace(folder / name)
            (aside / name).unlink(missing_ok=True)  # of two names of one file, both stay
    if folder.exists():
        flush_directory(folder)


def _remove_empty(folder: Path) -> None:
    """Delete folders that have nothing in them any more."""
    if not folder.is_dir():
        return
    for inner in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        if not any(inner.iterdir()):
            inner.rmdir()
    if not any(folder.iterdir()):
        folder.rmdir()
