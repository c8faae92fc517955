"""docs/notebook.ipynb runs in a Jupyter kernel, and shows what is below its cells."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.notebook import NOTEBOOK, cells

ROOT = Path(__file__).parents[1]


def recorded() -> list[str]:
    """Return what the notebook shows below each cell of code."""
    return ["".join(line for output in cell["outputs"] for line in output["text"]).rstrip() for cell in cells()]


@pytest.mark.spark
def test_the_notebook_shows_what_its_cells_give_in_a_kernel(tmp_path: Path) -> None:
    """From the first cell to the last, on the store of the tour. A query's bytes once failed in a kernel alone."""
    command = [sys.executable, "-m", "tests.notebook", "--python", sys.executable, "--work", str(tmp_path)]

    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": "."}, cwd=ROOT
    )

    assert 0 == done.returncode, done.stderr[-4000:]
    assert recorded() == json.loads(done.stdout.splitlines()[-1]), (
        "`python -m tests.notebook` writes what it shows again"
    )


def test_the_notebook_has_what_a_reader_expects() -> None:
    """Both doors, both engines, and a plot."""
    text = NOTEBOOK.read_text(encoding="utf-8")

    assert all(name in text for name in ('format(\\"rocketmq-store\\")', "duckdb", "polars", "Timeline", "verify"))
    assert (4, 5) == (json.loads(text)["nbformat"], json.loads(text)["nbformat_minor"])
