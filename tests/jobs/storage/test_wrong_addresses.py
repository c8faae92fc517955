"""A bucket that does not exist, and a server that cannot be reached: one line with the address, after a few seconds."""

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs.console.result import ExitCode
from tests.support.commands import Run
from tests.support.http_server import Answer, run_http_server

_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # of Azurite
_AZURE = "abfss://nobucket@devstoreaccount1.dfs.core.windows.net"
_S3_ENDPOINT = "AWS_ENDPOINT_URL or fs.s3a.endpoint"
_REQUEST = (
    "<RequestId>17A1B2C3D4E5F607</RequestId><HostId>dd9025bab4ad464b049177c95eb6ebf374d3b3fd1af9251148b6</HostId>"
)
LINES = {"a store": ("inspect", "{place}/store"), "a lake": ("query", "list", "--lake", "{place}/lake")}


def refusal(code: str) -> Answer:
    data = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>It does not exist.</Message>{_REQUEST}</Error>'

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(404)
        handler.send_header("x-ms-error-code", code)
        if handler.command == "GET":
            handler.send_header("Content-Type", "application/xml")
            handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(data.encode())

    return send


@pytest.fixture
def refusing_port() -> Iterator[str]:
    """Return the address of a port on which no server listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AZURE_STORAGE_KEY", _KEY)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)


def _failure(line: tuple[str, ...], place: str, endpoint: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
    outcome = run(*(word.format(place=place) for word in line))
    assert ExitCode.FAILED == outcome.code
    assert "" == outcome.out
    assert 1 == outcome.err.count("\n")
    assert outcome.err.startswith(f"rmq-lake: {place}/")
    return outcome.err.rstrip()


@pytest.mark.parametrize(
    ("line", "place", "answer", "missing", "code", "setting"),
    [
        ("a store", "s3a://nobucket", "NoSuchBucket", "bucket", "NO_SUCH_BUCKET", _S3_ENDPOINT),
        ("a lake", "s3a://nobucket", "NoSuchBucket", "bucket", "NoSuchBucket", _S3_ENDPOINT),
        ("a lake", _AZURE, "ContainerNotFound", "container", "ContainerNotFound", "fs.azure.endpoint"),
    ],
)
def test_a_missing_bucket_or_container_is_one_line_without_the_server_s_xml(  # noqa: PLR0913, PLR0917 - parameters of the case
    line: str, place: str, answer: str, missing: str, code: str, setting: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_http_server(refusal(answer)) as address:
        said = _failure(LINES[line], place, f"http://{address}", run, monkeypatch)

    does_not_exist = f": the {missing} nobucket does not exist on http://{address} ({code})"

    assert said.endswith(f"{does_not_exist}; check its name and {setting}, or create it")


@pytest.mark.parametrize(
    ("place", "setting"),
    [("s3a://bucket", _S3_ENDPOINT), pytest.param(_AZURE, "fs.azure.endpoint", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_refused_connection_is_named_with_its_setting_and_not_retried(  # noqa: PLR0913, PLR0917 - fixtures
    line: tuple[str, ...], place: str, setting: str, refusing_port: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The libraries retry it already: with our own retries, the error came after 11 s, and with Azure after 47 s."""
    pauses: list[float] = []
    monkeypatch.setattr("jobs.storage.s3.time", SimpleNamespace(sleep=pauses.append))
    said = _failure(line, place, refusing_port, run, monkeypatch)

    assert f": cannot connect to {refusing_port} (" in said
    assert said.endswith(f"); check {setting}, and that the server is running")
    assert [] == pauses


def test_missing_credentials_of_s3_are_named_with_their_variables(
    refusing_port: str, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr("jobs.lake.snapshots.delta_options", lambda *_: {})  # no endpoint: as for Amazon's own service
    said = _failure(LINES["a lake"], "s3a://bucket", refusing_port, run, monkeypatch)

    assert said.endswith(
        ": no S3 credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    )
