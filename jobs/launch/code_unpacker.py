"""
The worker's side of `code_archive`: unpack the code once, import it from there.

It travels in the ZIP as `rocketmq_lake_shipped.code_unpacker`, next to `places`, and so imports nothing else of ours.
"""

import importlib
import io
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Protocol

from .places import cache

PAYLOAD = "payload.zip"


class _ZipLoader(Protocol):
    archive: str

    def get_data(self, path: str) -> bytes: ...


def enter(package: str, loader: _ZipLoader, digest: str) -> None:
    """Put the real *package* in the place of the one that is being imported from the ZIP."""
    directory = cache() / "shipped" / digest
    if not directory.is_dir():
        _unpack(loader.get_data(f"{loader.archive}/{PAYLOAD}"), directory)
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    del sys.modules[package]
    importlib.import_module(package)


def _unpack(payload: bytes, directory: Path) -> None:
    """Make *directory* appear whole; of several concurrent workers the first one wins and the others use its copy."""
    directory.parent.mkdir(exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=directory.parent))
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        archive.extractall(unfinished)
    try:
        unfinished.rename(directory)
    except OSError:  # ENOTEMPTY: another worker was first; anything else is raised below
        shutil.rmtree(unfinished)
        if not directory.is_dir():
            raise
