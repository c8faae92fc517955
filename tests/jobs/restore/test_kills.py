"""Restores that are killed and resumed leave the same files as a restore that is not killed."""

from pathlib import Path

import pytest

from tests.support.commands import result_of


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.campaign), 97])
def test_a_restore_killed_after_any_effect_is_resumed_to_the_same_bytes(stride: int, tmp_path: Path) -> None:
    result = result_of("tests.support.killed_verbs", "restores", tmp_path, stride)

    assert result["reached"] > (100 if stride == 1 else 0)
    assert result["bad"] == []
