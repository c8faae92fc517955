"""
Whole commands, with their JVM and Python workers, killed as `test_kills.py` kills runs by the hundred.

`SPARK_KILLS` in the environment says how many the campaigns kill.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import result_of
from tests.support.killing import FAULTS
from tests.support.killing_commands import CLEAN, VICTIMS

KILLS = int(os.environ.get("SPARK_KILLS", "100"))
_WAYS = {"once": (), "followed": ("follow",), "followed-crashes": ("follow", "crashes")}


def campaign(folder: Path, kills: int, way: str) -> dict[str, Any]:
    """Run the campaign in a process that may fork, and compare the lake with all that the broker ever wrote."""
    result = result_of("tests.support.killing_commands", folder, kills, *_WAYS[way])
    # 4: a broker that crashes here leaves units of what it took back, which contradict the log. 1: its JVM was killed.
    fine = {*CLEAN, *([4] if "crashes" in way else [])}
    codes = {int(code) for code in result["codes"]}

    assert not any(result[fault] for fault in FAULTS), result
    assert result["rows"] + result["in_gaps"] == result["history"]
    assert set(result["ends"]) <= fine, (folder / "errors.txt").read_text()[-4000:]
    assert codes <= fine | ({1} if "followed" in way else set()), (folder / "errors.txt").read_text()[-4000:]
    assert set(result.get("optimized", {})) <= {"-9", "0"}
    return result


@pytest.mark.slow
@pytest.mark.timeout(1800)  # of a busy machine
@pytest.mark.parametrize(("way", "kills"), [("once", 2), ("followed", 1)])
def test_commands_that_are_killed_lose_nothing(tmp_path: Path, way: str, kills: int) -> None:
    assert campaign(tmp_path, kills, way)["kills"] == kills


@pytest.mark.campaign
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("way", _WAYS)
def test_a_hundred_commands_that_are_killed_lose_nothing(tmp_path: Path, way: str) -> None:
    result = campaign(tmp_path, KILLS, way)

    assert set(result["victims"]) >= (set(VICTIMS) if "followed" in way else {"everything", "workers"})
