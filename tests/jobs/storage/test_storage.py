"""The common behavior of all storages."""

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random
from unittest.mock import Mock, patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import NativeFile
from pyarrow.fs import LocalFileSystem

from jobs.console.result import ExitCode
from jobs.storage import AnyStorage, object_store, storage_for
from jobs.storage.local import LocalReader, LocalStorage, ReadLimits, may_follow_link
from jobs.storage.model import FetchingReader, Storage
from jobs.storage.s3 import ObjectStorage
from tests.golden import StoreOf
from tests.support.commands import Run, copy_store

Backend = tuple[Callable[[], Storage], str]  # an implementation, and the scheme of its locations

# All writable storages; a new backend needs one line.
STORAGES: dict[str, Backend] = {
    "local": (LocalStorage, ""),
    "s3": (lambda: ObjectStorage(LocalFileSystem()), "s3a://"),  # objects are stored in local files, with the same code
}


@pytest.fixture(params=STORAGES)
def backend(request: pytest.FixtureRequest) -> Backend:
    return STORAGES[request.param]


@pytest.fixture
def storage(backend: Backend) -> Storage:
    return backend[0]()


@pytest.fixture
def directory(backend: Backend, tmp_path: Path) -> str:
    """Return the location of a directory for the files of a test."""
    return f"{backend[1]}{tmp_path}"


def test_created_files_are_listed_until_they_are_deleted(storage: Storage, directory: str, tmp_path: Path) -> None:
    (tmp_path / "a/2").mkdir(parents=True)  # in an object store, objects need no directory
    for name in ("b", "a/2/c", "a/1", "ab"):
        storage.create(f"{directory}/{name}", name.encode())

    assert [("a/1", 3), ("a/2/c", 5), ("ab", 2), ("b", 1)] == [file[:2] for file in storage.list_files(directory)]
    assert [("1", 3), ("2/c", 5)] == [file[:2] for file in storage.list_files(f"{directory}/a")]
    for _ in range(2):  # the second time, the file does not exist
        storage.delete(f"{directory}/a/2/c")

    assert ["a/1", "ab", "b"] == [file.name for file in storage.list_files(directory)]


def test_an_existing_name_and_a_missing_file_or_directory_are_refused(storage: Storage, directory: str) -> None:
    storage.create(f"{directory}/file", b"first")

    with pytest.raises(FileExistsError):
        storage.create(f"{directory}/file", b"second")

    assert b"first" == storage.read(f"{directory}/file", 0, 10)
    with pytest.raises(FileNotFoundError):
        storage.list_files(f"{directory}/fil")
    with pytest.raises(FileNotFoundError):
        storage.read(f"{directory}/fil", 0, 1)


def test_a_read_returns_fewer_bytes_only_at_the_end_of_the_file(storage: Storage, directory: str) -> None:
    storage.create(f"{directory}/file", b"0123")

    for position, length, expected in ((0, 4, b"0123"), (2, 9, b"23"), (4, 1, b""), (9, 1, b"")):
        assert expected == storage.read(f"{directory}/file", position, length)


def test_a_read_only_storage_refuses_writes() -> None:
    with pytest.raises(OSError, match="Read-only file system: '/store/file'") as raised:
        AnyStorage().create("/store/file", b"")

    assert errno.EROFS == raised.value.errno


def test_every_reader_fills_a_buffer_and_reports_where_data_continues(storage: Storage, directory: str) -> None:
    location = f"{directory}/file"
    buffer = bytearray(6)
    storage.create(location, b"0123456789")

    with storage.open(location) as reader:
        counts = [reader.read_into(position, memoryview(buffer)) for position in (7, 2)]
        written = reader.next_written(4)

    assert [3, 6] == counts
    assert b"234567" == bytes(buffer)
    assert 4 == written


def test_a_small_file_in_an_object_store_is_read_with_one_request(tmp_path: Path) -> None:
    pq.write_table(pa.table({"number": [1, 2]}), tmp_path / "file.parquet")
    storage = ObjectStorage(LocalFileSystem())
    with (
        patch.object(FetchingReader, "read", autospec=True, side_effect=FetchingReader.read) as read,
        storage.open_arrow_file(f"s3a://{tmp_path}/file.parquet") as file,
    ):
        found = pq.read_table(file)

    assert [1, 2] == found.column("number").to_pylist()
    assert 1 == read.call_count


