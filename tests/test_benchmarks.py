"""Every benchmark runs at a scale that measures nothing, so that none rots while the code moves."""

import json
import os
from pathlib import Path
from subprocess import run

import pytest

from benchmarks.__main__ import PROGRAMS
from benchmarks.plots import RESULTS, parts
from jobs.report.model import Grid
from tests.sampling import some_often

_ROOT = Path(__file__).parents[1]

# Of each kind one: a log that is read, a lake that is asked, runs that follow each other. All others are campaigns.
_OFTEN = ("stages", "query-lake", "incremental-runs")


def _answer(name: str, folder: Path) -> dict[str, object]:
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = run(PROGRAMS[name].command("tiny"), cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


_MODULES = {program.module: name for name, program in reversed(PROGRAMS.items())}  # each once, by its first name


@pytest.mark.slow
@pytest.mark.parametrize("name", some_often(_MODULES.values(), *_OFTEN))
def test_a_benchmark_runs_and_says_how_it_was_made(name: str, tmp_path: Path) -> None:
    answer = _answer(name, tmp_path)

    assert {"machine", "command", "commit"} < answer.keys()


def test_the_page_of_plots_says_what_was_not_reached() -> None:
    results = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    drawn = {part.title: part for part in parts(results)}
    not_reached, records = drawn["What was not reached"], drawn["Records"]
    per_gib = results["ingest"]["per_gib"]
    faster = {peer for peer, figures in per_gib.items() if figures["wall_s"] < per_gib["rocketmq-lake"]["wall_s"]}

    assert isinstance(not_reached, Grid)
    assert isinstance(records, Grid)
    assert {f"{name}.json" for name in results} == {row[0] for row in records.rows}
    assert faster
    assert faster <= {row[2] for row in not_reached.rows}
