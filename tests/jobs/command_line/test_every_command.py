"""Each command in each mode: its JSON matches the schema, its output fits into 80 columns; the Python API; the tour."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from pyspark.sql import SparkSession

from jobs.command_line import COMMAND_TABLE, cli
from jobs.command_line.cli import run_nested
from jobs.console import process
from jobs.console.result import ExitCode, OtherRunActiveError, RequestError
from jobs.demo.tour import demo, extract, list_steps, unpack
from jobs.demo.tour import run_tour as take
from jobs.launch.engine import SetupError
from jobs.library import by_offset, ingest, open_source, verify
from jobs.typed.formats import UnknownField
from tests.golden import StoreOf
from tests.support.commands import Run, copy_store, ignore_spark_session
from tests.support.lakes import rows_of
from tests.support.merged_brokers import list_truth, make_lake
from tests.support.schemas import SCHEMAS, describe_object, generate_schemas
from tests.support.stores import damage_log_queue_and_index

COMMANDS = [
    "ingest {good} --lake {out}",
    "ingest {good} --lake {lake}",
    "ingest {good} --lake {out} --dry-run",
    "verify {good}",
    "verify {bad}",
    "rebuild-index {bad} --out {out}",
    "rebuild-index {bad} --out {out} --lost-only --dry-run",
    "rebuild-consumequeue {bad} --out {out}",
    "rebuild-consumequeue {bad} --out {out} --dry-run",
    "restore {lake} --out {out}",
    "restore {lake} --check",
    "repair {bad} --out {out} --lake {lake}",
    "repair {bad} --out {out} --lake {lake} --apply",
    "repair {bad} --out {out} --undo",
    "diff {bad} {lake}",
    "diff {good} {bad}",
    "export --store {bad} --out {out}",
    "export --store {good} --out {out} --dry-run",
    "optimize {lake} --dry-run",
    "optimize {lake}",
    "optimize {lake} --keep 36500d",
    "type {lake} --types {types}",
]
ANSWERS = [
    "inspect {bad}",
    "inspect --deep --usage {bad}",
    "catalog {lake}",
]  # no changes, so the answer is the only result
_MINUTES = ("--apply", "--undo", "restore {lake}")  # for a busy machine
_EVERY = [
    pytest.param(text, marks=[pytest.mark.slow] if any(part in text for part in _MINUTES) else [])
    for text in [*COMMANDS, *ANSWERS]
]
_RESULT = r"{}: .+ \((?:[\d.,]+ s|\d+ min \d+ s)(?:, including .+ of one-time compilation)?(?:, .+/s|, instantly)?\)"
_TORN = re.compile(r"\d\n\s+(?:[KMG]iB|bytes(?:/s)?|s|min)\b|\n\s+(?:right|findings?)$", re.MULTILINE)  # unit, column
_AS_IT_IS = ("catalog", "query", "dump", "demo", "browse")  # output to paste, lists of rows, several commands


@pytest.fixture
def words(
    golden: StoreOf, newer_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], list[str]]:
    """Return a function that replaces the placeholders of a command line with stores, a lake and a new directory."""
    ignore_spark_session(monkeypatch)
    good = golden("b551-base")
    (tmp_path / "bad").mkdir()
    bad = copy_store(good, tmp_path / "bad")
    places = {"good": good, "bad": bad, "file": damage_log_queue_and_index(bad), "out": tmp_path / "out"}
    places |= {"lake": shutil.copytree(newer_lake, tmp_path / "lake"), "types": tmp_path / "types.toml"}
    places["types"].write_text('topic.T1 = {format = "json", schema = "id bigint"}')

    return lambda text: text.format(**places).split()


def _prepare_line(text: str, words: Callable[[str], list[str]]) -> list[str]:
    """Return the words of a command line; if it is an undo, first run the command to undo."""
    if "--undo" in text:
        assert 0 == cli.main(words("repair {bad} --out {out} --lake {lake} --apply --quiet"))
    return words(text)


def _strict(schema: Any, *, is_whole: bool = False) -> Any:  # noqa: ANN401 - JSON
    """Return a schema that forbids additional properties, except where it allows them explicitly."""
    if isinstance(schema, list):
        return [_strict(item, is_whole=is_whole) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _strict(value, is_whole=is_whole and key == "anyOf") for key, value in schema.items()}
    return found | ({"unevaluatedProperties": False} if "required" in schema and not is_whole else {})


@pytest.mark.parametrize(("name", "text"), [pytest.param(*one, id=one[0]) for one in generate_schemas().items()])
def test_schemas_are_generated_from_the_classes_that_commands_print(name: str, text: str) -> None:
    assert text == (SCHEMAS / name).read_text(encoding="utf-8"), "run python -m tests.support.reference"


def test_a_field_without_a_description_has_no_schema() -> None:
    described: dict[str, str] = {"messages": "Number.", "at": "Offset."}

    with pytest.raises(LookupError, match="UnknownField: describe example"):
        describe_object(UnknownField, described)


@pytest.mark.parametrize("path", sorted(SCHEMAS.iterdir()), ids=lambda path: path.stem)
def test_schemas_describe_every_key(path: Path) -> None:
    undescribed: list[str] = []

    def check(node: dict[str, Any]) -> dict[str, Any]:
        is_schema = bool(node.keys() & {"required", "anyOf"})  # not a property with the name "properties"
        properties = node.get("properties", {}) if is_schema else {}
        undescribed.extend(key for key, one in properties.items() if not one.get("description", "").endswith("."))
        return node

    json.loads(path.read_text(encoding="utf-8"), object_hook=check)

    assert [] == undescribed


def _check(command: str, *documents: object) -> None:
    schema = json.loads((SCHEMAS / f"{command}.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    judge = Draft202012Validator(_strict(schema, is_whole=True) | {"unevaluatedProperties": command == "dump"})
    for document in documents:
        judge.validate(document)


def test_rows_of_queries_and_dumps_match_their_schemas(golden: StoreOf, run: Run) -> None:
    store = golden("b551-base")
    place = ("--json", "--store", str(store))
    queries: Iterable[tuple[str, ...]] = (
        ("by-key", "-t", "T1", "-k", "k1", *place),
        ("by-key", "-t", "T1", "-k", "nobody", *place),
        ("by-offset", "-t", "T1", "-i", "0", "-o", "3", *place),
        ("mqadmin", *place, "topicStatus", "-t", "T1"),
        ("mqadmin", *place, "queryCq", "-t", "T1", "-q", "0", "-i", "0"),
        ("decode-id", "--json", "7F000001000051AF00000000000000F2"),
    )
    for query in queries:
        _check("query", *run("query", *query).lines)
    _check("dump", *run("dump", "--json", min((store / "commitlog").iterdir())).lines)


def test_answers_of_several_brokers_match_their_schema(tmp_path: Path, run: Run) -> None:
    """The schema described neither the brokers of messages and histories, nor bodies."""
    place = ("--json", "--lake", make_lake(list_truth(), tmp_path))
    story = run("query", "story", "both", *place)
    queries: Iterable[tuple[str | Path, ...]] = (
        ("by-key", "-t", "Orders", "-k", "k3", "--body", *place),
        ("by-key", "-t", "Orders", "-k", "k3", "--body-dir", tmp_path / "bodies", *place),
        ("list", *place),
        ("mqadmin", *place, "topicStatus", "-t", "Orders"),
    )
    _check("query", *story.lines)
    for query in queries:
        answer = run("query", *query)
        _check("query", *answer.lines)
        assert answer.code == ExitCode.CLEAN

    assert story.lines[0]["brokers"] == ["broker-a", "broker-b"]


def test_every_command_that_prints_json_has_a_schema() -> None:
    context = click.Context(cli.rmq_lake)
    commands = {name: cli.rmq_lake.get_command(context, name) for name in COMMAND_TABLE}
    options = {
        name: {option for param in command.params for option in param.opts}
        for name, command in commands.items()
        if command
    }

    assert {name for name, has in options.items() if "--json" in has} | {"query"} == {
        path.stem for path in SCHEMAS.iterdir()
    }


@pytest.mark.parametrize("text", _EVERY)
def test_json_output_matches_its_schema(text: str, words: Callable[[str], list[str]], run: Run) -> None:
    command, *others = _prepare_line(text, words)

    _check(command, run(command, "--json", *others).document)


@pytest.mark.parametrize("text", _EVERY)
def test_output_fits_80_columns_and_ends_with_the_result(
    text: str, words: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    command_words = _prepare_line(text, words)
    terminal = StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")

    cli.main(command_words)

    output = click.unstyle(terminal.getvalue())
    lines = output.splitlines()
    command = command_words[0]
    if command not in _AS_IT_IS:
        assert [] == [line for line in lines if len(line) > 80 and len(line.removesuffix(" \\").split()) > 1]
        assert [] == _TORN.findall(output)
    if text in COMMANDS:
        begun = max(number for number, line in enumerate(lines) if line.startswith(f"{command}: "))
        result = " ".join(line.strip() for line in lines[begun:])

        assert re.fullmatch(_RESULT.format(command), result), result


@pytest.mark.parametrize(
    "text",
    [
        "inspect {bad}",
        "verify {bad}",
        "repair {bad} --out {out} --lake {lake}",
        "export --store {bad} --out {out}",
    ],
)
def test_a_closed_pipe_does_not_change_the_verdict(
    text: str, words: Callable[[str], list[str]], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verify STORE | head -3` must not look healthy to a script with `pipefail`."""
    expected = run(*words(text)).code
    shutil.rmtree(words("{out}")[0], ignore_errors=True)
    Path(words("{out}")[0]).unlink(missing_ok=True)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        if text.startswith("inspect"):  # a new process prepares its own streams
            code = subprocess.run(
                [sys.executable, "-m", "jobs.main", *words(text)], stdout=pipe, check=False
            ).returncode
        else:
            monkeypatch.setattr("sys.stdout", process._open_discarding_stream(writing, sys.stdout))  # noqa: SLF001 - as `main` does
            code = cli.main(words(text))
            sys.stdout.flush()

    assert expected is not ExitCode.CLEAN
    assert expected == code


