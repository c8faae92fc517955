"""
The JARs that Spark does not ship, fetched once into the cache and checked against conf/jars.lock.

Ivy fetches them (Spark ships it) with settings of our own; see conf/ivysettings.xml.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from jobs.launch.java import NO_SPARK, SetupError
from jobs.launch.places import CONF, cache

_NAMED = 3  # JARs in a message


class Jar(NamedTuple):
    """One line of conf/jars.lock."""

    organisation: str
    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name in the cache: the version in it makes an upgrade another file."""
        return f"{self.organisation}_{self.name}-{self.version}.jar"


def spark_home() -> Path:
    """Return the directory of the Spark that pip installed."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise SetupError(NO_SPARK)
    return Path(found.origin).parent


def locked_jars(section: str) -> tuple[Jar, ...]:
    """Return the JARs of one section of conf/jars.lock."""
    jars: dict[str, list[Jar]] = {}
    current: list[Jar] = []
    for line in (CONF / "jars.lock").read_text().splitlines():
        text = line.strip()
        if text.startswith("["):
            current = jars.setdefault(text.strip("[]"), [])
        elif text and not text.startswith("#"):
            coordinates, sha256 = text.split()
            organisation, name, version = coordinates.split(":")
            current.append(Jar(organisation, name, version, sha256))
    return tuple(jars[section])


def fetched(section: str, java_home: Path) -> tuple[Path, ...]:
    """Return the paths of a section's JARs, fetched first where they are missing."""
    directory = cache() / "jars"
    jars = locked_jars(section)
    missing = [jar for jar in jars if not (directory / jar.file_name).exists()]
    if missing:
        _fetch(missing, directory, java_home)
    return tuple(directory / jar.file_name for jar in jars)


def _fetch(jars: Sequence[Jar], directory: Path, java_home: Path) -> None:
    print(f"rmq-lake: fetching {len(jars)} JARs, once …", file=sys.stderr, flush=True)  # noqa: T201  no click here
    directory.mkdir(parents=True, exist_ok=True)
    # A killed process leaves a directory that is never read; two concurrent ones put the same files in place.
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=directory) as scratch:
        _run_ivy(jars, Path(scratch), java_home)
        for jar in jars:
            _checked(jar, Path(scratch) / jar.file_name)
            (Path(scratch) / jar.file_name).replace(directory / jar.file_name)


def _run_ivy(jars: Sequence[Jar], scratch: Path, java_home: Path) -> None:
    module = scratch / "ivy.xml"
    dependencies = "".join(
        f'<dependency org="{jar.organisation}" name="{jar.name}" rev="{jar.version}" transitive="false"/>'
        for jar in jars
    )
    module.write_text(
        '<ivy-module version="2.0"><info organisation="rocketmq-lake" module="jars"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    settings = os.environ.get("RMQ_LAKE_IVY_SETTINGS", str(CONF / "ivysettings.xml"))
    (ivy,) = spark_home().glob("jars/ivy-*.jar")
    command = [str(java_home / "bin" / "java"), "-jar", str(ivy), "-settings", settings, "-ivy", str(module)]
    command += ["-cache", str(scratch / "ivy"), "-types", "jar", "-warn"]
    command += ["-retrieve", f"{scratch}/[organisation]_[artifact]-[revision].[ext]"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  our own command
    if answer.returncode:
        first = next((line.strip() for line in answer.stdout.splitlines() if "rror" in line or "::" in line), "")
        raise SetupError(f"JARs could not be fetched ({first or 'no answer'}). {_remedies(jars)}")


def _remedies(jars: Sequence[Jar]) -> str:
    """Return advice for a network without Maven Central."""
    wanted = ", ".join(f"{jar.organisation}:{jar.name}:{jar.version} as {jar.file_name}" for jar in jars[:_NAMED])
    others = f" and {len(jars) - _NAMED} more of {CONF / 'jars.lock'}" if len(jars) > _NAMED else ""
    return (
        "The first run needs Maven Central. Without it, set RMQ_LAKE_IVY_SETTINGS to a copy of "
        f"{CONF / 'ivysettings.xml'} that names your mirror, or copy {cache() / 'jars'} from a machine that has it, or "
        f"put there {wanted}{others}"
    )


def _checked(jar: Jar, path: Path) -> None:
    if not path.exists():
        raise SetupError(f"the repository does not have {jar.organisation}:{jar.name}:{jar.version}")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    if sha256 != jar.sha256:
        raise SetupError(f"{jar.file_name} has SHA-256 {sha256}, conf/jars.lock says {jar.sha256}")
