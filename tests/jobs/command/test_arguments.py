"""Whatever an option is given, on the command line or in a file, is taken or refused in words; never a traceback."""

import json
from contextlib import suppress
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jobs.command import VERBS
from jobs.command.configuration import key_of, settings_of
from jobs.console.result import ExitCode
from tests.golden import StoreOf
from tests.jobs.command.test_places import OPTIONS, Option
from tests.support.commands import Run

VERB_OPTIONS = [option for option in OPTIONS if option.verb and option.parameter.name not in {"help", "show_config"}]
CONFIGURED = [option for option in VERB_OPTIONS if option.parameter in settings_of(option.command)]
TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40),
    st.from_regex(r"\A-?[0-9]{1,400}\Z"),
    st.sampled_from(
        ["", " ", "-", "--", "nan", "1e999", "0x10", "٣", "undefined", "s3a://", "hdfs://", "file://", "a" * 5000]
    ),
)
SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(st.characters(codec="utf-8"), max_size=20)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=5)


def _toml(value: object) -> str:
    if isinstance(value, float):
        return {"inf": "inf", "-inf": "-inf", "nan": "nan"}.get(str(value), str(value))
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=True).replace("\\ud", "?d").replace("\x7f", "?")


def _parsed(option: Option, words: list[str]) -> None:
    parent = click.Context(click.Group("rmq-lake"), info_name="rmq-lake")
    for name in option.verb[:-1]:
        parent = click.Context(VERBS[name].load(), info_name=name, parent=parent)
    with suppress(click.ClickException, click.exceptions.Exit):
        option.command.make_context(option.verb[-1], words, parent=parent)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(option=st.sampled_from(VERB_OPTIONS), text=TEXTS)
def test_any_text_for_any_option_is_taken_or_refused_in_words(option: Option, text: str) -> None:
    if isinstance(option.parameter, click.Argument):
        _parsed(option, ["--", text])
    else:
        _parsed(option, [max(option.parameter.opts, key=len), text])


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(option=st.sampled_from(CONFIGURED), value=VALUES, in_table=st.booleans())
@example(option=CONFIGURED[0], value=[[]], in_table=True)
def test_any_toml_for_any_option_is_taken_or_refused_in_words(
    tmp_path: Path, option: Option, value: object, in_table: bool
) -> None:
    if not any(parameter.name == "config" for parameter in option.command.params):
        return
    config = tmp_path / "job.toml"
    table = f"[{'.'.join(option.verb)}]\n" if in_table else ""
    config.write_text(f"{table}{key_of(option.parameter)} = {_toml(value)}\n", encoding="utf-8")
    _parsed(option, ["--config", str(config)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"limit = {'[' * 5000}{']' * 5000}", "too deep"),
        ("hash-slots = 0", "0 is not in the range"),
        ("[verify]\nhash_slots = 1", "unknown key verify.hash_slots; did you mean hash-slots?"),
        ("[verfy]\nhash-slots = 1", "unknown key [verfy]"),
        ('lake = "/lake"', "lake is for single verbs: put it into their tables, such as [ingest]"),
        ('time-zone = "Mars/Olympus"', "no time zone is named 'Mars/Olympus'"),
        ("limit = ", "Invalid value"),
        ("limit = [1, 2]", "limit is one integer range, not a list"),
        ("limit = 1979-05-27", "limit is one integer range, not '1979-05-27'"),
        ("verify = 5", "verify is a table, not '5'"),
        ("limit = true", "limit is one integer range, not true or false"),
        ("json = 1", "json is true or false, not '1'"),
        (f"limit = {'9' * 5000}", "job.toml: "),
        ("[query]\nby-key = 3\n", "query.by-key is a table, not '3'"),
        ("[query]\ntopics = 3\n", "unknown key query.topics; did you mean topic?"),
        ("[query.by-kay]\ntopic = 3\n", "unknown key [query.by-kay]; did you mean by-key?"),
        ("[query.by-key]\nbefore = 3\n", "unknown key query.by-key.before"),
        ('[query.by-key]\nsince = "1"\nbegin = "2"\n', "since and begin are names of one option: give one"),
        ("[verify.deep]\nx = 1", "unknown key [verify.deep]"),
        ("limit = 5.5", "'5.5' is not a valid integer range"),
        ("[verify.limit]\nx = 1", "limit"),
        ("# " + "x" * (1 << 20), "not a configuration"),
        ("limit = \x00", "job.toml: "),
    ],
)
def test_a_configuration_file_of_the_wrong_kind_is_refused_in_words(
    text: str, said: str, tmp_path: Path, run: Run
) -> None:
    config = tmp_path / "job.toml"
    config.write_text(text)
    verb = ["query", "by-key"] if "query" in text else ["verify", str(tmp_path / "store")]
    outcome = run(*verb, "--config", config)

    assert outcome.code is ExitCode.USAGE
    assert said in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("charset", ["undefined", "punycode", "idna", "rot13", "base64", "", "x" * 3000, "a\0b", "é"])
