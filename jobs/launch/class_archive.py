"""
The archive of Spark's classes that the JVM of a local master maps when it starts (AppCDS).

Without an archive, a JVM spends 40% of the CPU time of Spark's start on reading and verifying classes. Writing one
costs as much as seven starts with one save, and 70 MB on disk. So the first start of an environment only leaves a note,
the JVM of the second one writes the archive when it ends, which no command waits for, and later ones use it.

The files of an environment are named after everything that a JVM compares with its archive:

    NAME.noted         there was a start
    NAME.started       a JVM is to write the archive
    NAME.unfinished    the archive that this JVM writes when it ends
    NAME-CRC.archive   the same file, when it is complete; the JVM does not notice all damage, and crashes

A JVM that lacks its archive, or whose options do not fit it, starts without it. So every failure here is harmless.
"""

import hashlib
import os
import shutil
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from jobs.storage.paths import list_directory, path_exists

_KEPT = 3  # archives, of the environments that were used last
_LEAST_FREE = 1 << 30  # bytes on disk: an archive is not worth the last ones
_RETRY_SECONDS = 86400  # after a JVM that was killed before it had written its archive, or could not write it
_BLOCK = 1 << 20


def find_class_archive_flags(directory: Path, java_home: Path, spark_home: Path, settings: Sequence[str]) -> list[str]:
    """
    Return the flag with which a JVM uses its archive, or writes one; none if it must do neither.

    *settings*: others that decide whether an archive fits the JVM.
    """
    if os.pathsep in str(directory):  # for the JVM these would be two files
        return []
    with suppress(OSError):  # the cache cannot be written, or another process took the step: the JVM needs no archive
        directory.mkdir(exist_ok=True)
        name = _name_environment(java_home, spark_home, settings)
        unfinished = directory / f"{name}.unfinished"
        if _is_complete(unfinished):
            unfinished.replace(directory / f"{name}-{_compute_crc(unfinished):08x}.archive")
            _delete_old_archives(directory)
        for archive in list_directory(directory, f"{name}-*.archive"):
            if _is_usable(archive):
                return [f"-XX:SharedArchiveFile={archive}"]
        if _is_next_to_write(directory / f"{name}.noted"):
            return [f"-XX:ArchiveClassesAtExit={unfinished}"]
    return []


def _name_environment(java_home: Path, spark_home: Path, settings: Sequence[str]) -> str:
    """Return a name for everything that a JVM compares with its archive: itself, the path and state of each JAR."""
    digest = hashlib.sha256("\0".join([str(spark_home), *settings]).encode())
    for path in (java_home.resolve() / "lib" / "modules", *list_directory(spark_home / "jars")):
        status = path.stat()
        digest.update(f"{path}:{status.st_size}:{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _is_complete(unfinished: Path) -> bool:
    """Return whether a JVM has written all of its archive: the header, with its magic number, comes last."""
    try:
        with unfinished.open("rb") as file:
            return any(file.read(4))
    except FileNotFoundError:
        return False


def _is_usable(archive: Path) -> bool:
    """Return whether an archive is ours and undamaged, and note its use; delete a damaged one."""
    if archive.stat().st_uid not in {0, os.getuid()}:
        return False
    if _compute_crc(archive) != int(archive.stem.rpartition("-")[2], 16):
        archive.unlink()
        return False
    if archive.stat().st_uid == os.getuid():
        os.utime(archive)
    return True


def _compute_crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


def _is_next_to_write(noted: Path) -> bool:
    """Return whether the JVM of this start writes the archive: that of the second start, and of no other one."""
    if not path_exists(noted):
        noted.touch()
        return False
    started = noted.with_suffix(".started")
    if path_exists(started):
        if time.time() - started.stat().st_mtime > _RETRY_SECONDS:
            started.unlink()
        return False
    if shutil.disk_usage(noted.parent).free < _LEAST_FREE:
        return False
    started.touch(exist_ok=False)  # of several processes, only one can create it
    return True


def _delete_old_archives(directory: Path) -> None:
    """Delete the archives of all environments but those that were used last."""
    archives = [path for path in list_directory(directory) if path.stat().st_size]
    for path in sorted(archives, key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT:]:
        path.unlink()
