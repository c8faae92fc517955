"""What tests of several kinds of queries ask with."""

import shlex
from pathlib import Path

import pytest

from tests.support.commands import Outcome, Run


@pytest.fixture
def ask(run: Run) -> Run:
    """Give a function that has a store or a lake answer a line of mqadmin."""

    def answer(place: Path, line: str, *options: str) -> Outcome:
        kind = "--lake" if (place / "messages").is_dir() else "--store"
        named = (kind, place, "--time-zone", "UTC", "--broker", "b0", *options)
        return run("query", "mqadmin", *named, *shlex.split(line))

    return answer
