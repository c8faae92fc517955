"""HDFS nodes with incorrect or slow responses."""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.storage import hdfs, storage_for
from jobs.storage.model import Storage
from jobs.storage.settings import file_system_settings
from tests.support.http_server import Answer, run_http_server

LOCATION = "hdfs://broker-stores/store"


def answer(status: int, body: object, length: int | None = None) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data) if length is None else length))
        handler.end_headers()
        handler.wfile.write(data)

    return send


def make_refusal(exception: str, message: str = "no") -> Answer:
    return answer(403, {"RemoteException": {"exception": exception, "message": message}})


def open_file(storage: Storage, location: str) -> object:
    with storage.open(location) as file:
        return file.size


def refusal(answer: Answer, call: Callable[[Storage, str], object] = open_file) -> tuple[str, str]:
    """Send a request to a failing node; return the address of the node, and the error message."""
    with run_http_server(answer) as address:
        host, _, port = address.partition(":")
        location = f"hdfs://{host}/store"
        storage = storage_for(location, {"dfs.namenode.http-address": f"0.0.0.0:{port}"})
        with pytest.raises(OSError, match=f"^{location}: " if call is open_file else location) as raised:
            call(storage, location)
    return address, str(raised.value).removeprefix(f"{location}: ")


def make_redirect(location: str | None) -> Answer:
    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(307)
        if location is not None:
            handler.send_header("Location", location.format(here=handler.headers["Host"]))
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return send