@pytest.mark.parametrize(
    ("work", "line"),
    [
        ("jobs.ingest.run.ingest", "ingest {good} --lake {out}"),
        ("jobs.ingest.follow.Follower.run", "ingest {good} --lake {out} --follow"),
        ("jobs.typed.run.type_lake", "type {lake} --types {types}"),
    ],
)
def test_a_run_that_another_run_blocks_has_its_own_exit_code(
    work: str, line: str, words: Callable[[str], list[str]], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, Mock(side_effect=OtherRunActiveError("another run holds it")))
    outcome = run(*words(line))

    assert ExitCode.HELD == outcome.code
    assert f"rmq-lake: {words(line)[1]}: another run holds it\n" == outcome.err


def test_a_store_is_verified_ingested_and_queried_from_python(
    golden: StoreOf, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignore_spark_session(monkeypatch)
    store = golden("b551-base")

    verdict = verify(store)
    first = ingest(store, tmp_path / "lake", broker="b")
    second = ingest(store, tmp_path / "lake", broker="b")
    # A string is one topic or one directory, not a list of letters.
    some = ingest(store, tmp_path / "some", topics="T1", commitlog=str(store / "commitlog"), bodies=False)
    with open_source(lake=tmp_path / "lake") as source:
        (message,) = by_offset(source, "T1", 0, 3).messages

    printed = run("verify", store, "--json").document

    assert printed["severity"] == verdict.severity.value
    assert printed["findings"] == [finding.to_dict() for finding in verdict.findings]
    assert 0 < some.messages < first.messages
    assert second.messages == 0
    assert message.topic == "T1"
    assert message.record.queue_offset == 3
    assert {"T1"} == {row["topic"] for row in rows_of(tmp_path / "some", "messages", "topic")}


@pytest.mark.parametrize(
    ("function", "wrong", "message"),
    [
        (ingest, {"lake": "."}, "Choose a location outside the store"),
        (ingest, {"lake": "lake"}, "Choose a location outside the store"),
        (ingest, {"lake": "commitlog/lake"}, "Choose a location outside the store"),
        (ingest, {"lake": "../lake", "max_rate": 0}, "max_rate is 0.* must be at least"),  # it waited forever
        (ingest, {"lake": "../lake", "min_age_ms": -1}, "min_age_ms is -1.* must be at least"),
        (verify, {"hash_slots": 0}, "hash_slots is 0.* must be at least"),
        (verify, {"index_num": 1}, "index_num is 1.* must be at least"),
    ],
)
def test_a_wrong_request_from_python_is_refused_before_anything_is_written(
    function: Callable[..., object], wrong: dict[str, Any], message: str, store: Path
) -> None:
    before = sorted(store.parent.rglob("*"))
    request = wrong | ({"lake": store / wrong["lake"]} if "lake" in wrong else {})

    with pytest.raises(RequestError, match=message):
        function(store, **request)

    assert before == sorted(store.parent.rglob("*"))


# The expected output of each step.
SHOWN = {
    "inspect": "● no problems found; run `verify` to confirm",
    "ingest": "65 messages, offsets 0 to 57,539",
    "again": "nothing new after offset 57,539",
    "verify": ": healthy",
    "query": "0A010203075F4E0E2F2A6380678E0019",
    "lose": "moved 20261120074239491",
    "miss": "the log itself is searched there",
    "rebuild": "20261120074239491: full file with 19 keys, proven",
    "compare": "both have SHA-256 a78fbdbeb7df6834",  # the beginning of the file's SHA-256 in the store's PROVENANCE
    "find": "0A010203075F4E0E2F2A6380678E0019",
    "lake": "0A010203075F4E0E2F2A6380678E0019",
    "orders": "5 messages",
    "declare": '[topic."Orders"]',
    "type": "Orders → typed/Orders: 4 rows, 1 dead letter\n    1 message: invalid JSON",
    "ask": "Ada       2         13.50\nGrace     2         37.25\n",
}


def test_the_tour_completes_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.demo.tour.why_spark_cannot_start", lambda: "Java was not found.")
    result = CliRunner().invoke(demo, [str(tmp_path / "tour")], standalone_mode=False)
    parts = re.split(r"\n── \d+ of \d+: .*\n", result.output)

    assert result.return_value is ExitCode.CLEAN, result.output
    assert "because Spark cannot start. Java was" in parts[0]
    assert "Spark ran" not in result.output
    for (step, text), part in zip(SHOWN.items(), parts[1:], strict=True):
        assert text in part, step


def test_the_tour_completes_with_the_expected_results(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del spark
    result = CliRunner().invoke(demo, [str(tmp_path / "tour")], standalone_mode=False)
    parts = re.split(r"\n── \d+ of \d+: .*\n", result.output)[1:]

    assert result.return_value is ExitCode.CLEAN, result.output
    assert len(SHOWN) == len(parts)
    for (step, text), part in zip(SHOWN.items(), parts, strict=True):
        assert text in part, step

    assert "0A010203075F4E0E2F2A6380678E0019" in parts[list(SHOWN).index("miss")]
    assert result.output.count("Spark ran ") == 2
    assert "does not need Spark" in parts[list(SHOWN).index("rebuild")]
    (story,) = re.findall(r"^.* (query story .*)$", result.output, re.MULTILINE)

    assert run_nested([*shlex.split(story), "--time-zone", "UTC"]) is ExitCode.CLEAN
    half = "half message of the producer group pg for T1 queue 1, returned to the queue after transaction check 1"

    assert f"2026-11-20 07:43:03,761  {half}" in (capsys.readouterr().out)
    assert {"store", "lake"} <= {path.name for path in (tmp_path / "tour").iterdir()}


def test_a_failed_tour_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="'inspect' ended with exit code 1"):
        take(tmp_path, lambda _: ExitCode.FAILED)


def test_a_file_that_differs_from_the_broker_s_is_reported(tmp_path: Path) -> None:
    unpack(tmp_path)
    steps: dict[str, Callable[[Path], str]] = {name: step for name, _, step in list_steps(tmp_path) if callable(step)}
    steps["lose"](tmp_path)
    (lost,) = (tmp_path / "lost").iterdir()
    (tmp_path / "index").mkdir()
    shutil.copy(lost, tmp_path / "index" / lost.name)
    (tmp_path / "index" / lost.name).write_bytes(lost.read_bytes()[:-1] + b"\1")

    with pytest.raises(SetupError, match="do not have the same bytes"):
        steps["compare"](tmp_path)


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="Python has this filter since 3.11.4")
@pytest.mark.parametrize("name", ["../outside", "store/../../outside"])
def test_an_archive_with_a_path_outside_its_directory_is_refused(name: str, tmp_path: Path) -> None:
    archive = tmp_path / "store.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("store/first"))
        tar.addfile(tarfile.TarInfo(name))
    directory = tmp_path / "deep" / "folder"
    directory.mkdir(parents=True)

    with pytest.raises(tarfile.OutsideDestinationError):
        extract(archive, directory)

    assert ["first"] == [path.name for path in tmp_path.rglob("*") if path.is_file() and path != archive]
