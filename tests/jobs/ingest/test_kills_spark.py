"""
Whole commands, with their JVM and Python workers, killed as `test_kills.py` kills runs by the hundred.

`SPARK_KILLS` in the environment says how many, `KILLS_JSON` where the result of the long campaign is to be kept.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.killing import FAULTS
from tests.support.killing_spark import CLEAN
from tests.support.recorded import ROOT, keep

KILLS = int(os.environ.get("SPARK_KILLS", "100"))


def campaign(folder: Path, kills: int) -> dict[str, Any]:
    """Run the campaign in a process that may fork."""
    command = [sys.executable, "-m", "tests.support.killing_spark", str(folder), str(kills)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT)
    result: dict[str, Any] = json.loads(done.stdout)
    print(result)  # noqa: T201 - the count is said
    return result


def prove(result: dict[str, Any], folder: Path) -> None:
    """Compare what the lake has become with all that the broker ever wrote."""
    assert not any(result[fault] for fault in FAULTS), result
    assert result["rows"] + result["in_gaps"] == result["history"]
    assert {int(code) for code in result["codes"]} <= set(CLEAN), (folder / "errors.txt").read_text()[-4000:]


@pytest.mark.slow
def test_commands_that_are_killed_lose_nothing(tmp_path: Path) -> None:
    """Driver, JVM and workers at once, between effects and at any moment; workers alone; others are stopped."""
    result = campaign(tmp_path, 6)

    prove(result, tmp_path)
    assert sum(result["stages"].values()) == 6
    assert result["workers_stopped"] == 1


@pytest.mark.campaign
@pytest.mark.timeout(7200)
def test_a_hundred_commands_that_are_killed_lose_nothing(tmp_path: Path) -> None:
    """The same for a quarter of an hour, at every stage; what came of it may be kept."""
    result = campaign(tmp_path, KILLS)
    if "KILLS_JSON" in os.environ:
        keep(result, Path(os.environ["KILLS_JSON"]))

    prove(result, tmp_path)
    assert result["workers_killed"] > 0
    assert len(result["stages"]) > 3
