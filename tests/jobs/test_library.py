"""The verbs as Python functions: they return the data that the command line prints."""

from pathlib import Path

import pytest

from jobs.console.severity import Severity
from jobs.library import by_offset, ingest, open_source, verify
from tests.golden import StoreOf
from tests.support.commands import Run, copy_of, overwrite, without_spark


def test_a_store_is_verified_ingested_and_asked_from_python(
    golden: StoreOf, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    store = golden("b551-base")

    verdict = verify(store)
    first, second = ingest(store, tmp_path / "lake", broker="b"), ingest(store, tmp_path / "lake", broker="b")
    with open_source(lake=str(tmp_path / "lake")) as source:
        (message,) = by_offset(source, "T1", 0, 3).messages

    printed = run("verify", store, "--json").document
    assert printed["severity"] == verdict.severity.value
    assert printed["findings"] == [finding.describe() for finding in verdict.findings]
    assert (first.messages > 0, second.messages) == (True, 0)
    assert (message.topic, message.record.queue_offset) == ("T1", 3)


def test_findings_are_data_with_file_and_offset(golden: StoreOf, tmp_path: Path) -> None:
    store = copy_of(golden("b551-base"), tmp_path)
    segment = sorted((store / "commitlog").iterdir())[1]
    overwrite(segment, 4616, b"?")

    verdict = verify(store)

    assert verdict.severity is not Severity.HEALTHY
    assert any(finding.file.endswith(segment.name) and finding.offset is not None for finding in verdict.findings)


def test_only_chosen_topics_are_read(golden: StoreOf, tmp_path: Path) -> None:
    every = ingest(golden("b551-base"), tmp_path / "every")
    some = ingest(golden("b551-base"), tmp_path / "some", topics=["T1"], bodies=False)

    assert 0 < some.messages < every.messages
