"""The crontab and the systemd units of docs/ingest.md, and what they make of our exit codes."""

import json
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml  # type: ignore[import-untyped]

from jobs.console.exit_codes import ExitCode
from tests.documentation import ROOT, fences

_PAGE = ROOT / "docs" / "ingest.md"
_FENCES = fences(_PAGE)
_COMMAND = "/opt/rocketmq-lake/spark-submit.sh"
_STORE, _LAKE = "/data/rocketmq/store", "/data/lake"
_UNITS = {text.splitlines()[0].rpartition("/")[2]: text for language, text in _FENCES if language == "ini"}
_QUIET = {ExitCode.CLEAN, ExitCode.HELD, ExitCode.INTERRUPTED}


def one(language: str) -> str:
    (text,) = [text for kind, text in _FENCES if kind == language]
    return text


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """Put a stand-in for the launcher there: it says a line on each stream, and ends as the file beside it says."""
    stand_in = tmp_path / "spark-submit.sh"
    stand_in.write_text(f"#!/bin/sh\necho data\necho trouble >&2\nexit $(cat {tmp_path / 'code'})\n")
    stand_in.chmod(0o755)
    return stand_in


@pytest.mark.parametrize("code", ExitCode)
def test_cron_mails_what_somebody_should_see_and_nothing_else(told: Path, tmp_path: Path, code: ExitCode) -> None:
    (tmp_path / "code").write_text(str(int(code)))
    wrapper = tmp_path / "ingest-from-cron"
    wrapper.write_text(one("sh").replace(_COMMAND, str(told)))
    wrapper.chmod(0o755)

    done = subprocess.run([wrapper], capture_output=True, text=True, check=False)

    assert "" == done.stderr
    if code in _QUIET:
        assert (0, "") == (done.returncode, done.stdout)
    else:
        assert (int(code), f"data\ntrouble\nexit code {int(code)}\n") == (done.returncode, done.stdout)


def test_systemd_takes_for_a_success_what_is_none_of_somebodys_business() -> None:
    unit = ConfigParser(interpolation=None, delimiters="=", comment_prefixes="#")
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # names keep their case
    unit.read_string(_UNITS["rocketmq-lake.service"])

    taken = {ExitCode(int(code)) for code in unit["Service"]["SuccessExitStatus"].split()}
    assert {ExitCode.HELD, ExitCode.INTERRUPTED} == taken


def test_the_table_has_every_code_that_ingest_ends_with() -> None:
    cells = re.findall(r"^\| ([\d, ]+) \|", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {ExitCode(int(code)) for cell in cells for code in cell.split(",")}

    assert set(ExitCode) - {ExitCode.NOT_FOUND} == listed


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_understands_the_units(told: Path, tmp_path: Path) -> None:
    for name, text in _UNITS.items():
        (tmp_path / name).write_text(text.replace(_COMMAND, str(told)))

    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / name) for name in _UNITS)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == done.returncode, done.stderr
    assert [] == [line for line in done.stderr.splitlines() if "rocketmq-lake" in line]


def ended_with(code: ExitCode, folder: Path) -> Path:
    stand_in = folder / "spark-submit.sh"
    summary = json.dumps({"messages": 3, "bytes": 300, "to_offset": 900})
    stand_in.write_text(f"#!/bin/sh\necho '{summary}'\nexit {int(code)}\n")
    stand_in.chmod(0o755)
    return stand_in


def python_block(name: str) -> str:
    (text,) = [text for kind, text in _FENCES if kind == "python" and f"from {name}" in text]
    return text


def test_airflow_skips_what_is_none_of_somebodys_business(monkeypatch: pytest.MonkeyPatch) -> None:
    dag, operator = MagicMock(), MagicMock()
    for name in ("airflow", "airflow.providers", "airflow.providers.standard", "airflow.providers.standard.operators"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "airflow.sdk", SimpleNamespace(DAG=dag))
    bash = SimpleNamespace(BashOperator=operator)
    monkeypatch.setitem(sys.modules, "airflow.providers.standard.operators.bash", bash)

    exec(python_block("airflow"), {})  # noqa: S102 - our own document

    assert (1, False) == (dag.call_args.kwargs["max_active_runs"], dag.call_args.kwargs["catchup"])
    given = operator.call_args.kwargs
    assert [ExitCode.HELD, ExitCode.INTERRUPTED] == given["skip_on_exit_code"]
    assert f"{_COMMAND} ingest {_STORE} --lake {_LAKE}" == given["bash_command"]


@pytest.mark.parametrize("code", ExitCode)
def test_dagster_shows_figures_and_fails_where_somebody_should_look(
    code: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failure(Exception):
        """Stands for Dagster's."""

    made = SimpleNamespace(
        Definitions=MagicMock(),
        Failure=Failure,
        MaterializeResult=SimpleNamespace,
        ScheduleDefinition=MagicMock(),
        asset=lambda function: function,
        define_asset_job=MagicMock(),
    )
    monkeypatch.setitem(sys.modules, "dagster", made)
    names: dict[str, Any] = {}
    exec(python_block("dagster").replace(_COMMAND, str(ended_with(code, tmp_path))), names)  # noqa: S102 - ours

    if code is ExitCode.CLEAN:
        assert {"messages": 3, "bytes": 300, "to_offset": 900} == names["rocketmq_lake"]().metadata
    elif code in {ExitCode.HELD, ExitCode.INTERRUPTED}:
        assert {"skipped": True} == names["rocketmq_lake"]().metadata
    else:
        with pytest.raises(Failure, match=f"exit code {int(code)}"):
            names["rocketmq_lake"]()


def cron_job() -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load(one("yaml"))
    return made


@pytest.mark.parametrize("code", ExitCode)
def test_a_pod_fails_where_somebody_should_look(code: ExitCode, tmp_path: Path) -> None:
    (container,) = cron_job()["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    (script,) = container["args"]

    ended = subprocess.run(
        [*container["command"], script.replace(_COMMAND, str(ended_with(code, tmp_path)))],
        stdout=subprocess.DEVNULL,
        check=False,
    )

    assert (0 if code in _QUIET else int(code)) == ended.returncode


@pytest.mark.parametrize("verb", sorted(path.stem for path in (ROOT / "jobs" / "verbs").glob("[a-z]*.py")))
def test_the_file_of_a_verb_says_that_it_is_no_program(verb: str) -> None:
    script = ROOT / "jobs" / "verbs" / f"{verb}.py"

    ended = subprocess.run([sys.executable, script, "STORE"], capture_output=True, text=True, check=False)

    assert 1 == ended.returncode
    assert ["rmq-lake: a verb's file is no program: spark-submit jobs/main.py VERB …"] == ended.stderr.splitlines()
