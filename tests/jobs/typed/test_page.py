"""docs/typed.md: its tutorial runs as it is written, and its table is the one that the readers are tested by."""

import re
from pathlib import Path

import duckdb
import pytest

from jobs.console.exit_codes import ExitCode
from tests.jobs.typed.cells import formats_table, table
from tests.jobs.typed.test_typing import ingested
from tests.support.commands import Run
from tests.support.lakes import DELTA_EXTENSION

PAGE = (Path(__file__).parents[3] / "docs" / "typed.md").read_text(encoding="utf-8")


_BLOCK = re.compile(r"^```(json|toml|console|sql)\n(.*?)^```\n(?:\n((?:\|[^\n]*\n)+))?", re.DOTALL | re.MULTILINE)


def test_the_tables_of_values_are_the_tested_ones() -> None:
    assert f"\n\n{formats_table()}\n\n" in PAGE
    assert PAGE.endswith(f"\n\n{table()}\n")


def test_the_tutorial_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.chdir(tmp_path)
    connection = duckdb.connect()
    connection.execute(f"LOAD '{DELTA_EXTENSION}'")
    shown = []
    for language, text, answer in _BLOCK.findall(PAGE):
        shown.append(language)
        if language == "json":
            ingested(tmp_path, *text.encode().splitlines())
        elif language == "toml":
            (tmp_path / "types.toml").write_text(text)
        elif language == "console":
            command, *lines = text.splitlines()
            outcome = run(*command.split()[2:], "--engine", "here")
            assert ExitCode.CLEAN is outcome.code
            assert lines == outcome.out.splitlines()[: len(lines)]
        else:
            found = connection.sql(text).fetchall()
            assert [f"| {' | '.join(map(str, row))} |" for row in found] == answer.splitlines()[2:]
    assert ["json", "toml", "console", "sql", "sql", "toml", "console", "sql"] == shown
