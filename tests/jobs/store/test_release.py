"""Which release wrote a store, and the rules that follow from it."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.console.result import Severity
from jobs.products.index.file_builder import count_slots_in_use
from jobs.products.index.settings import determine_index_settings
from jobs.products.index.survivors import list_index_files
from jobs.rebuild.index import rebuild_index
from jobs.rebuild.queue_run import rebuild_queues
from jobs.requests.rebuild import RebuildIndexRequest, RebuildQueuesRequest
from jobs.requests.verify import VerifyRequest
from jobs.store.release import UndecidedError
from jobs.store.request import NO_GIVEN_SETTINGS, GivenSettings
from jobs.store.store import list_store
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
from jobs.verify.verdict import Verdict
from rmq_formats.indexfile.layout import Geometry, IndexEntry
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.properties import index_key_hash
from tests.rmq_formats.builders import make_reader
from tests.support.commands import Run
from tests.support.lakes import ingest_store, rows_of
from tests.support.release_stores import GEOMETRY, LegalStore, Message, write_release_store

GIVEN_GEOMETRY = GivenSettings(GEOMETRY.hash_slots, GEOMETRY.index_num)


def verify_store(root: Path, settings: GivenSettings = GIVEN_GEOMETRY) -> Verdict:
    return verify(VerifyRequest(str(root), given_settings=settings), SerialWorkers())


@pytest.mark.parametrize("settings", [GIVEN_GEOMETRY, GivenSettings()])
@pytest.mark.parametrize("release", ["4.0.0", "4.5.2", "4.7.0", "4.9.8"])
def test_an_index_file_without_any_key_is_all_zeros(tmp_path: Path, release: str, settings: GivenSettings) -> None:
    """A broker creates the file for its first message, whether it has keys or not; releases 4.x write nothing to it."""
    store = write_release_store(tmp_path / "store", [Message(release)] * 30)
    (file,) = (store.root / "index").iterdir()

    verdict = verify_store(store.root, settings)

    assert not any(file.read_bytes())
    assert Severity.HEALTHY == verdict.severity
    assert [] == verdict.findings


def test_an_index_file_that_was_zeroed_is_damaged(tmp_path: Path) -> None:
    """The log has keys that the file lacks."""
    store = write_release_store(tmp_path / "store", [Message("4.9.8", properties={"KEYS": "a"})] * 3)
    (file,) = (store.root / "index").iterdir()
    file.write_bytes(bytes(file.stat().st_size))

    findings = verify_store(store.root).findings

    assert ("damaged", f"index/{file.name}") in {(finding.kind, finding.file) for finding in findings}


# Releases up to 4.9.0 drop a property whose value has a separator in it; newer ones keep it. The log alone does not
# show the release: clients up to 4.5.2 sent all that it has.
_ODD = (
    *({"TAGS": "TagA", "KEYS": f"k{number}"} for number in range(9)),
    {"TAGS": "Tag\x01B", "KEYS": "x"},
    {"TAGS": "T\x01", "KEYS": "y"},
    {"TAGS": "C", "KEYS": "z\x01q"},
)
_TAGS_UP_TO_4_9_0 = [*["TagA"] * 9, None, "T", "C"]
_TAGS_SINCE_4_9_1 = [*["TagA"] * 9, "Tag\x01B", "T\x01", "C"]


@pytest.mark.parametrize(
    ("release", "tags"), [("4.5.2", _TAGS_UP_TO_4_9_0), ("4.7.1", _TAGS_UP_TO_4_9_0), ("4.9.8", _TAGS_SINCE_4_9_1)]
)
class TestAReleaseThatOnlyIndexFilesShow:
    """The same release is used for queues, rows, queries and exports."""

    def test_verify(self, tmp_path: Path, release: str, tags: Sequence[str | None]) -> None:
        store = write_release_store(tmp_path / "store", [Message(release, properties=one) for one in _ODD])

        verdict = verify_store(store.root, GivenSettings())

        assert Severity.HEALTHY == verdict.severity
        assert [] == verdict.findings
        assert len(tags) == len(store.records)

    def test_ingest(self, tmp_path: Path, release: str, tags: Sequence[str | None]) -> None:
        """A later run that no index file helps continues with the same release."""
        messages = [Message(release, properties=one) for one in _ODD]
        root = tmp_path / "store"
        write_release_store(root, messages[:10])
        first = ingest_store(root, tmp_path / "lake", "b0")
        shutil.rmtree(root)
        write_release_store(root, messages)
        shutil.rmtree(root / "index")

        second = ingest_store(root, tmp_path / "lake", "b0")

        rows = rows_of(tmp_path / "lake")

        assert tags == [row["tags"] for row in rows]
        assert 0 == first.contradictions
        assert 0 == second.contradictions

    def test_export(self, run: Run, tmp_path: Path, release: str, tags: Sequence[str | None]) -> None:
        store = write_release_store(tmp_path / "store", [Message(release, properties=one) for one in _ODD])
        out = tmp_path / "out.ndjson"

        code, _, err = run("export", "--store", store.root, "--format", "ndjson", "--out", out)

        rows = [json.loads(line) for line in out.read_text().splitlines()]

        assert 0 == code, err
        assert tags == [row["tags"] for row in rows]

    def test_query(self, run: Run, tmp_path: Path, release: str, tags: Sequence[str | None]) -> None:
        store = write_release_store(tmp_path / "store", [Message(release, properties=one) for one in _ODD])

        code, out, err = run("query", "list", "--store", store.root, "--output", "json")

        rows = sorted((one for one in json.loads(out) if "tags" in one), key=itemgetter("physical_offset"))

        assert 0 == code, err
        assert tags == [row["tags"] for row in rows]

    def test_rebuild_consumequeue(self, tmp_path: Path, release: str, tags: Sequence[str | None]) -> None:
        store = write_release_store(tmp_path / "store", [Message(release, properties=one) for one in _ODD])

        request = RebuildQueuesRequest(str(store.root), tmp_path / "out")
        rebuild_queues(request, SerialWorkers())

        assert len(tags) == len(store.records)
        for file in (store.root / "consumequeue").rglob("0*"):
            if file.is_file():
                rebuilt = tmp_path / "out" / file.relative_to(store.root / "consumequeue")

                assert file.read_bytes() == rebuilt.read_bytes()


def rebuild(root: Path, out: Path, settings: GivenSettings = NO_GIVEN_SETTINGS) -> list[bytes]:
    """Rebuild the index, and return the files' contents in the order of their names."""
    rebuild_index(RebuildIndexRequest(str(root), str(out), given_settings=settings), SerialWorkers())
    return [file.read_bytes() for file in sorted(out.iterdir()) if file.suffix != ".json"]


