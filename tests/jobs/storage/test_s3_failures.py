"""A server of S3 that fails now and then: it is asked again, a few times."""

from collections.abc import Callable
from io import BytesIO
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileInfo, FileSelector, FileType

from jobs.storage import s3
from jobs.storage.s3 import ObjectStorage

LOCATION = "s3a://bucket/file"
SAID = "AWS Error INTERNAL_FAILURE during GetObject operation: Failed to flush response stream (eof: 0, bad: 1)"
CONTENT = bytes(range(200))


class Failing:
    """pyarrow's file system with one file; of its calls the first few fail."""

    def __init__(self, content: bytes, failures: int, said: str = SAID) -> None:
        self.content = content
        self.left = failures
        self.said = said

    def _call(self) -> None:
        if self.left:
            self.left -= 1
            raise OSError(self.said)

    def open_input_file(self, _key: str) -> "Failing":
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

    def get_file_info(self, _what: str | FileSelector) -> list[FileInfo]:
        self._call()
        return [FileInfo("bucket/file", FileType.File, size=len(self.content))]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_PAUSES_S", (0, 0, 0))


def _read(storage: ObjectStorage) -> object:
    with storage.open(LOCATION) as file:
        return bytes(file.read(10, 5))


CALLS: dict[str, tuple[Callable[[ObjectStorage], object], object]] = {
    "read": (_read, CONTENT[10:15]),
    "list": (lambda storage: [info.size for info in storage.list_files("s3a://bucket")], [len(CONTENT)]),
    "for Arrow": (lambda storage: storage.arrow_file(LOCATION).read(7), CONTENT[:7]),
}


@pytest.mark.parametrize("failures", [1, 3])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_is_made_again(call: str, failures: int) -> None:
    """Amazon's client gives up where an error's answer is longer than the bytes that were asked for."""
    made, expected = CALLS[call]

    assert made(ObjectStorage(Failing(CONTENT, failures))) == expected


@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_always_fails_is_an_error_in_its_own_words(call: str) -> None:
    with pytest.raises(OSError, match="Failed to flush response stream"):
        CALLS[call][0](ObjectStorage(Failing(CONTENT, 1000)))


def test_what_will_not_change_is_asked_once() -> None:
    failing = Failing(CONTENT, 1000, "AWS Error NO_SUCH_BUCKET during GetObject operation: it does not exist")
    with pytest.raises(OSError, match="NO_SUCH_BUCKET"):
        _read(ObjectStorage(failing))
    assert failing.left == 999


def test_arrows_own_readers_read_through_failures() -> None:
    data = BytesIO()
    pq.write_table(pa.table({"x": list(range(1000))}), data)
    failing = Failing(data.getvalue(), 2)

    assert pq.ParquetFile(ObjectStorage(failing).arrow_file("s3a://bucket/x.parquet")).read().num_rows == 1000
    assert failing.left == 0
