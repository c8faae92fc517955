"""The number of times that `verify` opens each file, and its requests to an object store."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem

from jobs.requests.verify import VerifyRequest
from jobs.storage import s3
from jobs.storage.local import LocalStorage
from jobs.storage.model import FetchingReader, Reader
from jobs.storage.s3 import ObjectStorage
from jobs.store.request import GivenSettings
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
from tests.support.broker import Broker, some_records

_SETTINGS = GivenSettings(release="5.5.0")  # else a few segments are also opened to detect it


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a closed store with dozens of segments, and with queues of several files."""
    broker = Broker(tmp_path / "store", segment_size=4096, dispatches=True)
    broker.append(some_records(300))
    (broker.root / "abort").unlink()
    return broker.root


def _count_opens(store: str, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    opens: Counter[str] = Counter()
    original = LocalStorage.open

    @contextmanager
    def open_counted(self: LocalStorage, location: str) -> Iterator[Reader]:
        opens[location] += 1
        with original(self, location) as reader:
            yield reader

    monkeypatch.setattr(LocalStorage, "open", open_counted)
    verify(VerifyRequest(store, given_settings=_SETTINGS), SerialWorkers())
    return opens


def _split(counts: Counter[str], store: Path) -> tuple[list[int], int, list[int]]:
    """Return the counts of all segments but the newest, that of the newest one, and those of the queue files."""
    *older, newest = (counts[str(path)] for path in sorted((store / "commitlog").iterdir()))
    return older, newest, [counts[str(path)] for path in store.glob("consumequeue/*/*/*")]


def test_verify_opens_each_segment_and_queue_file_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older, newest, queues = _split(_count_opens(str(store), monkeypatch), store)

    assert len(older) > 15
    assert set(older) == {1}
    assert newest <= 12
    assert set(queues) == {1}


def test_a_killed_broker_adds_one_open_of_each_queue_file(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of queues are read before the log, but only once; of each topic, one queue is read again."""
    (store / "abort").touch()
    older, _, queues = _split(_count_opens(str(store), monkeypatch), store)

    assert max(older) <= 4
    assert Counter(queues)[2] >= len(queues) - 4


def test_verify_reads_each_file_of_an_object_store_with_one_request(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[str] = Counter()

    class CountingStorage(ObjectStorage):
        def _reader(self, file: object, location: str) -> FetchingReader:
            reader = super()._reader(file, location)
            fetch = reader.fetch

            def fetch_counted(position: int, length: int) -> bytes | memoryview:
                reads[location.removeprefix("s3a://")] += 1
                return fetch(position, length)

            reader.fetch = fetch_counted
            return reader

    monkeypatch.setattr(s3, "s3_storage", lambda _: CountingStorage(LocalFileSystem()))
    verdict = verify(VerifyRequest(f"s3a://{store}", given_settings=_SETTINGS), SerialWorkers())
    older, newest, queues = _split(reads, store)

    assert not verdict.findings
    assert set(older) == {1}
    assert newest <= 8
    assert set(queues) == {1}
