"""Lines that are to be pasted begin with what this user typed."""

import ast
import re
import sys
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.console.program import program
from jobs.console.verbs import VERBS
from tests.golden import StoreOf
from tests.support.commands import Run

ROOT = Path(__file__).parents[3]
_COMMAND = re.compile(rf"rmq-lake (?:{'|'.join(VERBS)})\b")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RMQ_LAKE_PROGRAM": "./spark-submit.sh"}, "./spark-submit.sh"),
        ({"RMQ_LAKE_PROGRAM": "/opt/rocketmq-lake/spark-submit.sh"}, "/opt/rocketmq-lake/spark-submit.sh"),
        ({"RMQ_LAKE_PROGRAM": "/opt/my clone/spark-submit.sh"}, "'/opt/my clone/spark-submit.sh'"),
        ({"RMQ_LAKE_PROGRAM": ".venv/bin/rmq-lake"}, ".venv/bin/rmq-lake"),
        ({}, "python -m jobs.main"),
        ({"PYSPARK_GATEWAY_PORT": "1"}, "spark-submit jobs/main.py"),
    ],
)
def test_a_checkout_is_named_by_what_started_it_as_it_was_typed(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["jobs/main.py", "inspect"])
    for name in ("RMQ_LAKE_PROGRAM", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert expected == program()


def test_an_installed_wheel_is_named_shortly_where_its_script_is_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "rmq-lake"
    script.touch(0o755)
    monkeypatch.delenv("RMQ_LAKE_PROGRAM", raising=False)
    monkeypatch.setattr(sys, "argv", [str(script), "inspect"])

    monkeypatch.setenv("PATH", "/usr/bin")
    elsewhere = program()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin")

    assert (str(script), "rmq-lake") == (elsewhere, program())


def test_what_inspect_recommends_can_be_pasted(golden: StoreOf, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_LAKE_PROGRAM", "./spark-submit.sh")

    outcome = run("inspect", golden("b551-base"))

    assert f"./spark-submit.sh inspect --deep {golden('b551-base')}" in outcome.out
    assert "rmq-lake" not in outcome.out


@pytest.mark.parametrize(
    "arguments", [["--help"], ["ingest", "--help"], ["query", "--help"], ["ingest", "--lakes", "x"]]
)
def test_help_and_errors_show_the_command_as_it_was_typed(
    arguments: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMQ_LAKE_PROGRAM", "./spark-submit.sh")

    outcome = run(*arguments)

    text = outcome.out + outcome.err
    assert "./spark-submit.sh" in text
    assert not _COMMAND.search(text)


def test_no_message_names_a_command_that_this_user_may_not_have() -> None:
    modules = sorted((ROOT / "jobs").rglob("*.py"))

    assert [] == [(str(path.relative_to(ROOT)), text) for path in modules for text in _messages_with_a_command(path)]


def _messages_with_a_command(module: Path) -> list[str]:
    nodes = list(ast.walk(ast.parse(module.read_text(encoding="utf-8"))))
    examples = {
        id(node)
        for call in nodes
        for keyword in (call.keywords if isinstance(call, ast.Call) else [])
        if keyword.arg == "epilog"
        for node in ast.walk(keyword.value)
    }
    examples |= {
        id(node)
        for assignment in nodes
        if isinstance(assignment, ast.Assign) and any(_is_example(target) for target in assignment.targets)
        for node in ast.walk(assignment.value)
    }
    names = [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in examples
        if _COMMAND.search(node.value) and "\n" not in node.value
    ]
    # A session's name is Spark's, not the user's.
    return [text for text in names if not _COMMAND.fullmatch(text)]


def _is_example(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id in {"_EPILOG", "_EXAMPLES"}


def test_inspect_of_a_file_recommends_what_prints_it(golden: StoreOf, run: Run) -> None:
    file = golden("b551-base") / "checkpoint"
    outcome = run("inspect", file)

    assert outcome.code is ExitCode.USAGE
    assert outcome.err.splitlines()[-1].endswith(f"dump {file}")
