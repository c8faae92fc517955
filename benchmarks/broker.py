"""The baseline of the rebuilds: a real broker that starts with only a log, and rebuilds its queues and index files."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path

RELEASE = "5.3.3"  # some releases rebuild nothing from a log alone: see docs/internals/compatibility.md
_TIMEOUT_S = 7200  # for a busy machine


@contextmanager
def store_rebuilt_by_broker(
    store: Path, directory: Path, release: str = RELEASE, settings: dict[str, str] | None = None
) -> Iterator[tuple[Path, float]]:
    """
    Let a broker rebuild the queues and index files of *store*; yield the store that it wrote, and the time in seconds.

    The broker's store shares the log of *store* through hard links, and is deleted after the block. The time includes
    loading the store, starting it and dispatching all messages, but not the start of the JVM.
    """
    from tests.oracle.sessions import rebuild_by_broker

    rebuilt = directory / "broker"
    shutil.rmtree(rebuilt, ignore_errors=True)
    # The same files are in the same page cache. A broker that receives no messages does not write to them.
    shutil.copytree(store / "commitlog", rebuilt / "commitlog", copy_function=os.link)
    try:
        yield rebuilt, rebuild_by_broker(release, rebuilt, settings=settings, patience=_TIMEOUT_S)
    finally:
        shutil.rmtree(rebuilt)


def hash_files(directory: Path) -> dict[str, str]:
    """Return the hash of every file below a directory, by its relative path."""
    return {
        path.relative_to(directory).as_posix(): _hash(path) for path in sorted(directory.rglob("*")) if path.is_file()
    }


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
