"""
One run of a store at a time, as a courtesy: the transaction in `runs` is what fences, the lock only saves the work.

On a local lake the lock is the operating system's, on a file: it ends with the process that holds it, however that
ends.
What the file says is for people, and for the next run: if it was not emptied, the last run did not end well. On an
object store there is no such lock.
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from jobs.lake.runs import HeldByOtherError, Lake
from jobs.storage import is_local, join, local_path

_LOCKS = "_locks"


@contextmanager
def held(lake: Lake, store_id: str) -> Iterator[bool]:
    """
    Hold the store's lock; yield whether the run before this one was cut off.

    `HeldByOtherError` says who holds it and since when.
    """
    if not is_local(lake.location):
        yield True  # nobody knows
        return
    path = Path(local_path(join(lake.location, _LOCKS, store_id)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise HeldByOtherError(_told(file.read())) from error
        was_cut_off = os.fstat(file.fileno()).st_size > 0
        file.truncate(0)
        file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": _now()}))
        file.flush()
        yield was_cut_off
        file.truncate(0)  # an error or a kill leaves the text: the next run then looks for leftovers


def _told(text: str) -> str:
    try:
        holder = json.loads(text)
        return f"held by process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (json.JSONDecodeError, KeyError):
        return "held by another process that has just begun"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
