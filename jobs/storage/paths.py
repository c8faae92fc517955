"""
Examines local paths and lists directories; every error except "not found" is raised.

The methods of `Path` treat some errors as "does not exist", and which ones depends on the version of Python: with 3.13,
`exists` and `is_file` hide every error, and `rglob` omits directories that cannot be read. A file that a disk or a full
table of descriptors hides must not be taken for a missing one, so every error except "not found" is raised here.
"""

import errno
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

_MISSING = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))  # the last one: a link to itself


def find_status(path: Path, *, follows_links: bool = True) -> os.stat_result | None:
    """Return the status of a path; None if it does not exist, or is a link to itself; every other error is raised."""
    try:
        return os.stat(path, follow_symlinks=follows_links)  # noqa: PTH116 - as short as the call of Path
    except OSError as error:
        if error.errno not in _MISSING:
            raise
    except ValueError:  # a name with a NUL byte, which no file has
        pass
    return None


def path_exists(path: Path) -> bool:
    """Return whether a path exists; a link exists if its target does."""
    return find_status(path) is not None


def is_directory(path: Path) -> bool:
    """Return whether a path is a directory, or a link to one."""
    status = find_status(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def is_regular_file(path: Path) -> bool:
    """Return whether a path is a regular file, or a link to one."""
    status = find_status(path)
    return status is not None and stat.S_ISREG(status.st_mode)


def refuse_special_file(path: Path) -> None:
    """Raise `OSError` for a device, a pipe or a directory, before a library opens it: reading a pipe never ends."""
    status = find_status(path)
    if status is not None and not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path}: not a regular file")


def is_link(path: Path) -> bool:
    """Return whether a path is a symbolic link."""
    status = find_status(path, follows_links=False)
    return status is not None and stat.S_ISLNK(status.st_mode)


def list_directory(directory: Path, pattern: str = "*") -> list[Path]:
    """Return the entries of a directory whose names match *pattern*, sorted; none if it does not exist."""
    try:
        return sorted(path for path in directory.iterdir() if fnmatchcase(path.name, pattern))
    except (FileNotFoundError, NotADirectoryError):
        return []


def walk_tree(root: Path) -> Iterator[Path]:
    """
    Yield every path below *root*, a directory before its content; nothing if *root* does not exist.

    Links are yielded, but not followed.
    """
    for path in list_directory(root):
        yield path
        status = find_status(path, follows_links=False)
        if status is not None and stat.S_ISDIR(status.st_mode):
            yield from walk_tree(path)
