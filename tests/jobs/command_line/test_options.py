"""Options of all commands; flags take precedence over the environment, and that over the configuration file."""

import os
import re
import shlex
from pathlib import Path

import click
import pytest

from jobs.command_line.cli import rmq_lake
from jobs.command_line.configuration import bind_environment_variables, declare_command
from jobs.console.amounts import parse_time
from jobs.console.result import ExitCode
from jobs.options.declaration import argument, option
from tests.support.commands import Run
from tests.support.reference import commands_page

STORED = 1_763_624_520_000  # 2025-11-20 07:42:00 UTC


def test_a_time_may_be_relative_to_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.console.amounts.time.time_ns", lambda: STORED * 1_000_000)

    assert STORED - 7_200_000 == parse_time("2h")


ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
_EXAMPLES = [
    line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) for line in block.splitlines()
]


def test_the_reference_page_is_generated_from_the_code() -> None:
    assert commands_page() == PAGE


def test_every_variable_that_the_code_reads_is_documented() -> None:
    sources = [*(ROOT / "jobs").rglob("*.py"), ROOT / "spark-submit.sh"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources if path.name != "reference.py")
    read = set(re.findall(r"\bRMQ_LAKE_[A-Z0-9_]*[A-Z0-9]\b", text)) - {"RMQ_LAKE_WORKER_MODULE"}  # internal variables
    table = PAGE.partition("\n## Environment\n")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))

    assert read == {name for name in documented if name.startswith("RMQ_LAKE")}
    assert all(name in text for name in documented)


@pytest.mark.parametrize("example", _EXAMPLES)
def test_every_example_is_accepted_by_its_command(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("broker.conf", "types.toml"):
        (tmp_path / name).touch()
    _, *words = shlex.split(re.split(" [|>] ", example)[0], comments=True)
    name = "rmq-lake"
    ctx = click.Context(rmq_lake, info_name="rmq-lake")
    command: click.Command = rmq_lake
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(ctx, name)

        assert found is not None
        command = found
        ctx = click.Context(command, info_name=name, parent=ctx)
    command.make_context(name, words, parent=ctx.parent)


def test_an_invalid_setting_of_a_broker_is_reported_with_its_file(tmp_path: Path, run: Run) -> None:
    """The message named only the setting."""
    conf = tmp_path / "broker.conf"
    conf.write_text("maxIndexNum=1e6")
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "checkpoint").touch()

    code, _, err = run("inspect", tmp_path, "--broker-conf", conf)

    assert ExitCode.FAILED == code
    assert f"rmq-lake: {conf}: maxIndexNum='1e6' is not an integer from 1 to 2147483647" in err


@pytest.mark.parametrize("option", ["--config", "--broker-conf"])
def test_a_pipe_without_a_writer_is_refused_and_one_with_a_writer_is_read(
    option: str, store: Path, tmp_path: Path, run: Run
) -> None:
    os.mkfifo(tmp_path / "pipe")

    done = run("inspect", store, option, tmp_path / "pipe")

    assert "a pipe into which no process writes" in done.err
    assert done.code is (ExitCode.USAGE if option == "--config" else ExitCode.FAILED)

    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w") as pipe:
        pipe.write("json = true" if option == "--config" else "brokerName = a")
        pipe.close()

        assert run("inspect", store, option, f"/dev/fd/{reading}").code is ExitCode.CLEAN


@pytest.fixture
def seen() -> list[tuple[str | None, str | None]]:
    return []


@pytest.fixture
def look(seen: list[tuple[str | None, str | None]]) -> click.Command:
    """Return a command that reads a store, which is an argument, or a lake, which is an option."""

    @declare_command()
    def look(
        *, store: str | None = argument("[STORE]", required=False), lake: str | None = option("LAKE", "The lake.")
    ) -> ExitCode:
        seen.append((store, lake))
        return ExitCode.CLEAN

    return look


def test_an_argument_next_to_lake_excludes_it(look: click.Command) -> None:
    with pytest.raises(click.UsageError, match="pass exactly one of STORE and --lake LAKE; both are set: store s"):
        look.main(["s", "--lake", "l"], standalone_mode=False)


def test_an_argument_takes_precedence_over_the_lake_of_a_variable(
    look: click.Command, seen: list[tuple[str | None, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMQ_LAKE_LOOK_LAKE", "l")
    bind_environment_variables(look, "look")
    look.main(["s"], standalone_mode=False)

    assert [("s", None)] == seen


def test_a_log_in_two_directories_is_read_whole_however_they_are_given(
    store: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two options --commitlog, the first was ignored, and its segments were reported as lost."""
    directories = [tmp_path / "log a", tmp_path / "log b"]
    for number, segment in enumerate(sorted((store / "commitlog").iterdir())):
        directories[number % 2].mkdir(exist_ok=True)
        segment.rename(directories[number % 2] / segment.name)
    (store / "commitlog").rmdir()
    joined = ",".join(map(str, directories))
    config = tmp_path / "config.toml"
    config.write_text(f"commitlog = {list(map(str, directories))}")

    given = [("--commitlog", directories[0], "--commitlog", directories[1]), ("--commitlog", joined)]
    codes = [run("verify", store, *words).code for words in given]
    codes.append(run("verify", store, "--config", config).code)
    monkeypatch.setenv("RMQ_LAKE_VERIFY_COMMITLOG", joined)
    codes.append(run("verify", store).code)

    assert codes == [ExitCode.CLEAN] * 4
    assert ExitCode.DAMAGE == run("verify", store, "--commitlog", directories[0]).code
