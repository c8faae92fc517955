"""
Any system call of a run may fail: the next run makes the lake exact.

`STRIDE` in the environment says which calls of one kind on one file fail in the campaign, beside the first and the
last: 1 for each. `EVERY` takes one in so many of these.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.failing_calls import ERRORS, PREPARED, chosen

STRIDE, EVERY = (int(os.environ.get(name, "1")) for name in ("STRIDE", "EVERY"))


def campaign(scenario: str, folder: Path, error: str) -> dict[str, Any]:
    """Run a scenario of `failing_calls` in a process of its own, which the library is loaded into."""
    if shutil.which("cc") is None or not sys.platform.startswith("linux"):
        pytest.skip("the library that makes calls fail needs a C compiler, and Linux")
    program = [sys.executable, "-m", "tests.support.failing_calls"]
    command = [*program, scenario, str(folder), error, str(STRIDE), str(EVERY)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    result: dict[str, Any] = json.loads(done.stdout)
    print(scenario, error, {name: value for name, value in result.items() if name != "bad"})
    return result


def test_the_first_and_the_last_call_on_each_file_are_chosen() -> None:
    """And those between by the stride."""
    calls = ["open a", "read a", "read a", "read a", "read a", "open b"]

    assert chosen(calls, 2) == [1, 2, 4, 5, 6]
    assert chosen(calls, 1000) == [1, 2, 5, 6]
    assert chosen(calls, 1000, 2) == [2, 6]


@pytest.mark.campaign
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("scenario", PREPARED)
def test_after_any_system_call_that_fails_the_next_run_leaves_the_lake_exact(
    scenario: str, error: str, tmp_path: Path
) -> None:
    """Nothing lost, nothing twice, nothing left behind; what could not be read is in quarantine, as it says there."""
    result = campaign(scenario, tmp_path, error)

    assert result["failed"] > 100 // EVERY
    assert result["bad"] == []
