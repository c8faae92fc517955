"""
Put the verdicts of test runs into the tables of docs/internals/compatibility.md.

    ORACLE_VERDICTS=verdicts.jsonl python -m pytest -m oracle tests/oracle
    python -m tests.oracle.compatibility verdicts.jsonl

A run may be of some tests alone: cells that it says nothing of stay. Text, rows and columns are written by hand; a
verdict that has no cell is an error.
"""

import json
import sys
from pathlib import Path
from typing import Final, NamedTuple

PAGE: Final = Path(__file__).parents[2] / "docs" / "internals" / "compatibility.md"
_WORDS_OF_A_KIND: Final = 4  # cells that name a row of the table of store kinds


class Cell(NamedTuple):
    """A release, and what was tried on it: a column and a row, or a row and a column."""

    release: str
    way: str


def of_upgrade(first: str, second: str) -> Cell:
    return Cell(f"{first}, then {second}", "verdict")


def with_verdicts(page: str, verdicts: dict[Cell, str]) -> str:
    """Return the page with new cells; raise KeyError for verdicts that have none."""
    missing, lines, names = set(verdicts), page.split("\n"), list[str]()
    for number, line in enumerate(lines):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != len(names):
            names = cells
            continue
        ways = " | ".join(cells[:_WORDS_OF_A_KIND])
        for column, name in enumerate(names):
            found = {Cell(cells[0], name), Cell(name, ways)} & verdicts.keys()
            for cell in found if column else ():
                cells[column] = verdicts[cell]
            missing -= found
        if cells and any(cells):
            lines[number] = _row(line, cells)
    if missing:
        raise KeyError(f"{PAGE.name} has no row or column for {sorted(missing)}")
    return "\n".join(lines)


def _row(line: str, cells: list[str]) -> str:
    is_rule = not line.strip("|-: ")
    return line if is_rule else f"| {' | '.join(cells)} |"


def main() -> int:
    verdicts = {}
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        verdicts[Cell(row["release"], row["way"])] = row["verdict"]
    PAGE.write_text(with_verdicts(PAGE.read_text(encoding="utf-8"), verdicts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
