"""
Killed restores are continued, and leave what one leaves that nobody killed.

`RESTORE_KILLS` in the environment sets how many the long version makes.
"""

import os
from functools import partial
from pathlib import Path

import pytest

from tests.support.recorded import result_of

_KILLS = int(os.environ.get("RESTORE_KILLS", "200"))


campaign = partial(result_of, "tests.support.killing_restores")


def test_restores_killed_after_any_effect_are_continued_to_the_same_bytes(tmp_path: Path) -> None:
    result = campaign(tmp_path, 4)

    assert result["bad"] == []
    assert result["effects"] > 100
    assert result["codes"]["-9"] >= 4


@pytest.mark.campaign
def test_many_restores_killed_after_any_effect_are_continued_to_the_same_bytes(tmp_path: Path) -> None:
    assert campaign(tmp_path, _KILLS)["bad"] == []