def read_index(root: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted((root / "index").iterdir())]


@pytest.mark.parametrize("release", ["4.0.0", "4.7.0", "4.7.1", "4.9.8", "5.3.3", "5.5.1"])
@pytest.mark.parametrize("entries", [1, 2, 3, 4, 8])
def test_small_index_files_are_not_taken_for_those_of_another_release(
    tmp_path: Path, release: str, entries: int
) -> None:
    """A file that ends inside the keys of a message has its first keys, which are those of every release."""
    properties = [{"UNIQ_KEY": f"u{number}", "KEYS": f"k{number}", "TAGS": "A"} for number in range(10)]
    messages = [Message(release, properties=one) for one in properties]
    store = write_release_store(tmp_path / "store", messages, geometry=Geometry(7, entries + 1))

    verdict = verify_store(store.root, GivenSettings())

    assert Severity.HEALTHY == verdict.severity
    assert [] == verdict.findings
    assert read_index(store.root) == rebuild(store.root, tmp_path / "out")


_THREE_RELEASES = [
    Message(release, properties={"KEYS": f"k{number}", "TAGS": "A"})
    for release in ("4.9.8", "5.3.3", "5.5.1")
    for number in range(15)
]


class TestAStoreOfThreeReleasesWithoutItsIndex:
    """The log shows where 5.0.0 or later began, but not where 5.4.0 or later did, which indexes tags."""

    def test_the_offset_is_a_question(self, tmp_path: Path) -> None:
        store = write_release_store(tmp_path / "store", _THREE_RELEASES)
        shutil.rmtree(store.root / "index")
        (_, (second, _), _) = store.rules

        with pytest.raises(UndecidedError) as raised:
            rebuild(store.root, tmp_path / "out", GIVEN_GEOMETRY)

        assert f"--release 4.9.8,5.3.3@{second},5.5.1@OFFSET" in str(raised.value)

    def test_the_answer_reproduces_every_file(self, tmp_path: Path) -> None:
        store = write_release_store(tmp_path / "store", _THREE_RELEASES)
        expected = read_index(store.root)
        shutil.rmtree(store.root / "index")
        (_, (second, _), (third, _)) = store.rules
        given = replace(GIVEN_GEOMETRY, release=f"4.9.8,5.3.3@{second},5.5.1@{third}")

        assert expected == rebuild(store.root, tmp_path / "out", given)

    def test_index_files_answer_it(self, tmp_path: Path) -> None:
        store = write_release_store(tmp_path / "store", _THREE_RELEASES)

        assert read_index(store.root) == rebuild(store.root, tmp_path / "out")


