"""What every storage promises, whichever it is."""

import errno
import os
import pickle
from pathlib import Path
from unittest.mock import patch

import pytest
from pyarrow.fs import LocalFileSystem

from jobs.storage import AnyStorage, storage_of
from jobs.storage.hdfs import HdfsStorage
from jobs.storage.local import Care, LocalReader, LocalStorage
from jobs.storage.model import Storage
from jobs.storage.s3 import ObjectStorage


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest) -> Storage:
    """Return a storage that can be written; objects lie in files here, and are read and written by the same code."""
    return LocalStorage() if request.param == "local" else ObjectStorage(LocalFileSystem())


def _location(storage: Storage, path: Path) -> str:
    return str(path) if isinstance(storage, LocalStorage) else f"s3a://{path}"


def test_a_name_that_is_taken_is_refused_and_what_is_there_stays(storage: Storage, tmp_path: Path) -> None:
    location = _location(storage, tmp_path / "file")
    storage.create(location, b"first")

    with pytest.raises(FileExistsError):
        storage.create(location, b"second")

    assert b"first" == (tmp_path / "file").read_bytes()


def test_a_storage_that_is_only_read_says_so() -> None:
    with pytest.raises(OSError, match="hdfs:// is for stores alone") as raised:
        HdfsStorage(("nowhere:1",)).create("hdfs://nn/file", b"")

    assert errno.EROFS == raised.value.errno


def test_every_reader_reads_into_a_buffer_and_says_where_bytes_follow(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    buffer = bytearray(6)

    with storage.open(_location(storage, tmp_path / "file")) as reader:
        counts = [reader.read_into(position, memoryview(buffer)) for position in (7, 2)]
        written = reader.next_written(4)

    assert ([3, 6], b"234567", 4) == (counts, bytes(buffer), written)


def test_care_and_settings_reach_whoever_opens_a_file_in_a_task(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    sent = pickle.loads(pickle.dumps(AnyStorage({"fs.s3a.endpoint": "e"}, Care(5))))  # noqa: S301 - our own

    with sent.open(str(tmp_path / "file")) as reader:
        assert isinstance(reader, LocalReader)

    assert ({"fs.s3a.endpoint": "e"}, Care(5)) == (sent.options, sent.care)
    assert "endpoint" not in repr(sent)
    assert LocalStorage(Care(5)) == storage_of(str(tmp_path), sent.options, sent.care)


def test_two_processes_with_one_number_do_not_write_into_one_file(tmp_path: Path) -> None:
    """Two containers on a shared file system both run as process 7."""
    link, path = os.link, str(tmp_path / "commit")

    def link_after_another(attempt: Path, name: Path) -> None:
        with patch("os.link", link):
            LocalStorage().create(path, b"the other's")
        link(attempt, name)

    with patch("os.getpid", lambda: 7), patch("os.link", link_after_another), pytest.raises(FileExistsError):
        LocalStorage().create(path, b"ours")

    assert b"the other's" == (tmp_path / "commit").read_bytes()
    assert ["commit"] == [file.name for file in tmp_path.iterdir()]
