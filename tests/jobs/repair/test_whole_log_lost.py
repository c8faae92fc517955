"""A store whose log has no record left is recognized by its queues, or by the label of its broker."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from tests.golden import StoreOf
from tests.support.commands import Run
from tests.support.lakes import ingest_store
from tests.support.stores import list_segments, read_store_files

OTHER_PARTS = ("consumequeue", "index")


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    """Return a store with the lake of its messages next to it."""
    root = Path(shutil.copytree(golden("b551-base"), tmp_path / "store"))
    ingest_store(root, tmp_path / "lake", "a")
    return root


def _delete_log(store: Path) -> None:
    shutil.rmtree(store / "commitlog")


def _zero_log(store: Path) -> None:
    for segment in list_segments(store):
        segment.write_bytes(bytes(segment.stat().st_size))


@pytest.mark.parametrize("lose", [_delete_log, _zero_log])
def test_a_lost_log_is_restored_from_the_lake(
    lose: Callable[[Path], None], store: Path, run: Run, tmp_path: Path
) -> None:
    """`diff` and `repair` said that the store was never ingested into this lake."""
    whole = read_store_files(store)
    lose(store)
    lake = tmp_path / "lake"

    assert ExitCode.DAMAGE == run("inspect", store).code
    assert ExitCode.DAMAGE == run("verify", store).code
    assert "GAP only in the lake: 0 to " in run("diff", store, lake).out
    code = run("repair", store, "--out", tmp_path / "repair", "--lake", lake, "--apply").code

    assert ExitCode.CLEAN == code
    assert whole == read_store_files(store)
    assert ExitCode.CLEAN == run("repair", store, "--out", tmp_path / "repair", "--undo").code


def test_a_broker_whose_log_is_zeros_is_not_a_new_one(store: Path, run: Run, tmp_path: Path) -> None:
    """`ingest` reported that nothing was new after offset 0, with exit code 0."""
    _zero_log(store)

    code, out, _ = run("ingest", store, "--lake", tmp_path / "lake", "--broker", "a")

    assert ExitCode.DAMAGE == code
    assert "bytes before what the lake has, at offset 0 instead of 57,539" in out


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_checkpoint_alone_shows_that_the_log_was_lost(command: str, store: Path, run: Run) -> None:
    """Only the loss of the index was reported."""
    for part in ("commitlog", *OTHER_PARTS):
        shutil.rmtree(store / part)

    assert "the log has no segments" in run(command, store).out


def test_ingest_refuses_a_store_of_which_only_a_checkpoint_is_left(store: Path, run: Run, tmp_path: Path) -> None:
    """It reported that nothing was new."""
    for part in ("commitlog", *OTHER_PARTS):
        shutil.rmtree(store / part)

    code, _, err = run("ingest", store, "--lake", tmp_path / "lake", "--broker", "a")

    assert ExitCode.USAGE == code
    assert "a checkpoint that states messages, but no log" in err


def test_a_label_names_the_store_of_which_no_message_is_left(store: Path, run: Run, tmp_path: Path) -> None:
    """The documented option `--broker` had no effect."""
    whole = read_store_files(store)
    for part in ("commitlog", *OTHER_PARTS):
        shutil.rmtree(store / part)
    words = ("repair", store, "--out", tmp_path / "repair", "--lake", tmp_path / "lake")

    unnamed = run(*words)
    other = run(*words, "--broker", "b")
    code = run(*words, "--broker", "a", "--apply").code

    assert "Pass --broker with its label in the lake (a)" in unnamed.out
    assert "Pass --broker with its label in the lake (a)" in other.out
    assert ExitCode.CLEAN == code
    assert whole == read_store_files(store)


@pytest.mark.usefixtures("store")
def test_queues_of_another_store_contradict_a_label(golden: StoreOf, run: Run, tmp_path: Path) -> None:
    other = Path(shutil.copytree(golden("b533-retry"), tmp_path / "other"))
    _zero_log(other)

    code, _, err = run("diff", other, tmp_path / "lake", "--broker", "a")

    assert ExitCode.USAGE == code
    assert "its queues do not show which store of this lake it is" in err
