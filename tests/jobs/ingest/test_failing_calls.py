"""
Any system call of a run may fail: the next run makes the lake exact.

In the campaign the first and the last call of each kind on each file fail, for each error that it may end with: of
link, unlink, mkdir and truncate that is nearly every one. `STRIDE` in the environment adds each so many-th call between
them: 1 for every call of a run, an hour or two for each scenario and error. `EVERY` takes one in so many of these.
`CALLS` names the kinds of calls, such as `unlink list`, instead of all.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.failing_calls import ERRORS, PREPARED, READING, WRITING
from tests.support.recorded import result_of

FIRST_AND_LAST = 1 << 30
ONE_OF_EACH_KIND = 0
STRIDE = int(os.environ.get("STRIDE", str(FIRST_AND_LAST)))
EVERY = int(os.environ.get("EVERY", "1"))
CALLS = os.environ.get("CALLS", "").split()


def campaign(scenario: str, folder: Path, error: str, *which: int | str) -> dict[str, Any]:
    """Run a scenario of `failing_calls` in a process of its own, which the library is loaded into; *which* calls."""
    if shutil.which("cc") is None or not sys.platform.startswith("linux"):
        pytest.skip("the library that makes calls fail needs a C compiler, and Linux")
    return result_of("tests.support.failing_calls", scenario, folder, error, *which)


@pytest.mark.slow
def test_after_a_call_of_any_kind_that_fails_the_next_run_leaves_the_lake_exact(tmp_path: Path) -> None:
    result = campaign("growing", tmp_path, "EIO", ONE_OF_EACH_KIND)

    assert set(result["by_call"]) == {*READING, *WRITING} - {"rename"}
    assert result["bad"] == []


@pytest.mark.campaign
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("scenario", PREPARED)
def test_after_any_system_call_that_fails_the_next_run_leaves_the_lake_exact(
    scenario: str, error: str, tmp_path: Path
) -> None:
    result = campaign(scenario, tmp_path, error, STRIDE, EVERY, *CALLS)

    assert result["failed"] > (0 if CALLS else 100 // EVERY)
    assert result["bad"] == []