def test_read_limits_and_settings_are_passed_to_tasks(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    sent = pickle.loads(pickle.dumps(AnyStorage({"fs.s3a.endpoint": "e"}, ReadLimits(5))))  # noqa: S301 - our own data

    with sent.open(str(tmp_path / "file")) as reader:
        assert isinstance(reader, LocalReader)

    assert {"fs.s3a.endpoint": "e"} == sent.options
    assert ReadLimits(5) == sent.read_limits
    assert "endpoint" not in repr(sent)
    assert LocalStorage(ReadLimits(5)) == storage_for(str(tmp_path), sent.options, sent.read_limits)


def test_a_directory_that_is_deleted_during_the_listing_is_omitted(tmp_path: Path) -> None:
    """As when the broker deletes the queues of a deleted topic."""
    (tmp_path / "topic").mkdir()
    (tmp_path / "checkpoint").touch()
    root = f"{tmp_path}/"
    listing = Mock(wraps=os, scandir=lambda place: os.scandir(place if place == root else f"{root}deleted"))
    with patch("jobs.storage.local.os", listing):
        assert [file.name for file in LocalStorage().list_files(str(tmp_path))] == ["checkpoint"]
    with pytest.raises(FileNotFoundError):
        LocalStorage().list_files(f"{tmp_path}/deleted")


def test_two_processes_with_one_number_do_not_write_into_one_file(tmp_path: Path) -> None:
    """Two containers on a shared file system both run as process 7."""
    link = os.link
    path = str(tmp_path / "commit")

    def link_after_another(attempt: Path, name: Path) -> None:
        with patch("os.link", link):
            LocalStorage().create(path, b"the other's")
        link(attempt, name)

    with patch("os.getpid", lambda: 7), patch("os.link", link_after_another), pytest.raises(FileExistsError):
        LocalStorage().create(path, b"ours")

    assert b"the other's" == (tmp_path / "commit").read_bytes()
    assert ["commit"] == [file.name for file in tmp_path.iterdir()]


SOMEBODY, ELSE = 12345, 54321

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of somebody else")


@pytest.mark.parametrize(
    ("link", "target", "expected"),
    [
        (0, SOMEBODY, True),
        (SOMEBODY, SOMEBODY, True),
        (os.geteuid(), SOMEBODY, True),
        (SOMEBODY, ELSE, False),
        (SOMEBODY, 0, os.geteuid() == SOMEBODY),
    ],
    ids=["of root", "of its owner", "ours", "of another", "to a file of root"],
)
def test_a_link_of_root_of_this_user_or_of_the_owner_of_its_target_is_followed(
    link: int, target: int, expected: bool
) -> None:
    assert may_follow_link(link, target) is expected


@only_root
@pytest.mark.parametrize("command", ["inspect", "dump"])
def test_a_segment_that_is_a_link_to_a_private_file_is_not_read(
    command: str, golden: StoreOf, tmp_path: Path, run: Run
) -> None:
    """Its first bytes were written to `quarantine.sample`; now the link is reported with exit code 1."""
    store = copy_store(golden("b551-base"), tmp_path)
    secret = tmp_path / "private.txt"
    secret.write_text("the secret")
    segment = min((store / "commitlog").iterdir())
    segment.unlink()
    segment.symlink_to(secret)
    os.lchown(segment, SOMEBODY, SOMEBODY)

    outcome = run(command, store if command == "inspect" else segment)

    assert ExitCode.FAILED == outcome.code
    assert (
        f"{segment}: a symbolic link of user {SOMEBODY} to a file or directory of user 0 is not followed" in outcome.err
    )
    assert "secret" not in outcome.out + outcome.err


@only_root
def test_a_file_or_directory_that_became_a_link_after_the_listing_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / ("0" * 20)).write_bytes(b"a record")
    (tmp_path / "store").mkdir()
    links = {tmp_path / "segment": tmp_path / "theirs" / ("0" * 20), tmp_path / "store/commitlog": tmp_path / "theirs"}
    for link, target in links.items():
        link.symlink_to(target)
        os.lchown(link, SOMEBODY, SOMEBODY)

    with pytest.raises(PermissionError, match="not followed"), LocalStorage().open(str(tmp_path / "segment")):
        pass
    with pytest.raises(PermissionError, match="not followed"):
        LocalStorage().list_files(str(tmp_path / "store"))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_directory_in_place_of_a_file_is_not_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    place = tmp_path / "00000000000000000000"
    make(place)
    with pytest.raises(OSError, match=r"not a regular file.*0{20}"), LocalStorage().open(str(place)):
        pass


def test_a_file_system_that_can_hold_no_lake_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.storage.any_storage.storage_for", lambda *_: LocalStorage())

    with pytest.raises(OSError, match="s3a://b/lake: a lake cannot be on s3a://"):
        object_store("s3a://b/lake", {})


def test_small_reads_of_an_object_share_a_request(tmp_path: Path) -> None:
    data = Random(1).randbytes(300_000)
    (tmp_path / "object").write_bytes(data)
    requests: list[tuple[int, int]] = []

    class CountingStorage(ObjectStorage):
        def _reader(self, file: NativeFile, location: str) -> FetchingReader:
            reader = super()._reader(file, location)

            def fetch(position: int, length: int) -> bytes | memoryview:
                requests.append((position, length))
                return bytes(file.read_at(length, position))

            return FetchingReader(reader.size, fetch)

    with CountingStorage(LocalFileSystem()).open(f"s3a://{tmp_path}/object") as reader:
        for position, length in ((0, 8), (8, 100), (60_000, 5_000), (0, 65_536), (299_990, 50), (299_995, 2)):
            assert bytes(reader.read(position, length)) == data[position : position + length]

        assert requests == [(0, 65_536), (299_990, 10)]

        assert bytes(reader.read(10, 200_000)) == data[10:200_010]
        assert bytes(reader.read(299_991, 5)) == data[299_991:299_996]

    assert requests[2:] == [(10, 200_000)]
