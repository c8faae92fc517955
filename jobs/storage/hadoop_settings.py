"""What Hadoop's clients know of file systems: from their files where HADOOP_CONF_DIR names them, and from Spark."""

import os
from collections.abc import Iterable
from pathlib import Path

_FILES = ("core-site.xml", "hdfs-site.xml")
_PREFIX = "spark.hadoop."
OF_FILE_SYSTEMS = ("fs.", "dfs.")


def file_system_settings(spark_settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the settings of file systems (`fs.s3a.…`, `dfs.…`); what Spark is told wins."""
    told = ((name.removeprefix(_PREFIX), value) for name, value in spark_settings if name.startswith(_PREFIX))
    settings = [*_from_files(), *told]
    return {name: value for name, value in settings if name.startswith(OF_FILE_SYSTEMS)}


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
