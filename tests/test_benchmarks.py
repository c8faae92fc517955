"""Every benchmark runs at a scale that measures nothing, so that none rots while the code changes."""

import json
import os
from pathlib import Path
from subprocess import run

import pytest

from benchmarks.__main__ import PROGRAMS, command
from tests.sampling import some_often

_ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", some_often(PROGRAMS, "ingest", "verify", "query-lake"))
def test_a_benchmark_runs_and_states_how_it_was_made(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = run(command(name, "tiny"), cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert {"machine", "command", "commit"} < json.loads(done.stdout).keys()