def test_a_charset_that_shows_no_bytes_is_a_usage_error(charset: str, tmp_path: Path, run: Run) -> None:
    outcome = run("query", "by-id", "--store", tmp_path, "-i", "x", "--body", f"--charset={charset}")

    assert outcome.code is ExitCode.USAGE
    assert "is not a charset that a body can be shown in" in outcome.err


OF_QUERY = ("query", "by-key", "-t", "T1", "-k", "k1")


@pytest.mark.parametrize("words", [OF_QUERY, ("query", "list"), ("export", "--dry-run", "--out", "new")])
def test_of_a_store_and_a_lake_the_typed_one_counts_and_of_two_in_a_file_none(
    words: tuple[str, ...], golden: StoreOf, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "job.toml"
    config.write_text(f'[{words[0]}]\nstore = "/no/such/store"\nlake = "/no/such/lake"\n')
    typed = run(*words, "--config", config, "--store", golden("b551-base"))
    configured = run(*words, "--config", config)
    config.write_text(f'store = "/no/such/store"\n[{words[0]}]\nstore = "{golden("b551-base")}"\n')
    in_table = run(*words, "--config", config)
    monkeypatch.setenv(f"RMQ_LAKE_{'_'.join(words[: 1 + (words[0] == 'query')]).upper().replace('-', '_')}_LAKE", "/l")
    of_environment = run(*words, "--config", config)

    assert typed.code is in_table.code is ExitCode.CLEAN, typed.err + in_table.err
    assert ExitCode.USAGE is configured.code
    assert f"both are given: store /no/such/store ({config}), lake /no/such/lake ({config})" in configured.err
    assert "/l: No such file or directory" in of_environment.err


@pytest.mark.parametrize(
    "text",
    [
        '[query]\ntopic = "T1"\nkey = "k1"\nqueue-id = 0\nbefore = "1"',
        '[query.by-key]\ntopic = "T1"\nkey = "k1"\n[query]\ntopic = "T2"\nkey = "nobody"',
        *(f'[query]\ntopic = "T1"\nkey = "k1"\n{since} = "2026-01-01"\n{until} = "2027-01-01"'
          for since, until in (("since", "until"), ("begin", "end"))),
    ],
)  # fmt: skip
def test_a_table_of_query_holds_for_all_of_its_commands_by_each_name_of_an_option(
    text: str, golden: StoreOf, tmp_path: Path, run: Run
) -> None:
    config = tmp_path / "job.toml"
    config.write_text(text)
    found = run("query", "by-key", "--store", golden("b551-base"), "--time-zone", "UTC", "--config", config)

    assert found.code is ExitCode.CLEAN, found.err
    assert found.out == run(*OF_QUERY, "--store", golden("b551-base"), "--time-zone", "UTC").out


def test_a_time_in_the_table_of_query_bounds_its_answers(golden: StoreOf, tmp_path: Path, run: Run) -> None:
    config = tmp_path / "job.toml"
    place = ("--store", golden("b551-base"), "--config", config)
    for key in ("since", "begin"):
        config.write_text(f'[query]\n{key} = "2099-01-01T00:00:00Z"\n')
        assert run(*OF_QUERY, *place).code is ExitCode.NOT_FOUND
    config.write_text('[query]\nsince = "2099-01-01T00:00:00Z"\n')
    assert run("query", "list", *place).code is ExitCode.NOT_FOUND
