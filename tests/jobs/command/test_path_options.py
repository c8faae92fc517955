"""No option of any command writes into a store, not even through a link. New options are tested automatically."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, cast

import click
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jobs.command import VERBS, cli
from jobs.command.cli import rmq_lake
from jobs.command.configuration import configurable_parameters, leaf_commands, parameter_key
from jobs.command.places import CHANGED_LAKE, LAKE, NEW_STORE, OUTPUT_FILE, STORE, PlaceType, find_enclosing_store
from jobs.console.result import ExitCode
from jobs.launch.cache import CONF_DIRECTORY
from tests.golden import StoreOf
from tests.support.commands import Run, copy_store, ignore_spark_session, read_state
from tests.support.lakes import ingest_store
from tests.support.query_stores import Sent, stored, write_store


class Option(NamedTuple):
    """A parameter of a command."""

    verb: tuple[str, ...]
    parameter: click.Parameter
    command: click.Command


def _options() -> Iterator[Option]:
    yield from (Option((), parameter, rmq_lake) for parameter in rmq_lake.params)
    for verb in VERBS.values():
        for names, command in leaf_commands(verb.load(), (verb.name,)):
            yield from (Option(names, parameter, command) for parameter in command.params)


OPTIONS = list(_options())
OUTPUTS = [option for option in OPTIONS if getattr(option.parameter.type, "is_output", False)]


def _name(option: Option) -> str:
    return " ".join((*option.verb, max(option.parameter.opts, key=len)))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "store", stored([Sent(body=b"x")]))


def _is_guarded(parameter: click.Parameter) -> bool:
    return isinstance(parameter.type, PlaceType) and parameter.type.is_guarded


def _command_line(option: Option, place: Path, store: Path | str) -> list[str]:
    words = list(option.verb)
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
    before = read_state(store)
    outcome = run(*_command_line(option, place, tmp_path / "elsewhere"))

    assert outcome.code is ExitCode.USAGE
    assert re.search("Choose a location outside the store|is a broker store, not a lake", outcome.err)
    assert before == read_state(store)
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


def test_the_words_of_a_system_error_do_not_change_the_form_of_the_message(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise OSError(errno.EUCLEAN, "is unclean")

    monkeypatch.setattr(os, "scandir", refuse)
    outcome = run("inspect", tmp_path)

    assert outcome.code is ExitCode.USAGE
    assert f"{tmp_path}: is unclean" in outcome.err


def test_directories_next_to_a_store_are_not_protected(store: Path, tmp_path: Path) -> None:
    queues = tmp_path / "queues" / "T" / "0"
    queues.mkdir(parents=True)
    (queues / f"{0:020d}").touch()

    for place in (tmp_path, tmp_path / "lake", tmp_path / "store-2", tmp_path / "queues"):
        assert find_enclosing_store(str(place)) is None
    assert str(store) == find_enclosing_store(str(store / "a" / "b"))


@pytest.mark.parametrize("option", [option for option in OUTPUTS if option.parameter.type is OUTPUT_FILE], ids=_name)
def test_only_a_regular_file_is_replaced(option: Option, tmp_path: Path, run: Run) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    outcome = run(*_command_line(option, pipe, tmp_path / "elsewhere"))
    assert outcome.code is ExitCode.USAGE
    assert "not a regular file" in outcome.err
    assert pipe.is_fifo()


EXPECTED = [option for option in OPTIONS if option.parameter.type in {STORE, LAKE, CHANGED_LAKE}]


@pytest.mark.parametrize("kind", ["a mistyped path", "a file", "another directory"])
@pytest.mark.parametrize("option", EXPECTED, ids=_name)
def test_a_missing_store_or_lake_is_refused_before_anything_is_created(
    option: Option, kind: str, store: Path, tmp_path: Path, run: Run
) -> None:
    place = tmp_path / "place"
    if kind == "a file":
        place.touch()
    elif kind == "another directory":
        (place / "photos").mkdir(parents=True)
        (place / "photos" / "1.jpg").touch()
    before = read_state(tmp_path)
    outcome = run(*_command_line(option, place, store))

    assert outcome.code is ExitCode.USAGE
    assert str(place) in outcome.err.replace("\n", " ")
    assert before == read_state(tmp_path)


@pytest.mark.parametrize("name", ["abort", "lock", "timerwheel", "rocksdbstore/CURRENT"])
@pytest.mark.parametrize("verb", [["inspect"], ["verify"], ["query", "list", "--store"]])
def test_a_directory_without_store_files_is_refused_like_an_empty_one(
    verb: list[str], name: str, tmp_path: Path, run: Run
) -> None:
    """The commands started and failed with exit code 1."""
    path = tmp_path / "store" / name
    path.parent.mkdir(parents=True)
    path.touch()
    outcome = run(*verb, tmp_path / "store")

    assert outcome.code is ExitCode.USAGE
    assert "not a store root: it contains no commitlog" in outcome.err


def test_a_directory_above_a_store_is_not_called_a_store(
    store: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ingest` reported that the lake is inside the store '.'."""
    monkeypatch.chdir(tmp_path)
    outcome = run("ingest", ".", "--lake", "lake")

    assert outcome.code is ExitCode.USAGE
    assert f"Did you mean {str(store)!r}?" in outcome.err
    assert "is inside the store" not in outcome.err


