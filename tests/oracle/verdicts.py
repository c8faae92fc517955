"""Write the results of `make test-matrix` into docs/internals/compatibility.md."""

import fcntl
import os
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs" / "internals" / "compatibility.md"
_WORDS_OF_A_KIND = 4  # leading cells that identify a row of the table of store kinds


def verdict(release: str, way: str, words: str) -> None:
    """Record the result of a test on a release, if `make test-matrix` requests it."""
    if "ORACLE_VERDICTS" in os.environ:
        with _PAGE.open("r+", encoding="utf-8") as page:
            fcntl.flock(page, fcntl.LOCK_EX)
            text = _with_verdict(page.read(), release, way, words)
            page.seek(0)
            page.write(text)
            page.truncate()


def _with_verdict(page: str, release: str, way: str, words: str) -> str:
    """Return the page with a new cell: the release is the row and the test the column, or the reverse."""
    lines, names, is_found = page.split("\n"), list[str](), False
    for number, line in enumerate(lines):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != len(names):
            names = cells
            continue
        for column, name in enumerate(names):
            if column and (release, way) in {(cells[0], name), (name, " | ".join(cells[:_WORDS_OF_A_KIND]))}:
                cells[column], is_found = words, True
                lines[number] = f"| {' | '.join(cells)} |"
    if not is_found:
        raise KeyError(f"{_PAGE.name} has no cell for {way} on {release}")
    return "\n".join(lines)
