"""Which release wrote a store, and the rules that follow from it."""

from pathlib import Path

import pytest

from jobs.console.result import Severity
from jobs.products.index.settings import GivenSettings
from jobs.store.workers import SerialWorkers
from jobs.verify.run import VerifyRequest, verify
from jobs.verify.verdict import Verdict
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
