"""
How to spare a running broker: priority, page cache, speed, and free space on the disk.

A broker that runs holds a lock on the file `lock` in its store. That the file exists, or that `abort` does, means
nothing.
"""

import fcntl
import os
import shutil
import struct
import sys
from pathlib import Path

from jobs.storage.local import Care, step_back
from jobs.storage.locations import is_local, local_path

LOCK_FILE = "lock"
FLOCK = struct.Struct("@hhqqi")  # struct flock of 64-bit Linux
_NO_PROCESS = -1  # holds a lock that belongs to an open file: no broker takes one, `held_store` does
FULL = 0.75  # diskMaxUsedSpaceRatio: from here on a broker deletes before its time


class DiskWouldFillError(OSError):
    """The write would make the broker delete messages."""


def broker_process(store: str) -> int | None:
    """Return the process that holds the store's lock; None when no broker runs on it, as far as can be known."""
    path = Path(local_path(store)) / LOCK_FILE if is_local(store) else None
    if path is None or not path.is_file() or not sys.platform.startswith("linux"):
        return None
    with path.open("rb") as file:
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, process = FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK or process == _NO_PROCESS else process


def care_beside(store: str, max_rate: int | None = None) -> Care | None:
    """
    Return how to read *store*; None if no broker runs on it.

    If a broker runs, this process lowers its priority before it starts a JVM or workers, which inherit it.
    """
    if broker_process(store) is None:
        return Care(max_rate) if max_rate else None
    step_back()
    return Care(max_rate)


def check_room(store: str, target: str, expected_bytes: int) -> None:
    """Refuse to start when *expected_bytes* more in *target* would fill the file system of a running broker's store."""
    if not (is_local(store) and is_local(target)) or broker_process(store) is None:
        return
    root, place = Path(local_path(store)), _existing(Path(local_path(target)))
    if root.stat().st_dev != place.stat().st_dev:
        return
    usage = shutil.disk_usage(place)
    share = (usage.used + expected_bytes) / usage.total
    if share > FULL:
        raise DiskWouldFillError(
            f"{target}: on the store's file system, which this run would fill to {share:.0%}; "
            f"beyond {FULL:.0%} a broker deletes messages early"
        )


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)
