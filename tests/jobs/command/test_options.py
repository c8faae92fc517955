"""The options that verbs share: flags over environment over configuration file."""

import json
import re
import shlex
from pathlib import Path
from zoneinfo import ZoneInfo

import click
import pytest
from click.testing import CliRunner, Result

from jobs.command import VERBS
from jobs.command.answer import Answer
from jobs.command.cli import rmq_lake
from jobs.command.configuration import config_option, name_variables
from jobs.command.options import (
    StoreForm,
    StorePlace,
    form_options,
    given_time,
    json_option,
    log_place,
    quiet_option,
    store_options,
)
from jobs.console.amounts import GivenTime, parse_time, time_text
from jobs.console.result import ExitCode
from rmq_formats.broker_conf import BrokerConf
from tests.golden import StoreOf
from tests.support.commands import Run
from tests.support.reference import VARIABLES, page


@click.group()
def tool() -> None:
    """Stand for the group of all verbs."""


@tool.command("ingest")
@store_options
@form_options
@json_option
@quiet_option
@config_option
def ingest(*, place: StorePlace, form: StoreForm, **others: object) -> None:
    values: dict[str, object] = {**place._asdict(), **form._asdict(), **others}
    click.echo({name: value for name, value in values.items() if value not in {None, False}})


def told(*arguments: str, **environment: str) -> dict[str, object]:
    result = run(*arguments, **environment)
    assert 0 == result.exit_code, result.output
    values: dict[str, object] = eval(result.output, {"ZoneInfo": ZoneInfo, "zoneinfo": __import__("zoneinfo")})  # noqa: S307
    return values


def run(*arguments: str, **environment: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobs.command.configuration.check_places", lambda _: None)  # places here are texts
        for name, value in environment.items():
            patch.setenv(name, value)
        name_variables(ingest, "ingest")
        return CliRunner().invoke(tool, ["ingest", *arguments])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "job.toml"


def test_flags_win_over_the_environment_and_the_environment_over_the_file(config: Path) -> None:
    config.write_text("hash-slots = 1\nindex-num = 10\nconsume-queue-size = 20\n")
    environment = {"RMQ_LAKE_INGEST_INDEX_NUM": "11", "RMQ_LAKE_INGEST_HASH_SLOTS": "2"}

    values = told("s", "--config", str(config), "--hash-slots", "3", **environment)

    assert {"store": "s", "hash_slots": 3, "index_num": 11, "consume_queue_size": 20} == values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hash-slots = 1\n[ingest]\nhash-slots = 2\n", {"store": "s", "hash_slots": 2}),
        ('broker = "b"\nreport = "/report"\n[query]\nanything = 1\n', {"store": "s"}),
    ],
)
def test_a_verbs_own_table_wins_over_what_all_share_and_keys_of_other_verbs_do_not_disturb(
    config: Path, text: str, expected: dict[str, object]
) -> None:
    config.write_text(text)

    assert expected == told("s", "--config", str(config))


def test_a_variable_that_no_option_reads_is_a_usage_error() -> None:
    with pytest.raises(click.UsageError, match="HASH_SLOT: no such option; did you mean RMQ_LAKE_INGEST_HASH_SLOTS"):
        run("s", RMQ_LAKE_INGEST_HASH_SLOT="1")
    assert {"store": "s"} == told("s", RMQ_LAKE_VERIFY_ANYTHING="1")


@pytest.mark.parametrize(
    "name", ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT_80_TCP", "PORT_80_TCP_ADDR"]
)
def test_variables_that_kubernetes_injects_for_a_service_are_ignored(name: str) -> None:
    assert {"store": "s"} == told("s", **{f"RMQ_LAKE_INGEST_{name}": "tcp://10.0.0.1:80"})