# The arguments of a command besides `--config`; the sample file contains the others.
LINES = {
    "inspect": "",
    "dump": "{segment}",
    "ingest": "",
    "verify": "",
    "rebuild-index": "",
    "rebuild-consumequeue": "--out {new}",
    "restore": "{other} --out {new}",
    "repair": "--out {new}",
    "diff": "{store} {other}",
    "query by-key": "-t T1 -k k1",
    "query by-id": "-i 7F00000100002A9F0000000000000000",
    "query message": "-i 7F00000100002A9F0000000000000000",
    "query by-unique-key": "-t T1 -i 7F00000100002A9F0000000000000000",
    "query by-offset": "-t T1 -i 0 -o 0",
    "query list": "-t T1",
    "query story": "-t T1 -k k1",
    "query sql": "--lake {other}",
    "query decode-id": "7F00000100002A9F0000000000000000",
    "query mqadmin": "topicList",
    "browse": "{store}",
    "export": "--out {new}",
    "type": "{other} --types {types}",
    "optimize": "{other}",
    "catalog": "{other}",
}
_NO_CONFIG = {"demo", "query decode-id"}


def _configure(folder: Path) -> Path:
    """Move the locations of the sample file below a folder."""
    text = (CONF_DIRECTORY / "job.toml").read_text().replace("/data/rocketmq/store", f"{folder}/b551-base")
    (folder / "job.toml").write_text(text.replace("/data/", f"{folder}/data/"))
    return folder / "job.toml"


@pytest.fixture(scope="module")
def ingested(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store, the lake of the sample file and another lake."""
    folder = tmp_path_factory.mktemp("sample")
    store = copy_store(golden("b551-base"), folder)
    ingest_store(store, folder / "other")
    with pytest.MonkeyPatch.context() as patched:
        ignore_spark_session(patched)
        assert cli.main(["ingest", "--config", str(_configure(folder)), "--quiet"]) is ExitCode.CLEAN
    return folder


@pytest.fixture
def fill_in(ingested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    ignore_spark_session(monkeypatch)
    monkeypatch.setattr("jobs.browse.server.serve", lambda *_, **__: ExitCode.CLEAN)
    shutil.copytree(ingested, tmp_path, dirs_exist_ok=True)
    _configure(tmp_path)
    store = tmp_path / "b551-base"
    (tmp_path / "types.toml").write_text('topic.T1 = {format = "json", schema = "id bigint"}')
    places = {"store": store, "other": tmp_path / "other", "new": tmp_path / "new", "types": tmp_path / "types.toml"}
    places["segment"] = min((store / "commitlog").iterdir())
    return lambda line: line.format(**places).split()


@pytest.mark.parametrize("verb", LINES)
def test_the_sample_works_with_every_verb_and_only_ingest_changes_a_lake(
    verb: str, fill_in: Callable[[str], list[str]], tmp_path: Path, run: Run
) -> None:
    """`query` and `export` refused the sample, and `verify` wrote tables into a lake that its line does not name."""
    before = read_state(tmp_path / "data" / "lake")
    config = [] if verb in _NO_CONFIG else ["--config", str(tmp_path / "job.toml")]

    ended = run(*verb.split(), *config, *fill_in(LINES[verb]))

    assert ended.code in {ExitCode.CLEAN, ExitCode.DAMAGE, ExitCode.MISMATCH, ExitCode.NOT_FOUND}, ended.err
    assert verb == "ingest" or before == read_state(tmp_path / "data" / "lake")


def test_every_verb_is_tried_with_the_sample() -> None:
    query = cast("click.Group", VERBS["query"].load())
    verbs = {*VERBS.keys() - {"query", "demo"}, *(f"query {name}" for name in query.commands)}

    assert verbs == LINES.keys()


# Any value of an option is accepted, or refused with a message, but never with a traceback.
VERB_OPTIONS = [option for option in OPTIONS if option.verb and option.parameter.name not in {"help", "show_config"}]
CONFIGURED = [option for option in VERB_OPTIONS if option.parameter in configurable_parameters(option.command)]
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
    for name in option.verb[:-1]:
        parent = click.Context(VERBS[name].load(), info_name=name, parent=parent)
    with suppress(click.ClickException, click.exceptions.Exit):
        option.command.make_context(option.verb[-1], words, parent=parent)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(option=st.sampled_from(VERB_OPTIONS), text=TEXTS)
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
    table = f"[{'.'.join(option.verb)}]\n" if in_table else ""
    config.write_text(f"{table}{parameter_key(option.parameter)} = {_toml(value)}\n", encoding="utf-8")
    _parse(option, ["--config", str(config)])
