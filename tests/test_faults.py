"""
Check that commands report all damage that they read, and no damage of a healthy store; keep the page of faults current.

Faults are planted alone and in combinations. No command may change an intact file or contradict another one.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from jobs.console.result import ExitCode
from tests.golden import unpack
from tests.sampling import mark_campaign_except, sample, spread_over_workers
from tests.support.agreeing_verbs import check_agreement
from tests.support.commands import ROOT
from tests.support.fault_draws import (
    Draw,
    Violation,
    check_faults,
    check_repairs,
    draw_case,
    find_smallest_failure,
    find_violations,
)
from tests.support.fault_kinds import NO_FAULT, STORE
from tests.support.faults import PAGE, VERBS, line, matrix, page, run_verb

CHECKS = {"faults": check_faults, "repairs": check_repairs, "agreement": check_agreement}
# Draws that failed before, each reduced to the fewest faults.
_LINES = (ROOT / "tests" / "support" / "past_draws.txt").read_text(encoding="utf-8").splitlines()
_OFTEN = sample(_LINES, 16)
_PARTS = 5


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Create a directory that other users can read: where access is denied, commands of root run as another user."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_reports_a_problem_of_a_healthy_store(folder: Path, verb: str) -> None:
    assert run_verb(verb, unpack(STORE, folder / verb), NO_FAULT, folder).code is ExitCode.CLEAN


@pytest.mark.slow
@pytest.mark.timeout(1800)  # of a busy machine
@pytest.mark.parametrize("every", mark_campaign_except((1, 4), 4))
def test_the_page_is_current_and_verify_detects_all_damage(folder: Path, every: int) -> None:
    rows = list(matrix(folder, every))
    green = [fault for fault, cells in rows if not fault.unseen and cells["verify"].code is ExitCode.CLEAN]
    text = PAGE.read_text()

    assert [] == green
    assert {line(*row) for row in rows} <= set(text.splitlines())
    assert every > 1 or text == page(rows)


def _violations(past: str) -> list[Violation]:
    check, _, draw = past.partition(" ")
    return find_violations(Draw.parse(draw), CHECKS[check])


@pytest.mark.parametrize("past", spread_over_workers(sorted(_OFTEN)))
def test_random_cases_that_failed_before_pass(past: str) -> None:
    assert _violations(past) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
def test_all_other_random_cases_that_failed_before_pass(part: int) -> None:
    others = [one for one in _LINES if one not in _OFTEN]
    broken = {other: _violations(other) for other in others[part::_PARTS]}

    assert {one: violations for one, violations in broken.items() if violations} == {}


def _check(check: str, seed: int, max_faults: int = 4) -> None:
    if found := find_smallest_failure(draw_case(seed, max_faults), CHECKS[check]):
        pytest.fail(f"python -m tests.support.fault_draws {check} {found}", pytrace=False)


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", spread_over_workers(range(33)))
def test_random_faults_break_no_rule(seed: int) -> None:
    _check("faults", seed)


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", spread_over_workers(range(1000, 1040)))
def test_no_verb_omits_a_message_silently(seed: int) -> None:
    _check("agreement", seed, 3)


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", spread_over_workers(range(500_000, 500_006)))
def test_repairs_with_lake_bridges_and_choices_break_no_rule(seed: int) -> None:
    _check("repairs", seed)


@pytest.mark.campaign
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("max_faults", range(1, 5))
@pytest.mark.parametrize(("check", "first", "count"), [("faults", 1000, 2000), ("repairs", 510_000, 500)])
def test_thousands_of_random_faults_break_no_rule(check: str, first: int, count: int, max_faults: int) -> None:
    for seed in range(first * max_faults, first * max_faults + count):
        _check(check, seed, max_faults)
