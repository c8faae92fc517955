"""
The JVM's archive of loaded classes (AppCDS): a third of a run's start is parsing and verifying Spark's classes.

The first local run leaves the archive as it ends; later runs map it. Its name holds its dependencies, and a JVM
that finds it missing or not fitting starts without it: nothing can fail for its sake.
"""

import fcntl
import hashlib
import os
import time
from pathlib import Path
from typing import IO

from jobs.launch.places import CONF, cache

_UNUSED_DAYS = 30  # an archive weighs 190 MB; one of an environment that was deleted goes with the next that is made


class Recording:
    """An archive in the making; exists in one process at a time."""

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self._path = path
        self._lock = lock
        self._unfinished = path.with_suffix(".unfinished")
        self._unfinished.unlink(missing_ok=True)  # of a run that was killed

    @property
    def flag(self) -> str:
        """The flag by which a JVM writes the archive when it exits."""
        return f"-XX:ArchiveClassesAtExit={self._unfinished}"

    def keep(self) -> None:
        """Keep the JVM's file as the archive of later runs."""
        if self._unfinished.exists():
            self._unfinished.replace(self._path)
            self._path.chmod(0o644)  # the JVM makes it read-only; its time is renewed with each use
            _remove_unused(self._path.parent)
        self._lock.close()

    def discard(self) -> None:
        """Forget it; the next run records again."""
        self._unfinished.unlink(missing_ok=True)
        self._lock.close()


def use_or_record(java_home: Path, spark_home: Path) -> tuple[str, Recording | None]:
    """Return the JVM flag that uses the archive, or the one that records it, then with the recording to end."""
    directory = cache() / "class-archives"
    directory.mkdir(exist_ok=True)
    path = directory / f"{_fingerprint(java_home, spark_home)}.jsa"
    recording = None
    if path.exists():
        os.utime(path)
    else:
        recording = _record(path)
    return (recording.flag if recording else f"-XX:SharedArchiveFile={path}"), recording


def _record(path: Path) -> Recording | None:
    """Return a recording unless another run is at it."""
    lock = path.with_suffix(".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return Recording(path, lock)


def _fingerprint(java_home: Path, spark_home: Path) -> str:
    """Return a digest of the facts that a JVM compares before it uses an archive: itself, each JAR's path and time."""
    digest = hashlib.sha256(str(java_home.resolve()).encode())
    release = java_home / "release"
    if release.exists():
        digest.update(release.read_bytes())
    for jar in sorted((spark_home / "jars").iterdir()):
        status = jar.stat()
        digest.update(f"{jar}:{status.st_size}:{status.st_mtime_ns}\n".encode())
    digest.update((CONF / "jars.lock").read_bytes())
    return digest.hexdigest()[:16]


def _remove_unused(directory: Path) -> None:
    oldest = time.time() - _UNUSED_DAYS * 86400
    for path in directory.iterdir():
        if path.stat().st_mtime < oldest:
            path.unlink(missing_ok=True)
