"""Full disks, and S3 servers that deny requests or fail: errors name the location, and no data is lost."""

import errno
import os
import re
import resource
import shlex
import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Self
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileInfo, FileSelector, FileType

from jobs.console.result import ExitCode
from jobs.launch.failures import one_line_message
from jobs.storage import s3
from jobs.storage.local import LocalStorage, close_file, explaining_full_disk
from jobs.storage.model import Storage
from jobs.storage.s3 import ObjectStorage
from tests.golden import StoreOf
from tests.support.commands import Run


def test_a_full_disk_is_reported_with_the_file_and_the_bytes_needed_and_free(tmp_path: Path) -> None:
    place = tmp_path / "lake" / "part.parquet"
    with (
        pytest.raises(OSError, match="No space left") as caught,
        explaining_full_disk(str(tmp_path)),
        explaining_full_disk(str(place), 4096),
    ):
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")
    line = one_line_message(caught.value)

    assert line.startswith(f"{place}: No space left on device: 4,096 bytes would be written, but only ")
    assert line.endswith(f"bytes are free on the file system of {tmp_path}")


_RUST = "Generic LocalFileSystem error: Unable to copy data to file: "  # and errors of `deltalake` with the same cause


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError(f"{_RUST}No space left on device (os error 28)"), "{place}: No space left on device: "),
        (ValueError(f"{_RUST}Connection timed out (os error 110)"), f"{{place}}: {_RUST}Connection timed out"),
        (OSError(errno.ETIMEDOUT, "Connection timed out"), "{place}: Connection timed out"),
        (OSError(errno.EIO, "Input/output error", "file"), "file: Input/output error"),
        # The death of a JVM is recognized by the error of its connection.
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "[Errno 111] Connection refused"),
    ],
    ids=["full disk of a library", "library", "read", "named already", "server"],
)
def test_an_error_without_a_file_gets_the_place(error: Exception, message: str, tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError)) as caught, explaining_full_disk(str(tmp_path)):
        raise error

    line = (
        str(caught.value) if isinstance(caught.value, ConnectionError | ValueError) else one_line_message(caught.value)
    )

    assert line.startswith(message.format(place=tmp_path))


LOCATION = "s3a://bucket/store/file"
FAILED = "AWS Error INTERNAL_FAILURE during GetObject operation: Failed to flush response stream (eof: 0, bad: 1)"
ANSWERS = (
    FAILED,
    "AWS Error SLOW_DOWN during GetObject operation (HTTP status 503): Please reduce your request rate.",
    "AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 28, Timeout was reached",
    "AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 18, Transferred a partial file",
    "Azure Error: [] Connection closed before getting full response or response is less than expected.",
)
CONTENT = bytes(range(200))


class FailingFileSystem:
    """A file system of pyarrow with one file, whose first calls fail."""

    def __init__(self, content: bytes, failures: int, message: str = FAILED) -> None:
        self.content = content
        self.left = failures
        self.message = message

    def _call(self) -> None:
        if self.left:
            self.left -= 1
            raise OSError(self.message)

    def open_input_file(self, _key: str) -> "FailingFileSystem":
        self._call()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""

    def close(self) -> None:
        """Close it."""

    def size(self) -> int:
        self._call()
        return len(self.content)

    def read_at(self, size: int, position: int) -> bytes:
        self._call()
        return self.content[position : position + size]

    def delete_file(self, _key: str) -> None:
        self._call()

    def get_file_info(self, _what: str | FileSelector) -> list[FileInfo]:
        self._call()
        return [FileInfo("bucket/file", FileType.File, size=len(self.content))]


def _read(storage: Storage) -> object:
    with storage.open(LOCATION) as file:
        return bytes(file.read(10, 5))


DENIED = [
    "When reading 'store': AWS Error ACCESS_DENIED during HeadObject operation: No response body.",
    "When listing 'store': AWS Error INVALID_ACCESS_KEY_ID during ListObjectsV2 operation: The key is not known",
    "When reading 'store': AWS Error UNKNOWN (HTTP status 403) during HeadObject operation: No response body.",
]


@pytest.mark.parametrize("message", DENIED)
@pytest.mark.parametrize(
    "call",
    [
        _read,
        lambda storage: storage.list_files(LOCATION),
        lambda storage: storage.create(LOCATION, b""),
        lambda storage: storage.delete(LOCATION),
    ],
    ids=["read", "list", "create", "delete"],
)
def test_a_denied_request_to_s3_is_an_access_error(call: Callable[[Storage], None], message: str) -> None:
    storage = ObjectStorage(
        FailingFileSystem(b"", 1, message), "the AWS environment, because fs.s3a.access.key is not set"
    )

    with pytest.raises(PermissionError, match=r"the request used the AWS environment") as raised:
        call(storage)

    assert LOCATION == raised.value.filename
    assert message.rpartition(" during ")[2].partition(" ")[0] in str(raised.value)


def test_a_key_is_named_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyarrow.fs.S3FileSystem", lambda **_: FailingFileSystem(b"", 1, DENIED[0]))
    options = {"fs.s3a.access.key": "OURKEY", "fs.s3a.secret.key": "OURSECRET"}
    storage = s3.s3_storage(tuple(options.items()))

    with pytest.raises(PermissionError, match=r"the request used fs\.s3a\.access\.key") as raised:
        _read(storage)

    assert not {"OURKEY", "OURSECRET"} & set(str(raised.value).replace("'", " ").split())


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_PAUSES_S", (0, 0, 0))


