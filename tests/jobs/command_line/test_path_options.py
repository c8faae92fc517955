"""No option of any command writes into a store, not even through a link. New options are tested automatically."""

import json
import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jobs.command_line import COMMAND_TABLE
from jobs.command_line.cli import rmq_lake
from jobs.command_line.configuration import configurable_parameters, leaf_commands, parameter_key
from jobs.console.result import ExitCode
from jobs.launch.cache import CONF_DIRECTORY
from jobs.options.places import CHANGED_LAKE, LAKE, NEW_STORE, OUTPUT_FILE, STORE, LocationType
from tests.support.commands import Run
from tests.support.query_stores import Sent, stored, write_store
from tests.support.stores import tree_state


class Option(NamedTuple):
    """A parameter of a command."""

    names: tuple[str, ...]
    parameter: click.Parameter
    command: click.Command


def _options() -> Iterator[Option]:
    yield from (Option((), parameter, rmq_lake) for parameter in rmq_lake.params)
    for entry in COMMAND_TABLE.values():
        for names, command in leaf_commands(entry.load(), (entry.name,)):
            yield from (Option(names, parameter, command) for parameter in command.params)


OPTIONS = list(_options())
OUTPUTS = [option for option in OPTIONS if getattr(option.parameter.type, "is_output", False)]


def _name(option: Option) -> str:
    return " ".join((*option.names, max(option.parameter.opts, key=len)))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "store", stored([Sent(body=b"x")]))


def _is_guarded(parameter: click.Parameter) -> bool:
    return isinstance(parameter.type, LocationType) and parameter.type.is_guarded


def _command_line(option: Option, place: Path, store: Path | str) -> list[str]:
    words = list(option.names)
    arguments = []
    for parameter in option.command.params:
        named = parameter is option.parameter
        if not named and not parameter.required and "--store" not in parameter.opts:
            continue
        if named:
            value = str(place)
        elif _is_guarded(parameter):
            value = str(store)
        elif isinstance(parameter.type, click.Path) and parameter.type.exists:
            value = __file__
        else:
            value = "1" if isinstance(parameter.type, click.types.IntParamType) else str(place.parent / "other")
        if isinstance(parameter, click.Argument):
            arguments.append(value)
        else:
            words += [max(parameter.opts, key=len), value]
    return [*words, *arguments]


def test_every_path_option_declares_whether_it_is_written() -> None:
    unguarded = [
        _name(option)
        for option in OPTIONS
        if isinstance(option.parameter.type, click.Path | click.File)
        and option not in OUTPUTS
        and not (isinstance(option.parameter.type, click.Path) and option.parameter.type.exists)
    ]

    assert unguarded == []


WAYS = ("inside", "itself", "link", "below a link", "beside a segment")


@pytest.mark.sample(30)
@pytest.mark.parametrize(
    ("option", "way"),
    [
        pytest.param(option, way, id=f"{_name(option)} {way}")
        for option in OUTPUTS
        for way in WAYS
        # `restore` itself checks whether the directory contains an interrupted restore.
        if not (option.parameter.type is NEW_STORE and way in {"itself", "link"})
    ],
)
def test_no_option_writes_into_a_store(option: Option, way: str, store: Path, tmp_path: Path, run: Run) -> None:
    link = tmp_path / "link"
    link.symlink_to(store)
    place = {
        "inside": store / "new" / "20260101000000000",
        "itself": store,
        "link": link,
        "below a link": link / "config" / ".." / "index" / "new",
        "beside a segment": store / "commitlog" / "new",
    }[way]
    before = tree_state(store)
    outcome = run(*_command_line(option, place, tmp_path / "elsewhere"))

    assert outcome.code is ExitCode.USAGE
    assert re.search("Choose a location outside the store|is a broker store, not a lake", outcome.err)
    assert before == tree_state(store)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "store"]


@pytest.mark.parametrize(
    "option", [option for option in OUTPUTS if any(map(_is_guarded, option.command.params))], ids=_name
)
def test_a_store_without_a_log_is_protected_as_well(option: Option, tmp_path: Path, run: Run) -> None:
    (tmp_path / "store" / "index").mkdir(parents=True)
    words = _command_line(option, tmp_path / "store" / "index" / "new", tmp_path / "store")
    outcome = run(*words)

    assert outcome.code is ExitCode.USAGE
    assert "Choose a location outside the store" in outcome.err
    assert not list((tmp_path / "store" / "index").iterdir())


@pytest.mark.parametrize("option", [option for option in OUTPUTS if option.parameter.type is OUTPUT_FILE], ids=_name)
def test_only_a_regular_file_is_replaced(option: Option, tmp_path: Path, run: Run) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    outcome = run(*_command_line(option, pipe, tmp_path / "elsewhere"))

    assert outcome.code is ExitCode.USAGE
    assert "not a regular file" in outcome.err
    assert pipe.is_fifo()


EXPECTED = [option for option in OPTIONS if option.parameter.type in {STORE, LAKE, CHANGED_LAKE}]


