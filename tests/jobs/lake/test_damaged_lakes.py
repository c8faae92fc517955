"""Commands on a lake with one damaged file: a right answer, or an error that names the cause."""

import os
import subprocess
import sys

import pytest

_MOST_MIB = 600


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="the lakes are made in memory")  # noqa: PTH112
@pytest.mark.campaign  # a few kinds of damage are known to be silent, see `tests.support.damaged_lakes`
def test_a_damage_is_loud_and_takes_little_memory() -> None:
    first = int(os.environ.get("FIRST", "100"))
    count = int(os.environ.get("SEEDS", "130"))
    line = [sys.executable, "-m", "tests.support.damaged_lakes", str(first), str(count)]
    lines = subprocess.run(line, capture_output=True, check=False, text=True).stdout.splitlines()

    assert [one for one in lines if one.startswith("wrong")] == []
    ended = [one.split() for one in lines if one.startswith("end")]

    assert len(ended) == count, lines[-1]
    assert max(int(peak) for _, _, peak, _ in ended) <= _MOST_MIB