CALLS: dict[str, tuple[Callable[[ObjectStorage], object], object]] = {
    "read": (_read, CONTENT[10:15]),
    "list": (lambda storage: [info.size for info in storage.list_files("s3a://bucket")], [len(CONTENT)]),
    "for Arrow": (lambda storage: storage.open_arrow_file(LOCATION).read(7), CONTENT[:7]),
}


@pytest.mark.parametrize("failures", [1, 3])
@pytest.mark.parametrize("message", ANSWERS)
@pytest.mark.parametrize("call", CALLS)
def test_a_failed_s3_call_is_retried(call: str, message: str, failures: int) -> None:
    """Amazon's client gives up if the response with the error is longer than the requested bytes."""
    make_call, expected = CALLS[call]

    assert make_call(ObjectStorage(FailingFileSystem(CONTENT, failures, message))) == expected


REFUSED = "AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 7, Could not connect to server"


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("message", "match", "calls"),
    [
        (FAILED, "Failed to flush response stream", 4),
        ("AWS Error NO_SUCH_BUCKET during GetObject operation: it does not exist", "NO_SUCH_BUCKET", 1),
        (REFUSED, "cannot connect to Amazon S3", 1),
    ],
    ids=["temporary", "permanent", "a server that has never answered"],
)
def test_a_lasting_error_is_reported_in_the_servers_own_words(call: str, message: str, match: str, calls: int) -> None:
    failing = FailingFileSystem(CONTENT, 1000, message)
    with pytest.raises(OSError, match=match) as raised:
        CALLS[call][0](ObjectStorage(failing))

    assert not isinstance(raised.value, PermissionError)
    assert 1000 - failing.left == calls


def test_a_refused_connection_is_retried_if_the_server_has_answered_before() -> None:
    system = FailingFileSystem(CONTENT, 0, REFUSED)
    storage = ObjectStorage(system)
    storage.list_files("s3a://bucket")
    system.left = 2

    assert CONTENT[10:15] == _read(storage)


def test_arrow_readers_retry_failed_calls() -> None:
    data = BytesIO()
    pq.write_table(pa.table({"x": list(range(1000))}), data)
    failing = FailingFileSystem(data.getvalue(), 2)

    assert pq.ParquetFile(ObjectStorage(failing).open_arrow_file("s3a://bucket/x.parquet")).read().num_rows == 1000
    assert failing.left == 0


def test_an_error_while_a_file_is_opened_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument of the call is a descriptor, so an error of the system does not name the file."""
    (tmp_path / "file").write_bytes(b"x")
    monkeypatch.setattr("jobs.storage.local.os.fstat", Mock(side_effect=OSError(errno.ESTALE, "Stale file handle")))
    with pytest.raises(OSError, match="Stale") as raised, LocalStorage().open(str(tmp_path / "file")):
        pass
    monkeypatch.undo()

    assert f"{tmp_path / 'file'}: Stale file handle" == one_line_message(raised.value)


def test_an_error_while_a_file_is_closed_is_reported_with_the_file_if_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After reads nothing can be lost; after writes, the bytes may not be on the disk."""
    path = tmp_path / "file"
    path.write_bytes(b"x")
    descriptor = os.open(path, os.O_WRONLY)
    monkeypatch.setattr("jobs.storage.local.os.close", Mock(side_effect=OSError(errno.ESTALE, "Stale file handle")))
    with LocalStorage().open(str(path)) as reader:
        found = bytes(reader.read(0, 1))
    with pytest.raises(OSError, match="Stale") as raised:
        close_file(descriptor, str(path))
    monkeypatch.undo()
    os.close(descriptor)

    assert found == b"x"
    assert f"{path}: Stale file handle" == one_line_message(raised.value)


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        ("ingest {store} --lake {lake} --metrics {out}/x.prom", 600),
        ("query list -t T1 --store {store} --body-dir {out}", 600),
        ("query sql 'SELECT * FROM messages' --lake {lake} --output parquet --out {out}/x.parquet", 5000),
    ],
)
def test_an_output_that_cannot_be_written_is_named_and_no_part_of_it_is_left(  # noqa: PLR0913, PLR0917 - fixtures
    line: str, limit: int, golden: StoreOf, newer_lake: Path, run: Run, tmp_path: Path
) -> None:
    """Monitoring reads the metrics, and a part of a body looks like a complete body."""
    places = {"store": golden("b551-base"), "lake": tmp_path / "lake", "out": tmp_path / "out"}
    words = [word.format(**places) for word in shlex.split(line)]
    places["out"].mkdir()
    shutil.copytree(newer_lake, places["lake"])

    assert run(*words).code is ExitCode.CLEAN  # compiles before the size of files is limited
    shutil.rmtree(places["out"])
    places["out"].mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Like a full disk, except for the number of the error.
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        outcome = run(*words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    named = re.fullmatch(rf"rmq-lake: {places['out']}/(\S+): File too large\n", outcome.err)

    assert outcome.code is ExitCode.FAILED
    assert named is not None
    assert [] == [path for path in places["out"].iterdir() if path.name == named[1] or path.name.startswith(".")]
