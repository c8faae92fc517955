"""
What a repair does to a store, written down before it is done: whoever is killed, and whoever undoes it, reads it.

A step exchanges a folder of the store for a new one, or puts files of the log and the checkpoint in place. What was
replaced stays beside the store; undoing puts it back, in the opposite order, as often as it is asked for.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from jobs.console.amounts import counted
from jobs.rebuild.install import Installation, acting_as, remove_empty, sweep, user_of
from jobs.storage.local import LocalStorage, flush_directory, sha256_of

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
    backup: None = None  # in journals of earlier versions
    done: bool = False
    digests: dict[str, str] = field(default_factory=dict)  # SHA-256 of each new file; of an earlier version none


class NotRepairableError(ValueError):
    """The reason why no repair can be started, or none be taken back."""


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
            raise NotRepairableError(
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
    def step(self, plan: Installation) -> Iterator[None]:
        """Note a step before it is done, and that it is done, where nothing came between."""
        entry = _entry_of(plan)
        self.entries.append(entry)
        self.write()
        yield
        entry.done = True
        self.write()

    def settle(self) -> None:
        """Note of a step that was killed whether its folder was exchanged: only now the folder tells."""
        for entry in [one for one in self.entries if one.is_exchange and not one.done]:
            entry.done = _was_done(entry)
            if not entry.done:
                shutil.rmtree(entry.aside, ignore_errors=True)  # a new set that had got its name, and not its place
                self.entries.remove(entry)
        self.write()

    def undo(self) -> list[str]:
        """Put back what was replaced, the newest step first, as the store's owner; return what was done."""
        owner = user_of(Path(self.store))
        with acting_as(*owner):
            undone: dict[Path, Path] = {}
            for entry in reversed(self.entries):
                _refuse_lost_or_changed(entry, undone)
        said = []
        while self.entries:
            with acting_as(*owner):
                said += _undo(self.entries[-1])
            self.entries.pop()
            self.write()
        return said


def _entry_of(plan: Installation) -> Entry:
    exchanged = plan.folder.stat().st_ino if plan.is_exchange and plan.folder.exists() else None
    part = plan.beside.name if plan.is_exchange or plan.beside.name == CHECKPOINT_PART else "log"
    return Entry(
        part, str(plan.folder), str(plan.aside), [*plan.new], [*plan.set_aside], exchanged, plan.is_exchange,
        digests={name: sha256_of(file.source) for name, file in plan.new.items()},
    )  # fmt: skip


def _refuse_lost_or_changed(entry: Entry, undone: dict[Path, Path]) -> None:
    """
    Refuse to take back a step after which a broker wrote on, or whose replaced files are no longer there.

    *undone* says where files lie that are put back before this step is taken back; it is given those of this step.
    """
    folder, aside = Path(entry.folder), Path(entry.aside)
    if not _was_done(entry):
        return
    for name, digest in entry.digests.items():
        place, replaced = folder / name, aside / name
        now = undone.get(place, place)
        if replaced.exists() or name not in entry.set_aside:
            undone[place] = replaced
        if not now.exists() or (replaced.exists() and replaced.samefile(now)):  # killed before it was put in place
            continue
        is_as_installed = sha256_of(now) == digest
        is_set_aside = name in entry.set_aside
        if is_as_installed and is_set_aside and not replaced.exists():
            raise NotRepairableError(f"{replaced}: the replaced file is no longer there; nothing was taken back")
        # A file with other bytes may be the old one if the step puts single files and was killed before it set this one
        # aside. Else a broker has written to it.
        if not is_as_installed and (entry.done or entry.is_exchange or replaced.exists() or not is_set_aside):
            raise NotRepairableError(
                f"{place}: written to after the repair: the broker has gone on, and what came since would be lost; "
                "nothing was taken back"
            )


def _undo(entry: Entry) -> list[str]:
    folder, aside = Path(entry.folder), Path(entry.aside)
    sweep(folder if entry.part != CHECKPOINT_PART else folder / CHECKPOINT_PART)  # of a step that was killed
    if not _was_done(entry):
        shutil.rmtree(aside, ignore_errors=True)  # a new set that had got its name, and not its place
        return [f"{entry.part}: had not been changed"]
    _put_back(folder, aside, entry.set_aside)
    for name in sorted(set(entry.new) - set(entry.set_aside)):
        (folder / name).unlink(missing_ok=True)
    for path in [path for path in aside.rglob("*") if path.is_file()]:  # not tidied up: the new set has it, too
        if (folder / path.relative_to(aside)).exists() and path.samefile(folder / path.relative_to(aside)):
            path.unlink()
    remove_empty(aside)
    if entry.inode is None and entry.is_exchange:
        remove_empty(folder)
    return [f"{entry.part}: {counted(len(entry.set_aside), 'file')} put back, {len(entry.new)} taken out"]


def _was_done(entry: Entry) -> bool:
    """Return whether a step has changed the store; of one that was killed, the folder itself tells."""
    if entry.done or not entry.is_exchange:
        return True
    folder = Path(entry.folder)
    return (folder.stat().st_ino if folder.exists() else None) != entry.inode


def _put_back(folder: Path, aside: Path, names: Sequence[str]) -> None:
    for name in names:
        if (aside / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (aside / name).replace(folder / name)
            (aside / name).unlink(missing_ok=True)  # of two names of one file, both stay
    if folder.exists():
        flush_directory(folder)
