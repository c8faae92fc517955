"""The matrix of faults: no verb is green on damage that it reads, none is red on health, and the page says so."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from jobs.console.exit_codes import ExitCode
from tests.documentation import ROOT
from tests.golden import unpack
from tests.support.faults import STORE, VERBS, Fault, Part, faults, matrix, page, said


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Make a directory that other users can reach: root is asked as one of them where access is denied."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def healthy(folder: Path) -> Path:
    return unpack(STORE, folder)


def _all_faults() -> list[Fault]:
    with TemporaryDirectory() as name:
        return list(faults(unpack(STORE, Path(name))))


FAULTS = _all_faults()
NO_FAULT = Fault(Part.LOG, "no fault", lambda _store: None, "commitlog/00000000000000016384")


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_is_red_on_a_healthy_store(healthy: Path, folder: Path, verb: str) -> None:
    assert said(verb, healthy, NO_FAULT, folder).code is ExitCode.CLEAN


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if not fault.unseen], ids=lambda fault: f"{fault.part.value}: {fault.name}"
)
def test_verify_is_never_green_on_damage(healthy: Path, folder: Path, fault: Fault) -> None:
    assert said("verify", healthy, fault, folder).code is not ExitCode.CLEAN


@pytest.mark.slow
@pytest.mark.timeout(1800)  # of a busy machine
def test_the_page_is_what_comes_out_now(folder: Path) -> None:
    assert (ROOT / "docs" / "faults.md").read_text() == page(list(matrix(folder)))
