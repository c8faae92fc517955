"""What tests of several kinds of queries ask with."""

import shlex
from pathlib import Path

import pytest

from tests.support.commands import Outcome, Run


@pytest.fixture
def ask(run: Run) -> Run:
    """Give a function that has a store answer a line of mqadmin."""

    def answer(store: Path, line: str, *options: str) -> Outcome:
        place = ("--store", store, "--time-zone", "UTC", "--broker", "b0", *options)
        return run("query", "mqadmin", *place, *shlex.split(line))

    return answer
