"""The whole verification, but for what its transcripts show."""

import re
import shutil
import tempfile
from pathlib import Path
from socket import gethostname

import pytest

from jobs.console.result import Severity
from jobs.products.index.explanation import Verdict as IndexVerdict
from jobs.products.queues.differences import DifferenceKind
from jobs.storage.scratch import scratch_beside, scratch_for
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from tests.golden import StoreOf, golden_stores
from tests.support.commands import Run
from tests.support.meanwhile import Meanwhile


@pytest.mark.parametrize("name", golden_stores("expired"))
def test_a_log_that_retention_cut_has_lost_nothing(golden: StoreOf, name: str) -> None:
    assert verify(VerifyRequest(str(golden(name))), OneByOne()).severity is Severity.HEALTHY


ROOT = Path(__file__).parents[3]


def test_every_kind_of_finding_is_on_its_page() -> None:
    rows = re.findall(
        r"^\| (`.+?) \|", (ROOT / "docs/internals/findings.md").read_text().partition("## Log")[2], re.MULTILINE
    )
    named = {kind for row in rows for kind in re.findall(r"`(\w+)`", row)}
    modules = [ROOT / "jobs/lake/findings.py", *(ROOT / "jobs/verify").glob("*.py")]
    constants = {
        kind
        for module in modules
        for kind in re.findall(
            r'^[A-Z]\w+ = "([a-z]+(?:_[a-z]+)*)"', module.read_text().partition("\nclass ")[0], re.MULTILINE
        )
    }
    of_files = {one.name.lower() for one in IndexVerdict if not one.is_explained}

    assert constants | {kind.value for kind in DifferenceKind} | of_files == named


ADVICE = f"not to be seen on {gethostname()}: give --scratch, a directory or URI that all workers reach"


@pytest.mark.usefixtures("spark")
def test_workers_that_do_not_see_the_drivers_temporary_files_are_told_of_the_option(
    golden: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def hide() -> None:
        for folder in (tmp_path / "temporary").iterdir():
            shutil.rmtree(folder)

    monkeypatch.setattr("jobs.command.engine.workers_of", lambda *_, **__: Meanwhile(happens=hide))
    without = run("verify", golden("b533-base"), "--quiet")
    given = run("verify", golden("b533-base"), "--quiet", "--scratch", tmp_path / "shared")

    assert 1 == without.code
    assert without.err.splitlines()[-1].startswith(f"rmq-lake: {tmp_path / 'temporary'}/")
    assert without.err.splitlines()[-1].endswith(ADVICE)
    assert 0 == given.code


def test_who_reads_keys_without_seeing_their_directory_is_told_the_same(tmp_path: Path) -> None:
    """All ranges may have been read where it is seen, and the work gone on where it is not."""
    with scratch_for(None, {}) as scratch:
        shutil.rmtree(scratch.location)
        with pytest.raises(OSError, match=ADVICE), scratch.open("keys"):
            pass
    with scratch_beside(str(tmp_path), {}) as scratch, pytest.raises(FileNotFoundError), scratch.open("keys"):
        pass


def test_a_directory_that_was_given_is_no_reason_to_give_one(tmp_path: Path) -> None:
    with scratch_for(str(tmp_path), {}) as scratch:
        shutil.rmtree(scratch.location)
        with pytest.raises(OSError, match=r"not to be seen on .*: no shared directory"), scratch.create("keys"):
            pass
