"""Options of earlier versions: each name is a usage error that says what to use instead, wherever it is set."""

from pathlib import Path

import pytest

from jobs.command_line.old_names import NEW_NAMES, REMOVED
from jobs.console.result import ExitCode
from tests.support.commands import Run

RENAMED = [
    ("query by-id", "any-host", "ignore-host"),
    ("query by-key", "bodies", "body-dir"),
    ("verify", "lake", "findings-lake"),
    ("ingest", "no-damage", "no-damaged-bytes"),
    ("repair", "older", "restore-older"),
    ("verify", "places", "all-locations"),
    ("query list", "seconds", "timeout"),
    ("query sql", "seconds", "timeout"),
    ("ingest", "settle", "min-age"),
    ("query by-key", "through-log", "scan-log"),
    ("query mqadmin", "through-log", "scan-log"),
    ("query list", "words", "body-contains"),
]
WITHOUT_EFFECT = [
    ("query by-key", "any-host"),
    ("export", "verbose"),
    ("repair", "verbose"),
    ("optimize", "inflate"),
    ("ingest", "report"),
]


def variable(command: str, option: str) -> str:
    return f"RMQ_LAKE_{command}_{option}".upper().replace("-", "_").replace(" ", "_")


def test_each_old_name_is_tested() -> None:
    assert set(NEW_NAMES) == {old for _, old, _ in RENAMED}
    assert set(REMOVED) == {old for _, old in WITHOUT_EFFECT}


@pytest.mark.parametrize(("command", "old", "new"), RENAMED)
def test_an_old_option_names_the_new_one(command: str, old: str, new: str, run: Run) -> None:
    outcome = run(*command.split(), f"--{old}=1")

    assert ExitCode.USAGE == outcome.code
    assert f"rmq-lake: --{old} is now --{new}\n" == outcome.err


@pytest.mark.parametrize(("command", "old", "new"), RENAMED)
def test_an_old_variable_names_the_new_one(
    command: str, old: str, new: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable(command, old), "1")

    outcome = run(*command.split())

    expected = f"rmq-lake: {variable(command, old)} is now {variable(command, new)}\n"

    assert ExitCode.USAGE == outcome.code
    assert expected == outcome.err


@pytest.mark.parametrize(("command", "old", "new"), RENAMED)
def test_an_old_key_names_the_new_one(command: str, old: str, new: str, run: Run, tmp_path: Path) -> None:
    config = tmp_path / "job.toml"
    config.write_text(f"[{command.replace(' ', '.')}]\n{old} = 1\n")

    outcome = run(*command.split(), "--config", config)

    assert ExitCode.USAGE == outcome.code
    assert f"unknown key {command.replace(' ', '.')}.{old}: {old} is now {new}\n" in outcome.err


@pytest.mark.parametrize(("command", "old"), WITHOUT_EFFECT)
def test_a_removed_option_says_what_to_use(
    command: str, old: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "job.toml"
    config.write_text(f"[{command.replace(' ', '.')}]\n{old} = 1\n")

    errors = [run(*command.split(), f"--{old}").err, run(*command.split(), "--config", config).err]
    monkeypatch.setenv(variable(command, old), "1")
    errors.append(run(*command.split()).err)

    assert all(f"{REMOVED[old]}\n" in error for error in errors)


@pytest.mark.parametrize("command", ["ingest", "optimize"])
def test_the_engine_here_of_1_0_0_is_the_local_one(command: str, run: Run) -> None:
    lines = run(command, "--engine", "here", "--show-config").out.splitlines()

    assert 1 == sum(line.startswith('engine = "local"') for line in lines)
