"""The runbook's decision tree: on each row's store one sees what the row says, and its section leads out."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.console.exit_codes import ExitCode
from tests.documentation import ROOT, commands
from tests.golden import unpack
from tests.support.commands import Run, copy_of
from tests.support.faults import without_rights
from tests.support.scenes import damaged, index_lost, queue_file_cut, queue_lost, segment_lost

RUNBOOK = ROOT / "docs" / "repair.md"
_ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(#([\w-]+)\)")


class Row(NamedTuple):
    """One row of the tree: what happened, what one runs and sees, and whether the store can be made healthy again."""

    happened: Callable[[Path], None]
    verb: str
    code: ExitCode
    sees: str  # a pattern
    leads_to: ExitCode = ExitCode.CLEAN  # of `verify`, once the section's commands have been run


def nothing(_store: Path) -> None:
    """Leave a store as it is."""


def denied(store: Path) -> None:
    (store / "commitlog" / f"{0:020d}").chmod(0)


PATHS = {
    1: Row(denied, "inspect", ExitCode.FAILED, r"not accessible|Permission denied"),
    2: Row(segment_lost, "inspect", ExitCode.DAMAGE, r"gap.*\n(.*\n)*.*no segment \d{20}", ExitCode.DAMAGE),
    3: Row(damaged, "inspect --deep", ExitCode.DAMAGE, r"body has another CRC", ExitCode.DAMAGE),
    4: Row(queue_file_cut, "inspect", ExitCode.DAMAGE, r"DAMAGED? .*consumequeue/T1/0/0{20}: cut short"),
    5: Row(queue_lost, "verify", ExitCode.MISMATCH, r"missing_queue: consumequeue/T1/0"),
    6: Row(index_lost, "inspect", ExitCode.DAMAGE, r"GAP .*index/"),
    7: Row(index_lost, "verify", ExitCode.MISMATCH, r"missing_index_entries: index/"),
    9: Row(nothing, "inspect", ExitCode.CLEAN, r"not verified"),
}
REPAIRS = {  # of a section: the commands that it tells to run in the end
    number: ["repair STORE --out OUT --apply"] for number in (4, 5, 6, 7)
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "golden").mkdir()
    return Path(copy_of(unpack("b551-base", tmp_path / "golden"), tmp_path).rename(tmp_path / "STORE"))


# What an operator does, not what has happened.
WORK = {
    "How a repair works",
    "Messages are in a tiered store",
    "Move queues to RocksDB, or back to files",
    "The disk is lost",
}


def rows() -> dict[int, tuple[str, str]]:
    return {int(number): (sees, leads) for number, sees, leads in _ROW.findall(RUNBOOK.read_text())}


def test_every_row_of_the_tree_is_a_test() -> None:
    assert set(rows()) == {*PATHS, 8}


def test_every_row_leads_to_a_section_that_is_there() -> None:
    sections = {shown.section for shown in commands(RUNBOOK)} - {"Repair and rebuild", *WORK}
    led_to = [link for _, leads in rows().values() for link in _LINK.findall(leads)]

    headings = re.findall(r"^## (.+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert {anchor for _, anchor in led_to} <= {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings
    }
    assert len({anchor for _, anchor in led_to}) == len(sections)


@pytest.mark.parametrize("number", PATHS)
def test_one_sees_what_the_row_says_and_is_led_out(number: int, store: Path, tmp_path: Path, run: Run) -> None:
    row = PATHS[number]
    row.happened(store)
    with without_rights(tmp_path, denied=row.happened is denied):
        seen = run(*row.verb.split()[:1], store, *row.verb.split()[1:])
    assert seen.code is row.code, seen.out + seen.err
    assert re.search(row.sees, seen.out + seen.err), seen.out + seen.err

    for at, command in enumerate(REPAIRS.get(number, [])):
        words = [str(store) if word == "STORE" else str(tmp_path / f"{at}") if word == "OUT" else word
                 for word in command.split()]  # fmt: skip
        done = run(*words)
        assert done.code in {ExitCode.CLEAN, ExitCode.DAMAGE}, done.out + done.err
    if row.happened is denied:
        (store / "commitlog" / f"{0:020d}").chmod(0o644)
    verified = run("verify", store)
    assert verified.code is row.leads_to, verified.out
