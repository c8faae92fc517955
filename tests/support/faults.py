"""
The tables of docs/reference/faults.md: the result of each command for each kind of damage.

    python -m tests.support.faults

Every fault is planted in a copy of one healthy store that a real broker wrote; every command runs in this process,
without Spark. `test_faults.py` compares the page with the current results.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from jobs.console.result import ExitCode
from jobs.verify.log import UNCHECKED_FIELDS
from tests.golden import unpack
from tests.support.commands import ROOT, run_in_process
from tests.support.fault_kinds import (
    DAMAGED_MESSAGE,
    DAMAGED_UNIT,
    NO_CHECKSUM,
    NO_FAULT,
    QUEUE_FILE,
    STALE,
    STORE,
    Fault,
    Part,
    as_other_user,
    read_faults,
)
from tests.support.lakes import table_of
from tests.support.reference import fill_page

STARTED = ROOT / "tests" / "oracle" / "recorded_starts.jsonl"


class Start(NamedTuple):
    """A recorded start of a broker on a damaged store."""

    case: str
    release: str
    started: bool
    lost: int
    deleted: int

    @property
    def is_drawn(self) -> bool:
        """Whether its faults are random: their names contain a seed."""
        return bool(re.search(r":\d", self.case))


def recorded_starts() -> list[Start]:
    return [Start(**json.loads(line)) for line in STARTED.read_text(encoding="utf-8").splitlines()]


class Cell(NamedTuple):
    """The result of a command."""

    code: ExitCode | None  # None: the command does not read such files
    words: str = ""

    @property
    def text(self) -> str:
        if self.code is None:
            return "does not read it"
        return self.words or _WORDS[self.code]


_WORDS = {
    ExitCode.CLEAN: "healthy",
    ExitCode.FAILED: "**not accessible** (1)",
    ExitCode.USAGE: "**refused** (2)",
    ExitCode.DAMAGE: "**damage or gap** (3)",
    ExitCode.MISMATCH: "**contradiction** (4)",
    ExitCode.NOT_FOUND: "**not found** (5)",
}


# --- commands --------------------------------------------------------------------------------------------------------

_RELEASE = ("--release", "5.3.3")
_HERE = (*_RELEASE, "--engine", "local", "--quiet")
_GEOMETRY = ("--hash-slots", "100", "--index-num", "20")


def _command(*arguments: str | Path) -> tuple[ExitCode, str]:
    code, out, err = run_in_process(*arguments)
    return ExitCode(code), out + err


def _cell(word: str, *arguments: str | Path) -> Cell:
    """Run a command, and return its exit code, with *word* as the text of a clean result."""
    code, text = _command(*arguments)
    is_failure = code is ExitCode.FAILED and "Permission denied" not in text
    return Cell(code, "**failed** (1)" if is_failure else word if code is ExitCode.CLEAN else "")


def _inspect(store: Path, _fault: Fault, *options: str) -> Cell:
    code, text = _command("inspect", store, *options)
    return Cell(code, "not verified" if code is ExitCode.CLEAN and "no problems found" in text else "")


def _verify(store: Path, fault: Fault) -> Cell:
    code, text = _command("verify", store, "--json", *_HERE)
    if code is not ExitCode.CLEAN:
        return Cell(code)
    verdict = json.loads(text)
    is_free = fault.unseen == NO_CHECKSUM and any(UNCHECKED_FIELDS in note for note in verdict["notes"].get("log", ()))
    return Cell(code, "healthy (no checksum)" if is_free else verdict["severity"])


def _dump(store: Path, fault: Fault) -> Cell:
    if not (store / fault.file).is_file() or fault.part is Part.CHECKPOINT:
        return Cell(None)
    return _cell("prints it", "dump", store / fault.file, *(_GEOMETRY if fault.part is Part.INDEX else ()))


def _ingest(store: Path, _fault: Fault) -> Cell:
    lake = store.parent / "lake"
    cell = _cell("done", "ingest", store, "--lake", lake, "--quiet", *_RELEASE)
    if cell.code is not ExitCode.CLEAN:
        return cell
    unexpected = sorted({*table_of(lake / "consume_queue").column("status").to_pylist()} - {"matched", "expired"})
    return Cell(cell.code, f"**rows say: {', '.join(unexpected)}**") if unexpected else cell


def _query(store: Path, fault: Fault) -> Cell:
    number = DAMAGED_UNIT if fault.part is Part.QUEUES else DAMAGED_MESSAGE
    options = ("-t", "T1", "-b", "b0", "-i", "0", "-o", str(number))
    return _cell("answers", "query", "by-offset", *options, "--store", store)


def _rebuild_index(store: Path, _fault: Fault) -> Cell:
    options = ("--lost-only",) if (store / "index").exists() else ()
    return _cell("done", "rebuild-index", store, "--out", store.parent / "index", *_GEOMETRY, *_HERE, *options)


def _rebuild_queues(store: Path, _fault: Fault) -> Cell:
    options = ("--consume-queue-size", str(QUEUE_FILE), "--lost-only")
    return _cell("done", "rebuild-consumequeue", store, "--out", store.parent / "queues", *_HERE, *options)


COMMANDS: dict[str, Callable[[Path, Fault], Cell]] = {
    "inspect": _inspect,
    "inspect --deep": lambda store, fault: _inspect(store, fault, "--deep"),
    "verify": _verify,
    "dump": _dump,
    "ingest": _ingest,
    "query": _query,
    "rebuild-index --lost-only": _rebuild_index,
    "rebuild-consumequeue --lost-only": _rebuild_queues,
}
_NOT_READ: dict[str, set[Part]] = {
    "ingest": {Part.CHECKPOINT, Part.INDEX},
    "query": {Part.CHECKPOINT, Part.INDEX},
    "rebuild-index --lost-only": {Part.CHECKPOINT, Part.QUEUES},
    "rebuild-consumequeue --lost-only": {Part.CHECKPOINT, Part.INDEX},
}


def run_command(command: str, healthy: Path, fault: Fault, directory: Path) -> Cell:
    if fault.part in _NOT_READ.get(command, ()):
        return Cell(None)
    with tempfile.TemporaryDirectory(dir=directory) as name:
        work = Path(name)
        work.chmod(0o777)
        store = Path(shutil.copytree(healthy, work / "store"))
        fault.plant(store)
        with as_other_user(work, denied="denied" in fault.name):
            return COMMANDS[command](store, fault)


# --- the page --------------------------------------------------------------------------------------------------------

PAGE = ROOT / "docs" / "reference" / "faults.md"


def matrix(every: int = 1) -> Iterator[tuple[Fault, dict[str, Cell]]]:
    """Yield the results of all commands for the undamaged store, and then for each *every*-th fault."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)  # where access is denied, commands of root run as another user
        healthy = unpack(STORE, directory)
        for fault in (NO_FAULT, *read_faults())[::every]:
            yield fault, {command: run_command(command, healthy, fault, directory) for command in COMMANDS}


