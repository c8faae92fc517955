"""What `inspect` and `verify` say of the next start of a broker, on stores of real brokers, damaged here."""

import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from jobs.command import cli
from jobs.console.exit_codes import ExitCode
from jobs.products.index.settings import Wanted
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from jobs.verify.verdict import verdict_lines
from tests.golden import StoreOf
from tests.support.stores import segments_of, stored_records

Change = Callable[[Path], object]


def _zeros(segment: int, at: int, size: int) -> Change:
    def change(store: Path) -> None:
        path = segments_of(store)[segment]
        data = path.read_bytes()
        path.write_bytes(data[:at] + bytes(size) + data[at + size :])

    return change


def _killed(store: Path) -> None:
    """Killed, and its checkpoint lost: the log is read from its first segment, every index file is deleted."""
    (store / "abort").write_bytes(b"1")
    (store / "checkpoint").unlink()


def _longer(store: Path) -> None:
    with segments_of(store)[1].open("ab") as file:
        file.write(bytes(10))


def _empty_last(store: Path) -> None:
    (store / "commitlog" / f"{4 * 16384:020d}").touch()


def _hole_in_a_queue(store: Path) -> None:
    path = store / "consumequeue/T1/0" / f"{200:020d}"  # of three files
    path.write_bytes(path.read_bytes()[:100] + bytes(20) + path.read_bytes()[120:])


@pytest.mark.parametrize(
    ("name", "release", "changes", "starts", "loses", "words"),
    [
        ("b533-base", "5.3.3", [], True, False, ""),
        ("b533-base", "5.3.3", [_zeros(-3, 5000, 50)], True, False, ""),  # a start reads the last segment alone
        ("b533-base", None, [_zeros(-3, 5000, 50)], True, True, "(one of 5.3.3 would not;"),  # but 5.2.0 would
        ("b498-base", "4.9.8", [_zeros(-3, 5000, 50)], True, True, "do not start this broker (4.9.8): it would cut"),
        ("b533-base", "5.3.3", [_zeros(1, 5000, 50), _killed], True, True, "do not start this broker (5.3.3)"),
        ("b533-base", "5.3.3", [_longer], False, False, "this broker (5.3.3) does not start, which loses nothing"),
        ("b498-base", "4.9.8", [_empty_last], False, False, "this broker (4.9.8) does not start"),
        ("b533-base", "5.3.3", [_empty_last], True, False, ""),
        ("b533-base", "5.3.3", [_longer, _zeros(1, 5000, 50), _killed], False, False, "once that is mended, do not"),
        ("b533-base", "5.3.3", [_hole_in_a_queue], True, False, "a start of this broker (5.3.3) deletes 1 queue file"),
        ("b533-dledger", "5.3.3", [], None, False, ""),
        ("b551-rockscq", "5.5.1", [], None, False, ""),
    ],
)
def test_inspect_and_verify_say_the_same_of_a_start(  # noqa: PLR0913 - a table's columns
    golden: StoreOf, tmp_path: Path, name: str, release: str | None, changes: list[Change],
    *, starts: bool | None, loses: bool, words: str,
) -> None:  # fmt: skip
    store = Path(shutil.copytree(golden(name), tmp_path / "store"))
    for change in changes:
        change(store)
    out = StringIO()

    with redirect_stdout(out):
        code = cli.main(["inspect", str(store), "--json"])
    inspected = json.loads(out.getvalue())["broker"]
    verdict = verify(VerifyRequest(str(store), Wanted(release=release)), OneByOne())
    assert verdict.start is not None
    said = verdict.start.describe()

    assert starts is said["starts"] is inspected["starts"]
    assert words in "\n".join(list(verdict_lines(verdict, 3))[-3:])
    if said["release"] == inspected["release"]:
        assert said == inspected
    if loses:
        log = [record.physical_offset for record, _ in stored_records(golden(name))]
        behind = [offset for offset in log if offset > (verdict.start.cuts_at or 0)]
        assert behind
        assert len(behind) == said["deletes_messages"]
    if starts is False or loses:
        assert ExitCode.CLEAN not in {code, verdict.exit_code}
