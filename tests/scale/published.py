"""Servers for tests, as their projects publish them: JARs, fetched once into the cache by the Ivy that Spark ships."""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from jobs.launch.jars import spark_home
from jobs.launch.places import CONF, cache

_SECONDS = 300


class Jar(NamedTuple):
    """One file of a repository."""

    organisation: str
    name: str
    version: str
    classifier: str = ""

    @property
    def file_name(self) -> str:
        return "-".join(part for part in (self.name, self.version, self.classifier) if part) + ".jar"


S3PROXY = Jar("org.gaul", "s3proxy", "4.1.0", "jar-with-dependencies")
HADOOP = Jar("org.apache.hadoop", "hadoop-client-minicluster", "3.5.0")  # Spark 4.2 has the rest of it


def fetched(jar: Jar) -> Path:
    path = cache() / "test-servers" / jar.file_name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            _fetch(jar, Path(scratch))
            (Path(scratch) / jar.file_name).replace(path)
    return path


def _fetch(jar: Jar, scratch: Path) -> None:
    module = scratch / "ivy.xml"
    artifact = f'<artifact name="{jar.name}" type="jar" ext="jar" m:classifier="{jar.classifier}"/>'
    module.write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven"><info organisation="tests" module="t"/>'
        f'<dependencies><dependency org="{jar.organisation}" name="{jar.name}" rev="{jar.version}" transitive="false">'
        f"{artifact if jar.classifier else ''}</dependency></dependencies></ivy-module>",
        encoding="utf-8",
    )
    settings = os.environ.get("RMQ_LAKE_IVY_SETTINGS", str(CONF / "ivysettings.xml"))
    (ivy,) = spark_home().glob("jars/ivy-*.jar")
    command = ["java", "-jar", str(ivy), "-settings", settings, "-ivy", str(module), "-cache", str(scratch / "ivy")]
    command += ["-types", "jar", "-warn", "-retrieve", f"{scratch}/[artifact]-[revision](-[classifier]).[ext]"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if answer.returncode:
        raise OSError(f"{jar.file_name} could not be fetched: {answer.stdout[-2000:]}")
