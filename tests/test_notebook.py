"""What docs/notebook.ipynb has; tests/released runs it in a Jupyter kernel, and compares what is below its cells."""

import json
from pathlib import Path

import pytest

from jobs.console.amounts import duration_text
from tests.notebook import NOTEBOOK, cells, settled


def recorded() -> list[str]:
    return ["".join(line for output in cell["outputs"] for line in output["text"]).rstrip() for cell in cells()]


def test_the_notebook_has_what_a_reader_expects() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")

    assert all(name in text for name in ('format(\\"rocketmq-store\\")', "duckdb", "polars", "Timeline", "verify"))
    assert (4, 5) == (json.loads(text)["nbformat"], json.loads(text)["nbformat_minor"])


@pytest.mark.parametrize("seconds", [0.2, 59.0, 62.0, 3599.0])
def test_what_a_slow_machine_shows_is_compared_without_its_time(seconds: float, tmp_path: Path) -> None:
    line = "ingest: done: 65 messages, 56.2 KiB in {}"

    assert line.format("… s") == settled(line.format(duration_text(seconds)), tmp_path)
