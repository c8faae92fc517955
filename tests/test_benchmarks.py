"""Every benchmark runs at a scale that measures nothing, so that none rots while the code moves."""

import json
import os
from pathlib import Path
from subprocess import run

import pytest

from benchmarks.__main__ import PROGRAMS

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parents[1]


def _answer(name: str, folder: Path) -> dict[str, object]:
    """Run a benchmark with *folder* for its stores; return what it prints."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = run(PROGRAMS[name].command("tiny"), cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if not program.needs_broker])
def test_a_benchmark_runs_and_says_how_it_was_made(name: str, tmp_path: Path) -> None:
    """Its result is JSON that names the machine and the command."""
    answer = _answer(name, tmp_path)

    assert {"machine", "command"} < answer.keys()


@pytest.mark.oracle
@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if program.needs_broker])
def test_a_benchmark_beside_a_broker_runs_and_says_how_it_was_made(name: str, tmp_path: Path) -> None:
    """The same with a real broker."""
    answer = _answer(name, tmp_path)

    assert {"machine", "command"} < answer.keys()
