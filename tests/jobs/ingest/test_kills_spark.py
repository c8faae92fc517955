"""
Whole commands, with their JVM and Python workers, killed as `test_kills.py` kills runs by the hundred.

`SPARK_KILLS` in the environment says how many, `KILLS_JSON` and `FOLLOW_KILLS_JSON` where the results of the long
campaigns are to be kept.
"""

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support import killing_follow, killing_spark
from tests.support.killing import FAULTS
from tests.support.killing_spark import CLEAN
from tests.support.recorded import ROOT, keep

KILLS = int(os.environ.get("SPARK_KILLS", "100"))


def campaign(folder: Path, kills: int, program: ModuleType = killing_spark, *more: str) -> dict[str, Any]:
    command = [sys.executable, "-m", program.__name__, str(folder), str(kills), *more]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT)
    result: dict[str, Any] = json.loads(done.stdout)
    print(result)
    return result


def prove(result: dict[str, Any], folder: Path, fine: Collection[int] = CLEAN) -> None:
    """Compare what the lake has become with all that the broker ever wrote."""
    assert not any(result[fault] for fault in FAULTS), result
    assert result["rows"] + result["in_gaps"] == result["history"]
    assert {int(code) for code in result["codes"]} <= set(fine), (folder / "errors.txt").read_text()[-4000:]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # of a busy machine
def test_commands_that_are_killed_lose_nothing(tmp_path: Path) -> None:
    """Driver, JVM and workers at once, between effects and at any moment; workers alone; others are stopped."""
    result = campaign(tmp_path, 3)

    prove(result, tmp_path)
    assert sum(result["stages"].values()) == 3
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


def prove_following(result: dict[str, Any], folder: Path, *, crashes: bool = False) -> None:
    """
    Compare the lake with the log; a command whose JVM was killed may say so by 1, the last ones end well.

    4: a broker that crashes here leaves units of what it took back, which contradict the log.
    """
    fine = (*CLEAN, 4) if crashes else CLEAN
    prove({**result, "codes": dict.fromkeys(result["ends"])}, folder, fine)
    assert {int(code) for code in result["codes"]} <= {1, *fine}, (folder / "errors.txt").read_text()[-4000:]
    assert set(result["optimized"]) <= {"-9", "0"}
    assert result["orphans"] == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_commands_that_follow_and_are_killed_lose_nothing(tmp_path: Path) -> None:
    """Driver, JVM, workers or all at once, while catching up and later, beside `optimize`."""
    result = campaign(tmp_path, 2, killing_follow)

    prove_following(result, tmp_path)
    assert sum(result["stages"].values()) == 2


@pytest.mark.campaign
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("beside", ["retention", "crashes"])
def test_a_hundred_commands_that_follow_and_are_killed_lose_nothing(tmp_path: Path, beside: str) -> None:
    """The same for an hour, at every moment and with every victim; what came of it may be kept."""
    result = campaign(tmp_path, KILLS, killing_follow, beside)
    if "FOLLOW_KILLS_JSON" in os.environ:
        kept = Path(os.environ["FOLLOW_KILLS_JSON"])
        keep(result, kept.with_stem(f"{kept.stem}-{beside}"))

    prove_following(result, tmp_path, crashes=beside == "crashes")
    assert result["catching_up"] > 0
    assert set(result["victims"]) == set(killing_follow.VICTIMS)
