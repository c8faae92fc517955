"""docs/notebook.ipynb runs, and shows what stands below its cells."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.notebook import NOTEBOOK, cells, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def recorded() -> list[str]:
    """Return what the notebook shows below each cell of code."""
    return ["".join(line for output in cell["outputs"] for line in output["text"]).rstrip() for cell in cells()]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_shows_what_its_cells_give(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first cell to the last, in one process, on the store of the tour."""
    del spark
    monkeypatch.setenv("RMQ_NOTEBOOK", "")
    monkeypatch.setenv("TZ", "UTC")

    assert recorded() == list(shown(tmp_path)), "`python -m tests.notebook` writes what it shows anew"


def test_the_notebook_has_what_a_reader_expects() -> None:
    """Both doors, both engines, and a plot."""
    text = NOTEBOOK.read_text(encoding="utf-8")

    assert all(name in text for name in ('format(\\"rocketmq\\")', "duckdb", "polars", "Timeline", "verify"))
    assert (4, 5) == (json.loads(text)["nbformat"], json.loads(text)["nbformat_minor"])
