"""
Our code for the workers of a cluster: one ZIP for `--py-files` that unpacks itself once on each machine.

Spark gives every application a new directory, and numba does not cache functions from a ZIP: each run would
compile everything again. So the ZIP holds two packages that are only doors: importing one unpacks the real code into a
directory named after its content (see `code_unpacker`) and imports it from there, where the cache of the last run lies.
"""

import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

from jobs.launch.code_unpacker import PAYLOAD
from jobs.launch.places import cache

_PACKAGES = (__name__.partition(".")[0], "rmq_formats")  # a wheel has another name for ours
_DOOR = 'from rocketmq_lake_shipped import code_unpacker\n\ncode_unpacker.enter(__name__, __loader__, "{digest}")\n'
_TIME = (1980, 1, 1, 0, 0, 0)  # the same code is the same ZIP


def archive() -> Path:
    """Return the ZIP of the installed packages, made if the cache does not hold it."""
    payload = _zipped(_modules())
    digest = hashlib.sha256(payload).hexdigest()[:16]
    path = cache() / "shipped" / f"rocketmq-lake-{digest}.zip"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_suffix(f".{uuid4()}")
        unfinished.write_bytes(_zipped(_doors(payload, digest)))
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


def _doors(payload: bytes, digest: str) -> Iterator[tuple[str, bytes]]:
    yield PAYLOAD, payload
    yield "rocketmq_lake_shipped/__init__.py", b""
    for name in ("places.py", "code_unpacker.py"):
        yield f"rocketmq_lake_shipped/{name}", Path(__file__).with_name(name).read_bytes()
    for package in _PACKAGES:
        yield f"{package}/__init__.py", _DOOR.format(digest=digest).encode()


def _zipped(files: Iterator[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name, _TIME), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
