"""Servers that several test files use, started once."""

from collections.abc import Iterator

import pytest

from tests.scale.servers import AzureServer, S3Server, azure_server, s3_server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    with azure_server(tmp_path_factory.mktemp("azure")) as server:
        yield server
