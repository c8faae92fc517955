"""Servers that several test files use, started once."""

from collections.abc import Iterator

import pytest

from tests.scale.s3 import S3Server, s3_server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run one S3 server for all tests; each has prefixes of its own."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server
