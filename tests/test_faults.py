"""
Faults: no verb accepts damage that it reads, none reports a healthy store, and the page of faults is current.

One by one, and in company: then no right file is changed, no verdict is green on damage, and no two verbs contradict.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from jobs.console.result import ExitCode
from tests.golden import unpack
from tests.sampling import on_any_worker, sample, some_often
from tests.support.commands import ROOT
from tests.support.fault_draws import Draw, Violation, drawn, failure, find_violations, of_faults, of_repairs
from tests.support.fault_kinds import NO_FAULT, STORE
from tests.support.faults import PAGE, VERBS, line, matrix, page, said

CHECKS = {"faults": of_faults, "repairs": of_repairs}
# What went wrong once, each shrunk to its smallest.
_LINES = (ROOT / "tests" / "support" / "past_draws.txt").read_text(encoding="utf-8").splitlines()
_OFTEN = sample(_LINES, 16)
_PARTS = 5


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Make a directory that other users can reach: root is asked as one of them where access is denied."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_reports_a_problem_of_a_healthy_store(folder: Path, verb: str) -> None:
    assert said(verb, unpack(STORE, folder / verb), NO_FAULT, folder).code is ExitCode.CLEAN


@pytest.mark.slow
@pytest.mark.timeout(1800)  # of a busy machine
@pytest.mark.parametrize("every", some_often((1, 4), 4))
def test_the_page_is_current_and_verify_detects_all_damage(folder: Path, every: int) -> None:
    rows = list(matrix(folder, every))
    green = [fault for fault, cells in rows if not fault.unseen and cells["verify"].code is ExitCode.CLEAN]
    text = PAGE.read_text()

    assert [] == green
    assert {line(*row) for row in rows} <= set(text.splitlines())
    assert every > 1 or text == page(rows)


def _violations(past: str) -> list[Violation]:
    what, _, draw = past.partition(" ")
    return find_violations(Draw.parsed(draw), CHECKS[what])


@pytest.mark.parametrize("past", on_any_worker(sorted(_OFTEN)))
def test_random_cases_that_failed_before_pass(past: str) -> None:
    assert _violations(past) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
def test_all_other_random_cases_that_failed_before_pass(part: int) -> None:
    others = [one for one in _LINES if one not in _OFTEN]
    broken = {one: _violations(one) for one in others[part::_PARTS]}

    assert {one: violations for one, violations in broken.items() if violations} == {}


def _check(what: str, seed: int, most: int = 4) -> None:
    if found := failure(drawn(seed, most), CHECKS[what]):
        pytest.fail(f"python -m tests.support.fault_draws {what} {found}", pytrace=False)


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", on_any_worker(range(33)))
def test_random_faults_break_no_rule(seed: int) -> None:
    _check("faults", seed)


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", on_any_worker(range(500_000, 500_006)))
def test_repairs_with_lake_bridges_and_choices_break_no_rule(seed: int) -> None:
    _check("repairs", seed)


@pytest.mark.campaign
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("most", range(1, 5))
@pytest.mark.parametrize(("what", "first", "count"), [("faults", 1000, 2000), ("repairs", 510_000, 500)])
def test_thousands_of_random_faults_break_no_rule(what: str, first: int, count: int, most: int) -> None:
    for seed in range(first * most, first * most + count):
        _check(what, seed, most)
