"""
Every system call fails once, in every verb: it says what failed and where, and the next run is as if nothing had been.

`SEEDS` in the environment is how many failing calls the campaign draws, from `FIRST` on.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import result_of

SEEDS = int(os.environ.get("SEEDS", "3000"))
FIRST = int(os.environ.get("FIRST", "1000"))


def tried(folder: Path, first: int, count: int, verb: str = "") -> dict[str, Any]:
    if shutil.which("cc") is None or not sys.platform.startswith("linux"):
        pytest.skip("the library that makes calls fail needs a C compiler, and Linux")
    return result_of("tests.support.failing_verbs", folder, first, count, verb)


def test_a_verb_one_of_whose_calls_fails_says_where(tmp_path: Path) -> None:
    result = tried(tmp_path, 0, 12)

    assert result["tried"] > 0
    assert result["bad"] == []


@pytest.mark.slow
def test_after_an_ingest_one_of_whose_calls_fails_the_next_one_leaves_the_same_rows(tmp_path: Path) -> None:
    result = tried(tmp_path, 500, 40, "ingest")

    assert result["tried"] > 20
    assert result["bad"] == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_verbs_some_of_whose_calls_fail_say_where(tmp_path: Path) -> None:
    result = tried(tmp_path, 100, 150)

    assert result["tried"] > 0
    assert result["bad"] == []


@pytest.mark.campaign
@pytest.mark.timeout(6 * 3600)
def test_any_verb_any_of_whose_calls_fails_says_where(tmp_path: Path) -> None:
    result = tried(tmp_path, FIRST, SEEDS)

    assert result["tried"] > SEEDS // 2
    assert result["bad"] == []
