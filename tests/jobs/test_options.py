"""The options that verbs share: flags over environment over configuration file."""

import tomllib
from importlib import import_module
from pathlib import Path
from zoneinfo import ZoneInfo

import click
import pytest
from click.testing import CliRunner, Result

from jobs.launch.places import CONF
from jobs.options import config_option, geometry_options, json_option, quiet_option, store_options
from jobs.verbs import VERBS


@click.group(context_settings={"auto_envvar_prefix": "RMQ_LAKE"})
def tool() -> None:
    """Stand for the group of all verbs."""


@tool.command("ingest")
@store_options
@geometry_options
@json_option
@quiet_option
@config_option
def ingest(**values: object) -> None:
    """Say which values arrived."""
    click.echo({name: value for name, value in values.items() if value not in {None, False}})


def told(*arguments: str, **environment: str) -> dict[str, object]:
    """Return the values that a command line gives to the verb."""
    result = run(*arguments, **environment)
    assert 0 == result.exit_code, result.output
    values: dict[str, object] = eval(result.output, {"ZoneInfo": ZoneInfo, "zoneinfo": __import__("zoneinfo")})  # noqa: S307
    return values


def run(*arguments: str, **environment: str) -> Result:
    """Run `ingest` with these arguments."""
    return CliRunner().invoke(tool, ["ingest", *arguments], env=environment)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Name a configuration file to be written."""
    return tmp_path / "job.toml"


def test_a_configuration_file_gives_what_flags_do_not(config: Path) -> None:
    """A scheduled run keeps its options in a file."""
    config.write_text('store = "/data/store"\nhash-slots = 100\n[ingest]\nindex-num = 400\n')

    assert {"store": "/data/store", "hash_slots": 100, "index_num": 400} == told("--config", str(config))


def test_flags_win_over_the_environment_and_the_environment_over_the_file(config: Path) -> None:
    """The nearer to the command, the stronger."""
    config.write_text("hash-slots = 1\nindex-num = 10\nconsume-queue-size = 20\n")
    environment = {"RMQ_LAKE_INGEST_INDEX_NUM": "11", "RMQ_LAKE_INGEST_HASH_SLOTS": "2"}

    values = told("s", "--config", str(config), "--hash-slots", "3", **environment)

    assert {"store": "s", "hash_slots": 3, "index_num": 11, "consume_queue_size": 20} == values


def test_a_verbs_own_table_wins_over_what_all_verbs_share(config: Path) -> None:
    """The special case is written because it differs."""
    config.write_text("hash-slots = 1\n[ingest]\nhash-slots = 2\n")

    assert {"store": "s", "hash_slots": 2} == told("s", "--config", str(config))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("hash-slot = 1", "unknown key hash-slot; did you mean hash-slots?"),
        ("[ingest]\nhash_slots = 1", "unknown key ingest.hash_slots; did you mean hash-slots?"),
        ("[ingst]\nhash-slots = 1", "unknown key [ingst]"),
        ("hash-slots = 0", "0 is not in the range"),
        ('time-zone = "Mars/Olympus"', "no time zone is named 'Mars/Olympus'"),
        ("hash-slots = ", "Invalid value"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_a_usage_error(config: Path, text: str, named: str) -> None:
    """A key with a typo would otherwise be ignored for years."""
    config.write_text(text)

    result = run("s", "--config", str(config))

    assert 2 == result.exit_code
    assert named in " ".join(result.output.split())


def test_a_missing_configuration_file_is_a_usage_error(config: Path) -> None:
    """Running with defaults instead would do something else than was asked."""
    assert 2 == run("s", "--config", str(config)).exit_code


def test_keys_of_other_verbs_do_not_disturb(config: Path) -> None:
    """One file serves all verbs: what this one has no option for belongs to another."""
    config.write_text('lake = "/lake"\nreport = "/report"\n[query]\nanything = 1\n')

    assert {"store": "s"} == told("s", "--config", str(config))


def test_several_commitlog_paths_keep_their_order() -> None:
    """A broker's storePathCommitLog lists several disks."""
    assert ("/a", "/b") == told("s", "--commitlog", "/a,/b")["commitlog"]


def test_an_empty_commitlog_path_is_a_usage_error() -> None:
    """An empty path would be the working directory."""
    assert 2 == run("s", "--commitlog", "/a,,/b").exit_code


@pytest.mark.parametrize("verb", ["ingest", "verify", "rebuild-index"])
def test_the_example_configuration_is_understood_by_every_verb_it_names(verb: str) -> None:
    """Who copies conf/job.toml gets what it says."""
    command = import_module(VERBS[verb].module).command
    written = tomllib.loads((CONF / "job.toml").read_text())

    group = click.Context(tool, info_name="rmq-lake")
    given = command.make_context(verb, ["--config", str(CONF / "job.toml")], parent=group).params

    assert written["store"] == given["store"]
    assert {name: value for name, value in written[verb].items() if name in {"broker", "settle", "lost-only"}} == {
        name: given[name.replace("-", "_")] for name in written[verb] if name in {"broker", "settle", "lost-only"}
    }
