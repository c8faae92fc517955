"""`query --bodies DIR` writes each body into a file of its own, whatever ids the messages have."""

from pathlib import Path

from jobs.console.exit_codes import ExitCode
from tests.support.commands import Run
from tests.support.query_stores import Sent, stored, write_store


def _store(folder: Path, *ids: str) -> Path:
    messages = [Sent(keys=("k",), body=f"body {number}".encode(), unique_key=id_) for number, id_ in enumerate(ids)]
    return write_store(folder / "store", stored(messages))


def _written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_two_messages_with_one_id_are_two_files(tmp_path: Path, run: Run) -> None:
    store = _store(tmp_path, "SAME", "SAME", "OTHER")
    bodies = tmp_path / "bodies"
    outcome = run("query", "by-unique-key", "--store", store, "-t", "Orders", "-i", "SAME", "-a", "--bodies", bodies)

    assert outcome.code is ExitCode.CLEAN, outcome.err
    assert {b"body 0", b"body 1"} == {*_written(bodies).values()}


def test_an_id_of_three_thousand_bytes_is_a_file(tmp_path: Path, run: Run) -> None:
    ids = ("x" * 3000, "x" * 2999 + "y")
    store = _store(tmp_path, *ids)
    bodies = tmp_path / "bodies"
    for id_ in ids:
        outcome = run("query", "by-unique-key", "--store", store, "-t", "Orders", "-i", id_, "--bodies", bodies)
        assert outcome.code is ExitCode.CLEAN, outcome.err

    assert {b"body 0", b"body 1"} == {*_written(bodies).values()}


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path, run: Run) -> None:
    store = _store(tmp_path, "ID")
    bodies = tmp_path / "bodies"
    bodies.mkdir()
    (bodies / "ID").symlink_to(tmp_path / "elsewhere")
    outcome = run("query", "by-unique-key", "--store", store, "-t", "Orders", "-i", "ID", "--bodies", bodies)

    assert outcome.code is ExitCode.FAILED
    assert not (tmp_path / "elsewhere").exists()
