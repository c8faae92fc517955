"""Undecided files of many topics: one note for all of them, and one option that accepts them."""

import shutil
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from tests.golden import StoreOf
from tests.support.commands import Run, copy_store


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    """Return a store without the queues of T1 and T2, and without the table of topics, which would list them."""
    store = copy_store(golden("b533-base"), tmp_path)
    for topic in ("T1", "T2"):
        shutil.rmtree(store / "consumequeue" / topic)
    for path in (store / "config").glob("topics.json*"):
        path.unlink()
    return store


def test_topics_that_may_have_been_deleted_have_one_note(store: Path, run: Run, tmp_path: Path) -> None:
    """900 lost queues had 900 notes of 230 characters."""
    lines = run("repair", store, "--out", tmp_path / "repair").out.splitlines()

    (note,) = [line for line in lines if "were not rebuilt" in line]

    assert "2 topics (T1, T2)" in note
    assert "repair --accept 'consumequeue/*/*'" in note


def test_a_pattern_accepts_the_files_of_many_queues(store: Path, golden: StoreOf, run: Run, tmp_path: Path) -> None:
    run("repair", store, "--out", tmp_path / "repair", "--accept", "consumequeue/*/*", "--apply")

    for topic in ("T1", "T2"):
        assert read_files(store / "consumequeue" / topic) == read_files(golden("b533-base") / "consumequeue" / topic)


def read_files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_pattern_without_an_undecided_file_is_refused(store: Path, run: Run, tmp_path: Path) -> None:
    outcome = run("repair", store, "--out", tmp_path / "repair", "--accept", "consumequeue/T9/*")

    assert outcome.code == ExitCode.USAGE
    assert "the plan lists no such file as undecided" in outcome.err


def test_directories_that_a_printed_command_set_aside_are_known(store: Path, run: Run) -> None:
    shutil.copytree(store / "consumequeue", store / "consumequeue.replaced")

    outcome = run("inspect", store)

    assert "consumequeue.replaced: set aside by repair or --install" in outcome.out
    assert "named like segments" not in outcome.out
