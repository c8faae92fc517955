"""docs/typed.md: its tutorial runs as it is written, and its table is the one that the readers are tested by."""

import re
from pathlib import Path

import duckdb
import duckdb_extension_delta
import pytest

from jobs.console.exit_codes import ExitCode
from tests.jobs.typed.cells import formats_table, table
from tests.jobs.typed.test_typing import ingested, write
from tests.support.broker import Broker
from tests.support.commands import runner

_DELTA_EXTENSION = next(Path(duckdb_extension_delta.__path__[0]).rglob("*.duckdb_extension"))
PAGE = (Path(__file__).parents[3] / "docs" / "typed.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_tables_of_values_are_the_tested_ones() -> None:
    assert f"\n\n{formats_table()}\n\n" in PAGE
    assert PAGE.endswith(f"\n\n{table()}\n")


def test_the_tutorial_runs_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (bodies,) = _blocks("json")
    (declared,) = _blocks("toml")
    (session,) = _blocks("console")
    write(Broker(tmp_path / "store"), *bodies.encode().splitlines())
    ingested(tmp_path)
    (tmp_path / "types.toml").write_text(declared)
    command, *lines = session.splitlines()

    outcome = runner(capfd)(*command.split()[2:], "--engine", "here")

    assert ExitCode.CLEAN is outcome.code
    assert lines == outcome.out.splitlines()[: len(lines)]
    tables = re.findall(r"^```sql\n.*?^```\n\n((?:\|[^\n]*\n)+)", PAGE, re.DOTALL | re.MULTILINE)
    connection = duckdb.connect()
    connection.execute(f"LOAD '{_DELTA_EXTENSION}'")
    for query, expected in zip(_blocks("sql"), tables, strict=True):
        found = connection.sql(query).fetchall()
        assert [f"| {' | '.join(map(str, row))} |" for row in found] == expected.splitlines()[2:]
