"""
The packages that this process runs with, in one archive for workers: `--archives FILE#environment`.

Neither Spark, which the cluster has, nor the interpreter, which cannot be moved to another machine: `bin/python` in the
archive starts the worker's own, of the same version, with the packages on its path.
"""

import io
import re
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from jobs.launch.errors import SetupError

# What pyproject.toml names, without Spark and what is of use beside a JVM alone.
NEEDED = ("click", "deltalake", "numba", "numpy", "pyarrow", "tzdata")
_LEFT_OUT = frozenset({"__pycache__", "tests", ".."})
_NAME = re.compile(r"[\w.-]+")
_PYTHON = """\
#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH=$here/lib${{PYTHONPATH:+:$PYTHONPATH}} exec python{major}.{minor} "$@"
"""


def pack(path: Path) -> None:
    """Write the archive, compressed or not, as its name says."""
    is_packed = path.name.endswith((".tar.gz", ".tgz"))
    if not is_packed and path.suffix != ".tar":
        raise SetupError(f"{path}: name it .tar.gz or .tar: by the name Spark knows how to unpack it")
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        opened = partial(tarfile.open, mode="w:gz", compresslevel=1) if is_packed else partial(tarfile.open, mode="w")
        with opened(unfinished) as archive:
            _add_python(archive)
            for source, name in _files():
                archive.add(source, f"lib/{name}", recursive=False)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _add_python(archive: tarfile.TarFile) -> None:
    script = _PYTHON.format(major=sys.version_info.major, minor=sys.version_info.minor).encode()
    entry = tarfile.TarInfo("bin/python")
    entry.size, entry.mode = len(script), 0o755
    archive.addfile(entry, io.BytesIO(script))


def _files() -> Iterator[tuple[Path, str]]:
    """Yield each file of each package, and its place below site-packages."""
    for package in _with_dependencies():
        for file in package.files or ():
            source = Path(str(package.locate_file(file)))
            if _LEFT_OUT.isdisjoint(file.parts) and source.is_file():
                yield source, file.as_posix()


def _with_dependencies() -> Iterator[Distribution]:
    pending, seen = list(NEEDED), set(NEEDED)
    while pending:
        name = pending.pop()
        try:
            package = distribution(name)
        except PackageNotFoundError as error:
            if name in NEEDED:
                raise SetupError(f"{name} is not installed beside {sys.executable}") from error
            continue  # needed on another platform
        yield package
        required = [line for line in package.requires or () if "extra ==" not in line]
        names = {found[0] for line in required if (found := _NAME.match(line))} - seen
        seen |= names
        pending += sorted(names)
