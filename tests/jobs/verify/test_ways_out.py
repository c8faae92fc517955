"""Each fault has a way out, and the output prints the command for it."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from tests.golden import StoreOf
from tests.support.commands import Run, copy_store, overwrite
from tests.support.stores import list_segments


def commands_in(text: str, program: str) -> list[str]:
    """Return the printed command lines of a program; lines of one command are joined."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line[line.index(program) :] for line in lines if line.strip().startswith(program)]


def test_the_command_that_moves_a_file_works_for_a_name_with_control_characters(
    golden: StoreOf, tmp_path: Path, run: Run
) -> None:
    """It contained the escapes that are shown in place of such characters, and named no file."""
    store = copy_store(golden("b533-base"), tmp_path)
    (store / "commitlog" / "\x1b[2J it's\n\\x").write_bytes(b"stray")

    (move,) = commands_in(run("verify", store).out, "mv -n")
    note = next(line for line in run("inspect", store).out.splitlines() if "mv -n" in line)
    words = [
        subprocess.run(["bash", "-c", f"printf '%s/' {command}"], check=True, capture_output=True).stdout
        for command in (move, note[note.index("mv -n") :])
    ]
    assert words[0] == words[1]

    subprocess.run(["bash", "-c", move], check=True)

    assert run("verify", store).code == ExitCode.CLEAN


def test_all_stray_files_of_the_log_are_named_with_the_command_that_moves_them(
    golden: StoreOf, tmp_path: Path, run: Run
) -> None:
    """`verify`, `repair` and `repair --apply` had sent the user in a circle, and named only one file."""
    store = copy_store(golden("b533-base"), tmp_path)
    for name in (".00000000000000000000.Xy12", "core.4711"):
        (store / "commitlog" / name).write_bytes(b"stray")

    verified = run("verify", store)
    moves = commands_in(verified.out, "mv -n")

    assert verified.code == ExitCode.DAMAGE
    assert len(moves) == 2
    assert commands_in(run("repair", store, "--out", tmp_path / "repair").out, "mv -n") == moves
    assert all(f"mv -n {store}/commitlog/{name}" in run("inspect", store).out for name in ("core.4711",))

    for command in moves:
        subprocess.run(shlex.split(command), check=True)

    assert run("verify", store).code == ExitCode.CLEAN


def test_damage_without_a_lake_is_bridged_by_the_printed_command(golden: StoreOf, tmp_path: Path, run: Run) -> None:
    """Only a bare `repair` had named `--bridge`, so the broker was started, and deleted intact messages."""
    store = copy_store(golden("b498-base"), tmp_path)
    (store / "abort").touch()
    segment = list_segments(store)[1]
    overwrite(segment, 4096, bytes(4096))

    for command in ("verify", "inspect"):
        assert any("--bridge" in line for line in commands_in(run(command, store).out, "rmq-lake repair"))


def test_queues_lost_from_rocksdb_are_not_rebuilt_as_files(situation: StoreOf, tmp_path: Path, run: Run) -> None:
    """Such a broker does not read queue files; it creates the rows again when it finds no database."""
    store = copy_store(situation("b551-rockscq-clean") / "store", tmp_path)
    shutil.rmtree(store / "consumequeue")

    assert "rebuild-consumequeue" not in run("inspect", store).out


def test_index_files_that_the_next_start_deletes_are_kept_by_the_printed_command(
    golden: StoreOf, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = copy_store(golden("b551-base"), tmp_path)
    (store / "abort").touch()
    overwrite(store / "checkpoint", 16, bytes(8))
    before = run("verify", "--json", store).document["broker"]

    assert before["loses_keys"] is not None

    (command,) = commands_in(run("verify", store).out, "rmq-lake rebuild-index")

    assert command in run("inspect", store).out.replace("\\\n", " ")
    run(*shlex.split(command)[1:])

    assert run("verify", "--json", store).document["broker"]["loses_keys"] is None