# The commands started for a directory with the last files, and failed with exit code 1.
OTHERS = {
    "a mistyped path": [],
    "a file": [""],
    "another directory": ["photos/1.jpg"],
    "a directory with files that stores also have": ["abort", "lock", "timerwheel", "rocksdbstore/CURRENT"],
}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("option", EXPECTED, ids=_name)
def test_a_missing_store_or_lake_is_refused_before_anything_is_created(
    option: Option, kind: str, store: Path, tmp_path: Path, run: Run
) -> None:
    place = tmp_path / "place"
    for path in (place / name for name in OTHERS[kind]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    before = tree_state(tmp_path)
    outcome = run(*_command_line(option, place, store))

    assert outcome.code is ExitCode.USAGE
    assert str(place) in outcome.err.replace("\n", " ")
    assert before == tree_state(tmp_path)


def test_only_ingest_and_repair_get_the_lake_of_the_sample(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """`query` and `export` refused the sample, and `verify` wrote tables into a lake that its line does not name."""
    monkeypatch.setattr("jobs.command_line.configuration.line_width_limit", lambda _: 60)
    lakes = set()
    stores = {}
    for names in {option.names for option in OPTIONS if option.parameter.name == "config"}:
        shown = run(*names, "--config", CONF_DIRECTORY / "job.toml", "--show-config")

        assert all(len(line) <= 60 or "job.toml" in line for line in shown.out.splitlines())
        settings = reduce(getitem, names, tomllib.loads(shown.out))
        lakes |= {(" ".join(names), key) for key, value in settings.items() if value == "/data/lake"}
        stores[" ".join(names)] = settings.get("store")

    assert {("ingest", "lake"), ("repair", "lake")} == lakes
    without = {"browse", "catalog", "dump", "optimize", "query sql", "restore", "type"}

    assert {name: None if name in without else "/data/rocketmq/store" for name in stores} == stores


def test_settings_are_shown_on_a_terminal_that_is_narrower_than_each_of_their_origins(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.command_line.configuration.line_width_limit", lambda _: 20)
    shown = run("ingest", "--config", CONF_DIRECTORY / "job.toml", "--show-config")

    assert tomllib.loads(shown.out)["ingest"]["lake"] == "/data/lake"


# Any value of an option is accepted, or refused with a message, but never with a traceback.
COMMAND_OPTIONS = [
    option for option in OPTIONS if option.names and option.parameter.name not in {"help", "show_config"}
]
CONFIGURED = [option for option in COMMAND_OPTIONS if option.parameter in configurable_parameters(option.command)]
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


def _parse(option: Option, words: list[str]) -> None:
    parent = click.Context(click.Group("rmq-lake"), info_name="rmq-lake")
    for name in option.names[:-1]:
        parent = click.Context(COMMAND_TABLE[name].load(), info_name=name, parent=parent)
    with suppress(click.ClickException, click.exceptions.Exit):
        option.command.make_context(option.names[-1], words, parent=parent)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(option=st.sampled_from(COMMAND_OPTIONS), text=TEXTS)
def test_any_text_for_any_option_is_accepted_or_refused_with_a_message(option: Option, text: str) -> None:
    if isinstance(option.parameter, click.Argument):
        _parse(option, ["--", text])
    else:
        _parse(option, [max(option.parameter.opts, key=len), text])


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(option=st.sampled_from(CONFIGURED), value=VALUES, in_table=st.booleans())
@example(option=CONFIGURED[0], value=[[]], in_table=True)
def test_any_toml_for_any_option_is_accepted_or_refused_with_a_message(
    tmp_path: Path, option: Option, value: object, in_table: bool
) -> None:
    if not any(parameter.name == "config" for parameter in option.command.params):
        return
    config = tmp_path / "job.toml"
    table = f"[{'.'.join(option.names)}]\n" if in_table else ""
    config.write_text(f"{table}{parameter_key(option.parameter)} = {_toml(value)}\n", encoding="utf-8")
    _parse(option, ["--config", str(config)])


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "LOOP"),
        ("dump", "LOOP"),
        ("verify", "LOOP"),
        ("verify", "STORE", "--commitlog", "LOOP"),
        ("verify", "STORE", "--findings-lake", "LOOP"),
        ("diff", "STORE", "LOOP"),
        ("ingest", "STORE", "--lake", "LOOP"),
        ("repair", "STORE", "--out", "LOOP"),
        ("rebuild-index", "LOOP", "--out", "NEW"),
        ("query", "sql", "--lake", "LOOP", "SELECT 1"),
    ],
    ids=" ".join,
)
def test_a_link_to_itself_is_a_usage_error_with_its_path(
    words: tuple[str, ...], store: Path, tmp_path: Path, run: Run
) -> None:
    """The exit code was 1, as if the disk had failed."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    places = {"LOOP": loop, "STORE": store, "NEW": tmp_path / "new"}

    outcome = run(*(places.get(word, word) for word in words))

    assert ExitCode.USAGE == outcome.code
    assert f"{loop}: Too many levels of symbolic links" in outcome.err
