"""
The queue directories of a store as an earlier check saw them.

The time of a directory changes when a file or directory is added to it or deleted. While no queue directory has
changed, the store has the same queue files, so they need not be listed, only examined.
"""

import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from zlib import compress, decompress

from jobs.store.store import StoredFile
from rmq_formats.store import QUEUE_DIRECTORIES, FileKind

_SETTLED_NS = 2_000_000_000  # a directory may change twice within one tick of its clock


class QueueDirectory(NamedTuple):
    """A queue directory and when it changed last; no time if it does not exist."""

    path: str
    changed_ns: int | None


class QueueFileListing(NamedTuple):
    """The queue directories of a store, and the paths of the queue files in them, both below the root."""

    directories: tuple[QueueDirectory, ...]
    files: tuple[str, ...]
    compared: tuple[bool, ...]  # whether the time of a file is compared

    @classmethod
    def from_json(cls, values: Mapping[str, str]) -> "QueueFileListing":
        """Return what `to_json` has stored."""
        directories, files = (_unpack(values[name]) for name in ("folders", "files"))
        return cls(
            tuple(QueueDirectory(path, int(time) if time else None) for path, _, time in map(_split_line, directories)),
            tuple(path for path, _, _ in map(_split_line, files)),
            tuple(bool(compared) for _, _, compared in map(_split_line, files)),
        )

    def to_json(self) -> dict[str, str]:
        """Return a compact form for JSON."""
        directories = (f"{one.path}\t{'' if one.changed_ns is None else one.changed_ns}" for one in self.directories)
        files = (f"{path}\t{'1' * compared}" for path, compared in zip(self.files, self.compared, strict=True))
        return {"folders": _pack(directories), "files": _pack(files)}

    def has_same_directories(self, root: str) -> bool:
        """Return whether no directory has changed since."""
        return all(_read_change_time(f"{root}/{one.path}") == one.changed_ns for one in self.directories)

    def describe_files(self, root: str) -> Iterator[str]:
        """Yield a line for each file, as `describe_queue_files`; `FileNotFoundError` if one does not exist."""
        for path, compared in zip(self.files, self.compared, strict=True):
            status = os.stat(f"{root}/{path}")  # noqa: PTH116 - one call on a hot path
            yield _describe(path, status.st_size, status.st_mtime_ns // 1_000_000, compared)


def describe_queue_files(files: Iterable[StoredFile]) -> Iterator[str]:
    """Yield a line for each queue file that changes with its size and, for a plain queue, its time."""
    for file in files:
        yield _describe(file.path_facts.path, file.size, file.modified_ms, _is_compared(file))


def make_queue_file_listing(root: str, files: Iterable[StoredFile], now_ns: int) -> QueueFileListing | None:
    """
    Return the directories of these queue files of a store.

    Return None if the directories contain other files or links, or have changed just before *now_ns*.
    """
    known = {file.path_facts.path: _is_compared(file) for file in files}
    directories: list[QueueDirectory] = []
    found = set[str]()
    pending = [*QUEUE_DIRECTORIES]
    while pending:
        path = pending.pop()
        changed_ns = _read_change_time(f"{root}/{path}")
        directories.append(QueueDirectory(path, changed_ns))
        if changed_ns is None:
            continue
        if changed_ns > now_ns - _SETTLED_NS:
            return None
        with os.scandir(f"{root}/{path}") as entries:
            for entry in entries:
                if entry.is_symlink():
                    return None
                (pending.append if entry.is_dir() else found.add)(f"{path}/{entry.name}")
    return QueueFileListing(tuple(directories), tuple(known), tuple(known.values())) if found == known.keys() else None


def _is_compared(file: StoredFile) -> bool:
    return file.path_facts.kind is FileKind.CONSUME_QUEUE


def _describe(path: str, size: int, modified_ms: int, compared: bool) -> str:  # noqa: FBT001 - a column of the line
    return f"{path} {size} {modified_ms if compared else ''}\n"


def _read_change_time(path: str) -> int | None:
    try:
        return os.stat(path).st_ctime_ns  # noqa: PTH116 - one call on a hot path
    except FileNotFoundError:
        return None


def _split_line(line: str) -> tuple[str, str, str]:
    return line.rpartition("\t")


def _pack(lines: Iterable[str]) -> str:
    return b64encode(compress("\0".join(lines).encode("utf-8", "surrogatepass"), 1)).decode()


def _unpack(text: str) -> list[str]:
    joined = decompress(b64decode(text)).decode("utf-8", "surrogatepass")
    return joined.split("\0") if joined else []
