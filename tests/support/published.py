"""
Download artifacts of other projects once into the cache, with the Ivy in Spark or npm.

`python -m tests.support.published` fetches the artifacts for `make test-slow`.
"""

import fcntl
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from jobs.launch.cache import cache_directory
from jobs.launch.spark import spark_home

CACHE: Final = cache_directory() / "test-servers"
_CLASSIFIER: Final = "-Dos.detected.classifier=linux-x86_64"
_TIMEOUT_S: Final = 900  # for a slow network
_AXE: Final = "4.10.3"
_AZURITE: Final = "3.35.0"
QUICK_JVM: Final = (
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
)
"""Flags of a JVM that lives for seconds: a small collector, the fast compiler, and no check of published classes."""


class Module(NamedTuple):
    """A file of a Maven repository."""

    organisation: str
    name: str
    version: str
    classifier: str = ""


def class_path(name: str, modules: Sequence[Module], *, transitive: bool = False) -> list[Path]:
    """Return the JARs of modules, and with *transitive* those of their dependencies; *name* is their cache entry."""
    listing = CACHE / name / "class-path"
    listing.parent.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:  # concurrent test runs do not fetch the same file
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not listing.exists() or not all(jar.exists() for jar in _read_listing(listing)):
            with tempfile.TemporaryDirectory(dir=listing.parent) as scratch:
                _fetch(name, modules, Path(scratch), transitive=transitive)
                (Path(scratch) / "listing").replace(listing)
    return _read_listing(listing)


def _read_listing(listing: Path) -> list[Path]:
    return [Path(jar) for jar in listing.read_text().strip().split(os.pathsep)]


def _fetch(name: str, modules: Sequence[Module], scratch: Path, *, transitive: bool) -> None:
    # These versions take precedence over those that dependencies request.
    dependencies = "".join(
        f'<dependency org="{module.organisation}" name="{module.name}" rev="{module.version}" force="true"'
        f' transitive="{str(transitive).lower()}" conf="default->master,runtime">'
        + (
            f'<artifact name="{module.name}" type="jar" m:classifier="{module.classifier}"/>'
            if module.classifier
            else ""
        )
        + "</dependency>"
        for module in modules
    )
    (scratch / "ivy.xml").write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven"><info organisation="tests" module="t"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>",
        encoding="utf-8",
    )
    (ivy,) = spark_home().glob("jars/ivy-*.jar")
    command = ["java", _CLASSIFIER, "-jar", str(ivy), "-warn", "-cache", str(CACHE / "ivy")]
    command += ["-ivy", str(scratch / "ivy.xml"), "-types", "jar", "bundle", "-cachepath", str(scratch / "listing")]
    ended = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if ended.returncode:
        raise OSError(f"{name} could not be fetched:\n{(ended.stdout + ended.stderr)[-4000:]}")


def axe() -> str:
    """Return the source of axe-core from npm, which checks the accessibility of pages."""
    archive = CACHE / f"axe-core-{_AXE}.tgz"
    _npm(archive, "pack", archive.name, f"axe-core@{_AXE}")
    with tarfile.open(archive) as packed:
        program = packed.extractfile("package/axe.min.js")
        assert program is not None
        return program.read().decode()


def azurite() -> Path:
    """Return the path of Azurite from npm, Microsoft's Azure storage for tests."""
    place = CACHE / f"azurite-{_AZURITE}"
    _npm(place, "install", "whole", "--no-audit", "--prefix", "whole", f"azurite@{_AZURITE}")
    return place / "node_modules" / ".bin" / "azurite-blob"


def _npm(place: Path, command: str, target: str, *arguments: str) -> None:
    """Let npm create the file or directory *target*, and rename it to *place*, unless that exists."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                line = ["npm", command, "--silent", *arguments]
                subprocess.run(line, cwd=scratch, check=True, capture_output=True, timeout=_TIMEOUT_S)
                Path(scratch, target).rename(place)


def main() -> None:
    from tests.oracle.releases import IN_EVERY_RUN, class_path_of
    from tests.scale.servers import S3PROXY, fetch_iceberg

    for release in IN_EVERY_RUN:
        class_path_of(release)
    class_path(S3PROXY.name, [S3PROXY])
    fetch_iceberg()
    axe()
    azurite()


if __name__ == "__main__":
    main()
