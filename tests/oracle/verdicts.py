"""Write the results of `make test-matrix` into docs/internals/compatibility.csv."""

import csv
import fcntl
import os
from pathlib import Path

_FILE = Path(__file__).parents[2] / "docs" / "internals" / "compatibility.csv"


def verdict(release: str, way: str, words: str) -> None:
    """Record the result of a test on a release, if `make test-matrix` requests it."""
    if "ORACLE_VERDICTS" in os.environ:
        with _FILE.open("r+", encoding="utf-8", newline="") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            head, *rows = csv.reader(file)
            results = {(row[0], row[1]): row[2] for row in rows}
            results[release, way] = words
            file.seek(0)
            file.truncate()
            lines = ([*key, result] for key, result in sorted(results.items()))
            csv.writer(file, lineterminator="\n").writerows([head, *lines])
