"""
Killed restores are continued, and leave what one leaves that nobody killed.

`RESTORE_KILLS` in the environment sets how many the long version makes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_KILLS = int(os.environ.get("RESTORE_KILLS", "200"))


def campaign(folder: Path, kills: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.support.killing_restores", str(folder), str(kills)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_restores_killed_after_any_effect_are_continued_to_the_same_bytes(tmp_path: Path) -> None:
    """Log, queues, index, configuration, manifest; nothing half-written is left."""
    result = campaign(tmp_path, 8)

    assert result["bad"] == []
    assert result["effects"] > 100
    assert result["codes"]["-9"] >= 8


@pytest.mark.campaign
def test_many_restores_killed_after_any_effect_are_continued_to_the_same_bytes(tmp_path: Path) -> None:
    assert campaign(tmp_path, _KILLS)["bad"] == []