def send_endlessly(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    with suppress(OSError):
        while True:
            handler.wfile.write(b" " * 65536)


def send_slowly(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    with suppress(OSError):
        while True:
            handler.wfile.write(b" ")
            time.sleep(0.01)


STATUS = answer(200, {"FileStatus": {"length": 7, "type": "FILE"}})


def test_requests_go_to_the_active_one_of_a_pair_of_name_nodes() -> None:
    """The other node reports that it is in standby; later requests go directly to the active one."""
    asked = []

    def answer_as_standby(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        make_refusal("StandbyException", "Operation category READ is not supported in state standby")(handler)

    with run_http_server(answer_as_standby) as standby, run_http_server(STATUS) as active:
        options = {
            "dfs.ha.namenodes.broker-stores": "nn1, nn2",
            "dfs.namenode.http-address.broker-stores.nn1": standby,
            "dfs.namenode.http-address.broker-stores.nn2": active,
        }
        for _ in range(2):
            assert 7 == open_file(storage_for(LOCATION, options), LOCATION)

    assert 1 == len(asked)


ANSWERS = {
    "Kerberos": (answer(401, b""), "AuthenticationException: it requires Kerberos, which is not supported here"),
    "no JSON": (answer(500, b"<html>"), "HTTP status 500: Internal Server Error"),
    "no exception": (answer(500, {"RemoteException": 1}), "HTTP status 500: Internal Server Error"),
    "trace": (make_refusal("IOException", "first\nat org.apache"), "IOException: first"),
    "standby": (make_refusal("StandbyException", "state standby"), "HDFS does not answer: {node}: state standby"),
    "short": (answer(200, b"{", 100), "HDFS does not answer: {node}: IncompleteRead(1 bytes read, 99 more expected)"),
    "a page": (answer(200, b"<html>"), "the server is not an HDFS NameNode: "),
    "no status": (answer(200, {"FileStatus": {}}), "the server is not an HDFS NameNode: "),
    "loop": (make_redirect("http://{here}/webhdfs/v1/store"), "HTTP status 307: The HTTP server returned a redirect"),
    "nowhere": (make_redirect(None), "HTTP status 307: Temporary Redirect"),
    "a file": (
        make_redirect("file:///etc/passwd"),
        "HTTP status 307: Temporary Redirect - Redirection to url 'file:///etc",
    ),
    "no port": (make_redirect("http://host:port/"), "HDFS does not answer: {node}: InvalidURL("),
    "no host": (make_redirect("http://[/"), "HDFS does not answer: {node}: ValueError('Invalid IPv6 URL')"),
    "deep": (answer(200, b'{"FileStatus":' + b"[" * 100_000), "the server is not an HDFS NameNode: RecursionError"),
    "long": (
        answer(200, b'{"FileStatus":{"type":"FILE","length":' + b"9" * 5000 + b"}}"),
        "the server is not an HDFS NameNode: ",
    ),
    "deep refusal": (answer(500, b'{"RemoteException":' + b"[" * 100_000), "HTTP status 500"),
    "endless": (send_endlessly, "HDFS does not answer: {node}: the response has more than 1000000 bytes"),
    "dripping": (send_slowly, "HDFS does not answer: {node}: no complete response within 0.5 s"),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize(("answer", "message"), ANSWERS.values(), ids=ANSWERS)
def test_an_invalid_hdfs_response_is_one_line_in_bounded_time_and_memory(
    answer: Answer, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs, "_SECONDS", 0.5 if answer is send_slowly else 60)
    monkeypatch.setattr(hdfs, "_LARGEST_LISTING", 1_000_000)

    address, text = refusal(answer)

    assert text.startswith(message.format(node=address))
    assert "\n" not in text


ENDLESS = {"pathSuffix": "again", "type": "DIRECTORY", "length": 0}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        *(
            ({**ENDLESS, "pathSuffix": name}, "the server returned an invalid file name")
            for name in ("", ".", "..", "a/b", "../../etc/passwd")
        ),
        (ENDLESS, "more files or directory levels than any store has"),
    ],
    ids=lambda value: str(value.get("pathSuffix")) if isinstance(value, dict) else "",
)
def test_a_directory_with_invalid_names_or_endless_entries_is_refused(entry: dict[str, object], message: str) -> None:
    def respond(handler: BaseHTTPRequestHandler) -> None:
        is_listing = "LISTSTATUS" in handler.path
        answer(200, {"FileStatuses": {"FileStatus": [entry]}} if is_listing else {"FileStatus": entry})(handler)

    assert message in refusal(respond, lambda storage, location: storage.list_files(location))[1]


@pytest.mark.parametrize(
    ("location", "options", "expected"),
    [
        ("hdfs://host:8020/s", {}, ("host:9870",)),
        ("hdfs://host/s", {"dfs.namenode.http-address": "0.0.0.0:50070"}, ("host:50070",)),
        ("hdfs:///s", {"fs.defaultFS": "hdfs://host:8020"}, ("host:9870",)),
        (
            "hdfs:///s",
            {"fs.defaultFS": "hdfs://ns", "dfs.ha.namenodes.ns": "a", "dfs.namenode.http-address.ns.a": "h:1"},
            ("h:1",),
        ),
    ],
)
def test_a_name_node_is_found_in_the_same_way_as_by_hadoop(
    location: str, options: dict[str, str], expected: tuple[str, ...]
) -> None:
    """The address is the host of the URI, the default file system, or the name of a pair of nodes."""
    assert expected == hdfs.name_nodes(location, options)


def site(*settings: tuple[str, str]) -> str:
    properties = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings)
    return f"<configuration>{''.join(properties)}</configuration>"


def test_settings_are_read_from_hadoop_files_and_overridden_by_spark(tmp_path: Path) -> None:
    (tmp_path / "core-site.xml").write_text(site(("fs.defaultFS", "hdfs://ns"), ("io.file.buffer.size", "1")))
    (tmp_path / "hdfs-site.xml").write_text(site(("dfs.namenode.http-address", "a:1")))
    given = [("spark.hadoop.dfs.namenode.http-address", "b:2"), ("spark.master", "local")]

    # The user may also have settings for S3.
    with patch.dict(os.environ, {"HADOOP_CONF_DIR": str(tmp_path)}, clear=True):
        assert {"fs.defaultFS": "hdfs://ns", "dfs.namenode.http-address": "b:2"} == file_system_settings(given)
        (tmp_path / "core-site.xml").write_text("<configuration>")
        with pytest.raises(OSError, match=r"core-site\.xml: "):
            file_system_settings([])
