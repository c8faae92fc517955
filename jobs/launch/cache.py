"""
The user's cache, shared by all checkouts; and the archive of our code for Spark workers, which is stored there.

Files in the cache are named by version and content, so that a second checkout or an installed wheel can use them.

Workers get one ZIP through `--py-files`, which unpacks itself once on each machine: Spark gives every application a new
directory, and numba does not cache functions from a ZIP, so each run would compile everything again. The ZIP contains
two stub packages: importing one unpacks the real code into a directory named after its content, and imports it from
there, with the compiled code of the last run. This module is part of the ZIP, so it imports only the standard library.
"""

import hashlib
import importlib
import io
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

_PACKAGE = Path(__file__).resolve().parent.parent
_PACKED = _PACKAGE / "_conf"

# A wheel carries conf/ inside the package; in a checkout it is next to it.
CONF_DIRECTORY = _PACKED if _PACKED.is_dir() else _PACKAGE.parent / "conf"

_PACKAGES = (__name__.partition(".")[0], "rmq_formats")  # our package has another name in a wheel
_PAYLOAD = "payload.zip"
_STUB = 'from rocketmq_lake_shipped import cache\n\ncache.import_real_package(__name__, __loader__, "{digest}")\n'
_TIME = (1980, 1, 1, 0, 0, 0)  # a fixed time, so that the same code gives the same ZIP


def cache_directory() -> Path:
    """Return the cache directory: RMQ_LAKE_CACHE, the user's, or a private temporary one if that cannot be written."""
    named, base = os.environ.get("RMQ_LAKE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    # Not Path.expanduser: that raises where there is neither HOME nor an entry for the user.
    wanted = Path(named or os.path.join(base or os.path.expanduser("~/.cache"), "rocketmq-lake")).absolute()  # noqa: PTH111, PTH118
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=wanted):
            return wanted
    except OSError:  # EROFS, EACCES, ENOSPC: another directory is used, and reported
        fallback = Path(tempfile.gettempdir()) / f"rocketmq-lake-{os.getuid()}"
    fallback.mkdir(mode=0o700, exist_ok=True)
    if fallback.stat().st_uid != os.getuid():
        raise PermissionError(
            None, "belongs to another user; set RMQ_LAKE_CACHE to a directory that you own", str(fallback)
        )
    _report_once(f"rmq-lake: {wanted} cannot be written; using {fallback} instead")
    return fallback


@cache
def _report_once(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201  also runs on workers


def build_code_archive() -> Path:
    """Return the ZIP of the installed packages; create it if it is not in the cache."""
    payload = _zip_files(_modules())
    digest = hashlib.sha256(payload).hexdigest()[:16]
    path = cache_directory() / "shipped" / f"rocketmq-lake-{digest}.zip"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_suffix(f".{uuid4()}")
        files = {
            _PAYLOAD: payload,
            "rocketmq_lake_shipped/__init__.py": b"",
            "rocketmq_lake_shipped/cache.py": Path(__file__).read_bytes(),
            **{f"{package}/__init__.py": _STUB.format(digest=digest).encode() for package in _PACKAGES},
        }
        unfinished.write_bytes(_zip_files(files.items()))
        unfinished.replace(path)
    return path


def _modules() -> Iterator[tuple[str, bytes]]:
    for package in _PACKAGES:
        found = find_spec(package)
        if found is None or found.origin is None:
            raise ModuleNotFoundError(package)
        directory = Path(found.origin).parent
        for path in sorted(directory.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{package}/{path.relative_to(directory)}", path.read_bytes()


def _zip_files(files: Iterable[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name, _TIME), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def import_real_package(package: str, loader: Any, digest: str) -> None:  # noqa: ANN401 - the loader of a ZIP archive
    """On a worker, replace the stub that is being imported by the real *package*."""
    directory = cache_directory() / "shipped" / digest
    if not directory.is_dir():
        directory.parent.mkdir(exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=directory.parent))
        with zipfile.ZipFile(io.BytesIO(loader.get_data(f"{loader.archive}/{_PAYLOAD}"))) as archive:
            archive.extractall(unfinished)
        try:
            unfinished.rename(directory)
        except OSError:  # ENOTEMPTY: another worker was first, and its copy is used; anything else is raised below
            shutil.rmtree(unfinished)
            if not directory.is_dir():
                raise
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    del sys.modules[package]
    importlib.import_module(package)
