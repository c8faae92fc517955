"""Options of all commands; flags take precedence over the environment, and that over the configuration file."""

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from jobs.command import VERBS
from jobs.command.cli import rmq_lake
from jobs.command.configuration import bind_environment_variables
from jobs.console.amounts import parse_time
from jobs.console.result import ExitCode
from tests.golden import StoreOf
from tests.support.commands import Run
from tests.support.reference import commands_page

Settings = Callable[..., dict[str, object]]


@pytest.fixture
def settings(golden: StoreOf, run: Run) -> Settings:
    """Return a function that runs `verify` with more options, and returns the settings that it shows."""

    def show_settings(*words: str | Path) -> dict[str, object]:
        outcome = run("verify", golden("b551-base"), "--show-config", "--json", *words)
        assert outcome.code is ExitCode.CLEAN, outcome.err
        return {name: setting["value"] for name, setting in outcome.document["settings"].items()}

    return show_settings


def test_flags_override_the_environment_and_the_environment_overrides_the_file(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.toml").write_text("hash-slots = 1\nindex-num = 10\nconsume-queue-size = 20\n")
    monkeypatch.setenv("RMQ_LAKE_VERIFY_INDEX_NUM", "11")
    monkeypatch.setenv("RMQ_LAKE_VERIFY_HASH_SLOTS", "2")
    show_settings = settings("--config", tmp_path / "job.toml", "--hash-slots", "3")

    assert {"hash-slots": 3, "index-num": 11, "consume-queue-size": 20}.items() <= show_settings.items()


def test_a_location_in_the_environment_overrides_those_of_a_file(
    golden: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    (tmp_path / "job.toml").write_text(f'[query]\nstore = "{golden("b551-base")}"\n')
    monkeypatch.setenv("RMQ_LAKE_QUERY_LIST_LAKE", "/l")

    assert "/l: No such file or directory" in run("query", "list", "--config", tmp_path / "job.toml").err


def test_a_variable_that_no_option_reads_is_a_usage_error(
    settings: Settings, golden: StoreOf, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("RMQ_LAKE_INGEST_ANYTHING", "1")
    settings()
    monkeypatch.setenv("RMQ_LAKE_VERIFY_HASH_SLOT", "1")
    refused = run("verify", golden("b551-base"), "--show-config")

    assert refused.code is ExitCode.USAGE
    assert "HASH_SLOT: no such option; did you mean RMQ_LAKE_VERIFY_HASH_SLOTS" in refused.err


def test_variables_that_kubernetes_injects_for_a_service_are_ignored(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a service `rmq-lake-browse`, it sets RMQ_LAKE_BROWSE_PORT, the variable of `browse --port`."""
    for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT_80_TCP", "PORT_80_TCP_ADDR"):
        monkeypatch.setenv(f"RMQ_LAKE_VERIFY_{name}", "tcp://10.0.0.1:80")
    settings()
    command = VERBS["browse"].load()
    for value, expected in (("tcp://10.0.0.1:80", 0), ("81", 81)):
        monkeypatch.setenv("RMQ_LAKE_BROWSE_PORT", value)
        bind_environment_variables(command, "browse")
        parent = click.Context(click.Group("rmq-lake"))
        assert expected == command.make_context("browse", ["/store"], parent=parent).params["port"]


STORED = 1_763_624_520_000  # 2025-11-20 07:42:00 UTC


def test_a_time_may_be_relative_to_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.console.amounts.time.time_ns", lambda: STORED * 1_000_000)

    assert STORED - 7_200_000 == parse_time("2h")


def test_spark_options_with_unbalanced_quotes_are_a_usage_error(
    golden: StoreOf, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMQ_LAKE_SPARK_OPTIONS", "--conf 'a")
    ended = run("inspect", golden("b551-base"))

    assert (ended.code, "RMQ_LAKE_SPARK_OPTIONS: No closing quotation" in ended.err) == (ExitCode.USAGE, True)


ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
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
def test_every_example_is_accepted_by_its_verb(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("broker.conf", "types.toml"):
        (tmp_path / name).touch()
    _, *words = shlex.split(re.split(" [|>] ", example)[0], comments=True)
    name, ctx = "rmq-lake", click.Context(rmq_lake, info_name="rmq-lake")
    command: click.Command = rmq_lake
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(ctx, name)
        assert found is not None
        command = found
        ctx = click.Context(command, info_name=name, parent=ctx)
    command.make_context(name, words, parent=ctx.parent)


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
