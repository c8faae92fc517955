"""A real broker as peer: it finds a log alone, makes queues and index files of it, and is timed."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path

RELEASE = "5.3.3"  # some releases make nothing of a log alone: see docs/internals/compatibility.md
_PATIENCE = 7200  # seconds; a machine may be busy


@contextmanager
def rebuilt_by_broker(
    store: Path, folder: Path, release: str = RELEASE, settings: dict[str, str] | None = None
) -> Iterator[tuple[Path, float]]:
    """
    Give a store that shares the log of *store*, with a broker's own queues and index files, and its seconds for them.

    Loading, starting and dispatching are one figure; the start of the JVM is not in it.
    """
    from tests.oracle.sessions import rebuild_by_broker

    copy = folder / "broker"
    shutil.rmtree(copy, ignore_errors=True)
    # The same files, in the same page cache: a broker that nobody sends to writes nothing into them.
    shutil.copytree(store / "commitlog", copy / "commitlog", copy_function=os.link)
    try:
        yield copy, rebuild_by_broker(release, copy, settings=settings, patience=_PATIENCE)
    finally:
        shutil.rmtree(copy)


def hashes_below(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder."""
    return {path.relative_to(folder).as_posix(): _hash(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
