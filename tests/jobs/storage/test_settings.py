"""Settings of file systems from Hadoop's file and from Spark."""

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.storage.settings import file_system_settings


def site(*settings: tuple[str, str]) -> str:
    properties = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings)
    return f"<configuration>{''.join(properties)}</configuration>"


def test_settings_are_read_from_the_file_of_hadoop_and_overridden_by_spark(tmp_path: Path) -> None:
    file = tmp_path / "core-site.xml"
    file.write_text(site(("fs.s3a.endpoint", "http://a"), ("fs.s3a.path.style.access", "true"), ("io.size", "1")))
    given = [("spark.hadoop.fs.s3a.endpoint", "http://b"), ("spark.master", "local")]
    expected = {"fs.s3a.endpoint": "http://b", "fs.s3a.path.style.access": "true"}

    # The environment of the user may also have settings for S3.
    with patch.dict(os.environ, {"HADOOP_CONF_DIR": str(tmp_path)}, clear=True):
        assert expected == file_system_settings(given)


def test_a_file_of_hadoop_that_is_not_valid_xml_is_named(tmp_path: Path) -> None:
    (tmp_path / "core-site.xml").write_text("<configuration>")

    with (
        patch.dict(os.environ, {"HADOOP_CONF_DIR": str(tmp_path)}, clear=True),
        pytest.raises(OSError, match=r"core-site\.xml: "),
    ):
        file_system_settings([])
