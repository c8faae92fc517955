"""Folders that tests write into: in memory, where it has room, as tens of thousands of small files are flushed."""

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

_PLACE: Final = Path("/dev/shm")
_ROOM: Final = 8 << 30
_MEMORY: Final = 12 << 30
"""Bytes that must be free: a session writes some two GiB, and memory is for brokers and JVMs as well."""


@contextmanager
def writing_in_memory() -> Iterator[None]:
    """Have this process and those it starts make temporary files in memory, if it has room and TMPDIR says nothing."""
    if "TMPDIR" in os.environ or not _has_room():
        yield
        return
    with tempfile.TemporaryDirectory(dir=_PLACE, prefix="tests-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o1777)  # as /tmp is: some tests act as another user
        # pytest tidies up its own folders; what else is left goes with ours.
        places = {"TMPDIR": folder, "PYTEST_DEBUG_TEMPROOT": str(_PLACE)}
        with patch.dict(os.environ, places), patch.object(tempfile, "tempdir", folder):
            yield


def folder_of_process(prefix: str) -> Path:
    """Make a folder for what tests of this process share; it is deleted when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _has_room() -> bool:
    try:
        place, memory = os.statvfs(_PLACE), Path("/proc/meminfo").read_text()
    except OSError:
        return False
    available = re.search(r"^MemAvailable: *(\d+) kB$", memory, re.MULTILINE)
    return (
        not place.f_flag & os.ST_NOEXEC
        and place.f_bavail * place.f_frsize >= _ROOM
        and available is not None
        and int(available[1]) << 10 >= _MEMORY
    )