def _write_store_with_many_index_files(root: Path, counts: Sequence[int]) -> LegalStore:
    """Write a store to which releases with three kinds of index files have added these numbers of messages."""
    releases = ("4.7.0", "5.3.3", "5.5.1")
    each = [release for release, count in zip(releases, counts, strict=True) for _ in range(count)]
    messages = [Message(release, properties={"KEYS": f"k{number}", "TAGS": "A"}) for number, release in enumerate(each)]
    return write_release_store(root, messages, geometry=Geometry(11, 13))


@pytest.fixture
def small_sample() -> Iterator[None]:
    with patch.multiple("jobs.products.index.settings", MAX_BYTES_COMPARED=0, FILES_OF_SAMPLE=4):
        yield


@pytest.mark.usefixtures("small_sample")
def test_of_many_index_files_the_slots_of_a_sample_are_counted(tmp_path: Path) -> None:
    """The slots of a file have 20 MB."""
    store = _write_store_with_many_index_files(tmp_path / "store", (0, 300, 0))
    listed = list_store(str(store.root))
    with patch("jobs.products.index.settings.count_slots_in_use", wraps=count_slots_in_use) as counted:
        known = determine_index_settings(listed, list_index_files(listed), NO_GIVEN_SETTINGS)

    assert len(listed.index_files) == 25
    assert counted.call_count == 4
    assert "4 of 4 compared index files match" in known.rules.reason


@pytest.mark.usefixtures("small_sample")
@pytest.mark.parametrize("counts", [(97, 40, 163), (5, 290, 5), (150, 150, 0), (0, 281, 19), (288, 0, 12)])
def test_a_sample_of_many_index_files_shows_where_each_release_began(tmp_path: Path, counts: Sequence[int]) -> None:
    store = _write_store_with_many_index_files(tmp_path / "store", counts)

    assert read_index(store.root) == rebuild(store.root, tmp_path / "out")


class TestAStoreOfRocketmqRust:
    """Its index has the hash of `topic#U#key` for a unique key; the other files are those of a Java broker."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> LegalStore:
        properties = [{"UNIQ_KEY": f"u{number}", "KEYS": f"k{number}", "TAGS": "A"} for number in range(20)]
        return write_release_store(tmp_path / "store", [Message("rocketmq-rust", properties=one) for one in properties])

    def test_nothing_is_called_damage(self, store: LegalStore) -> None:
        verdict = verify_store(store.root, GivenSettings())

        assert Severity.HEALTHY == verdict.severity
        assert [] == verdict.findings
        (note,) = (one for one in verdict.parts["index"].notes if "Java broker" in one)

        assert "rocketmq-rust wrote the index" in note

    def test_the_index_is_rebuilt(self, store: LegalStore, tmp_path: Path) -> None:
        expected = {index_key_hash(text) for text in ("Orders#U#u3", "Orders#k3", "Orders#T#A")}
        entries = [entry for file in read_index(store.root) for entry in read_entries(file)]
        offset = store.records[3].physical_offset

        assert expected == {entry.key_hash for entry in entries if entry.physical_offset == offset}
        assert read_index(store.root) == rebuild(store.root, tmp_path / "out")

    @pytest.mark.parametrize("place", ["--store", "--lake"])
    def test_messages_are_found_by_unique_key(self, store: LegalStore, run: Run, place: str) -> None:
        lake = store.root.parent / "lake"
        ingest_store(store.root, lake, "b")
        where = store.root if place == "--store" else lake

        code, out, err = run("query", "by-unique-key", place, where, "-t", "Orders", "-i", "u3", "--output", "json")

        assert 0 == code, err
        assert [store.records[3].physical_offset] == [
            one["physical_offset"] for one in json.loads(out) if "tags" in one
        ]

    def test_inspect_offers_no_timer_log_as_a_log(self, store: LegalStore, run: Run) -> None:
        code, out, err = run("inspect", store.root)

        assert 0 == code, err
        assert "--commitlog" not in out
        assert "Rust 1.0.0" in out


def read_entries(file: bytes) -> list[IndexEntry]:
    reader = IndexReader(make_reader(file), GEOMETRY)
    return [reader.entry(number) for number in range(1, reader.header.entry_count + 1)]
