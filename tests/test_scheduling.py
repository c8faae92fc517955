"""The crontab and the systemd units of docs/scheduling.md, and what they make of our exit codes."""

import re
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from tests.documentation import ROOT, fences

_PAGE = ROOT / "docs" / "scheduling.md"
_FENCES = fences(_PAGE)
_COMMAND = "/opt/rocketmq-lake/spark-submit.sh"
_UNITS = {text.splitlines()[0].rpartition("/")[2]: text for language, text in _FENCES if language == "ini"}
_QUIET = {ExitCode.CLEAN, ExitCode.HELD}


def one(language: str) -> str:
    """Return the page's only block of a kind."""
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
    """Silence after 0 and 6; everything that was said, and the code, after the others."""
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


def test_the_crontab_names_the_wrapper() -> None:
    """Five fields of time, a user, and the file that the page shows."""
    *_, user, command = one("cron").split(maxsplit=6)

    assert ("rmq", "/opt/rocketmq-lake/ingest-from-cron") == (user, command.strip())
    assert f"`{command.strip()}`" in _PAGE.read_text(encoding="utf-8")


def test_systemd_takes_for_a_success_what_is_none_of_somebodys_business() -> None:
    """Another run at work, and a stop in order; damage is not among them."""
    unit = ConfigParser(interpolation=None, delimiters="=", comment_prefixes="#")
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # names keep their case
    unit.read_string(_UNITS["rocketmq-lake.service"])

    taken = {ExitCode(int(code)) for code in unit["Service"]["SuccessExitStatus"].split()}
    assert {ExitCode.HELD, ExitCode.INTERRUPTED} == taken


def test_the_table_has_every_code_that_ingest_ends_with() -> None:
    """A code that a scheduler meets and nobody told it about would be taken for a failure."""
    cells = re.findall(r"^\| ([\d, ]+) \|", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {ExitCode(int(code)) for cell in cells for code in cell.split(",")}

    assert set(ExitCode) - {ExitCode.NOT_FOUND} == listed


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_understands_the_units(told: Path, tmp_path: Path) -> None:
    """No unknown key, no bad value, and the timer finds its service."""
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
