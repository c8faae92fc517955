"""
Writes the files of a local table's Delta log durably, so that a power failure leaves a commit complete or not at all.

`deltalake` gives a commit its name before its bytes are on the disk, and never flushes it: after a power failure, the
newest commit may be empty, or the first one, without which no table can be read. Ordinary commits are therefore written
here, action by action. For all others (a new table, columns, properties, checkpoints), `deltalake` works on a staged
log in a temporary directory, and only the finished file is flushed and moved into the table atomically.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from json import dumps
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from jobs.lake.snapshots import LOG_DIRECTORY, deltalake_errors_as_oserror
from jobs.storage.local import LocalStorage, flush_directory, flush_file, make_directory, temporary_directory_in
from jobs.storage.locations import local_path
from jobs.storage.paths import is_directory, is_link, list_directory
from jobs.storage.s3 import delta_location

_STAGED = ".staged-"
_OF_VERSION = re.compile(r"(\d{20})\..+")
_SIDECARS = "_sidecars"  # parts of checkpoints of other engines
_LAST_CHECKPOINT = "_last_checkpoint"
LogAction = Mapping[str, Any]  # a line of Delta's log: one action on a file or on the table


def commit_path(location: str, version: int) -> Path:
    """Return the path of a commit of a local table."""
    return Path(local_path(location)) / LOG_DIRECTORY / f"{version:020d}.json"


def write_commit(location: str, version: int, data: bytes) -> None:
    """Write a commit of a local table; raise `CommitFailedError` if another process has written this version."""
    try:
        LocalStorage().create(str(commit_path(location, version)), data)
    except FileExistsError as error:
        raise CommitFailedError(f"version {version} was committed by another process") from error


def encode_commit(actions: Iterable[LogAction]) -> bytes:
    """Return the bytes of a commit with these actions."""
    return "".join(dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


@contextmanager
def staged_table(location: str, version: int = -1) -> Iterator[str]:
    """
    Yield the location of a temporary table whose log has the versions of a local table up to *version*.

    `deltalake` can open it and add a version or a checkpoint. It has no data files.
    """
    table = Path(local_path(location))
    make_directory(table)
    with temporary_directory_in(table, _STAGED) as staging:
        log = staging / LOG_DIRECTORY
        log.mkdir()
        for path in list_directory(table / LOG_DIRECTORY) if version >= 0 else ():
            found = _OF_VERSION.fullmatch(path.name)
            is_known = path.name == _SIDECARS and is_directory(path)
            if is_known or (found is not None and int(found[1]) <= version):
                (log / path.name).symlink_to(path.absolute())
        yield str(staging)


def open_staged(staged: str) -> DeltaTable:
    """Open a staged table."""
    with deltalake_errors_as_oserror(staged, {}, "read"):
        return DeltaTable(delta_location(staged))


def add_staged_commit(staged: str, location: str, version: int) -> None:
    """Add a version of a staged table to its table; raise `CommitFailedError` if another process has written it."""
    data = commit_path(staged, version).read_bytes()
    name = Path(staged).name.encode()  # in the location of a new table
    write_commit(location, version, data.replace(b"/" + name, b""))


def write_checkpoint(location: str, version: int) -> None:
    """Write a checkpoint of a local table's version durably; other checkpoints stay."""
    log = Path(local_path(location)) / LOG_DIRECTORY
    with staged_table(location, version) as staged:
        open_staged(staged).create_checkpoint()
        made = Path(staged) / LOG_DIRECTORY
        # Readers follow the hint, so it is written after the checkpoint is complete.
        names = [path.name for path in list_directory(made, f"{version:020d}.checkpoint*") if not is_link(path)]
        for group in (names, [_LAST_CHECKPOINT]):
            for name in group:
                flush_file(made / name)
                os.replace(made / name, log / name)  # noqa: PTH105 - as short as the method
            flush_directory(log)
