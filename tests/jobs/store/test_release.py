"""Which release wrote a store, and the rules that follow from it."""

import json
import shutil
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

import pytest

from jobs.console.result import Severity
from jobs.products.index.settings import GivenSettings
from jobs.rebuild.queue_run import RebuildQueuesRequest, rebuild_queues
from jobs.store.workers import SerialWorkers
from jobs.verify.run import VerifyRequest, verify
from jobs.verify.verdict import Verdict
from tests.support.commands import Run
from tests.support.lakes import ingest_store, rows_of
from tests.support.release_stores import GEOMETRY, Message, write_release_store

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
    assert (Severity.HEALTHY, []) == (verdict.severity, verdict.findings)


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

        assert (Severity.HEALTHY, []) == (verdict.severity, verdict.findings)
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
        assert (0, 0) == (first.contradictions, second.contradictions)

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
