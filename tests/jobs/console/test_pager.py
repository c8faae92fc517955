"""Long answers at a terminal go through a pager; nothing else does."""

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from tests.jobs.console.test_terminal import environment, in_terminal


@pytest.fixture
def pager(tmp_path: Path) -> Path:
    """Write a pager that marks what it shows, and says how LESS is set."""
    path = tmp_path / "pager"
    path.write_text('#!/bin/sh\necho "LESS=$LESS"\nsed "s/^/> /"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def segment(golden: Callable[[str], Path]) -> Path:
    """Return a file that takes more lines than any terminal has."""
    return golden("b551-base") / "commitlog" / f"{0:020}"


@pytest.mark.parametrize("named", [{"RMQ_LAKE_PAGER": "{}"}, {"RMQ_LAKE_PAGER": "{}", "PAGER": "false"}], ids=str)
def test_a_dump_at_a_terminal_goes_through_the_pager(named: dict[str, str], pager: Path, segment: Path) -> None:
    """Every line, with git's settings for less; the exit code is that of the dump."""
    named = {name: value.format(pager) for name, value in named.items()}

    seen = in_terminal("dump", segment, **named)

    settings, *lines = seen.text.splitlines()
    assert (ExitCode.CLEAN, "LESS=FRX") == (seen.code, settings)
    assert f"> # {segment}: " in lines[0]
    assert [] == [line for line in lines if not line.startswith("> ")]
    assert in_terminal("dump", segment).text.splitlines() == [line.removeprefix("> ") for line in lines]


def test_pager_names_one_for_every_program(pager: Path, segment: Path) -> None:
    command = [sys.executable, "-m", "jobs.main", "dump", str(segment)]
    named = environment({"PAGER": str(pager), "SHELL": "/bin/sh"})  # script(1) starts the command by it
    del named["RMQ_LAKE_PAGER"]

    seen = subprocess.check_output(["script", "-qec", shlex.join(command), "/dev/null"], env=named, text=True)

    assert seen.startswith("LESS=FRX")


def test_a_list_of_messages_goes_through_it(pager: Path, golden: Callable[[str], Path]) -> None:
    """As it would be printed without it: what a text may do to a terminal is escaped all the same."""
    store = golden("b551-base")
    rows = ("query", "by-key", "--store", store, "-t", "T1", "-k", "big", "--output", "table")
    paged, plain = in_terminal(*rows, RMQ_LAKE_PAGER=str(pager)), in_terminal(*rows)
    assert (paged.code, "TagB" in plain.text) == (plain.code, True)
    assert all(f"> {line}" in paged.text for line in plain.text.splitlines() if "TagB" in line)


def test_a_reader_who_has_seen_enough_ends_the_dump(tmp_path: Path, segment: Path) -> None:
    impatient = tmp_path / "pager"
    impatient.write_text("#!/bin/sh\nhead -n 1\n")
    impatient.chmod(0o755)

    seen = in_terminal("dump", "--fields", segment, RMQ_LAKE_PAGER=str(impatient))

    assert (ExitCode.CLEAN, 1) == (seen.code, len(seen.text.splitlines()))


@pytest.mark.parametrize("named", ["", "cat", "no-such-program"])
def test_no_pager_is_none(named: str, segment: Path) -> None:
    assert in_terminal("dump", segment, RMQ_LAKE_PAGER=named).text.startswith(f"# {segment}")


def test_a_pipe_has_no_pager(pager: Path, segment: Path) -> None:
    command = [sys.executable, "-m", "jobs.main", "dump", str(segment)]

    printed = subprocess.check_output(command, env={**os.environ, "RMQ_LAKE_PAGER": str(pager)}, text=True)

    assert printed.startswith(f"# {segment}")


def test_what_fails_before_it_prints_starts_no_pager(pager: Path) -> None:
    seen = in_terminal("dump", "--no-such-option", RMQ_LAKE_PAGER=str(pager))

    assert ExitCode.USAGE == seen.code
    assert "LESS=" not in seen.text
