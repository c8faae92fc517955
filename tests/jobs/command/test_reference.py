"""The reference is made from the code, and its examples are understood by it."""

import re
import shlex
from pathlib import Path

import click
import pytest

from jobs.command.cli import rmq_lake
from tests.support.reference import VARIABLES, page

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
