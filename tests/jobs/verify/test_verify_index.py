"""Index files compared with the log: unexplained differences are findings, explained ones are notes."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.diagnosis.findings import INDEX
from jobs.products.index.file_builder import BrokerIndexFile
from jobs.products.index.survivors import FilePlacer, Survivor
from jobs.requests.verify import VerifyRequest
from jobs.store.request import GivenSettings
from jobs.store.store import list_store
from jobs.store.workers import SerialWorkers
from jobs.verify.report import PartReport
from jobs.verify.run import verify
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.indexfile.layout import Geometry, decode_header
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.release import Release, make_rules
from rmq_formats.store import decode_checkpoint, encode_checkpoint
from tests.golden import GOLDEN, StoreOf
from tests.rmq_formats.reference import IndexWriter
from tests.support.lakes import shorten_index_file
from tests.support.stores import log_folders, read_store_records

TINY = Geometry(100, 20)


def verify_index(root: Path, release: str | None = None) -> PartReport:
    request = VerifyRequest(str(root), given_settings=GivenSettings(100, 20, release), commitlog=log_folders(root))
    return verify(request, SerialWorkers()).parts[INDEX]


def index_file(store: Path, number: int) -> Path:
    return sorted((store / "index").iterdir())[number]


# The numbers of entries that are only in the log or only in the index, from an independent model.
LIVE = {"b498-live": ("behind", 3), "b533-live": ("ahead", 2)}


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", GOLDEN)
def test_every_golden_store_is_explained(golden: StoreOf, name: str) -> None:
    """The files equal the log, also after restarts and expiry, or are ahead of it; rules are detected, not given."""
    report = verify_index(golden(name))
    noted = {note.split(": ")[1] for note in report.notes if note.startswith("index/")}
    counted, number = LIVE.get(name, ("behind", 3 if name == "b533-crash-before" else 0))

    expected = ["checkpoint_index_time"] if name == "b533-live" else []  # its checkpoint was copied earlier

    assert [finding.kind for finding in report.findings] == expected
    assert report.numbers.get(counted, 0) == number
    assert noted == ({"newer than the log"} if counted == "ahead" else set())
    assert sum(report.numbers.get(key, 0) for key in ("equal", "ahead")) == report.numbers["files"]


@pytest.mark.parametrize(("later", "kinds"), [(0, []), (1, ["checkpoint_index_time"])])
def test_a_file_filled_while_the_log_is_read_explains_the_time_in_the_checkpoint(
    store: Path, later: int, kinds: list[str]
) -> None:
    """The checkpoint is read after the listing, so it may contain the end of a file that was not full then."""
    (store / "abort").touch()
    time = decode_header(index_file(store, -1).read_bytes()).end_timestamp + later
    path = store / "checkpoint"
    path.write_bytes(encode_checkpoint(decode_checkpoint(path.read_bytes())._replace(index_timestamp=time)))

    listed = list_store(str(store))
    with patch.object(VerifyRequest, "list_store", return_value=replace(listed, index_files=listed.index_files[:-1])):
        report = verify_index(store)

    assert [finding.kind for finding in report.findings] == kinds


def test_index_files_that_a_broker_creates_after_the_listing_are_not_lost(store: Path) -> None:
    """The listing had none, but the checkpoint, which is read later, has the end of the first file."""
    (store / "abort").touch()
    listed = list_store(str(store))
    with patch.object(VerifyRequest, "list_store", return_value=replace(listed, index_files=())):
        report = verify_index(store)

    assert report.findings == []
    assert report.numbers["equal"] == len(listed.index_files)


def copy_without_index(store: Path, directory: Path) -> tuple[Path, list[MessageRecord]]:
    """Copy a store without its index files; also return its records."""
    copy = Path(shutil.copytree(store, directory / "store", ignore=shutil.ignore_patterns("index")))
    (copy / "index").mkdir()
    return copy, [stored.record for stored in read_store_records(copy)]


def new_writer() -> IndexWriter:
    return IndexWriter(TINY, make_rules((0, Release.from_version("5.3.3"))))


def write_files(store: Path, files: Iterable[bytes]) -> None:
    for number, data in enumerate(files):
        (store / "index" / f"202311142213{number:05d}").write_bytes(data)


def findings(report: PartReport) -> list[tuple[str, str]]:
    """Return kinds and files, except the checkpoint finding: its time is that of the former files."""
    found = [(finding.kind, finding.file) for finding in report.findings]
    return [finding for finding in found if finding[0] != "checkpoint_index_time"]


@pytest.mark.parametrize("restarts", [(7,), (7, 20), (7, 8, 9), (30, 31)])
@pytest.mark.parametrize("back", [1, 3])
def test_a_restart_inside_a_file_is_explained(
    golden: StoreOf, tmp_path: Path, restarts: tuple[int, ...], back: int
) -> None:
    """A killed broker may keep its unfinished file, and index its last messages into it a second time."""
    store, log = copy_without_index(golden("b533-clock"), tmp_path)
    writer = new_writer()
    done = 0
    for restart in (*restarts, len(log)):
        writer.dispatch_all(log[done:restart])
        # Messages before the file's end are skipped; the message at its end is not.
        done = max(restart - back, 0)
    write_files(store, [file.encode(1) for file in writer.files])
    report = verify_index(store, "5.3.3")

    assert findings(report) == []
    assert report.numbers["equal"] == report.numbers["files"] > 1
    assert report.numbers["behind"] == 0


@pytest.mark.parametrize("starts", [1, 2, 3])
def test_a_restart_that_indexes_only_the_last_message_again_is_explained(
    golden: StoreOf, tmp_path: Path, starts: int
) -> None:
    """A broker of 5.5.1 that rebuilt its queues in RocksDB left such a file, which was a contradiction."""
    store, log = copy_without_index(golden("b533-clock"), tmp_path)
    writer = new_writer()
    writer.dispatch_all(log)
    for _ in range(starts):
        writer.dispatch(log[-1])
    write_files(store, [file.encode(1) for file in writer.files])

    report = verify_index(store, "5.3.3")

    assert findings(report) == []
    assert report.numbers["equal"] == report.numbers["files"] > 1


@pytest.mark.parametrize("back", [4, 50])
def test_files_that_a_restart_wrote_next_to_older_ones_are_in_order(golden: StoreOf, tmp_path: Path, back: int) -> None:
    """If many messages have the same store time, unfinished files survive a start that reindexes earlier messages."""
    store, log = copy_without_index(golden("b533-clock"), tmp_path)
    encoded = []
    for life in (log[:100], log[100 - back :]):
        writer = new_writer()
        writer.dispatch_all(life)
        encoded += [file.encode(1) for file in writer.files]
    write_files(store, encoded)

    assert findings(verify_index(store, "5.3.3")) == []

    write_files(store, (encoded[1], encoded[0]))
    found = [file for kind, file in findings(verify_index(store, "5.3.3")) if kind == "unexplained"]

    assert found == [f"index/{index_file(store, number).name}" for number in (0, 1)]


def test_each_copy_of_a_repeatedly_copied_index_is_placed_at_most_twice(golden: StoreOf, tmp_path: Path) -> None:
    """Each copy of the first file could begin a sequence of files; following all of them would take too long."""
    store, log = copy_without_index(golden("b533-base"), tmp_path)
    writer = new_writer()
    writer.dispatch_all(log)
    full = [file.encode(1) for file in writer.files[:-1]]
    write_files(store, full * 10)

    with patch("jobs.products.index.survivors.IndexReader", wraps=IndexReader) as read:  # a file that is already placed
        copies = [file for kind, file in findings(verify_index(store, "5.3.3")) if kind == "stale"]

    assert copies == [f"index/{index_file(store, number).name}" for number in range(len(full), 10 * len(full))]
    assert read.call_count <= 2 * 10 * len(full)


@pytest.mark.parametrize("count", [18, 0])
def test_a_file_that_grows_while_it_is_read_is_compared_by_its_earlier_entries(
    store: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """While a broker runs, slots and header are newer than the entries read first."""
    path = index_file(store, 11)
    index_file(store, 12).unlink()
    whole = shorten_index_file(store, path, 18)
    path.write_bytes(path.read_bytes() if count else bytes(len(whole)))
    look = FilePlacer.place_all

    def grow(placing: FilePlacer, files: Sequence[BrokerIndexFile]) -> list[Survivor]:
        found = look(placing, files)
        path.write_bytes(whole)
        return found

    monkeypatch.setattr(FilePlacer, "place_all", grow)
    (store / "abort").touch()
    report = verify_index(store, "5.3.3")

    assert findings(report) == []
    assert report.numbers["growing"] == 1
