"""
Check that commands report all damage that they read, and no damage of a healthy store; keep the page of faults current.

Faults are planted alone and in combinations. No command may change an intact file or contradict another one.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from _pytest.mark import ParameterSet

from jobs.console.result import ExitCode
from tests.sampling import mark_campaign_except, sample, spread_over_workers
from tests.support.commands import ROOT
from tests.support.fault_draws import CHECKS, Draw, find_failures, find_violations
from tests.support.faults import PAGE, line, matrix, page

# Draws that failed before, each reduced to the fewest faults.
_LINES = (ROOT / "tests" / "support" / "past_draws.txt").read_text(encoding="utf-8").splitlines()
_OFTEN = sample(_LINES, 16)
_TIMES = 2


def _mark_rare(draws: Sequence[str]) -> Iterator[ParameterSet]:
    """Mark a draw as slow if it has a kind of fault or a store that few earlier draws have, otherwise as campaign."""
    seen = Counter[str]()
    for draw in draws:
        parts = set(re.sub(r":\d+", "", draw).split())
        is_rare = min(seen[part] for part in parts) < _TIMES
        seen.update(parts)
        marks = [] if draw in _OFTEN else [pytest.mark.slow if is_rare else pytest.mark.campaign]
        yield pytest.param(draw, marks=[pytest.mark.xdist_group(draw), *marks])


@pytest.mark.slow
@pytest.mark.timeout(1800)  # of a busy machine
@pytest.mark.parametrize("every", mark_campaign_except((1, 4), 4))
def test_the_page_is_current_and_verify_detects_all_damage(every: int) -> None:
    rows = list(matrix(every))
    green = [fault for fault, cells in rows if not fault.unseen and cells["verify"].code is ExitCode.CLEAN]
    text = PAGE.read_text()

    assert [] == green
    assert {line(*row) for row in rows} <= set(text.splitlines())
    assert every > 1 or text == page(rows)


@pytest.mark.parametrize("past", [*_mark_rare(_LINES)])
def test_random_cases_that_failed_before_pass(past: str) -> None:
    check, _, draw = past.partition(" ")

    assert [] == find_violations(Draw.parse(draw), CHECKS[check])


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", spread_over_workers(range(33)))
def test_random_faults_break_no_rule(seed: int) -> None:
    assert [] == list(find_failures("faults", [seed]))


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", spread_over_workers(range(1000, 1040)))
def test_no_command_omits_a_message_silently(seed: int) -> None:
    assert [] == list(find_failures("agreement", [seed], 3))


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", spread_over_workers(range(500_000, 500_006)))
def test_repairs_with_lake_bridges_and_choices_break_no_rule(seed: int) -> None:
    assert [] == list(find_failures("repairs", [seed]))


@pytest.mark.campaign
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("max_faults", range(1, 5))
@pytest.mark.parametrize(("check", "first", "count"), [("faults", 1000, 2000), ("repairs", 510_000, 500)])
def test_thousands_of_random_faults_break_no_rule(check: str, first: int, count: int, max_faults: int) -> None:
    seeds = range(first * max_faults, first * max_faults + count)

    assert [] == list(find_failures(check, seeds, max_faults))
