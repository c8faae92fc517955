"""
Where things are: the configuration that travels with the code, and the cache that all checkouts share.

The cache is the user's, not the checkout's: what lies in it is named by version and content, so that a second clone or
an installed wheel finds it there.
"""

import os
import tempfile
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_PACKED = _PACKAGE / "_conf"

# A wheel carries conf/ inside the package; in a checkout it stands beside it.
CONF = _PACKED if _PACKED.is_dir() else _PACKAGE.parent / "conf"


def cache() -> Path:
    """
    Return the cache directory, made if it is not there.

    RMQ_LAKE_CACHE names it; else it is the user's cache directory, else (no home, a read-only one) a private
    directory among the temporary files.
    """
    named = os.environ.get("RMQ_LAKE_CACHE")
    if named:
        return _made(Path(named).absolute())
    base = os.environ.get("XDG_CACHE_HOME")
    directory = (Path(base) if base else Path("~/.cache").expanduser()) / "rocketmq-lake"
    try:
        directory = _made(directory)
    except OSError:
        return _private_temporary()
    return directory if os.access(directory, os.W_OK) else _private_temporary()


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _private_temporary() -> Path:
    directory = Path(tempfile.gettempdir()) / f"rocketmq-lake-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise PermissionError(None, "belongs to another user; set RMQ_LAKE_CACHE", str(directory))
    return directory