def line(fault: Fault, cells: dict[str, Cell]) -> str:
    return f"| {fault.name} | " + " | ".join(cells[command].text for command in COMMANDS) + " |"


def page(rows: Sequence[tuple[Fault, dict[str, Cell]]]) -> str:
    """Return the page with its current tables."""
    lines: list[str] = []
    for part in Part:
        some = [(fault, cells) for fault, cells in rows if fault.part is part]
        lines += [f"## {part.value}", "", "| fault | " + " | ".join(f"`{command}`" for command in COMMANDS) + " |"]
        lines.append("|---" * (len(COMMANDS) + 1) + "|")
        notes: dict[str, list[str]] = {}
        for fault, cells in some:
            lines.append(line(fault, cells))
            if fault.unseen and fault is not NO_FAULT:
                notes.setdefault(fault.unseen, []).append(fault.name)
        lines.append("")
        lines += [f"{reason}: {', '.join(names)}.\n" for reason, names in notes.items()]
    parts = [
        ("if the store has no evidence.\n\n", "## The broker's next start\n", "\n".join([*lines, ""])),
        ("say `do not start the broker on this store`.\n\n", "", "\n".join([*_starts(), ""])),
    ]
    return fill_page(PAGE, parts)


_LEFT_OUT = """\
Not in the table are {others} of the {starts} starts, with chosen combinations of faults or after a kill without damage,
and {drawn} on stores that had one to four random faults and had not been repaired ({refused} refused, {lost} with
messages deleted).
"""


def _starts() -> Iterator[str]:
    """Yield the recorded starts of brokers on damaged stores."""
    rows, others = recorded_starts(), 0
    releases = sorted({row.release for row in rows})
    heads = [f"{release}, {state}" for release in releases for state in ("closed", "killed")]
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        name, killed, _ = row.case.partition(f" + {STALE}")
        if not row.is_drawn and " + " not in name and not name.startswith("killed"):
            text = "refused" if not row.started else f"**{row.lost} lost**" if row.lost else "starts"
            cells.setdefault(name, {})[f"{row.release}, {'killed' if killed else 'closed'}"] = text
        elif not row.is_drawn:
            others += 1
    drawn = [row for row in rows if row.is_drawn]
    refused, lost = sum(not row.started for row in drawn), sum(row.lost > 0 for row in drawn)
    yield _LEFT_OUT.format(starts=len(rows), others=others, drawn=len(drawn), refused=refused, lost=lost)
    yield "| damage | " + " | ".join(heads) + " |"
    yield "|---" * (len(heads) + 1) + "|"
    for name in sorted(cells):
        yield f"| {name} | " + " | ".join(cells[name].get(head, "") for head in heads) + " |"


if __name__ == "__main__":
    PAGE.write_text(page(list(matrix())), encoding="utf-8")
