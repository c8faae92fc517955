"""A lake whose runs selected no message is a lake, although it has no table of messages."""

import shutil
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from tests.golden import StoreOf
from tests.support.commands import Run


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path, run: Run) -> Path:
    """Return a store with its lake next to it, for which all topics of users are left out."""
    root = Path(shutil.copytree(golden("b551-timer"), tmp_path / "store"))
    run("ingest", root, "--lake", tmp_path / "lake", "--broker", "a", "--exclude-topics", "T1")
    return root


def test_diff_compares_a_store_with_it(store: Path, run: Run, tmp_path: Path) -> None:
    """It was called a directory that is not a store."""
    code, out, _ = run("diff", store, tmp_path / "lake")

    assert ExitCode.CLEAN == code
    assert "0 records identical on both sides" in out


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    "words", [("query", "sql", "SELECT 1"), ("export", "--out", "-"), ("query", "message", "-i", "x")]
)
def test_commands_that_need_messages_state_that_it_has_none(words: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    """It was called a directory that is not a lake."""
    code, _, err = run(*words, "--lake", tmp_path / "lake")

    assert ExitCode.FAILED == code
    assert "the lake has no messages: its runs selected none" in err
    assert "not a lake" not in err
