"""Stores whose clock lied; more seeds by hand: `python -m tests.support.lying_clocks SEED COUNT`."""

from pathlib import Path

import pytest

from tests.support.lying_clocks import violations


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_no_verb_loses_repeats_or_leaves_out_a_message_for_its_store_time(seed: int, tmp_path: Path) -> None:
    assert list(violations(seed, tmp_path)) == []
