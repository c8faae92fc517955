"""The other files of the sequence that a dumped file belongs to: they show whether it is as long as it was."""

import os
from typing import NamedTuple

from jobs.dump.file import DumpFile
from jobs.launch.arguments import file_system_options
from jobs.storage import storage_of
from jobs.storage.locations import is_local, local_path
from rmq_formats.store import name_of_offset, offset_of_name


class Siblings(NamedTuple):
    """The files beside one whose name is the offset of its first byte."""

    base_offset: int
    size: int
    largest: int  # size of the largest file of the folder, this one included
    next_offset: int | None  # of the file that follows

    @property
    def missing(self) -> str | None:
        """Say how the file is cut short; None where nothing shows that it is."""
        end = self.base_offset + self.size
        if not self.size or self.size == self.largest or end == self.next_offset:
            return None
        following = "" if self.next_offset is None else f", and the next file begins at offset {self.next_offset}"
        return f"the file is cut short: it has {self.size} bytes, others here have {self.largest}{following}"


def siblings_of(file: DumpFile) -> Siblings | None:
    """Return the files beside *file*; None where its name is no offset."""
    base_offset = offset_of_name(file.name)
    if base_offset is None:
        return None
    others = {int(name): size for name, size in listed(file) if offset_of_name(name) is not None}
    return Siblings(
        base_offset,
        file.size,
        max((file.size, *others.values())),
        min((offset for offset in others if offset > base_offset), default=None),
    )


def sibling_location(file: DumpFile, offset: int) -> str:
    """Return the location of the file of the same sequence that begins at *offset*."""
    return f"{file.location.rpartition('/')[0]}/{name_of_offset(offset)}"


def listed(file: DumpFile) -> list[tuple[str, int]]:
    """Return name and size of every file in the folder of *file* whose name is a number."""
    folder = file.location.rpartition("/")[0]
    try:
        if not is_local(folder):
            found = storage_of(folder, file_system_options()).list_files(folder)
            return [(info.name, info.size) for info in found if info.name.isdecimal()]
        with os.scandir(local_path(folder) or "/") as entries:
            return [(entry.name, entry.stat().st_size) for entry in entries if entry.name.isdecimal()]
    except OSError:
        return []
