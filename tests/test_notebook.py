"""What docs/notebook.ipynb has; tests/released runs it in a Jupyter kernel, and compares what is below its cells."""

import json
from pathlib import Path

from tests.notebook import NOTEBOOK, cells

ROOT = Path(__file__).parents[1]


def recorded() -> list[str]:
    return ["".join(line for output in cell["outputs"] for line in output["text"]).rstrip() for cell in cells()]


def test_the_notebook_has_what_a_reader_expects() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")

    assert all(name in text for name in ('format(\\"rocketmq-store\\")', "duckdb", "polars", "Timeline", "verify"))
    assert (4, 5) == (json.loads(text)["nbformat"], json.loads(text)["nbformat_minor"])
