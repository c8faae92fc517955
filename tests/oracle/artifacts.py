"""
Find the published artifacts of a RocketMQ release, and keep them.

Maven where it is installed, else the Ivy that ships inside pyspark, both with the repositories they know by default;
each release is asked for once and then lives in the project's cache, with a store of its own (an Ivy that Spark starts
must never meet half a Maven repository).
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from tests.oracle.releases import Artifact, artifacts_of

_GROUP: Final = "org.apache.rocketmq"
_CLASSIFIER: Final = "-Dos.detected.classifier=linux-x86_64"
_MAVEN_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
_RESOLVE_SECONDS: Final = 900


class ArtifactsUnavailableError(Exception):
    """The artifacts of a release could not be fetched."""


def cache_directory() -> Path:
    """Name the directory that everything fetched or compiled for these tests lives in."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rocketmq-lake" / "oracle"


def class_path(release: str) -> list[Path]:
    """List the JAR files that run *release*, fetching them if this machine does not have them yet."""
    listing = cache_directory() / release / "class-path"
    with _locked(cache_directory() / "lock"):
        known = _read_listing(listing)
        if known and all(jar.exists() for jar in known):
            return known
        jars = _resolve(release)
        _write_listing(listing, jars)
        return jars


def _resolve(release: str) -> list[Path]:
    with tempfile.TemporaryDirectory(prefix="oracle-") as scratch:
        if shutil.which("mvn"):
            return _resolve_with_maven(release, Path(scratch))
        return _resolve_with_ivy(release, Path(scratch))


def _resolve_with_maven(release: str, scratch: Path) -> list[Path]:
    """Let Maven list the run time class path of a project that depends on *release*."""
    scratch.joinpath("pom.xml").write_text(_maven_project(artifacts_of(release)), encoding="utf-8")
    listing = scratch / "listing"
    _run(
        release,
        scratch,
        "mvn",
        "--quiet",
        "--batch-mode",
        f"-Dmaven.repo.local={cache_directory() / 'maven'}",
        _CLASSIFIER,
        _MAVEN_PLUGIN,
        f"-Dmdep.outputFile={listing}",
        "-Dmdep.includeScope=runtime",
    )
    return [Path(jar) for jar in listing.read_text(encoding="utf-8").strip().split(os.pathsep)]


def _resolve_with_ivy(release: str, scratch: Path) -> list[Path]:
    """Let pyspark's Ivy list the run time class path of a module that depends on *release*."""
    scratch.joinpath("ivy.xml").write_text(_ivy_module(artifacts_of(release)), encoding="utf-8")
    listing = scratch / "listing"
    _run(
        release,
        scratch,
        "java",
        _CLASSIFIER,
        "-jar",
        str(_ivy_jar()),
        "-warn",
        "-cache",
        str(cache_directory() / "ivy"),
        "-ivy",
        str(scratch / "ivy.xml"),
        "-types",
        "jar",
        "bundle",
        "-cachepath",
        str(listing),
    )
    return [Path(jar) for jar in listing.read_text(encoding="utf-8").strip().split(os.pathsep)]


def _ivy_jar() -> Path:
    import pyspark

    return next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))


def _maven_project(artifacts: tuple[Artifact, ...]) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{_GROUP}</groupId>"
        f"<artifactId>rocketmq-{artifact.module}</artifactId><version>{artifact.version}</version></dependency>"
        for artifact in artifacts
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>oracle</groupId><artifactId>oracle</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )


def _ivy_module(artifacts: tuple[Artifact, ...]) -> str:
    """Write an Ivy module that depends on *artifacts*; a version that is named here wins over what others ask for."""
    dependencies = "".join(
        f'<dependency org="{_GROUP}" name="rocketmq-{artifact.module}" rev="{artifact.version}" force="true"'
        ' conf="default->master,runtime"/>'
        for artifact in artifacts
    )
    return (
        '<ivy-module version="2.0"><info organisation="oracle" module="oracle"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies>'
        "</ivy-module>"
    )


def _run(release: str, directory: Path, *command: str) -> None:
    finished = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=_RESOLVE_SECONDS, check=False
    )
    if finished.returncode:
        said = (finished.stdout + finished.stderr)[-4000:]
        message = f"cannot fetch RocketMQ {release} with {command[0]}:\n{said}"
        raise ArtifactsUnavailableError(message)


def _read_listing(listing: Path) -> list[Path]:
    """Give the JAR files that an earlier run wrote down, none if there was no earlier run."""
    if not listing.exists():
        return []
    return [Path(line) for line in listing.read_text(encoding="utf-8").splitlines()]


def _write_listing(listing: Path, jars: list[Path]) -> None:
    listing.parent.mkdir(parents=True, exist_ok=True)
    attempt = listing.with_name(f"{listing.name}.attempt-{uuid4()}")
    attempt.write_text("".join(f"{jar}\n" for jar in jars), encoding="utf-8")
    attempt.rename(listing)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold *path* locked, so that test runs side by side do not fetch the same thing at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