def test_a_service_variable_with_the_name_of_an_option_is_ignored() -> None:
    """Of a service `rmq-lake-browse` Kubernetes sets RMQ_LAKE_BROWSE_PORT, which is also `browse --port`."""
    command = VERBS["browse"].load()
    for value, expected in (("tcp://10.0.0.1:80", 0), ("81", 81)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RMQ_LAKE_BROWSE_PORT", value)
            name_variables(command, "browse")
            assert expected == command.make_context("browse", ["/store"], parent=click.Context(tool)).params["port"]


def test_every_setting_is_shown_with_where_it_is_from(config: Path) -> None:
    config.write_text('index-num = 11\n[ingest]\ntime-zone = "Asia/Shanghai"\n')

    result = run("/s", "--config", str(config), "--show-config", "--quiet", RMQ_LAKE_INGEST_HASH_SLOTS="2")

    lines = [tuple(map(str.strip, line.rsplit("#", 1))) for line in result.output.splitlines()]
    assert [
        ("[ingest]",),
        ('store = "/s"', "command line"),
        ("# commitlog", "not set"),
        ("# broker-conf", "not set"),
        ("hash-slots = 2", "RMQ_LAKE_INGEST_HASH_SLOTS"),
        ("index-num = 11", str(config)),
        ("# consume-queue-size", "not set"),
        ("# release", "not set"),
        ('time-zone = "Asia/Shanghai"', str(config)),
        ("json = false", "default"),
        ("quiet = true", "command line"),
    ] == lines


def test_what_is_shown_can_be_kept_as_a_configuration_file(config: Path) -> None:
    shown = run("/s", "--commitlog", "/a,/b", "--time-zone", "UTC", "--show-config").output
    config.write_text(shown)

    again = run("--config", str(config), "--show-config", "--json")

    assert 0 == again.exit_code, again.output
    settings = json.loads(again.output)["settings"]
    assert ["/a", "/b"] == settings["commitlog"]["value"]
    assert ("UTC", str(config)) == (settings["time-zone"]["value"], settings["time-zone"]["from"])


@pytest.mark.parametrize("text", ["2026-11-20 07:42", "2h", "1763624520000", "4096", "2026-11-20T07:42:00.123+08:00"])
def test_a_moment_and_a_place_in_the_log_are_shown_as_they_were_given(text: str) -> None:
    assert text == str(given_time(text)) == str(log_place(text))


@pytest.mark.parametrize("option", ["--commitlog=/a,,/b", "--config=no such file"])
def test_an_empty_path_and_a_file_that_is_missing_are_usage_errors(option: str) -> None:
    assert 2 == run("s", option).exit_code


def test_marks_of_a_release_are_shown_to_who_asks_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    line = "  read as written by RocketMQ 5.5.0 to 5.5.1 (detected: a region; a half message (of 2))"
    Answer().add([line])
    Answer(verbose=True).add([line])

    assert ["  read as written by RocketMQ 5.5.0 to 5.5.1 (detected)", line] == capsys.readouterr().out.splitlines()


def test_an_option_counts_more_than_the_brokers_configuration() -> None:
    form = StoreForm(None, None, 200, None, None)

    sizes = [form.wanted(BrokerConf(consume_queue_size=given)).conf.consume_queue_size for given in (None, 6_000_000)]
    assert sizes == [200, 200]
    assert (
        form._replace(consume_queue_size=None).wanted(BrokerConf(consume_queue_size=60)).conf.consume_queue_size == 60
    )


SHANGHAI = ZoneInfo("Asia/Shanghai")
STORED = 1_763_624_520_000  # 2025-11-20 07:42:00 UTC


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        (str(STORED), STORED),
        ("-9223372036854775808", -(1 << 63)),
        ("2025-11-20T07:42:00Z", STORED),
        ("2025-11-20T15:42:00+08:00", STORED),
        ("2025-11-20 15:42", STORED),
        ("2025-11-20 15:42:00.250", STORED + 250),
    ],
)
def test_a_time_is_read_however_it_is_written(text: str, milliseconds: int) -> None:
    assert milliseconds == GivenTime(text).milliseconds(SHANGHAI)
    assert STORED - 7_200_000 == parse_time("2h", STORED)


@pytest.mark.parametrize("text", ["", "yesterday", "2025-13-01", "2y", "07:42"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        GivenTime(text)


def test_the_zone_is_said_where_the_text_does_not_say_it() -> None:
    assert GivenTime("2025-11-20 15:42").interpretation(SHANGHAI) == (
        "'2025-11-20 15:42' is taken in Asia/Shanghai: 2025-11-20 07:42:00.000 UTC"
    )
    assert GivenTime(str(STORED)).interpretation(SHANGHAI) is None
    assert GivenTime("2h").interpretation(SHANGHAI) is None
    assert "2025-11-20 07:42:00.000 UTC" == time_text(STORED)


def test_a_query_takes_times_and_says_their_zone(golden: StoreOf, run: Run) -> None:
    place = ("--store", golden("b551-base"), "--time-zone", "Asia/Shanghai")
    key = ("query", "by-key", "-t", "T1", "-k", "k1", *place)
    line = ("query", "mqadmin", *place, "queryMsgByKey", "-t", "T1", "-k", "k1")
    every, none = run(*key), run(*key, "--until", "2026-11-20 15:42")
    some = run(*key, "--since", "2026-11-20 15:42", "--until", "2026-11-20T07:43:00Z")
    as_mqadmin = run(*line, "-b", "2026-11-20 15:42", "-e", "2026-11-20T07:43:00Z")

    assert (every.code, some.code, none.code) == (ExitCode.CLEAN, ExitCode.CLEAN, ExitCode.NOT_FOUND)
    assert every.out == some.out == as_mqadmin.out
    assert "'2026-11-20 15:42' is taken in Asia/Shanghai: 2026-11-20 07:42:00.000 UTC" in some.err
    assert run(*key, "--since", "soon").code is ExitCode.USAGE


@pytest.mark.parametrize(
    "words",
    [
        ("export", "--out", "out"),
        ("query", "list"),
        ("query", "list", "-t", "T1", "--time-zone", "UTC"),
        ("query", "by-key", "-t", "T1", "-k", "k0"),
    ],
)
def test_a_window_that_ends_before_it_begins_is_refused(
    golden: StoreOf, words: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    words = tuple(str(tmp_path / "out") if word == "out" else word for word in words)
    outcome = run(*words, "--store", golden("b551-base"), "--since", "2026-11-21", "--until", "2026-11-20")

    assert outcome.code is ExitCode.USAGE
    assert "--until 2026-11-20 is before --since 2026-11-21: the window ends before it begins" in outcome.err
    assert not list(tmp_path.iterdir())


ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
_EXAMPLES = [
    line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) for line in block.splitlines()
]


def test_the_page_is_made_from_the_code() -> None:
    assert page() == PAGE


def test_every_variable_that_the_code_reads_is_documented() -> None:
    sources = [*(ROOT / "jobs").rglob("*.py"), ROOT / "spark-submit.sh"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources if path.name != "reference.py")
    read = set(re.findall(r"\bRMQ_LAKE_[A-Z0-9_]*[A-Z0-9]\b", text)) - {
        "RMQ_LAKE_WORKER_MODULE",
    }  # ours alone

    assert read == {name for name in VARIABLES if name.startswith("RMQ_LAKE") and "<" not in name}
    assert all(name in text for name in VARIABLES if "<" not in name)


@pytest.mark.parametrize("example", _EXAMPLES)
def test_every_example_is_understood_by_its_verb(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
