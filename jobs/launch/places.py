"""
Directories: the configuration that travels with the code, and the cache that all checkouts share.

The cache is the user's, not the checkout's: its files are named by version and content, so that a second clone or
an installed wheel finds it there. This module is also shipped to workers (see `code_archive`): it imports only the
standard library.
"""

import os
import sys
import tempfile
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_PACKED = _PACKAGE / "_conf"

# A wheel carries conf/ inside the package; in a checkout it is next to it.
CONF = _PACKED if _PACKED.is_dir() else _PACKAGE.parent / "conf"


def cache() -> Path:
    """
    Return the cache directory, made if it is not there.

    RMQ_LAKE_CACHE names it; else it is the user's cache directory. Where that cannot be written (no home, a read-only
    one) it is a private directory among the temporary files, and a line on standard error says so.
    """
    wanted = _wanted()
    if _is_usable(wanted):
        return wanted
    fallback = Path(tempfile.gettempdir()) / f"rocketmq-lake-{os.getuid()}"
    fallback.mkdir(mode=0o700, exist_ok=True)
    if fallback.stat().st_uid != os.getuid():
        raise PermissionError(
            None, "belongs to another user; set RMQ_LAKE_CACHE to a directory of yours", str(fallback)
        )
    print(f"rmq-lake: {wanted} cannot be written, using {fallback}", file=sys.stderr)  # noqa: T201  also runs on workers
    return fallback


def _wanted() -> Path:
    named, base = os.environ.get("RMQ_LAKE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named).absolute()
    # Not Path.expanduser: that raises where there is neither HOME nor an entry for the user.
    return Path(base or os.path.expanduser("~/.cache")).absolute() / "rocketmq-lake"  # noqa: PTH111


def _is_usable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:  # EROFS, EACCES, ENOSPC: the caller takes another directory and says so
        return False
