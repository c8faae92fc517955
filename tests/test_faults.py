"""The matrix of faults: no verb is green on damage that it reads, none is red on health, and the page says so."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from jobs.console.exit_codes import ExitCode
from tests.documentation import ROOT
from tests.golden import unpack
from tests.sampling import some_often
from tests.support.faults import NO_FAULT, STORE, VERBS, line, matrix, page, said


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Make a directory that other users can reach: root is asked as one of them where access is denied."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_is_red_on_a_healthy_store(folder: Path, verb: str) -> None:
    assert said(verb, unpack(STORE, folder / verb), NO_FAULT, folder).code is ExitCode.CLEAN


@pytest.mark.slow
@pytest.mark.timeout(1800)  # of a busy machine
@pytest.mark.parametrize("every", some_often((1, 4), 4))
def test_the_page_is_what_comes_out_now_and_verify_is_never_green_on_damage(folder: Path, every: int) -> None:
    rows = list(matrix(folder, every))
    green = [fault for fault, cells in rows if not fault.unseen and cells["verify"].code is ExitCode.CLEAN]
    text = (ROOT / "docs" / "internals" / "faults.md").read_text()

    assert [] == green
    assert {line(*row) for row in rows} <= set(text.splitlines())
    assert every > 1 or text == page(rows)
