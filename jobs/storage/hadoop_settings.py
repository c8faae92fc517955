"""
The settings of file systems, under Hadoop's names: from Spark, from Hadoop's files, from Amazon's environment.

Spark's settings win over the files that HADOOP_CONF_DIR names, these over the environment.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from jobs.console.secrets import is_secret, remember
from jobs.storage.aws import over, settings_of_environment
from jobs.storage.azure import azure_settings_of_environment

_FILES = ("core-site.xml", "hdfs-site.xml")
_PREFIX = "spark.hadoop."
OF_FILE_SYSTEMS = ("fs.", "dfs.")


def file_system_settings(spark_settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the settings of file systems (`fs.s3a.…`, `dfs.…`); no secret among them is printed from now on."""
    given = {name.removeprefix(_PREFIX): value for name, value in spark_settings if name.startswith(_PREFIX)}
    environment = {**settings_of_environment(), **azure_settings_of_environment()}
    settings = over(over(environment, dict(_from_files())), given)
    for name, value in settings.items():
        if is_secret(name):
            remember(value)
    return {name: value for name, value in settings.items() if name.startswith(OF_FILE_SYSTEMS)}


def _from_files() -> Iterable[tuple[str, str]]:
    directory = os.environ.get("HADOOP_CONF_DIR")
    for path in (Path(directory or "", name) for name in _FILES):
        if directory and path.is_file():
            yield from _properties(path)


def _properties(path: Path) -> Iterable[tuple[str, str]]:
    from xml.etree import ElementTree as ET  # most have no such files

    try:
        found = ET.parse(path).getroot().iter("property")  # noqa: S314 - the user's own files
    except ET.ParseError as error:
        raise OSError(f"{path}: {error}") from error
    for entry in found:
        yield entry.findtext("name", "").strip(), entry.findtext("value", "").strip()
